//! Refunds by id or by cost, and resets: exact, immediate, and soon visible on the other nodes.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::store::{Done, Work};

use crate::support::http::{self, Connection};
use crate::support::pairs::{ALGORITHMS, check, on_pairs_of_nodes, policies, posted, remaining, reset};
use crate::support::redis::{Server, shared};
use crate::support::steps::{START, policy, subject};
use crate::support::timed::Timed;
use crate::support::{Node, TOLLGATE, file_with, unique, wait_until};

#[test]
fn refund_by_id_returns_its_charge_once() {
    on_pairs_of_nodes(&policies(&[10], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-10"), unique("refund"));
            let charge = |id: &str, cost: u64| {
                let decision = check(nodes[0], &json!({"policy": policy, "key": key, "id": id, "cost": cost}));
                assert_eq!(decision["charged"], cost, "{policy} on {store}: {decision}");
            };
            let refund = |node: usize, id: &str| {
                let answer = posted(nodes[node], "/v1/refund", &json!({"policy": policy, "key": key, "id": id}));
                (answer["refunded"].as_u64().unwrap(), answer["remaining"].as_u64().unwrap())
            };
            charge("a", 3);
            charge("b", 4);
            charge("c", 2);
            assert_eq!(refund(1, "b"), (4, 5), "{policy} on {store}");
            assert_eq!(refund(0, "b"), (0, 5), "only once");
            assert_eq!(refund(0, "unknown"), (0, 5));
            let body = |id: &str, cost: u64| json!({"policy": policy, "key": key, "id": id, "cost": cost});
            for node in nodes {
                let replayed = check(node, &body("b", 4));
                let told =
                    |answer: &Value| ["allowed", "replayed", "charged", "refunded"].map(|name| answer[name].clone());
                let gone = [json!(false), json!(true), json!(0), json!(true)];
                assert_eq!(told(&replayed), gone, "{policy} on {store}: {replayed}");
                let told_first = (&replayed["remaining"], &replayed["cost"], &replayed["source"], &replayed["reason"]);
                assert_eq!(told_first, (&json!(3), &json!(4), &json!("store"), &json!("refunded")), "{replayed}");
                assert_eq!(replayed["retry_after_ms"], Value::Null, "only a new id can pass");
                let both = json!({"checks": [body("b", 4), body("c", 2)]});
                let results = posted(node, "/v1/check/batch", &both)["results"].take();
                assert_eq!((told(&results[0]), results[1]["charged"].clone()), (gone, json!(2)), "{results}");
                assert_eq!(results[1].get("refunded"), None);
            }
            let reused = http::post(&nodes[0].address, "/v1/check", body("b", 3).to_string());
            assert_eq!(reused.status, 409, "it stands for its charge as before");
            assert_eq!(remaining(nodes[0], &policy, &key), 5, "a replay charges nothing");
            assert_eq!(refund(1, "c"), (2, 7));
            assert_eq!(refund(1, "a"), (3, 10));
            assert_eq!(refund(1, "a"), (0, 10));
        }
    });
}

/// The store notes the reset of a key, unless it is full.
#[test]
fn full_store_accepts_reset_of_unknown_key() {
    let memory = Timed::new(1);
    let known = subject(policy(&[(5, 1_000_000)]), "known");
    let unknown = subject(policy(&[(5, 1_000_000)]), "unknown");
    assert!(memory.at(START).charge(&known, &[1], &[]).is_ok());
    for key in [&unknown, &known] {
        let forgotten = memory.at(START).run(key, &Work::Reset(Box::default()), &[]);
        assert!(matches!(forgotten, Ok(Done::Refunded(..))), "{forgotten:?}");
    }
    assert!(memory.at(START).charge(&unknown, &[1], &[]).is_err(), "what was forgotten is noted");
}

