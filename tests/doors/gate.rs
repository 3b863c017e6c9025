//! `ANY /v1/gate/{gate}`: forward auth over HTTP.

use serde_json::{Value, json};

use crate::support::http::{self, Answer};
use crate::support::{Node, node_with};

const POLICIES: &str = "policies:
  per-ip: {key: {type: ip}, quotas: [{name: hour, limit: 3, per: 1h}]}
  text: {quotas: [{name: hour, limit: 3, per: 1h}]}
";

fn ask(node: &Node, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    http::exchange(&node.address, &http::request(method, path, headers, b""))
}

#[test]
fn a_gate_lets_the_limit_through_and_then_denies() {
    let node = node_with(&format!(
        "{POLICIES}gates: {{edge: {{rules: [{{checks: [{{policy: per-ip, key: '{{client_ip}}'}}]}}]}}}}"
    ));
    for (method, left) in [("GET", 2), ("POST", 1), ("MKCOL", 0)] {
        let allowed = ask(&node, method, "/v1/gate/edge/any/path?x=1", &[]);
        assert_eq!((allowed.status, allowed.body.as_slice()), (200, &b""[..]));
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""hour";q=3;w=3600"#));
        let state = allowed.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!(r#""hour";r={left};t="#)), "{state}");
        assert_eq!((allowed.header("retry-after"), allowed.header("content-type")), (None, None));
    }
    let denied = ask(&node, "GET", "/v1/gate/edge", &[]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3700).contains(&seconds), "{denied:?}");
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["hour"])));
    assert_eq!(problem["retry_after_ms"].as_u64().unwrap().div_ceil(1000), seconds);
    assert!(denied.header("ratelimit").is_some() && denied.header("ratelimit-policy").is_some());
    let counted = node.check("per-ip", "127.0.0.1", 0);
    assert_eq!(counted["remaining"], 0);
    assert!(node.metrics().contains(r#"door="gate""#), "no door in the metrics");
    assert_ne!(problem["detail"], Value::Null);
}
