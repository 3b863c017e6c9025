//! One policy: its algorithm, quotas, keys and fallback.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use crate::limit::calendar::UTC;
use crate::limit::key::KeyType;
use crate::limit::policy::{Algorithm, Durability, OnStoreFailure, Options, Policy};
use crate::limit::quota::{Anchor, Rule};
use crate::limit::ticks::Ticks;

use super::candidate;
use super::counter;
use super::fault::Faults;
use super::form::Form;
use super::lease;
use super::lists;
use super::quota;
use super::raw::{Member, Node};
use super::scalar::{excerpt, is_identifier};
use super::section::Section;
use super::setting::Kind;
use super::settings::policy::{ALGORITHM, ANCHOR, DURABILITY, INLINE, LOG_ENTRIES, ON_STORE_FAILURE, SHADOW, SHAPE};
use super::settings::{key, store};
use super::zone;

/// Reads the policy of `member`; `timeout` is the default, and `nodes` that of its lease.
pub(super) fn policy(member: &Member, (timeout, nodes): (Duration, NonZeroU64), faults: &mut Faults) -> Option<Policy> {
    let name = name(member, faults);
    let section = Section::open(&member.node, &SHAPE, faults)?;
    let algorithm = section.read(&ALGORITHM, faults);
    let quotas = section.required("quotas", "a policy needs `quotas`, such as `quotas: [1000 per 1s]`", faults);
    let anchor = section.member("anchor").map(|node| (node, ANCHOR.kind.read(node, faults)));
    let max_entries = max_entries(&section, algorithm, faults);
    let ticks = counter::ticks(&section, algorithm, faults);
    let form = form(algorithm, anchor, (max_entries, ticks), faults);
    let form = zone::form(form, algorithm, section.member("timezone"), faults);
    let quotas = quotas.and_then(|node| quota::quotas(node, form, faults));
    let key_type = section.or("key", KeyType::Text, |node| key_type(node, faults));
    let durability = section.read(&DURABILITY, faults);
    let on_store_failure = on_store_failure(section.member("on_store_failure"), durability, faults);
    let timeout = section.read_or(&store::TIMEOUT, timeout, faults);
    let (shadow, inline) = (section.read(&SHADOW, faults), section.read(&INLINE, faults));
    let lists = lists::lists(&section, key_type.unwrap_or_default(), form, faults);
    let lease = lease::spec(&section, nodes, faults);
    let candidate = candidate::quotas(&section, form, ticks, faults);
    let needs_zone = zone::is_needed(form, quotas.as_deref())
        || lists.as_ref().is_some_and(|lists| lists.needs_zone)
        || candidate.as_ref().is_some_and(|quotas| zone::is_needed(form, Some(quotas)));
    zone::refuse_idle(section.entry("timezone"), form, needs_zone, faults);
    ticks?;
    let policy = Policy {
        name: name?,
        algorithm: algorithm?,
        quotas: quotas?,
        key_type: key_type?,
        on_store_failure: on_store_failure?,
        timeout: timeout?,
        options: Options {
            durability: durability?,
            shadow: shadow?,
            inline: inline?,
            zone: form.zone(),
            ..Options::default()
        },
    };
    let lists = lists.map(|lists| Arc::new(lists.build(&policy)));
    let candidate = candidate.map(|quotas| candidate::build(&policy, quotas));
    let policy = Policy { options: Options { lists, candidate, ..policy.options.clone() }, ..policy };
    Some(match lease {
        Some(lease) => lease.added_to(policy, faults),
        None => policy,
    })
}

fn name(member: &Member, faults: &mut Faults) -> Option<String> {
    if is_identifier(&member.key) {
        return Some(member.key.clone());
    }
    let sentence = format!(
        "the policy name `{}` must be 1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`",
        excerpt(&member.key)
    );
    faults.note(member.place, sentence);
    None
}

/// Largest number of charges in a log; only sliding logs have this bound.
fn max_entries(section: &Section<'_>, algorithm: Option<Algorithm>, faults: &mut Faults) -> NonZeroU32 {
    let node = section.member("max_entries");
    if let Some(node) = node.filter(|_| algorithm.is_some_and(|algorithm| algorithm != Algorithm::SlidingLog)) {
        faults.note(node.place, "`max_entries` is for sliding logs: add `algorithm: sliding-log`");
    }
    let most = section.read(&LOG_ENTRIES, faults);
    // A wrong value has its fault already.
    most.and_then(|most| NonZeroU32::new(most.try_into().ok()?)).unwrap_or(NonZeroU32::MIN)
}

/// The form of an algorithm's quotas. Only fixed windows have an anchor, by default the clock.
fn form(
    algorithm: Option<Algorithm>,
    anchor: Option<(&Node, Option<Anchor>)>,
    (max_entries, ticks): (NonZeroU32, Option<Ticks>),
    faults: &mut Faults,
) -> Form {
    if let Some((node, _)) = anchor.filter(|_| algorithm.is_some_and(|algorithm| algorithm != Algorithm::FixedWindow)) {
        faults.note(node.place, "`anchor` is for fixed windows: add `algorithm: fixed-window`");
    }
    match algorithm {
        Some(Algorithm::FixedWindow) => match anchor.and_then(|(_, anchor)| anchor) {
            Some(Anchor::FirstHit) => Form::Window(Rule::FixedWindow(Anchor::FirstHit)),
            _ => Form::Clock(UTC),
        },
        Some(Algorithm::TokenBucket) => Form::Bucket,
        Some(Algorithm::SlidingLog) => Form::Window(Rule::SlidingLog(max_entries)),
        // A wrong tick has its fault already.
        Some(Algorithm::SlidingCounter) => Form::Window(ticks.map_or(Rule::SlidingWindow, Rule::SlidingCounter)),
        Some(Algorithm::SlidingWindow) | None => Form::Window(Rule::SlidingWindow),
    }
}

/// The fallback without the store. A policy that waits for a replica denies or fails, because a
/// guess could lose charges.
fn on_store_failure(
    node: Option<&Node>,
    durability: Option<Durability>,
    faults: &mut Faults,
) -> Option<OnStoreFailure> {
    use OnStoreFailure::{Allow, Deny, Local};
    let waits = durability == Some(Durability::Replica);
    let Some(node) = node else { return Some(if waits { Deny } else { Local }) };
    let mode = ON_STORE_FAILURE.kind.read(node, faults)?;
    if waits && matches!(mode, Local | Allow) {
        faults.note(
            node.place,
            format!("`on_store_failure: {}` with `durability: replica` would allow what no replica has: write `deny` or `error`", mode.name()),
        );
        return None;
    }
    Some(mode)
}

fn key_type(node: &Node, faults: &mut Faults) -> Option<KeyType> {
    let section = Section::open(node, &key::SHAPE, faults)?;
    let is_ip = section.read(&key::TYPE, faults);
    let prefix = section.member("ipv6_prefix");
    let bits = section.read(&key::IPV6_PREFIX, faults);
    match (is_ip?, prefix) {
        (true, _) => Some(KeyType::Ip { ipv6_prefix: u8::try_from(bits?).ok()? }),
        (false, None) => Some(KeyType::Text),
        (false, Some(prefix)) => {
            faults.note(prefix.place, "`ipv6_prefix` is for addresses: add `type: ip`");
            None
        }
    }
}
