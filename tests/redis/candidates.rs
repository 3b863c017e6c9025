//! `candidate`: other quotas decide each check in the shadow, and only metrics show it.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::events::Events;
use crate::support::redis::Server;
use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{Node, TOLLGATE, file_with, http, node_with, unique, wait_until};

const POLICIES: &str = "
policies:
  stricter: {quotas: [3 per 1h], candidate: {quotas: [2 per 1h]}}
  laxer: {quotas: [1 per 1h], candidate: {quotas: [3 per 1h]}}
  shadow: {quotas: [1 per 1h], shadow: true, candidate: {quotas: [2 per 1h]}}
  listed:
    quotas: [1 per 1h]
    candidate: {quotas: [5 per 1h]}
    deny: {keys: [mallory]}
    allow: {keys: [root]}
    overrides: [{match: {key: vip}, quotas: [1 per 1h]}]
  inline: {quotas: [1 per 1h], inline: true, candidate: {quotas: [5 per 1h]}}
  plain: {quotas: [2 per 1h]}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [3 per 1h], candidate: {quotas: [2 per 1h]}}
  bucket:
    algorithm: token-bucket
    quotas: [{rate: 1 per 1h, burst: 3}]
    candidate: {quotas: [{rate: 1 per 1h, burst: 2}]}
  log: {algorithm: sliding-log, quotas: [3 per 1h], candidate: {quotas: [2 per 1h]}}
  counter: {algorithm: sliding-counter, tick: 1h, quotas: [3 per 2h], candidate: {quotas: [2 per 2h]}}
";

/// agreed, newly denied, newly allowed, skipped
type Counts = [u64; 4];

fn counts(node: &Node, policy: &str) -> Counts {
    let text = node.metrics();
    ["agreed", "newly_denied", "newly_allowed", "skipped"].map(|verdict| {
        let series = format!("tollgate_candidate_checks_total{{policy=\"{policy}\",verdict=\"{verdict}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("no {series}:\n{text}")).parse().unwrap()
    })
}

/// Waits until the candidate has decided as many checks as expected: it decides after the answers.
fn expect(node: &Node, policy: &str, expected: Counts) {
    let all = |counts: Counts| counts.iter().sum::<u64>();
    wait_until(&format!("{policy} has compared {expected:?}"), || all(counts(node, policy)) >= all(expected));
    assert_eq!(counts(node, policy), expected, "{policy}");
}

#[test]
fn stricter_candidate_newly_denies_in_every_algorithm() {
    on_memory_and_redis(POLICIES, |node| {
        for policy in ["stricter", "fixed", "bucket", "log", "counter"] {
            let key = unique("stricter");
            let check = || ask(node, &json!({"policy": policy, "key": key}))["allowed"] == true;
            let steps = [(true, [1, 0, 0, 0]), (true, [2, 0, 0, 0]), (true, [2, 1, 0, 0]), (false, [3, 1, 0, 0])];
            for (allowed, expected) in steps {
                assert_eq!(check(), allowed, "{policy}");
                expect(node, policy, expected);
            }
        }
    });
}

#[test]
fn laxer_candidate_newly_allows_known_denials() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("laxer");
        for expected in [[1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 2, 0], [2, 0, 2, 0], [3, 0, 2, 0]] {
            ask(node, &json!({"policy": "laxer", "key": key}));
            expect(node, "laxer", expected);
        }
    });
}

/// Each answer is the same as that of the policy without a candidate.
#[test]
fn candidate_changes_no_answer() {
    let policies = "
policies:
  with: {quotas: [3 per 1h], candidate: {quotas: [1 per 1h]}}
  without: {quotas: [3 per 1h]}
";
    on_memory_and_redis(policies, |node| {
        let key = unique("same");
        for cost in [1, 1, 2, 1, 1, 0] {
            let [with, without] = ["with", "without"].map(|policy| {
                let mut answer = ask(node, &json!({"policy": policy, "key": key, "cost": cost}));
                let members = answer.as_object_mut().unwrap();
                ["policy", "reset_after_ms", "retry_after_ms", "quotas"]
                    .iter()
                    .for_each(|name| _ = members.remove(*name));
                answer
            });
            assert_eq!(with, without);
        }
    });
}

#[test]
fn lists_overrides_peeks_and_own_quotas_are_not_compared() {
    on_memory_and_redis(POLICIES, |node| {
        for key in ["mallory", "root", "vip", "vip"] {
            ask(node, &json!({"policy": "listed", "key": key}));
        }
        let key = unique("compared");
        ask(node, &json!({"policy": "listed", "key": key, "cost": 0}));
        http::get(&node.address, &format!("/v1/usage?policy=listed&key={key}&cost=7"));
        ask(node, &json!({"policy": "inline", "key": key, "quotas": ["9 per 1h"]}));
        // Only these two.
        ask(node, &json!({"policy": "listed", "key": key}));
        ask(node, &json!({"policy": "inline", "key": key}));
        expect(node, "listed", [1, 0, 0, 0]);
        expect(node, "inline", [1, 0, 0, 0]);
    });
}

