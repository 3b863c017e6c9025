//! One policy: its algorithm, quotas, keys and what to do without the store.

use std::sync::Arc;
use std::time::Duration;

use crate::limit::key::KeyType;
use crate::limit::policy::{Algorithm, OnStoreFailure, Options, Policy};
use crate::limit::quota::{Anchor, Rule};

use super::fault::Faults;
use super::lists;
use super::quota::{self, Form};
use super::raw::{Member, Node};
use super::scalar::{excerpt, is_identifier};
use super::section::{Section, Shape, not_yet};
use super::store::TIMEOUT;

const SHAPE: Shape = Shape {
    example: "{quotas: [1000 per 1s]}",
    known: &[
        "algorithm",
        "quotas",
        "anchor",
        "key",
        "on_store_failure",
        "timeout",
        "shadow",
        "inline",
        "deny",
        "allow",
        "overrides",
    ],
    checked: &["durability"],
    later: &["timezone", "max_entries"],
};

const KEY: Shape = Shape { example: "{type: ip}", known: &["type", "ipv6_prefix"], checked: &[], later: &[] };

/// The network that commonly belongs to one host or household, in bits.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// The policy that `member` names and describes; `timeout` is for one that names none.
pub(super) fn policy(member: &Member, timeout: Duration, faults: &mut Faults) -> Option<Policy> {
    let name = name(member, faults);
    let section = Section::open(&member.node, &SHAPE, faults)?;
    refuse_unbuilt(&section, faults);
    let algorithm = section.member("algorithm").map_or(Some(Algorithm::SlidingWindow), |node| algorithm(node, faults));
    let quotas = section.required("quotas", "a policy needs `quotas`, such as `quotas: [1000 per 1s]`", faults);
    let anchor = section.member("anchor").map(|node| (node, anchor(node, faults)));
    let form = form(algorithm, anchor, faults);
    let quotas = quotas.and_then(|node| quota::quotas(node, form, faults));
    let key_type = section.member("key").map_or(Some(KeyType::Text), |node| key_type(node, faults));
    let failure = section.member("on_store_failure");
    let on_store_failure = failure.map_or(Some(OnStoreFailure::default()), |node| on_store_failure(node, faults));
    let timeout = section.member("timeout").map_or(Some(timeout), |node| node.duration(TIMEOUT, faults));
    let mut flag = |key| section.member(key).map_or(Some(false), |node| node.boolean(faults));
    let (shadow, inline) = (flag("shadow"), flag("inline"));
    let lists = lists::lists(&section, key_type.unwrap_or_default(), form, faults);
    let policy = Policy {
        name: name?,
        algorithm: algorithm?,
        quotas: quotas?,
        key_type: key_type?,
        on_store_failure: on_store_failure?,
        timeout: timeout?,
        options: Options { shadow: shadow?, inline: inline?, ..Options::default() },
    };
    let lists = lists.map(|lists| Arc::new(lists.of(&policy)));
    Some(Policy { options: Options { lists, ..policy.options.clone() }, ..policy })
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

fn algorithm(node: &Node, faults: &mut Faults) -> Option<Algorithm> {
    match node.word(&["sliding-window", "fixed-window", "sliding-log", "token-bucket"], faults)? {
        "sliding-window" => Some(Algorithm::SlidingWindow),
        "fixed-window" => Some(Algorithm::FixedWindow),
        "token-bucket" => Some(Algorithm::TokenBucket),
        other => {
            not_yet(node.place, &format!("`algorithm: {other}`"), faults);
            None
        }
    }
}

fn anchor(node: &Node, faults: &mut Faults) -> Option<Anchor> {
    match node.word(&["clock", "first-hit"], faults)? {
        "clock" => Some(Anchor::Clock),
        _ => Some(Anchor::FirstHit),
    }
}

/// How the quotas of an algorithm are written; only fixed windows have an anchor, by default the clock.
fn form(algorithm: Option<Algorithm>, anchor: Option<(&Node, Option<Anchor>)>, faults: &mut Faults) -> Form {
    if let Some((node, _)) = anchor.filter(|_| algorithm.is_some_and(|algorithm| algorithm != Algorithm::FixedWindow)) {
        faults.note(node.place, "`anchor` is for fixed windows: add `algorithm: fixed-window`");
    }
    match algorithm {
        Some(Algorithm::FixedWindow) => {
            let anchor = anchor.and_then(|(_, anchor)| anchor).unwrap_or(Anchor::Clock);
            Form::Window(Rule::FixedWindow(anchor))
        }
        Some(Algorithm::TokenBucket) => Form::Bucket,
        Some(Algorithm::SlidingWindow) | None => Form::Window(Rule::SlidingWindow),
    }
}

fn on_store_failure(node: &Node, faults: &mut Faults) -> Option<OnStoreFailure> {
    use OnStoreFailure::{Allow, Deny, Error, Local};
    let modes = [Local, Allow, Deny, Error];
    let word = node.word(&modes.map(OnStoreFailure::name), faults)?;
    modes.into_iter().find(|mode| mode.name() == word)
}

fn key_type(node: &Node, faults: &mut Faults) -> Option<KeyType> {
    let section = Section::open(node, &KEY, faults)?;
    let kind = section.member("type").map_or(Some("text"), |node| node.word(&["ip", "text"], faults));
    let prefix = section.member("ipv6_prefix");
    let bits = prefix.map_or(Some(DEFAULT_IPV6_PREFIX.into()), |node| node.integer(1..=128, faults));
    match (kind?, prefix) {
        ("ip", _) => Some(KeyType::Ip { ipv6_prefix: u8::try_from(bits?).ok()? }),
        (_, None) => Some(KeyType::Text),
        (_, Some(prefix)) => {
            faults.note(prefix.place, "`ipv6_prefix` is for addresses: add `type: ip`");
            None
        }
    }
}

/// Notes members that ask for what is not built; what they say by default is built.
fn refuse_unbuilt(section: &Section<'_>, faults: &mut Faults) {
    if let Some(node) = section.member("durability")
        && node.word(&["primary", "replica"], faults) == Some("replica")
    {
        not_yet(node.place, "`durability: replica`", faults);
    }
}