/// A refund has no fallback. The caller gets the failure, and the log gives the reason.
#[test]
fn failed_refund_is_logged() {
    let server = Server::start();
    let file = file_with(&format!("store: {{redis: [{}]}}\npolicies: {{p: {{quotas: [5 per 1h]}}}}", server.url()));
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "warn").stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    wait_until("the store decides", || node.check("p", "k", 1)["source"] == "store");
    server.end();
    let refused = node.post("/v1/refund", &json!({"policy": "p", "key": "k", "cost": 1}));
    assert_eq!(refused.status, 503, "{refused:?}");
    let told = || std::fs::read_to_string(log.path()).unwrap();
    wait_until("it is logged", || told().contains("the store did not do a refund or a reset"));
}

/// Refunds of other charges come before and after, directly or with a charge between them.
#[test]
fn refund_by_id_is_independent_of_other_refunds() {
    on_pairs_of_nodes(&policies(&[140], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            for (before, after) in [(0, 40), (1, 40), (20, 12), (20, 40)] {
                let (policy, key) = (format!("{algorithm}-140"), unique("many"));
                let charge = |id: &str, cost: u64| {
                    let decision = check(nodes[0], &json!({"policy": policy, "key": key, "id": id, "cost": cost}));
                    assert_eq!(decision["charged"], cost, "{policy} on {store}: {decision}");
                };
                let refund = |id: &str| {
                    let answer = posted(nodes[1], "/v1/refund", &json!({"policy": policy, "key": key, "id": id}));
                    (answer["refunded"].as_u64().unwrap(), answer["remaining"].as_u64().unwrap())
                };
                let others = |from: usize, count: usize| {
                    for number in from..from + count {
                        charge(&format!("one-{number}"), 3);
                        charge(&format!("other-{number}"), 2);
                        let first = if number % 3 == 0 { ["other", "one"] } else { ["one", "other"] };
                        for of in first {
                            assert!(refund(&format!("{of}-{number}")).0 > 1, "{policy} on {store}");
                        }
                    }
                };
                charge("kept", 5);
                others(0, before);
                charge("taken back", 10);
                others(before, after);
                for (id, cost, most) in [("taken back", 10, 135), ("kept", 5, 140)] {
                    let (given, left) = refund(id);
                    // A bucket may keep what it has refilled since the charge.
                    let is_left = left == most || algorithm == "bucket" && left + 1 == most;
                    let told = format!("{policy} on {store}, {before} before, {after} after: {given}, {left}");
                    assert!(given == cost && is_left, "{told}");
                }
            }
        }
    });
}

/// A bucket counts skipped units in fractions, which grow beyond exact numbers. A bucket that
/// refills within a year has few.
#[test]
fn many_refunds_leave_a_readable_key() {
    on_pairs_of_nodes(&policies(&[140], ""), |nodes, store| {
        let (policy, key) = ("bucket-140", unique("lasting"));
        for number in 0..60 {
            let id = format!("id-{number}");
            let charge = json!({"policy": policy, "key": key, "id": id, "cost": 70});
            assert_eq!(check(nodes[0], &charge)["charged"], 70, "{number} on {store}");
            assert_eq!(
                check(nodes[1], &json!({"policy": policy, "key": key}))["source"],
                "store",
                "{number} on {store}"
            );
            let refund = posted(nodes[0], "/v1/refund", &json!({"policy": policy, "key": key, "id": id}));
            assert_eq!((&refund["refunded"], &refund["source"]), (&json!(70), &json!("store")), "{number} on {store}");
        }
        assert_eq!(remaining(nodes[0], policy, &key), 80);
        for number in 0..300 {
            let refund = posted(nodes[0], "/v1/refund", &json!({"policy": policy, "key": key, "cost": 30}));
            assert_eq!((&refund["refunded"], &refund["source"]), (&json!(30), &json!("store")), "{number} on {store}");
            assert_eq!(check(nodes[1], &json!({"policy": policy, "key": key, "cost": 30}))["charged"], 30, "{store}");
        }
        assert_eq!(remaining(nodes[0], policy, &key), 80);
    });
}