#[test]
fn shadow_mode_compares_the_verdict_of_the_counters() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("shadow");
        for expected in [[1, 0, 0, 0], [1, 0, 1, 0], [2, 0, 1, 0]] {
            assert_eq!(ask(node, &json!({"policy": "shadow", "key": key}))["allowed"], true);
            expect(node, "shadow", expected);
        }
    });
}

#[test]
fn batches_compare_each_check() {
    on_memory_and_redis(POLICIES, |node| {
        let (one, other) = (unique("batch"), unique("batch"));
        let check = |policy: &str, key: &str| json!({"policy": policy, "key": key});
        let checks: Vec<Value> = [&one, &one, &one, &one, &other].map(|key| check("stricter", key)).into();
        node.post("/v1/check/batch", &json!({"checks": checks}));
        // The first key: two agree, the third is newly denied, and both deny the fourth.
        expect(node, "stricter", [4, 1, 0, 0]);
        node.post(
            "/v1/check/batch",
            &json!({"checks": [check("stricter", &unique("a")), check("stricter", &unique("b"))]}),
        );
        expect(node, "stricter", [6, 1, 0, 0]);
    });
}

#[test]
fn parts_of_a_whole_charge_only_if_the_others_are_allowed() {
    on_memory_and_redis(POLICIES, |node| {
        let (key, other) = (unique("part"), unique("other"));
        let both =
            json!({"checks": [{"policy": "stricter", "key": key}, {"policy": "plain", "key": other, "cost": 2}]});
        assert_eq!(node.post("/v1/check/all", &both).json()["allowed"], true);
        expect(node, "stricter", [1, 0, 0, 0]);
        // The other part denies, so that the candidate only looks.
        for agreed in 2..5 {
            assert_eq!(node.post("/v1/check/all", &both).json()["allowed"], false);
            expect(node, "stricter", [agreed, 0, 0, 0]);
        }
        ask(node, &json!({"policy": "stricter", "key": key}));
        expect(node, "stricter", [5, 0, 0, 0]);
        ask(node, &json!({"policy": "stricter", "key": key}));
        expect(node, "stricter", [5, 1, 0, 0]);
    });
}

#[test]
fn drains_charge_a_candidate_as_far_as_they_fit() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("drain");
        let drain = |cost: u64| json!({"policy": "stricter", "key": key, "cost": cost, "over": "drain"});
        assert_eq!(ask(node, &drain(3))["charged"], 3);
        expect(node, "stricter", [0, 1, 0, 0]);
        // The candidate has charged 2 of 3 units, so it has none left either.
        assert_eq!(ask(node, &drain(1))["charged"], 0);
        expect(node, "stricter", [1, 1, 0, 0]);
    });
}

#[test]
fn replayed_answers_are_not_compared_again() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("id");
        let check = |id: &str| ask(node, &json!({"policy": "stricter", "key": key, "id": id}));
        check("a");
        expect(node, "stricter", [1, 0, 0, 0]);
        assert_eq!(check("a")["replayed"], true);
        check("b");
        expect(node, "stricter", [2, 0, 0, 0]);
    });
}

#[test]
fn refund_or_reset_also_applies_to_the_candidate() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("refund");
        let check = || ask(node, &json!({"policy": "stricter", "key": key}));
        // The candidate denies the third, and then knows that nothing is left.
        for expected in [[1, 0, 0, 0], [2, 0, 0, 0], [2, 1, 0, 0]] {
            check();
            expect(node, "stricter", expected);
        }
        let refund = json!({"policy": "stricter", "key": key, "cost": 2});
        assert_eq!(node.post("/v1/refund", &refund).json()["refunded"], 2);
        wait_for_two(node, &key);
        check();
        let usage = format!("/v1/usage?policy=stricter&key={key}");
        assert_eq!(http::exchange(&node.address, &http::request("DELETE", &usage, &[], b"")).status, 200);
        wait_for_two(node, &key);
    });
}

/// Waits until the candidate of `stricter` has room for two units, as the policy has. A part of a
/// denied call only looks.
fn wait_for_two(node: &Node, key: &str) {
    let denied = json!({"policy": "plain", "key": "k", "cost": 3});
    let call = json!({"checks": [denied, {"policy": "stricter", "key": key, "cost": 2}]});
    wait_until("the candidate agrees", || {
        let before = counts(node, "stricter");
        let results = node.post("/v1/check/all", &call).json()["results"].clone();
        assert_eq!((&results[0]["allowed"], &results[1]["allowed"]), (&json!(false), &json!(true)));
        wait_until("it is compared", || counts(node, "stricter") != before);
        counts(node, "stricter")[0] > before[0]
    });
}

