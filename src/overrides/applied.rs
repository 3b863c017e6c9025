//! How a policy applies to a key: by its file, by an override, by a plan, or by its own quotas.
//!
//! `deny` beats `allow`, of the file or of an override. Both beat the quotas of the check. Next is
//! the most exact match, of an override before the file. The plan of the check is last.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::entry::{Entry, Name};
use super::map::{Key, Live, Map};
use crate::limit::lists::{Found, List};
use crate::limit::matches::{Matches, Pattern};
use crate::limit::policy::{Listed, Policy};
use crate::limit::quota::{Quota, Rule};

/// How a policy applies to a key.
#[derive(Debug)]
pub struct Applied<'a> {
    /// Counts the key, unless a list decides.
    pub policy: Arc<Policy>,
    /// The verdict without counting.
    pub listed: Option<Listed>,
    pub by: By<'a>,
}

/// The reason why a key gets its quotas or its verdict.
#[derive(Debug)]
pub enum By<'a> {
    /// An entry of the lists in the file.
    File(Found<'a, Arc<Policy>>),
    /// An override.
    Entry(Arc<Entry>),
    /// The quotas, or the plan, of the check.
    Check,
    Policy,
}

/// The quotas that a check brings instead of those of its policy.
#[derive(Debug, Clone, Default)]
pub struct Brought {
    /// With counters of their own.
    pub own: Option<Arc<Policy>>,
    /// The quotas of the plan that the check names.
    pub plan: Option<Arc<Policy>>,
}

impl Map {
    pub(super) fn applied<'a>(&self, policy: &'a Arc<Policy>, key: Key<'_>, brought: Brought) -> Applied<'a> {
        let mut file = policy.found(key.normalised, key.written);
        let live = self.find(policy, key);
        if let Some(listed) = by_list(policy, &mut file, live.as_ref()) {
            return listed;
        }
        if let Some(own) = brought.own {
            return Applied { policy: own, listed: None, by: By::Check };
        }
        by_match(file, live).unwrap_or_else(|| match brought.plan {
            Some(plan) => Applied { policy: plan, listed: None, by: By::Check },
            None => Applied { policy: policy.clone(), listed: None, by: By::Policy },
        })
    }

    /// The policy that counts a key, whether or not a list decides for it.
    pub(super) fn counting(&self, policy: &Arc<Policy>, key: Key<'_>) -> Arc<Policy> {
        let file = policy.counting(key.normalised, key.written);
        match self.find(policy, key).and_then(|live| live.counted) {
            Some(counted) if Arc::ptr_eq(file, policy) => counted,
            _ => file.clone(),
        }
    }

    /// How the policy applies now to all keys of an entry's match: by the entry itself, or by one
    /// that covers them.
    pub(super) fn present<'a>(&self, policy: &'a Arc<Policy>, name: &Name) -> Applied<'a> {
        let mut file = name.pattern().and_then(|pattern| covering(policy, pattern));
        let live = self.covering(policy, name);
        let by_policy = || Applied { policy: policy.clone(), listed: None, by: By::Policy };
        by_list(policy, &mut file, live.as_ref()).or_else(|| by_match(file, live)).unwrap_or_else(by_policy)
    }

    /// The prefixes that count keys of a new network, which would decide for them instead. A
    /// network or a key that decides for the whole network already does so.
    pub(super) fn outranked<'a>(&self, policy: &'a Arc<Policy>, name: &Name, present: &By<'_>) -> Vec<Applied<'a>> {
        let decides = match present {
            By::File(found) => found.pattern,
            By::Entry(entry) => entry.name.pattern().unwrap_or(Pattern::All),
            By::Check | By::Policy => Pattern::All,
        };
        let (Some(Pattern::Network(network)), Pattern::Prefix(_) | Pattern::All) = (name.pattern(), decides) else {
            return Vec::new();
        };
        let overrides = policy.options.lists.as_deref().map(|lists| &lists.overrides);
        let of_file = overrides.into_iter().flat_map(|overrides| overrides.prefixes_within(network));
        let of_file = of_file.map(|(pattern, (policy, line))| Applied {
            policy: policy.clone(),
            listed: None,
            by: By::File(Found { list: List::Override(policy), pattern, line: *line }),
        });
        let live = self.counted_within(policy, network).into_iter().filter_map(|Live { entry, counted }| {
            Some(Applied { policy: counted?, listed: None, by: By::Entry(entry) })
        });
        of_file.chain(live).collect()
    }
}

fn by_list<'a>(
    policy: &Arc<Policy>,
    file: &mut Option<Found<'a, Arc<Policy>>>,
    live: Option<&Live>,
) -> Option<Applied<'a>> {
    [Listed::Deny, Listed::Allow].into_iter().find_map(|listed| {
        let of_file = file.take_if(|found| found.list.listed() == Some(listed)).map(By::File);
        let is_listed = |live: &&Live| live.entry.grant.listed() == Some(listed);
        let by = of_file.or_else(|| live.filter(is_listed).map(|live| By::Entry(live.entry.clone())))?;
        Some(Applied { policy: policy.clone(), listed: Some(listed), by })
    })
}

