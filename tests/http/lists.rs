//! Lists see the IPv4 address inside an IPv6 address.

use serde_json::Value;

use crate::support::node_with;

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
