//! The names of keys in Redis: `{<prefix>:<key>:}<policy>:<what>`. Logs use
//! `{<prefix>:<key>:}<policy>:<quota>:<what>`.
//!
//! All names of one key share a hash slot, because Redis hashes only the part in braces. Escapes
//! ensure that a key neither closes the braces early nor equals another key. `{`, `}`, `%` and
//! control bytes become `%XX`. A key of more than 128 bytes becomes `%h` and its BLAKE3 hash in
//! hex. The hash is cut to 128 bits. No escaped key has this form. The key
//! `{<prefix>:%p<number>:}probe` shows whether a server writes. Keys with `{<prefix>:%o<number>:}`
//! contain a part of the overrides.

use std::fmt::{self, Write};

use super::pairs::pair_kind;
use crate::limit::bucket::Terms;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::slot::SLOTS;
use crate::limit::time::{span_in_units, span_text};

/// The longest key that appears unhashed, in bytes.
const WRITTEN_OUT: usize = 128;

/// The format in the name of a log.
const LOG: &str = "l16-";

/// Sliding windows with this limit or more count in u64, in another column.
const WIDE: u64 = 1 << 32;

/// The hash tag of a key with its braces, which begins each name of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    pub fn new(prefix: &str, key: &str) -> Self {
        let mut tag = String::with_capacity(prefix.len() + key.len().min(WRITTEN_OUT) + 4);
        tag.push('{');
        write_hashed(&mut tag, prefix, key);
        tag.push('}');
        Self(tag)
    }

    /// The tag of names that no check has: `name` begins with `%` and a letter that no escape has.
    pub fn unescaped(prefix: &str, name: &str) -> Self {
        Self(format!("{{{prefix}:{name}:}}"))
    }

    /// Returns the slot of every name with this tag.
    pub fn slot(&self) -> u16 {
        let inside = &self.0.as_bytes()[1..self.0.len() - 1];
        Sum::calculate(inside) % SLOTS
    }

    /// The tag as each name begins with it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of a policy's counts, unless logs or ticks contain them.
    pub fn counts(&self, policy: &Policy) -> String {
        let what = match policy.algorithm {
            Algorithm::SlidingWindow => ":windows",
            Algorithm::FixedWindow => ":fixed",
            Algorithm::TokenBucket => ":buckets",
            Algorithm::SlidingLog => ":logs",
            Algorithm::SlidingCounter => ":ticks",
        };
        [&self.0, policy.counters(), what].concat()
    }

    /// Returns the beginning of the names of a policy's ticks. Shared policies have one in common.
    pub fn ticks(&self, policy: &Policy) -> String {
        match policy.ticks() {
            Some(ticks) if ticks.shared => self.0.to_string(),
            _ => [&self.0, policy.counters(), ":"].concat(),
        }
    }

    /// Returns the name of the instant of the last reset of ticks.
    pub fn ticks_reset(&self, policy: &Policy) -> String {
        self.ticks(policy) + "reset"
    }

    /// Returns the name of the mark of reservations in ticks.
    pub fn ticks_hold(&self, policy: &Policy) -> String {
        self.ticks(policy) + "hold"
    }

    /// Returns the name of a quota's log.
    pub fn log(&self, policy: &str, quota: &Quota) -> String {
        self.of_quota(policy, quota, "log")
    }

    /// Returns the name of the metas of a log, which record the causes of its charges.
    pub fn metas(&self, policy: &str, quota: &Quota) -> String {
        self.of_quota(policy, quota, "metas")
    }

    fn of_quota(&self, policy: &str, quota: &Quota, what: &str) -> String {
        let ((count, unit), mut number) = (span_in_units(quota.window), itoa::Buffer::new());
        [&self.0, policy, ":", LOG, number.format(count), unit, ":", what].concat()
    }

    /// Returns the name of the record of a check with an id. No quota has the part `id`, so the
    /// name differs from all above.
    pub fn record(&self, policy: &str, id: &str) -> String {
        let mut name = self.records(policy);
        escape(&mut name, id);
        name
    }

    /// Returns the name of the record of a lease that a caller has bought. Checks have other records.
    pub fn sale(&self, policy: &str, id: &str) -> String {
        let mut name = format!("{}{policy}:lease:", self.0);
        escape(&mut name, id);
        name
    }

    /// Returns the beginning of the names of records, which ends with the ids.
    pub fn records(&self, policy: &str) -> String {
        format!("{}{policy}:id:", self.0)
    }

    /// Returns the name of the places: the open holds of a policy.
    pub fn held(&self, policy: &str) -> String {
        format!("{}{policy}:held", self.0)
    }

    /// Returns the name of the instant of the last reset.
    pub fn reset(&self, policy: &str) -> String {
        format!("{}{policy}:reset", self.0)
    }
}