#[test]
fn refund_by_cost_never_exceeds_charges() {
    on_pairs_of_nodes(&policies(&[10], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-10"), unique("cost"));
            let refund = |cost: u64| {
                let answer = posted(nodes[1], "/v1/refund", &json!({"policy": policy, "key": key, "cost": cost}));
                (answer["refunded"].as_u64().unwrap(), answer["remaining"].as_u64().unwrap())
            };
            assert_eq!(refund(5), (0, 10), "nothing was charged: {policy} on {store}");
            check(nodes[0], &json!({"policy": policy, "key": key, "cost": 7}));
            assert_eq!(refund(3), (3, 6), "{policy} on {store}");
            assert_eq!(refund(0), (0, 6));
            assert_eq!(refund(1_000_000_000_000_000), (4, 10), "{policy} on {store}");
            assert_eq!(check(nodes[0], &json!({"policy": policy, "key": key, "cost": 10}))["allowed"], true);
        }
    });
}

#[test]
fn reset_restores_quotas_and_voids_later_refunds() {
    on_pairs_of_nodes(&policies(&[10], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-10"), unique("reset"));
            let charge = json!({"policy": policy, "key": key, "id": "a", "cost": 10});
            assert_eq!(check(nodes[0], &charge)["charged"], 10);
            let forgotten = reset(nodes[0], &policy, &key);
            assert_eq!(forgotten.status, 200, "{policy} on {store}: {forgotten:?}");
            let usage = forgotten.json();
            assert_eq!((&usage["remaining"], &usage["reset_after_ms"]), (&json!(10), &json!(0)), "{policy} on {store}");
            assert_eq!(check(nodes[1], &json!({"policy": policy, "key": key, "cost": 6}))["remaining"], 4);
            // The reset removed the charge of the id; later charges of others are not its own.
            let refund = posted(nodes[0], "/v1/refund", &json!({"policy": policy, "key": key, "id": "a"}));
            assert_eq!((&refund["refunded"], &refund["remaining"]), (&json!(0), &json!(4)), "{policy} on {store}");
            assert_eq!(reset(nodes[1], &policy, &key).json()["remaining"], 10);
            assert_eq!(reset(nodes[1], &policy, &unique("never")).json()["remaining"], 10);
        }
    });
}

/// The node of the refund drops its known denial at once; another node keeps its own for
/// `max_denial` at most.
#[test]
fn refund_ends_known_denial_on_all_nodes() {
    let configuration = format!("prefilter: {{max_denial: 8s}}\n{}", policies(&[2], ""));
    on_pairs_of_nodes(&configuration, |nodes, store| {
        let mut elsewhere = Vec::new();
        for (algorithm, by) in ALGORITHMS.iter().flat_map(|algorithm| ["id", "cost", "reset"].map(|by| (algorithm, by)))
        {
            let (policy, key) = (format!("{algorithm}-2"), unique("known"));
            let one = json!({"policy": policy, "key": key});
            assert_eq!(check(nodes[0], &json!({"policy": policy, "key": key, "id": "a"}))["allowed"], true);
            assert_eq!(check(nodes[0], &one)["allowed"], true);
            for node in nodes {
                check(node, &one);
                let known = check(node, &one);
                assert_eq!((&known["allowed"], &known["source"]), (&json!(false), &json!("prefilter")), "{store}");
            }
            let refund = json!({"policy": policy, "key": key, by: if by == "id" { json!("a") } else { json!(1) }});
            match by {
                "reset" => assert_eq!(reset(nodes[0], &policy, &key).status, 200),
                _ => assert_eq!(posted(nodes[0], "/v1/refund", &refund)["refunded"], 1, "{policy} on {store}"),
            }
            let here = check(nodes[0], &one);
            assert_eq!(here["allowed"], true, "{policy} by {by} on {store}: {here}");
            // For the other node.
            posted(nodes[0], "/v1/refund", &json!({"policy": policy, "key": key, "cost": 1}));
            elsewhere.push(one);
        }
        for one in elsewhere {
            wait_until("the other node asks again", || check(nodes[1], &one)["allowed"] == true);
        }
    });
}

