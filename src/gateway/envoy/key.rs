//! The keys of descriptors. Different descriptors never share a key by accident: separators inside
//! names and values are escaped.

use std::sync::Arc;

use super::find::{Entry, Found};
use crate::engine::MAX_ID_BYTES;
use crate::limit::key::{MAX_KEY_BYTES, push_escaped};

/// The key of a counter of Envoy's: domain, keys and values. An entry of a shared wildcard has the
/// pattern instead of its value, so all matching values count together.
pub fn counter_key(domain: &str, entries: &[Entry<'_>], found: Option<&Found<'_>>) -> String {
    let mut key = String::with_capacity(64);
    push_escaped(&mut key, domain, b"%|=~");
    for (place, (name, value)) in entries.iter().enumerate() {
        key.push('|');
        push_escaped(&mut key, name, b"%|=~");
        match found.and_then(|found| found.shared_pattern(place)) {
            Some(pattern) => {
                key.push('~');
                push_escaped(&mut key, pattern, b"%|");
            }
            None => {
                key.push('=');
                push_escaped(&mut key, value, b"%|");
            }
        }
    }
    shortened(key)
}

/// The key under a policy of the configuration: the values. One ordinary value stays as it is,
/// since the policy may read it as an address, also with a zone such as `%eth0`.
pub fn policy_key(entries: &[Entry<'_>]) -> String {
    if let [(_, value)] = entries
        && is_ordinary(value)
    {
        return shortened((*value).to_owned());
    }
    let mut key = String::new();
    for (place, (_, value)) in entries.iter().enumerate() {
        if place > 0 {
            key.push('|');
        }
        match *value {
            "" => key.push('%'),
            value => push_escaped(&mut key, value, b"%|"),
        }
    }
    shortened(key)
}

/// The id of a check. One that is too long becomes its hash.
pub fn id(value: &str) -> Arc<str> {
    if value.len() <= MAX_ID_BYTES { value.into() } else { blake3::hash(value.as_bytes()).to_hex().as_str().into() }
}

/// Whether no other descriptor has this value as its key. Several values have a `|` between them,
/// and an escaped value has `%25` or `%7C`. A hash or an empty value begins with `%`.
fn is_ordinary(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('%') && !["|", "%25", "%7C"].iter().any(|mark| value.contains(mark))
}

/// A key that is too long becomes its hash. No escaped key begins like it.
fn shortened(key: String) -> String {
    if key.len() <= MAX_KEY_BYTES { key } else { format!("%h{}", blake3::hash(key.as_bytes()).to_hex()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_an_underscore_would_merge_have_different_keys() {
        let keys = [
            counter_key("d", &[("a_b", "c")], None),
            counter_key("d", &[("a", "b_c")], None),
            counter_key("d", &[("a", "b"), ("c", "")], None),
            counter_key("d_a", &[("b", "c")], None),
            counter_key("d|a=b", &[("c", "")], None),
            counter_key("d", &[("a", "b|c=")], None),
            counter_key("d", &[("a=b|c", "")], None),
            counter_key("d", &[("a", "b%7Cc=")], None),
            counter_key("d", &[("a~b", "")], None),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn key_of_a_policy_is_the_values() {
        let of = |values: &[&str]| policy_key(&values.iter().map(|value| ("k", *value)).collect::<Vec<_>>());
        assert_eq!(of(&["2001:db8::1"]), "2001:db8::1");
        assert_eq!(of(&["fe80::1%eth0"]), "fe80::1%eth0");
        assert_eq!(of(&["50%"]), "50%");
        assert_eq!(of(&["a|b%"]), "a%7Cb%25");
        assert_eq!(of(&[""]), "%");
        assert_eq!(of(&["a|b", "", "50%"]), "a%7Cb|%|50%25");
        assert!(of(&[&"x".repeat(1025)]).starts_with("%h"));
        assert_eq!(of(&[&"x".repeat(1024)]).len(), 1024);
    }

    #[test]
    fn different_values_never_share_a_key_of_a_policy() {
        let of = |values: &[&str]| policy_key(&values.iter().map(|value| ("k", *value)).collect::<Vec<_>>());
        let parts =
            ["", "a", "b", "|", "%", "%%", "a|b", "a%7Cb", "a%257Cb", "%7C", "%25", "a|", "|b", "%|", "a|%", "%h"];
        let mut values: Vec<Vec<String>> = parts.iter().map(|part| vec![(*part).to_owned()]).collect();
        values.extend(parts.iter().flat_map(|a| parts.iter().map(|b| vec![(*a).to_owned(), (*b).to_owned()])));
        values.push(vec!["a".to_owned(), "b".to_owned(), "a".to_owned()]);
        let long = "x".repeat(1025);
        values.extend([vec![of(&[&long])], vec![long]]);
        let mut known = std::collections::HashMap::new();
        for values in values {
            let key = of(&values.iter().map(String::as_str).collect::<Vec<_>>());
            let other = known.insert(key.clone(), values.clone());
            assert_eq!(other, None, "{values:?} has the same key {key}");
        }
    }
}
