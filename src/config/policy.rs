//! One policy: its algorithm, quotas, keys and fallback.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use crate::limit::calendar::UTC;
use crate::limit::key::KeyType;
use crate::limit::policy::{Algorithm, Durability, OnStoreFailure, Options, Policy};
use crate::limit::quota::{Anchor, MAX_UNITS, Rule};
use crate::limit::ticks::Ticks;

use super::counter;
use super::hold;
use super::lease;
use super::lists;
use super::node::{Member, Node};
use super::notify;
use super::quota::{self, Form};
use super::section::Section;
use super::setting::Values;
use super::settings::policy::{
    ALGORITHM, ANCHOR, DURABILITY, INLINE, LOG_ENTRIES, ON_STORE_FAILURE, QUOTAS, SHADOW, SHAPE,
};
use super::settings::{key, store, wait};
use super::zone;

/// The defaults of policies, which the sections of the node have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub timeout: Duration,
    /// The nodes that share a lease.
    pub nodes: NonZeroU64,
}

/// Reads the policy of `member`.
pub(super) fn policy(member: &Member, defaults: Defaults) -> Option<Policy> {
    let name = member.identifier("policy");
    let section = member.node.section(&SHAPE);
    let algorithm = section.checked(&ALGORITHM);
    let quotas = match section.member(QUOTAS.name) {
        None if hold::limits_places(&section) => Some(None),
        None => {
            section.note_missing("a policy needs `quotas`, such as `quotas: [1000 per 1s]`");
            None
        }
        given => Some(given),
    };
    let ticks = counter::ticks(&section, algorithm);
    let form = form(&section, algorithm, ticks);
    let quotas = quotas.and_then(|node| node.map_or_else(|| Some(Vec::new()), |node| quota::quotas(node, form)));
    let key_type = section.member("key").map_or(Some(KeyType::Text), key_type);
    let durability = section.checked(&DURABILITY);
    let on_store_failure = on_store_failure(section.member("on_store_failure"), durability);
    let timeout = section.read_or(&store::TIMEOUT, defaults.timeout);
    let lists = lists::lists(&section, key_type.unwrap_or_default(), form);
    let lease = lease::spec(&section, defaults.nodes);
    let wait = section.member("wait");
    let queue = wait.and_then(|node| queue(node, algorithm, section.member("lease").is_some()));
    let hold = hold::hold(&section);
    let needs_zone = zone::is_needed(form, quotas.as_deref()) || lists.as_ref().is_some_and(|lists| lists.needs_zone);
    zone::refuse_idle(section.entry("timezone"), form, needs_zone);
    ticks?;
    let options = Options {
        durability: durability?,
        shadow: section.read(&SHADOW),
        inline: section.read(&INLINE),
        zone: form.zone(),
        waits: wait.is_some(),
        queue,
        notify: notify::notify(&section),
        hold,
        ..Options::default()
    };
    let (name, algorithm, quotas, key_type) = (name?, algorithm?, quotas?, key_type?);
    let mut policy =
        Policy { name, algorithm, quotas, key_type, on_store_failure: on_store_failure?, timeout, options };
    policy.options.lists = lists.map(|lists| Arc::new(lists.build(&policy)));
    Some(match lease {
        Some(lease) => lease.added_to(policy),
        None => policy,
    })
}

/// The form of an algorithm's quotas. Only fixed windows have an anchor, by default the clock, and
/// only sliding logs bound their charges.
fn form(section: &Section<'_>, algorithm: Option<Algorithm>, ticks: Option<Ticks>) -> Form {
    let is_other = |own| algorithm.is_some_and(|algorithm| algorithm != own);
    if let Some(node) = section.member("max_entries").filter(|_| is_other(Algorithm::SlidingLog)) {
        node.note("`max_entries` is for sliding logs: add `algorithm: sliding-log`");
    }
    if let Some(node) = section.member("anchor").filter(|_| is_other(Algorithm::FixedWindow)) {
        node.note("`anchor` is for fixed windows: add `algorithm: fixed-window`");
    }
    let max_entries = u32::try_from(section.read(&LOG_ENTRIES)).ok().and_then(NonZeroU32::new);
    let form = match (algorithm, section.read(&ANCHOR)) {
        (Some(Algorithm::FixedWindow), Anchor::FirstHit) => Form::Window(Rule::FixedWindow(Anchor::FirstHit)),
        (Some(Algorithm::FixedWindow), _) => Form::Clock(UTC),
        (Some(Algorithm::TokenBucket), _) => Form::Bucket,
        (Some(Algorithm::SlidingLog), _) => Form::Window(Rule::SlidingLog(max_entries.unwrap_or(NonZeroU32::MIN))),
        // A wrong tick has its fault already.
        (Some(Algorithm::SlidingCounter), _) => Form::Window(ticks.map_or(Rule::SlidingWindow, Rule::SlidingCounter)),
        (Some(Algorithm::SlidingWindow) | None, _) => Form::Window(Rule::SlidingWindow),
    };
    section.member("timezone").map_or(form, |node| zone::form(form, algorithm, node))
}

/// The fallback without the store. A policy that waits for a replica denies or fails, because a
/// guess could lose charges.
fn on_store_failure(node: Option<&Node>, durability: Option<Durability>) -> Option<OnStoreFailure> {
    use OnStoreFailure::{Allow, Deny, Local};
    let waits = durability == Some(Durability::Replica);
    let Some(node) = node else { return Some(if waits { Deny } else { Local }) };
    let mode = ON_STORE_FAILURE.kind.read(node)?;
    if waits && matches!(mode, Local | Allow) {
        node.note(format!(
            "`on_store_failure: {}` with `durability: replica` would allow what no replica has: write `deny` or `error`",
            mode.name()
        ));
    }
    Some(mode)
}

/// The most units in line, if they are given. Only a token bucket has a line.
fn queue(node: &Node, algorithm: Option<Algorithm>, has_lease: bool) -> Option<u64> {
    if has_lease {
        node.note(
            "nodes spend units of a `lease` locally, in no order, so no check can wait: leave `wait` or `lease` out",
        );
    }
    if algorithm.is_some_and(|algorithm| algorithm != Algorithm::TokenBucket) {
        node.note("`wait` is for token buckets: add `algorithm: token-bucket`");
    }
    let section = node.section(&wait::SHAPE);
    section.member(wait::QUEUE.name)?.integer(1..=MAX_UNITS)
}

fn key_type(node: &Node) -> Option<KeyType> {
    let section = node.section(&key::SHAPE);
    let (is_ip, bits) = (section.checked(&key::TYPE)?, section.checked(&key::IPV6_PREFIX));
    match (is_ip, section.member("ipv6_prefix")) {
        (true, _) => Some(KeyType::Ip { ipv6_prefix: u8::try_from(bits?).ok()? }),
        (false, None) => Some(KeyType::Text),
        (false, Some(prefix)) => {
            prefix.note("`ipv6_prefix` is for addresses: add `type: ip`");
            None
        }
    }
}
