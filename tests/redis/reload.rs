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
