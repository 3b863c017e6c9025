//! Kinds of calls that a server refuses while it makes all others: each is a reason in health.

use serde_json::{Value, json};

use crate::health::{Watched, assert_plain, say};
use crate::support::redis::Server;
use crate::support::{http, unique, wait_until};

const POLICIES: &str = "
  p: {quotas: [1000000 per 1h], on_store_failure: error, timeout: 5s}
  held: {quotas: [1000000 per 1h], hold: {ttl: 1m, in_flight: 2}, timeout: 5s}
  many: {quotas: [1000000 per 1h], hold: {ttl: 1m, in_flight: 1000}, timeout: 5s}
  counter: {algorithm: sliding-counter, tick: 1m, quotas: [1000000 per 1h], timeout: 5s}
";

fn watched(server: &Server) -> Watched {
    let watched = Watched::with_policies(&format!("{{redis: [{}]}}", server.url()), POLICIES);
    wait_until("the store decides", || watched.charge("key"));
    watched
}

/// Whether the shard is up and health names a reason with these words.
fn is_degraded_for(watched: &Watched, words: [&str; 2]) -> bool {
    let (health, shard) = (watched.node.health(), watched.shard());
    let reason = shard["reason"].as_str().unwrap_or_default();
    health["status"] == "degraded" && shard["up"] == true && words.iter().all(|word| reason.contains(word))
}

fn check(watched: &Watched, policy: &str, key: &str) -> Value {
    watched.node.post("/v1/check", &json!({"policy": policy, "key": key, "id": unique("id")})).json()
}

/// An operation on holds. Returns whether the store has done it.
type Ask = fn(&Watched) -> bool;

#[test]
fn kind_of_call_without_its_right_is_a_reason_while_others_pass() {
    let hold: Ask = |watched| check(watched, "held", "h")["source"] == "store";
    let list: Ask = |watched| {
        let usage = http::get(&watched.node.address, "/v1/usage?policy=held&key=h");
        usage.json()["holds"].is_array()
    };
    let reset: Ask =
        |watched| http::call(&watched.node.address, "DELETE", "/v1/usage?policy=held&key=h", None, "").status == 200;
    let count: Ask = |watched| watched.node.check("counter", "c", 1)["source"] == "store";
    let rows = [
        ("-zrange", hold, ["checks with an id", "lacks a right"]),
        ("-zrevrange", list, ["lists of holds", "lacks a right"]),
        ("-zremrangebyrank", reset, ["resets", "lacks a right"]),
        ("-mget", count, ["checks", "sliding-counter"]),
        // The script was not loaded before.
        ("-eval -script", hold, ["checks with an id", "script|load"]),
    ];
    for (right, ask, words) in rows {
        let server = Server::start();
        let watched = watched(&server);
        if right != "-eval -script" {
            wait_until("the store does it", || ask(&watched));
        }
        say(&server, &format!("ACL SETUSER default {right}"));
        wait_until(&format!("health tells of {words:?}, not {}", watched.shard()), || {
            assert!(watched.charge("key"), "{right}");
            assert!(!ask(&watched), "{right}");
            is_degraded_for(&watched, words)
        });
        wait_until("the log tells it", || watched.logged().contains("refuses calls of a kind"));
        assert_plain(&watched.logged());
        say(&server, "ACL SETUSER default +@all");
        wait_until("health reports the end", || ask(&watched) && watched.is_up());
        wait_until("the log tells it", || watched.logged().contains("makes calls of the kind again"));
    }
}

/// Only calls for keys with many holds need the right.
#[test]
fn right_that_some_keys_need_is_a_reason_until_calls_for_them_pass() {
    let server = Server::start();
    let watched = watched(&server);
    (0..3).for_each(|_| assert_eq!(check(&watched, "many", "full")["source"], "store"));
    say(&server, "ACL SETUSER default -zcard");
    wait_until("health tells of the key with many holds", || {
        assert_eq!(check(&watched, "many", "full")["source"], "fallback");
        assert_eq!(check(&watched, "many", &unique("empty"))["source"], "store");
        is_degraded_for(&watched, ["checks with an id", "lacks a right"])
    });
    say(&server, "ACL SETUSER default +@all");
    wait_until("health reports the end", || check(&watched, "many", "full")["source"] == "store" && watched.is_up());
}

#[test]
fn refused_wait_is_a_reason_while_charges_pass() {
    let server = Server::start();
    let _replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let policies = format!("{POLICIES}  durable: {{quotas: [1000000 per 1h], durability: replica, timeout: 5s}}\n");
    let watched = Watched::with_policies(&format!("{{redis: [{}]}}", server.url()), &policies);
    let charge = || watched.node.check("durable", "d", 1);
    wait_until("the replica acknowledges", || charge()["source"] == "store");
    say(&server, "ACL SETUSER default -wait");
    wait_until("health tells of WAIT", || {
        assert_eq!(charge()["fallback"]["cause"], "no_replica_ack");
        is_degraded_for(&watched, ["calls of WAIT", "may not call wait"])
    });
    say(&server, "ACL SETUSER default +@all");
    wait_until("health reports the end", || charge()["source"] == "store" && watched.is_up());
}

/// One refused call tells of a missing right, and another second without a call ends nothing.
#[test]
fn single_refused_call_is_a_reason_after_a_second() {
    let server = Server::start();
    let watched = watched(&server);
    say(&server, "ACL SETUSER default -zrange");
    let opened = check(&watched, "held", "h");
    assert_eq!((&opened["source"], &opened["fallback"]["cause"]), (&json!("fallback"), &json!("refused")));
    wait_until("health tells of it", || is_degraded_for(&watched, ["checks with an id", "lacks a right"]));
}

/// A hold that the fallback opened is of this node, and so is its end.
#[test]
fn hold_of_the_fallback_ends_at_its_node_without_the_store() {
    let server = Server::start();
    let watched = watched(&server);
    say(&server, "ACL SETUSER default -zrange");
    let of = |id: &str| json!({"policy": "held", "key": "h", "id": id});
    assert_eq!(watched.node.post("/v1/check", &of("a")).json()["source"], "fallback");
    let settled = |id: &str| watched.node.post("/v1/settle", &of(id));
    let settle = || settled("a").json();
    assert_eq!((&settle()["settled"], &settle()["source"]), (&json!(true), &json!("fallback")));
    assert_eq!(settled("b").status, 503);
    say(&server, "ACL SETUSER default +@all");
    assert_eq!((&settle()["replayed"], &settle()["source"]), (&json!(true), &json!("fallback")));
    assert_eq!(settled("b").json()["reason"], "unknown_id");
}
