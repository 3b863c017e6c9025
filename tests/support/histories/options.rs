//! The options from which histories are made. A search may leave some out, so that it finds one
//! fault beside others.

use tollgate::limit::policy::Algorithm;

use crate::support::dice::Dice;

/// An option of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    Plans,
    Override,
    /// Plans, overrides and reloads with other windows than the policy.
    Windows,
    /// Token buckets with several rates.
    Rates,
    /// Policies with more than one quota.
    Several,
    Reload,
    /// Reloads that add, change and remove `hold`.
    HoldReload,
    Holds,
    Release,
    PlacesOnly,
    Ids,
    Waits,
    Queue,
    Leases,
    Look,
    Usage,
    Drain,
    Refund,
    RefundId,
    Settle,
    Renew,
    Reset,
    All,
    Undo,
    Reserve,
    Batch,
    /// Sliding counters that all policies share.
    Shared,
    /// Steps back of the clock.
    Back,
    /// Steps forward beyond every window.
    Long,
}

const WORDS: [(&str, Feature); 29] = [
    ("plans", Feature::Plans),
    ("override", Feature::Override),
    ("windows", Feature::Windows),
    ("rates", Feature::Rates),
    ("several", Feature::Several),
    ("reload", Feature::Reload),
    ("hold-reload", Feature::HoldReload),
    ("holds", Feature::Holds),
    ("release", Feature::Release),
    ("places-only", Feature::PlacesOnly),
    ("ids", Feature::Ids),
    ("waits", Feature::Waits),
    ("queue", Feature::Queue),
    ("leases", Feature::Leases),
    ("look", Feature::Look),
    ("usage", Feature::Usage),
    ("drain", Feature::Drain),
    ("refund", Feature::Refund),
    ("refund-id", Feature::RefundId),
    ("settle", Feature::Settle),
    ("renew", Feature::Renew),
    ("reset", Feature::Reset),
    ("all", Feature::All),
    ("undo", Feature::Undo),
    ("reserve", Feature::Reserve),
    ("batch", Feature::Batch),
    ("shared", Feature::Shared),
    ("back", Feature::Back),
    ("long", Feature::Long),
];

const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("sliding-window", Algorithm::SlidingWindow),
    ("fixed-window", Algorithm::FixedWindow),
    ("token-bucket", Algorithm::TokenBucket),
    ("sliding-log", Algorithm::SlidingLog),
    ("sliding-counter", Algorithm::SlidingCounter),
];

/// The options of a search.
#[derive(Debug, Clone)]
pub struct Filter {
    features: Vec<Feature>,
    algorithms: Vec<Algorithm>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            features: WORDS.iter().map(|(_, feature)| *feature).collect(),
            algorithms: ALGORITHMS.iter().map(|(_, algorithm)| *algorithm).collect(),
        }
    }
}

impl Filter {
    /// All options, or those of the variable `TOLLGATE_HISTORIES`.
    pub fn of_environment() -> Self {
        std::env::var("TOLLGATE_HISTORIES").map_or_else(|_| Self::default(), |words| Self::of(&words))
    }

    /// The options that these words name, or all but those with a `-`. Algorithms count apart.
    pub fn of(words: &str) -> Self {
        let all: Vec<&str> = words.split_whitespace().collect();
        let known = |word: &&str| {
            let word = word.trim_start_matches('-');
            WORDS.iter().any(|(name, _)| *name == word) || ALGORITHMS.iter().any(|(name, _)| *name == word)
        };
        let unknown = all.iter().find(|word| !known(word));
        assert!(unknown.is_none(), "{unknown:?} is no option of a history: {:?}", WORDS.map(|(name, _)| name));
        Self { features: chosen(&WORDS, &all), algorithms: chosen(&ALGORITHMS, &all) }
    }

    /// Some of the options, for one history: few of them together meet more often.
    #[must_use]
    pub fn some(&self, dice: &mut Dice) -> Self {
        let features = self.features.iter().copied().filter(|_| dice.below(4) > 0).collect();
        Self { features, ..self.clone() }
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }
}

fn chosen<T: Copy>(all: &[(&str, T)], words: &[&str]) -> Vec<T> {
    let is_named = |name: &str| words.contains(&name);
    let is_left_out = |name: &str| words.iter().any(|word| word.strip_prefix('-') == Some(name));
    let names_some = all.iter().any(|(name, _)| is_named(name));
    all.iter()
        .filter(|(name, _)| if names_some { is_named(name) } else { !is_left_out(name) })
        .map(|(_, one)| *one)
        .collect()
}
