//! Lists close or open a policy, and see the IPv4 address inside an IPv6 address.

use serde_json::{Value, json};

use crate::support::{http, node_with};

#[test]
fn deny_all_closes_and_allow_all_opens_a_policy() {
    let node = node_with(
        "policies:
  closed: {quotas: [5 per 1h], deny: {all: true}, allow: {keys: [vip], all: true}, overrides: [{match: {key: vip}, quotas: [9 per 1h]}]}
  open: {quotas: [1 per 1h], deny: {keys: [mallory]}, allow: {all: true}}
  closed-ip: {key: {type: ip}, quotas: [5 per 1h], deny: {all: true}}
  open-ip: {key: {type: ip}, quotas: [1 per 1h], deny: {cidrs: [192.0.2.0/24]}, allow: {all: true}}
  neither: {quotas: [5 per 1h], deny: {all: false}, allow: {all: false, keys: [vip]}}
",
    );
    for (policy, key, reason) in [
        ("closed", "k", "deny_listed"),
        ("closed", "vip", "deny_listed"),
        ("open", "k", "allow_listed"),
        ("open", "mallory", "deny_listed"),
        ("closed-ip", "203.0.113.7", "deny_listed"),
        ("closed-ip", "2001:db8::1", "deny_listed"),
        ("open-ip", "203.0.113.7", "allow_listed"),
        ("open-ip", "192.0.2.1", "deny_listed"),
        ("neither", "k", "ok"),
        ("neither", "vip", "allow_listed"),
    ] {
        for _ in 0..2 {
            let decision = node.check(policy, key, 1);
            assert_eq!(
                (&decision["reason"], &decision["retry_after_ms"].is_null()),
                (&json!(reason), &(reason == "deny_listed")),
                "{policy} {key}"
            );
        }
    }
    let policies = http::get(&node.address, "/v1/policies").json();
    let named = |name: &str| {
        policies["policies"]
            .as_array()
            .unwrap()
            .iter()
            .find(|policy| policy["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(named("closed")["deny"], json!({"keys": 0, "prefixes": 0, "cidrs": 0, "all": true}));
    assert_eq!(named("closed")["allow"]["all"], true);
    assert_eq!(named("neither")["deny"], json!({"keys": 0, "prefixes": 0, "cidrs": 0}));
}

/// RFC 6052: a translator puts the IPv4 address of each client into this network.
#[test]
fn nat64_client_counts_as_its_ipv4_address() {
    let node = node_with(
        "policies:
  ip: {key: {type: ip}, quotas: [1 per 1h], deny: {cidrs: [192.0.2.0/24]}, allow: {keys: [198.51.100.9]}}
  text: {quotas: [1 per 1h], deny: {cidrs: [192.0.2.0/24]}}
",
    );
    let reason = |policy: &str, key: &str| node.check(policy, key, 1)["reason"].clone();
    let told = [
        ("ip", "64:ff9b::192.0.2.7", "deny_listed"),
        ("text", "64:ff9b::c000:207", "deny_listed"),
        ("ip", "64:FF9B:0:0::198.51.100.9", "allow_listed"),
        ("ip", "64:ff9b::203.0.113.7", "ok"),
        ("ip", "64:ff9b::203.0.113.8", "ok"),
        ("ip", "203.0.113.7", "over_limit"),
        ("ip", "::ffff:203.0.113.8", "over_limit"),
        // Other networks that hold an IPv4 address are not unwrapped.
        ("ip", "64:ff9b:1::192.0.2.7", "ok"),
        ("ip", "2002:c000:207::1", "ok"),
        ("ip", "2001:0:c000:207::1", "ok"),
        ("ip", "::192.0.2.7", "ok"),
        ("ip", "64:ff9b::1:192.0.2.7", "ok"),
    ];
    for (policy, key, expected) in told {
        assert_eq!(reason(policy, key), Value::from(expected), "{policy} {key}");
    }
}