/// A check with an id skips the pre-filter, and the pre-filter learns from its answer.
#[test]
fn allowed_check_with_id_ends_known_denial() {
    let configuration = format!("prefilter: {{max_denial: 60s}}\n{}", policies(&[3], ""));
    on_pairs_of_nodes(&configuration, |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-3"), unique("with-an-id"));
            let one = json!({"policy": policy, "key": key});
            assert_eq!(check(nodes[0], &json!({"policy": policy, "key": key, "cost": 3}))["allowed"], true);
            check(nodes[0], &one);
            assert_eq!(check(nodes[0], &one)["source"], "prefilter", "{policy} on {store}");
            posted(nodes[1], "/v1/refund", &json!({"policy": policy, "key": key, "cost": 2}));
            let by_id = check(nodes[0], &json!({"policy": policy, "key": key, "id": "a"}));
            assert_eq!(by_id["allowed"], true, "{policy} on {store}: {by_id}");
            let plain = check(nodes[0], &one);
            assert_eq!(plain["allowed"], true, "{policy} on {store}: {plain}");
        }
    });
}

/// The caller leaves while the store is frozen; the store executes the refund nevertheless.
#[test]
fn cancelled_refund_ends_known_denial() {
    let server = Server::start();
    let store = format!("store: {{redis: ['{}']}}\n", server.url());
    let file = file_with(&(store + &policies(&[1], "")));
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    for algorithm in ALGORITHMS {
        let (policy, key) = (format!("{algorithm}-1"), unique("gone"));
        let one = json!({"policy": policy, "key": key});
        let refund = json!({"policy": policy, "key": key, "id": "a"});
        wait_until("it is charged", || check(&nodes[0], &refund)["charged"] == 1);
        wait_until("it is known", || check(&nodes[0], &one)["source"] == "prefilter");
        wait_until("the refund is made", || {
            server.freeze();
            let mut connection = Connection::open(&nodes[0].address).unwrap();
            connection.send(&http::json_request("/v1/refund", refund.to_string().as_bytes())).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            drop(connection);
            server.thaw();
            let usage = http::get(&nodes[1].address, &format!("/v1/usage?policy={policy}&key={key}")).json();
            usage["source"] == "store" && usage["remaining"] == 1
        });
        wait_until("the node asks again", || check(&nodes[0], &one)["allowed"] == true);
    }
}

/// Clock windows differ from first-hit windows of the same length. A refund changes only those that
/// its charge has counted in.
#[test]
fn refund_by_id_leaves_windows_with_other_anchor() {
    for store in [format!("store: {{redis: [{}]}}\n", shared().url()), String::new()] {
        let anchored = |anchor: &str| {
            let policy = format!("{{algorithm: fixed-window, anchor: {anchor}, quotas: [10 per 24h], timeout: 5s}}");
            format!("{store}policies: {{p: {policy}}}\n")
        };
        let file = file_with(&anchored("first-hit"));
        let (node, key) = (Node::with_config(&file), unique("anchor"));
        let ask = |cost: u64| check(&node, &json!({"policy": "p", "key": key, "cost": cost}))["allowed"].clone();
        assert_eq!(check(&node, &json!({"policy": "p", "key": key, "cost": 8, "id": "a"}))["charged"], 8);
        std::fs::write(file.path(), anchored("clock")).unwrap();
        assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
        assert_eq!(ask(10), true);
        let refund = posted(&node, "/v1/refund", &json!({"policy": "p", "key": key, "id": "a"}));
        assert_eq!((&refund["refunded"], ask(8)), (&json!(8), json!(false)), "{store}{refund}");
    }
}

