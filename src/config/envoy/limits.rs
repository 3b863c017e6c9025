//! The policies that count Envoy's limits.
//!
//! All limits of a unit share one name of counters, and the key holds the domain and the
//! descriptor. So a changed limit, or one of a request, keeps the count of its descriptor.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::unit::Unit;
use crate::limit::key::push_escaped;
use crate::limit::lists::{Line, Lists};
use crate::limit::matches::{Matches, Pattern};
use crate::limit::policy::{Algorithm, Options, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};

/// The policy that denies what has a limit of zero.
pub const ZERO: &str = "envoy:zero";

/// The name of the policy for limits that requests bring in this unit. The names of rules have a
/// `/` behind the domain.
pub fn of_requests(unit: Unit) -> String {
    format!("envoy:requests:{}", unit.name())
}

/// How all limits count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) algorithm: Algorithm,
    /// How long a check waits for the store.
    pub(super) deadline: Duration,
}

/// The name of a limit's policy, for metrics and logs. Names of the configuration have no `:`.
pub(super) fn name(path: &[(&str, &str)], domain: &str) -> String {
    const SPECIAL: &[u8] = b"%/= \t\r\n";
    let mut name = "envoy:".to_owned();
    push_escaped(&mut name, domain, SPECIAL);
    for (key, value) in path {
        name.push('/');
        push_escaped(&mut name, key, SPECIAL);
        if !value.is_empty() {
            name.push('=');
            push_escaped(&mut name, value, SPECIAL);
        }
    }
    name
}

/// The labels that the mapper of Envoy Gateway gives a rule: the domain and the first two levels.
/// The reference replaces these two marks.
pub(super) fn labels(path: &[(&str, &str)], domain: &str) -> Arc<[String]> {
    let level =
        |(key, value): &(&str, &str)| if value.is_empty() { (*key).to_owned() } else { format!("{key}_{value}") };
    let levels = path.iter().take(2).map(level);
    [domain.to_owned()].into_iter().chain(levels).map(|label| label.replace([':', '|'], "_")).collect()
}

impl Counts {
    /// The policy of one limit.
    pub(super) fn policy(self, name: String, requests_per_unit: u32, unit: Unit, shadow: bool) -> Policy {
        let quota = Quota {
            name: unit.name().to_owned(),
            limit: NonZeroU64::new(requests_per_unit.into()).unwrap_or(NonZeroU64::MIN),
            window: unit.window(),
            rule: match self.algorithm {
                Algorithm::SlidingWindow => Rule::SlidingWindow,
                _ => Rule::FixedWindow(Anchor::Clock),
            },
        };
        let lists = (requests_per_unit == 0).then(|| Arc::new(deny_all()));
        // No name of the configuration contains `~`.
        let counters = Some(format!("envoy~{}", unit.name()).into());
        let options = Options { shadow, lists, counters, ..Options::default() };
        Policy { options, ..Policy::new(name, self.algorithm, vec![quota], self.deadline) }
    }

    /// The policies for limits of requests.
    pub(super) fn shared_policies(self) -> impl Iterator<Item = Policy> {
        let of_unit = move |unit| {
            let policy = self.policy(of_requests(unit), u32::MAX, unit, false);
            Policy { options: Options { inline: true, ..policy.options.clone() }, ..policy }
        };
        let zero = self.policy(ZERO.to_owned(), 0, Unit::Second, false);
        Unit::ALL.into_iter().map(of_unit).chain([zero])
    }
}

fn deny_all() -> Lists<Arc<Policy>> {
    let mut deny = Matches::default();
    deny.insert(Pattern::All, Line(0));
    Lists { deny, ..Lists::default() }
}
