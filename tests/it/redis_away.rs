//! A node whose Redis is not there, or does not answer, answers all the same, says so, and joins it when it comes.

use serde_json::{Value, json};

use crate::harness::redis::Server;
use crate::harness::{Node, config_on, free_port, http, unique, wait_until};

const POLICIES: &str = "
fallback: {expected_nodes: 2}
policies:
  local: {quotas: [10 per 1m]}
  deny: {quotas: [10 per 1m], on_store_failure: deny}
  error: {quotas: [10 per 1m], on_store_failure: error}
";

fn ask(node: &Node, policy: &str, key: &str) -> http::Answer {
    http::post(&node.address, "/v1/check", json!({"policy": policy, "key": key}).to_string())
}

fn health(node: &Node) -> Value {
    let ready = http::get(&node.address, "/health/ready");
    assert_eq!(ready.status, 200);
    ready.json()
}

#[test]
fn redis_absent_at_start_is_joined_when_it_comes() {
    let port = free_port();
    let file = config_on(&[format!("redis://127.0.0.1:{port}")], POLICIES);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let key = unique("absent");
    let local = ask(&node, "local", &key).json();
    assert_eq!(
        (&local["allowed"], &local["limit"], &local["charged"]),
        (&json!(true), &json!(5), &json!(0)),
        "{local}"
    );
    assert_eq!(local["fallback"], json!({"mode": "local", "cause": "breaker_open"}));
    let denied = ask(&node, "deny", &key).json();
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("store_unavailable")), "{denied}");
    assert_eq!(ask(&node, "error", &key).status, 503);
    let told = json!({"status": "degraded", "store": {"kind": "redis",
        "shards": [{"address": format!("127.0.0.1:{port}"), "up": false}]}});
    assert_eq!(health(&node), told);

    let _server = Server::start_on(port, &[]);
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    assert_eq!(health(&node)["status"], "ok");
}

#[test]
fn a_frozen_redis_holds_up_no_answer_and_is_used_again_when_it_thaws() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let key = unique("frozen");
    assert_eq!(ask(&node, "deny", &key).json()["source"], "store");
    server.freeze();
    for _ in 0..20 {
        let answer = ask(&node, "deny", &key).json();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(false), &json!("fallback")), "{answer}");
    }
    wait_until("health tells the truth", || health(&node)["status"] == "degraded");
    server.thaw();
    wait_until("the store decides again", || ask(&node, "deny", &key).json()["source"] == "store");
    wait_until("health tells the truth again", || health(&node)["status"] == "ok");
}
