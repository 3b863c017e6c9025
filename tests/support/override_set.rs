//! Overrides of each kind, and what must decide by them.

use serde_json::{Value, json};

use super::{Node, http, wait_until};

pub(crate) const POLICIES: &str = "
plans: {pro: {quotas: [1000 per 1h]}}
policies: {p: {key: {type: ip}, quotas: [5 per 1h], timeout: 5s}, q: {quotas: [5 per 1h], timeout: 5s}}
";

/// Sends a change until its result is known: a busy server may answer too late.
pub(crate) fn change(node: &Node, method: &str, policy: &str, body: &Value) -> Value {
    let path = format!("/v1/overrides/{policy}");
    let mut answer = None;
    wait_until("the change has a result", || {
        let sent = http::call(&node.address, method, &path, None, &body.to_string());
        assert!(matches!(sent.status, 200 | 503), "{method} {body}: {sent:?}");
        answer = (sent.status == 200).then(|| sent.json());
        answer.is_some()
    });
    answer.unwrap()
}

/// What decides for a key: a word, or the limit.
pub(crate) fn decides(node: &Node, policy: &str, key: &str) -> Value {
    let decision = node.check(policy, key, 0);
    match decision["reason"].as_str() {
        Some("deny_listed") => json!("deny"),
        Some("allow_listed") => json!("allow"),
        _ => decision["limit"].clone(),
    }
}

/// The keys to ask for, and what must decide for each.
pub(crate) type Expected = Vec<(&'static str, String, Value)>;

/// Gives keys, prefixes and networks overrides of each kind, and removes every seventh.
pub(crate) fn fill(node: &Node, count: usize) -> Expected {
    let mut expected = Vec::new();
    for number in 0..count {
        let (key, grant) = (format!("k{number}"), number % 4);
        let limit = 6 + number;
        let (body, decides) = match grant {
            0 => (json!({"deny": true, "reason": "abuse \u{a0}\"ä"}), json!("deny")),
            1 => (json!({"allow": true}), json!("allow")),
            2 => (json!({"plan": "pro", "expires_in_ms": 3_600_000}), json!(1000)),
            _ => (json!({"quotas": [format!("{limit} per 1h")]}), json!(limit)),
        };
        let mut put = body;
        put["match"] = json!({"key": key});
        change(node, "PUT", "q", &put);
        if number % 7 == 3 {
            change(node, "DELETE", "q", &json!({"match": {"key": key}}));
            expected.push(("q", key, json!(5)));
        } else {
            expected.push(("q", key, decides));
        }
    }
    for number in 0..20 {
        let (cidr, prefix) = (format!("10.{number}.0.0/16"), format!("team{number}:"));
        change(node, "PUT", "p", &json!({"match": {"cidr": cidr}, "quotas": [format!("{} per 1h", 10 + number)]}));
        change(node, "PUT", "q", &json!({"match": {"prefix": prefix}, "deny": true}));
        expected.push(("p", format!("10.{number}.1.1"), json!(10 + number)));
        expected.push(("q", format!("{prefix}a"), json!("deny")));
    }
    expected
}

pub(crate) fn assert_in_force(node: &Node, expected: &Expected, when: &str) {
    let wrong: Vec<_> = expected
        .iter()
        .map(|(policy, key, wanted)| (key, decides(node, policy, key), wanted))
        .filter(|(_, found, wanted)| found != *wanted)
        .collect();
    assert!(
        wrong.is_empty(),
        "{when}: {} of {} differ: {:?}",
        wrong.len(),
        expected.len(),
        &wrong[..wrong.len().min(5)]
    );
}