/// Returns the slot of every name of a key (Redis Cluster specification: CRC16 of the part in
/// braces).
pub fn slot(prefix: &str, key: &str) -> u16 {
    let mut sum = Checksum(Sum::new());
    write_hashed(&mut sum, prefix, key);
    sum.0.get() % SLOTS
}

/// Returns a key in `slot` that shows whether a server writes. No caller's key has its form.
pub fn probe(prefix: &str, slot: u16) -> Option<String> {
    let inside = |number: u32| format!("{prefix}:%p{number}:");
    let probe = (0..1 << 20).map(inside).find(|inside| Sum::calculate(inside.as_bytes()) % SLOTS == slot)?;
    Some(format!("{{{probe}}}probe"))
}

/// The checksum of the cluster specification.
type Sum = crc16::State<crc16::XMODEM>;

/// The checksum of the text that is written to it.
struct Checksum(Sum);

impl Write for Checksum {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Returns the name of a quota in the record of an id. It covers all that the counts depend on
/// except the limit, so a changed limit keeps them. A refund finds the counts by this name.
pub fn recorded(quota: &Quota) -> String {
    let window = || span_text(quota.window);
    match quota.rule {
        Rule::SlidingWindow => format!("s4-{}", window()),
        Rule::FixedWindow(Anchor::FirstHit) => format!("f8-{}:first", window()),
        Rule::FixedWindow(Anchor::Clock) => format!("f8-{}", window()),
        Rule::FixedWindow(Anchor::Calendar(calendar)) => format!("f8-{calendar}#{}", pair_kind(quota)[1]),
        Rule::TokenBucket(_) => {
            let Terms { repaid, price } = Terms::of_quota(quota);
            format!("b8-{repaid}-{price}")
        }
        Rule::SlidingLog(_) => format!("{LOG}{}", window()),
        Rule::SlidingCounter(ticks) => {
            let (shared, strict) =
                (if ticks.shared { ":shared" } else { "" }, if ticks.strict { ":strict" } else { "" });
            format!("c-{}{shared}{strict}", span_text(ticks.length()))
        }
    }
}

/// Returns the width of a sliding window's sums in bytes, which is part of its column's kind.
pub fn counter_width(limit: u64) -> usize {
    if limit < WIDE { 4 } else { 8 }
}

/// Writes the part in braces. Writing to a String or a checksum cannot fail.
fn write_hashed(name: &mut impl Write, prefix: &str, key: &str) {
    let _ = name.write_str(prefix);
    let _ = name.write_char(':');
    if key.len() > WRITTEN_OUT {
        let hash = blake3::hash(key.as_bytes());
        let _ = write!(name, "%h{}", &hash.to_hex()[..32]);
    } else {
        escape(name, key);
    }
    let _ = name.write_char(':');
}

fn escape(name: &mut impl Write, text: &str) {
    let is_special = |byte: u8| matches!(byte, b'{' | b'}' | b'%') || byte.is_ascii_control();
    let mut rest = text;
    while let Some(place) = rest.bytes().position(is_special) {
        let _ = write!(name, "{}%{:02X}", &rest[..place], rest.as_bytes()[place]);
        rest = &rest[place + 1..];
    }
    let _ = name.write_str(rest);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn tag(key: &str) -> String {
        Tag::new("ratelimit", key).0
    }

    #[test]
    fn names_are_as_documented() {
        let quota = |limit: u64| Quota {
            name: "q".into(),
            limit: limit.try_into().unwrap(),
            window: 10_000_000,
            rule: Rule::default(),
        };
        let tag = Tag::new("ratelimit", "203.0.113.7");
        let counts = |algorithm| {
            let policy = Policy::new("per-ip", algorithm, vec![quota(5)], Duration::from_secs(1));
            tag.counts(&policy).split_off("{ratelimit:203.0.113.7:}per-ip".len())
        };
        let kept = [Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket].map(counts);
        assert_eq!(kept, [":windows", ":fixed", ":buckets"]);
        assert_eq!([5, 1 << 32].map(|limit| recorded(&quota(limit))), ["s4-10s", "s4-10s"]);
        assert_eq!(tag.record("per-ip", "a:{b}\n"), "{ratelimit:203.0.113.7:}per-ip:id:a:%7Bb%7D%0A");
        let log = Quota { rule: Rule::SlidingLog(NonZeroU32::MIN), ..quota(5) };
        assert_eq!(tag.log("per-ip", &log), "{ratelimit:203.0.113.7:}per-ip:l16-10s:log");
        assert_eq!(tag.metas("per-ip", &log), "{ratelimit:203.0.113.7:}per-ip:l16-10s:metas");
    }

    #[test]
    fn each_slot_has_a_key_for_probes() {
        let reached: BTreeSet<u16> = (0..1 << 19)
            .map(|number| Sum::calculate(format!("ratelimit:%p{number}:").as_bytes()) % SLOTS)
            .collect();
        assert_eq!(reached.len(), usize::from(SLOTS));
        for slot in (0..SLOTS).step_by(101) {
            let key = probe("ratelimit", slot).unwrap();
            let tag = key.strip_prefix('{').and_then(|rest| rest.split_once('}')).unwrap().0;
            assert_eq!(Sum::calculate(tag.as_bytes()) % SLOTS, slot, "{key}");
            assert!(key.starts_with("{ratelimit:%p") && key.ends_with(":}probe"), "{key}");
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_cluster_specification() {
        assert_eq!(Sum::calculate(b"123456789"), 0x31C3);
    }

    #[test]
    fn braces_in_hash_tags_are_escaped() {
        assert_eq!(tag("a}b{c%d\n\0"), "{ratelimit:a%7Db%7Bc%25d%0A%00:}");
        assert_eq!(tag("blank space, ünïcode"), "{ratelimit:blank space, ünïcode:}");
    }

    #[test]
    fn long_keys_are_hashed_without_collision() {
        let long = "x".repeat(129);
        let hashed = tag(&long);
        assert_eq!(hashed.len(), "{ratelimit:%h:}".len() + 32);
        let spelled_like_it = &hashed["{ratelimit:".len()..hashed.len() - 2];
        assert_ne!(tag(spelled_like_it), hashed);
        assert_eq!(Tag::new("ratelimit", &long).slot(), slot("ratelimit", &long));
        assert_eq!(tag(&"x".repeat(128)), format!("{{ratelimit:{}:}}", "x".repeat(128)));
    }

    proptest! {
        #[test]
        fn different_keys_never_share_a_tag(a in "[{}%h\\x00-\\x20A-F0-9é]{1,6}", b in "[{}%h\\x00-\\x20A-F0-9é]{1,6}") {
            prop_assert_eq!(a == b, tag(&a) == tag(&b));
            prop_assert_eq!(Tag::new("ratelimit", &a).slot(), slot("ratelimit", &a));
            prop_assert_eq!(tag(&a).matches(['{', '}']).count(), 2);
        }
    }
}
