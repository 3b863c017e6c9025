//! A reload with a changed limit ends the known denials of each node.

use std::path::Path;

use serde_json::json;

use crate::support::{Node, file_with, http, redis, unique};

fn on(store: &str, limit: u64) -> String {
    format!("store: {{redis: [{store}], timeout: 10s}}\npolicies:\n  p: {{quotas: [{limit} per 1h]}}\n")
}

fn reload(node: &Node, file: impl AsRef<Path>, text: &str) -> u16 {
    std::fs::write(file, text).unwrap();
    http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b"")).status
}

/// Two nodes share the counts and both know the denial. Each allows again after its own reload.
#[test]
fn changed_limit_ends_known_denial() {
    let server = redis::shared();
    let files = [(); 2].map(|()| file_with(&on(&server.url(), 100)));
    let nodes = [0, 1].map(|node| Node::with_config(&files[node]));
    let key = unique("raised");
    let [first, second] = &nodes;
    assert_eq!(first.check("p", &key, 80)["allowed"], true);
    assert_eq!(second.check("p", &key, 20)["allowed"], true);
    for node in [first, second] {
        node.check("p", &key, 1);
        let known = node.check("p", &key, 1);
        assert_eq!((&known["allowed"], &known["source"]), (&json!(false), &json!("prefilter")), "{known}");
    }
    assert_eq!(reload(&nodes[0], &files[0], &on(&server.url(), 200)), 200);
    let raised = first.check("p", &key, 1);
    assert_eq!((&raised["allowed"], &raised["remaining"]), (&json!(true), &json!(99)), "{raised}");
    assert_eq!(second.check("p", &key, 1)["source"], "prefilter");
    assert_eq!(reload(&nodes[1], &files[1], &on(&server.url(), 200)), 200);
    let raised = second.check("p", &key, 1);
    assert_eq!((&raised["allowed"], &raised["remaining"]), (&json!(true), &json!(98)), "{raised}");
}

/// A bucket keeps its debt under another rate, on both stores.
#[test]
fn reload_with_other_rate_keeps_debt() {
    let redis = format!("store: {{redis: [{}], timeout: 10s}}\n", redis::shared().url());
    for store in [redis.as_str(), ""] {
        let bucket = |units: u64| {
            let quota = format!("{{rate: {units} per 1h, burst: {units}}}");
            format!("{store}policies:\n  p: {{algorithm: token-bucket, quotas: [{quota}]}}\n")
        };
        let file = file_with(&bucket(10));
        let (node, key) = (Node::with_config(&file), unique("rate"));
        assert_eq!(node.check("p", &key, 10)["allowed"], true);
        assert_eq!(reload(&node, &file, &bucket(5)), 200);
        let denied = node.check("p", &key, 1);
        assert_eq!((&denied["allowed"], &denied["remaining"]), (&json!(false), &json!(0)), "{denied}");
        assert_eq!(reload(&node, &file, &bucket(12)), 200);
        let allowed = node.check("p", &key, 1);
        assert_eq!((&allowed["allowed"], &allowed["remaining"]), (&json!(true), &json!(1)), "{allowed}");
    }
}