/// The more exact match of an override and one in the file, neither of which is a list.
fn by_match(file: Option<Found<'_, Arc<Policy>>>, live: Option<Live>) -> Option<Applied<'_>> {
    let file = file.and_then(|found| match found.list {
        List::Override(policy) => Some((found, policy)),
        List::Deny | List::Allow => None,
    });
    let live = live.and_then(|Live { entry, counted }| Some((entry, counted?)));
    match (file, live) {
        (Some((found, policy)), live)
            if live.as_ref().is_none_or(|(entry, _)| rank(&entry.name) < found.pattern.rank()) =>
        {
            Some(Applied { policy: policy.clone(), listed: None, by: By::File(found) })
        }
        (_, Some((entry, policy))) => Some(Applied { policy, listed: None, by: By::Entry(entry) }),
        _ => None,
    }
}

fn rank(name: &Name) -> (u8, usize) {
    name.pattern().map(Pattern::rank).unwrap_or_default()
}

/// The entry of the file that decides for all keys of a pattern.
fn covering<'a>(policy: &'a Arc<Policy>, pattern: Pattern<'_>) -> Option<Found<'a, Arc<Policy>>> {
    let lists = policy.options.lists.as_deref()?;
    let listed = |list, matches: &'a Matches<_>| {
        let first = matches.covering(pattern).into_iter().next();
        first.map(|(pattern, line)| Found { list, pattern, line: *line })
    };
    let counted = || {
        let (pattern, (policy, line)) = lists.overrides.covering(pattern).into_iter().next()?;
        Some(Found { list: List::Override(policy), pattern, line: *line })
    };
    listed(List::Deny, &lists.deny).or_else(|| listed(List::Allow, &lists.allow)).or_else(counted)
}

/// A limit of which a policy gives less than another one.
#[derive(Debug, PartialEq, Eq)]
pub enum Less {
    /// Its keys were not counted at all.
    Counted,
    /// A quota of the other has no counterpart.
    Missing(String),
    /// A quota limits what the other does not.
    Added(String),
    /// The limit of a quota, or the rate or the burst of a token bucket.
    Limit { quota: String, present: String, next: String },
    /// The places of a key; without `present` the other has no bound.
    Places { present: Option<NonZeroU64>, next: NonZeroU64 },
}

impl fmt::Display for Less {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted => write!(f, "they are not counted at all"),
            Self::Missing(quota) => write!(f, "the quota `{quota}` is missing here"),
            Self::Added(quota) => write!(f, "no quota there has the window of `{quota}`"),
            Self::Limit { quota, present, next } => {
                write!(f, "the quota `{quota}` has {next} here, and {present} there")
            }
            Self::Places { present: Some(present), next } => {
                write!(f, "`in_flight` is {next} here, and {present} there")
            }
            Self::Places { present: None, next } => write!(f, "`in_flight` is {next} here, and has no bound there"),
        }
    }
}

/// The first limit of which `next` gives less than `present`. Another window counts as less.
pub(super) fn less(present: &Policy, next: &Policy) -> Option<Less> {
    for quota in &present.quotas {
        let same = next.quotas.iter().find(|next| is_comparable(quota, next));
        if same.is_some_and(|same| same.limit >= quota.limit) {
            continue;
        }
        let name = quota.name.clone();
        let slower = || next.quotas.iter().find(|next| quota.counts_with(next));
        return Some(match same.or_else(slower) {
            Some(same) => Less::Limit { quota: name, present: limit_text(quota), next: limit_text(same) },
            None => Less::Missing(name),
        });
    }
    let is_new = |next: &&Quota| !present.quotas.iter().any(|quota| is_comparable(quota, next));
    if let Some(added) = next.quotas.iter().find(is_new) {
        return Some(Less::Added(added.name.to_string()));
    }
    let (present, next) = (present.places(), next.places()?);
    let is_fewer = present.is_none_or(|present| next < present);
    is_fewer.then_some(Less::Places { present, next })
}

/// The numbers of a quota that a lower one may undercut.
fn limit_text(quota: &Quota) -> String {
    match quota.rule {
        Rule::TokenBucket(_) => format!("`{quota}`"),
        _ => quota.limit.to_string(),
    }
}

/// Whether the limits of two quotas have one meaning. A bucket of a faster rate gives more.
fn is_comparable(present: &Quota, next: &Quota) -> bool {
    match (present.rule, next.rule) {
        (Rule::TokenBucket(slow), Rule::TokenBucket(fast)) => {
            let product = |units: u64, per: u64| u128::from(units) * u128::from(per);
            product(fast.units.get(), slow.per) >= product(slow.units.get(), fast.per)
        }
        _ => present.counts_with(next),
    }
}

impl By<'_> {
    /// The reason in words.
    pub fn text(&self) -> String {
        match self {
            Self::File(found) => format!("the {} of {} in line {}", found.list.name(), found.entry(), found.line.0),
            Self::Entry(entry) => format!("the override of {}", entry.name),
            Self::Check => "the check".to_owned(),
            Self::Policy => "the policy".to_owned(),
        }
    }
}
