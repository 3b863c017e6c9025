//! `lease`: how the nodes buy units of a policy and spend them locally.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Policies;
use super::duration::parse_within;
use super::fault::{Faults, Place};
use super::section::Section;
use super::settings::lease::{NODES, SHAPE, SPAN};
use super::settings::policy::LEASE;
use crate::limit::lease::{AUTO, Lease, MOST};
use crate::limit::lists::Lists;
use crate::limit::policy::{Algorithm, Options, Policy};
use crate::limit::quota::{MAX_WINDOW, Quota, Rule};
use crate::limit::time::{MICROS_PER_MILLI, Micros, span_text};

/// A lease as written: its place, the span without `auto`, and the nodes.
pub(super) struct LeaseSpec {
    place: Place,
    span: Option<Micros>,
    nodes: NonZeroU64,
}

/// Reads the member of a policy. `nodes` is the default. None without one, or after a fault.
pub(super) fn spec(policy: &Section<'_>, nodes: NonZeroU64, faults: &mut Faults) -> Option<LeaseSpec> {
    let member = policy.entry(LEASE.name)?;
    let section = Section::open(&member.node, &SHAPE, faults)?;
    let span = section.or(SPAN.name, None, |node| {
        let text = node.text("`auto`, or a duration such as `500ms`", faults)?;
        if text == "auto" {
            return Some(None);
        }
        let refuse = |message| faults.note(node.place, format!("{}: {message}", node.name));
        parse_within(text, &(MICROS_PER_MILLI..=MAX_WINDOW / MOST)).map_err(refuse).ok().map(Some)
    });
    let nodes = section.read_or(&NODES, nodes.get(), faults);
    Some(LeaseSpec { place: member.place, span: span?, nodes: NonZeroU64::new(nodes?)? })
}

impl LeaseSpec {
    /// Adds the lease to a policy and its overrides. Notes everything that does not go with one.
    pub(super) fn added_to(self, policy: Policy, faults: &mut Faults) -> Policy {
        let overrides = policy.options.lists.iter().flat_map(|lists| lists.overrides.iter());
        let all = overrides.map(|(_, (policy, _))| &**policy).chain([&policy]).flat_map(|policy| &policy.quotas);
        let shortest = all.map(|quota| quota.window).min().unwrap_or(MAX_WINDOW);
        let ticks = policy.ticks();
        let ahead = ticks.map_or(MAX_WINDOW, |ticks| ticks.ahead() * ticks.length());
        let (longest, auto) = ((shortest / MOST).min(ahead), (shortest / AUTO).min(ahead));
        let span = self.span.unwrap_or(auto.max(MICROS_PER_MILLI));
        let mut refuse = |sentence: &str| faults.note(self.place, sentence);
        if span > longest {
            let why = if longest == ahead { "what counts ahead" } else { "an eighth of the shortest window" };
            let [span, longest] = [span, longest].map(span_text);
            refuse(&format!("the `span` {span} is longer than {why}: write at most {longest}"));
        }
        if policy.options.inline {
            refuse("`inline` does not go with `lease`: leave one of them out");
        }
        if ticks.is_some_and(|ticks| ticks.shared) {
            refuse("`shared` does not go with `lease`: other programs do not count ahead");
        }
        let lease = Lease { span, nodes: self.nodes };
        self.leased(policy, lease, faults)
    }

    /// The same policy and overrides with this lease.
    fn leased(&self, mut policy: Policy, lease: Lease, faults: &mut Faults) -> Policy {
        if policy.algorithm == Algorithm::TokenBucket {
            for quota in &mut policy.quotas {
                match with_less_burst(quota, lease.span) {
                    Some(less) => *quota = less,
                    None => faults.note(
                        self.place,
                        format!(
                            "the quota `{}` refills its whole burst within the `span` {}: write a shorter `span`, or a \
                             larger `burst`",
                            quota.name,
                            span_text(lease.span)
                        ),
                    ),
                }
            }
        }
        let lists = policy.options.lists.take().map(|lists| {
            let Lists { deny, allow, overrides } = Arc::unwrap_or_clone(lists);
            let leased = |(policy, line)| (Arc::new(self.leased(Arc::unwrap_or_clone(policy), lease, faults)), line);
            Arc::new(Lists { deny, allow, overrides: overrides.map(leased) })
        });
        let options = Options { lists, lease: Some(lease), ..policy.options };
        Policy { options, ..policy }
    }
}

/// A token bucket without the units that refill in a span, which its nodes may hold. None if
/// nothing is left.
fn with_less_burst(quota: &Quota, span: Micros) -> Option<Quota> {
    let Rule::TokenBucket(rate) = quota.rule else { return None };
    let refill = (u128::from(rate.units.get()) * u128::from(span)).div_ceil(u128::from(rate.per));
    let burst = NonZeroU64::new(quota.limit.get().checked_sub(u64::try_from(refill).ok()?)?)?;
    Quota::bucket(quota.name.clone(), rate, burst)
}

impl Policies {
    /// Advice on leases that leave much of a limit unused.
    pub(super) fn long_leases(&self) -> impl Iterator<Item = String> {
        self.by_name.values().filter_map(|policy| {
            let (span, window) = (policy.options.lease?.span, policy.quotas.iter().map(|quota| quota.window).min()?);
            let usable = 100 * window / (window + span);
            (policy.algorithm != Algorithm::FixedWindow && span > window / AUTO).then(|| {
                format!(
                    "policy `{}`: a `lease` of {} leaves about {usable} % of the limit usable. Write at most {}, a 64th of \
                     the shortest window",
                    policy.name,
                    span_text(span),
                    span_text(window / AUTO)
                )
            })
        })
    }
}