/// The counters of both have one hash tag, and `explain` names them.
#[test]
fn candidate_has_counters_of_its_own_in_the_same_slot() {
    let server = Server::start();
    let file = file_with(&format!("store: {{timeout: 5s, redis: [{}], key_prefix: rl}}\n{POLICIES}", server.url()));
    let path = file.path().to_str().unwrap();
    let node = Node::start_with(&["--config", path]);
    ask(&node, &json!({"policy": "stricter", "key": "k"}));
    expect(&node, "stricter", [1, 0, 0, 0]);
    let mut names: Vec<String> = redis::cmd("KEYS").arg("{rl:k:}*").query(&mut server.connection().unwrap()).unwrap();
    names.sort();
    assert_eq!(names, ["{rl:k:}stricter:windows", "{rl:k:}stricter~candidate:windows"]);
    let explain = |json: &[&str]| {
        let output = Command::new(TOLLGATE).args(["explain", path, "stricter", "k"]).args(json).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(told["candidate"]["quotas"][0]["says"], "2 per 1h");
    assert_eq!(told["candidate"]["redis"]["keys"], json!(["{rl:k:}stricter~candidate:windows"]));
    assert!(explain(&[]).contains("quota   1h: 2 per 1h (candidate)\n"), "{}", explain(&[]));
}

#[test]
fn policies_show_candidates() {
    on_memory_and_redis(POLICIES, |node| {
        let policies = http::get(&node.address, "/v1/policies").json()["policies"].clone();
        let of =
            |name: &str| policies.as_array().unwrap().iter().find(|policy| policy["name"] == name).unwrap().clone();
        let quota = json!({"name": "1h", "limit": 2, "window_ms": 3_600_000, "says": "2 per 1h"});
        assert_eq!(of("stricter")["candidate"], json!({"quotas": [quota]}));
        assert_eq!(of("plain").get("candidate"), None);
    });
}

#[test]
fn live_view_has_the_counts_of_candidates() {
    let node =
        node_with("policies: {p: {quotas: [2 per 1h], candidate: {quotas: [1 per 1h]}}, q: {quotas: [1 per 1h]}}");
    for _ in 0..3 {
        ask(&node, &json!({"policy": "p", "key": "k"}));
    }
    let snapshot = Events::open(&node.address, "", None).next().unwrap();
    let counts = json!({"policy": "p", "quotas": ["1 per 1h"], "newly_denied": 1, "newly_allowed": 0, "checks": 3});
    assert_eq!(snapshot["candidates"], json!([counts]));
    let without = node_with("policies: {q: {quotas: [1 per 1h]}}");
    assert_eq!(Events::open(&without.address, "", None).next().unwrap().get("candidates"), None);
}

#[test]
fn checks_without_the_store_are_skipped() {
    let node = node_with(
        "store: {timeout: 50ms, redis: [redis://127.0.0.1:1]}
policies:
  local: {quotas: [9 per 1h], candidate: {quotas: [1 per 1h]}}
  error: {quotas: [9 per 1h], on_store_failure: error, candidate: {quotas: [1 per 1h]}}
",
    );
    for policy in ["local", "error"] {
        ask(&node, &json!({"policy": policy, "key": "k"}));
        expect(&node, policy, [0, 0, 0, 1]);
    }
}

/// An unchanged candidate continues. A changed one keeps the counts of its keys, and begins at 0.
#[test]
fn reload_continues_unchanged_candidates() {
    let file = |candidate: u64| {
        format!("policies: {{p: {{quotas: [9 per 1h], candidate: {{quotas: [{candidate} per 1h]}}}}}}")
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.yaml");
    let load = |candidate| std::fs::write(&path, file(candidate)).unwrap();
    load(1);
    let node = Node::with_config(&path);
    let check = || ask(&node, &json!({"policy": "p", "key": "k"}));
    check();
    check();
    expect(&node, "p", [1, 1, 0, 0]);
    let reload = || {
        let reloaded = http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b""));
        assert_eq!(reloaded.status, 200);
    };
    reload();
    expect(&node, "p", [1, 1, 0, 0]);
    load(2);
    reload();
    expect(&node, "p", [0, 0, 0, 0]);
    check();
    check();
    // The first of four was charged, so that a second one fits.
    expect(&node, "p", [1, 1, 0, 0]);
    std::fs::write(&path, "policies: {p: {quotas: [9 per 1h]}}").unwrap();
    reload();
    check();
    assert!(!node.metrics().contains("tollgate_candidate_checks_total{"));
}

/// The pre-filter denies while the store is frozen. So only candidates wait for the store.
#[test]
fn busy_node_skips_candidates_and_answers_at_once() {
    let server = Server::start();
    let node = node_with(&format!(
        "store: {{timeout: 20s, redis: [{}]}}\npolicies: {{p: {{quotas: [1 per 1h], candidate: {{quotas: [1000000 per 1h]}}}}}}",
        server.url()
    ));
    let check = || ask(&node, &json!({"policy": "p", "key": "k"}));
    check();
    expect(&node, "p", [1, 0, 0, 0]);
    check();
    expect(&node, "p", [1, 0, 1, 0]);
    server.freeze();
    for _ in 0..300 {
        assert_eq!(check()["source"], "prefilter");
    }
    // 256 calls wait.
    assert_eq!(counts(&node, "p"), [1, 0, 1, 44]);
    server.thaw();
    expect(&node, "p", [1, 0, 257, 44]);
}