/// A list from a reload decides for a key despite earlier charges, which a refund can still return.
/// Off the list again, the key continues with its remaining counts.
#[test]
fn charge_from_before_listing_can_be_refunded() {
    for store in [format!("store: {{timeout: 5s, redis: [{}]}}\n", shared().url()), String::new()] {
        let with = |list: &str| {
            let overridden = "quotas: [2 per 1m], overrides: [{match: {prefix: listed-}, quotas: [10 per 2h]}]";
            format!("{store}{}\n  overridden-10: {{{overridden}, timeout: 5s{list}}}\n", policies(&[10], list))
        };
        let file = file_with(&with(""));
        let node = Node::with_config(&file);
        let reload = |list: &str| {
            std::fs::write(file.path(), with(list)).unwrap();
            assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
        };
        for list in ["deny", "allow"] {
            let keys = ALGORITHMS.iter().chain(&["overridden"]);
            let keys: Vec<_> = keys.map(|of| (format!("{of}-10"), unique("listed"))).collect();
            let body = |(policy, key): &(String, String), more: Value| {
                let mut body = json!({"policy": policy, "key": key});
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                body
            };
            let refund = |of: &(String, String), what: Value| {
                let answer = posted(&node, "/v1/refund", &body(of, what));
                by_list(&answer, list, &format!("{of:?} on {store}"));
                answer["refunded"].as_u64().unwrap()
            };
            let on_list = format!(", {list}: {{prefixes: [listed-]}}");
            for of in &keys {
                for (id, cost) in [("a", 3), ("b", 4)] {
                    assert_eq!(check(&node, &body(of, json!({"id": id, "cost": cost})))["charged"], cost, "{of:?}");
                }
                assert_eq!(check(&node, &body(of, json!({"cost": 2})))["remaining"], 1, "{of:?} on {store}");
            }
            reload(&on_list);
            for of in &keys {
                // The list decides, and not the record of the id.
                by_list(&check(&node, &body(of, json!({"id": "b", "cost": 4}))), list, &of.0);
                let taken_back = [json!({"id": "a"}), json!({"id": "a"}), json!({"cost": 1})];
                assert_eq!(taken_back.map(|what| refund(of, what)), [3, 0, 1], "{list}: {of:?} on {store}");
            }
            reload("");
            for of in &keys {
                assert_eq!(remaining(&node, &of.0, &of.1), 5, "{list}: {of:?} on {store}");
                let replayed = check(&node, &body(of, json!({"id": "a", "cost": 3})));
                assert_eq!((&replayed["charged"], &replayed["refunded"]), (&json!(0), &json!(true)), "{replayed}");
            }
            reload(&on_list);
            for of in &keys {
                let forgotten = reset(&node, &of.0, &of.1);
                assert_eq!(forgotten.status, 200, "{forgotten:?}");
                by_list(&forgotten.json(), list, &format!("{of:?} on {store}"));
            }
            reload("");
            for of in &keys {
                assert_eq!(remaining(&node, &of.0, &of.1), 10, "{list}: {of:?} on {store}");
            }
        }
    }
}

fn by_list(decision: &Value, list: &str, what: &str) {
    let told = ["allowed", "source", "reason", "remaining"].map(|name| decision[name].clone());
    let reason = json!(format!("{list}_listed"));
    assert_eq!(told, [json!(list == "allow"), json!("list"), reason, Value::Null], "{what}: {decision}");
}

#[test]
fn refund_without_store_fails_with_problem() {
    let seeds = [format!("redis://127.0.0.1:{}", crate::support::free_port())];
    let file = crate::support::config_on(&seeds, "policies: {default: {quotas: [5 per 1m], deny: {keys: [mallory]}}}");
    let node = Node::with_config(&file);
    for key in ["k", "mallory"] {
        let refund = http::post(&node.address, "/v1/refund", json!({"key": key, "cost": 1}).to_string());
        for answer in [refund, reset(&node, "default", key)] {
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{key}: {answer:?}");
            assert_eq!(answer.json()["type"], "urn:tollgate:problem:store-unavailable");
        }
    }
    assert_eq!(check(&node, &json!({"key": "k", "id": "a"}))["source"], Value::from("fallback"));
}
