//! Checks with an id charge once, however many retries follow.

use std::sync::Barrier;

use serde_json::{Value, json};

use crate::support::http::{self, Connection};
use crate::support::pairs::{ALGORITHMS, check, on_pairs_of_nodes, policies, posted, remaining};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::{Node, file_with, free_port, node_with, unique, wait_until};

fn without_replayed(mut decision: Value) -> Value {
    decision.as_object_mut().unwrap().remove("replayed");
    decision
}

fn hundred(nodes: [&Node; 2], body: &Value) -> Vec<Value> {
    let start = Barrier::new(100);
    std::thread::scope(|scope| {
        let ask = |number: usize| {
            let start = &start;
            scope.spawn(move || {
                let mut connection = Connection::open(&nodes[number % 2].address).unwrap();
                start.wait();
                connection.send(&http::json_request("/v1/check", body.to_string().as_bytes())).unwrap();
                connection.receive(true).unwrap().json()
            })
        };
        let asked: Vec<_> = (0..100).map(ask).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

#[test]
fn hundred_concurrent_retries_charge_once() {
    on_pairs_of_nodes(&policies(&[1, 5], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            // With five units, and with one: the check uses the last unit, so the store denies
            // everything else.
            for limit in [5, 1] {
                let (policy, key) = (format!("{algorithm}-{limit}"), unique("retry"));
                let decisions = hundred(nodes, &json!({"policy": policy, "key": key, "id": "once"}));
                let fresh: Vec<_> = decisions.iter().filter(|decision| decision["replayed"].is_null()).collect();
                assert_eq!(fresh.len(), 1, "{policy} on {store}: {fresh:?}");
                assert_eq!((&fresh[0]["allowed"], &fresh[0]["charged"]), (&json!(true), &json!(1)), "{store}");
                for decision in &decisions {
                    assert_eq!(without_replayed(decision.clone()), *fresh[0], "{policy} on {store}");
                }
                assert_eq!(remaining(nodes[0], &policy, &key), limit - 1, "{policy} on {store}");
                // A known denial does not hide the record, on either node.
                for node in nodes {
                    check(node, &json!({"policy": policy, "key": key, "cost": limit}));
                    let again = check(node, &json!({"policy": policy, "key": key, "id": "once"}));
                    assert_eq!((&again["allowed"], &again["replayed"]), (&json!(true), &json!(true)), "{store}");
                }
            }
        }
    });
}

/// An id with a life of its own serves retries only: a first check costs no more than one without.
#[test]
fn first_check_with_a_retry_id_is_denied_by_the_prefilter_and_a_repetition_by_the_record() {
    on_pairs_of_nodes(&policies(&[2], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-2"), unique("retry"));
            let body = |id: &str, repeated: bool| json!({"policy": policy, "key": key, "id": id, "id_ttl_ms": 60_000, "repeated": repeated});
            let told = |node: usize, id: &str, repeated: bool| {
                let decision = check(nodes[node], &body(id, repeated));
                ["allowed", "charged", "source", "replayed"].map(|name| decision[name].clone())
            };
            let [yes, no, one, none] = [json!(true), json!(false), json!(1), json!(0)];
            let (stored, known) = (json!("store"), json!("prefilter"));
            let at = format!("{policy} on {store}");
            for id in ["a", "b"] {
                assert_eq!(told(0, id, false), [yes.clone(), one.clone(), stored.clone(), Value::Null], "{at}");
            }
            // The first denial makes itself known.
            assert_eq!(told(0, "c", false)[..3], [no.clone(), none.clone(), stored.clone()], "{at}");
            assert_eq!(told(0, "c", false), [no.clone(), none, known, Value::Null], "{at}");
            for node in [0, 1] {
                assert_eq!(told(node, "a", true), [yes.clone(), one.clone(), stored.clone(), yes.clone()], "{at}");
            }
            assert_eq!(told(0, "d", true)[..3], [no, json!(0), stored], "{at}: its first check never arrived");
            assert_eq!(remaining(nodes[1], &policy, &key), 0, "{at}");
        }
    });
}

#[test]
fn id_binds_one_cost_and_only_charges() {
    on_pairs_of_nodes(&policies(&[5], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-5"), unique("id"));
            let ask = |id: &str, cost: u64| {
                let body = json!({"policy": policy, "key": key, "id": id, "cost": cost});
                nodes[0].post("/v1/check", &body)
            };
            // A denial and a peek leave no record.
            assert_eq!(ask("a", 6).json()["reason"], "cost_exceeds_limit", "{store}");
            assert_eq!(ask("a", 0).json()["remaining"], 5);
            assert_eq!(ask("a", 3).json()["charged"], 3);
            assert_eq!(ask("b", 3).json()["allowed"], false);
            let reused = ask("a", 2);
            assert_eq!((reused.status, &reused.json()["type"]), (409, &json!("urn:tollgate:problem:id-reused")));
            assert_eq!(reused.header("content-type"), Some("application/problem+json"));
            assert_eq!(ask("b", 2).json()["charged"], 2, "decided afresh");
            assert_eq!(
                (ask("a", 3).json()["replayed"].clone(), ask("a", 3).json()["remaining"].clone()),
                (json!(true), json!(2))
            );
            // Ids belong to one key and one policy.
            let other = json!({"policy": policy, "key": unique("id"), "id": "a", "cost": 1});
            assert_eq!(check(nodes[1], &other)["replayed"], Value::Null);
            assert_eq!(remaining(nodes[1], &policy, &key), 0);
        }
    });
}

/// Cost 0 differs from the cost of any charge. Under a new id it peeks and leaves no record.
#[test]
fn peek_with_id_of_charge_is_rejected() {
    on_pairs_of_nodes(&policies(&[5], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-5"), unique("look"));
            let body =
                |id: &str, cost: u64| json!({"policy": policy, "key": key, "id": id, "cost": cost, "meta": "me"});
            let ask = |id: &str, cost: u64| http::post(&nodes[0].address, "/v1/check", body(id, cost).to_string());
            let looked = |id: &str, left: u64| {
                let told = ask(id, 0).json();
                assert_eq!(
                    (&told["allowed"], &told["charged"], &told["remaining"], &told["source"], told.get("replayed")),
                    (&json!(true), &json!(0), &json!(left), &json!("store"), None),
                    "{policy} on {store}: {told}"
                );
            };
            looked("a", 5);
            assert_eq!(ask("a", 2).json()["charged"], 2, "the look left no record");
            for node in nodes {
                let reused = http::post(&node.address, "/v1/check", body("a", 0).to_string());
                let problem = reused.json();
                assert_eq!(
                    (reused.status, &problem["type"]),
                    (409, &json!("urn:tollgate:problem:id-reused")),
                    "{policy} on {store}: {problem}"
                );
            }
            let without = json!({"policy": policy, "key": key, "cost": 0});
            let checks = json!({"checks": [body("b", 0), body("a", 0), without, body("b", 3), body("b", 0)]});
            let results = posted(nodes[1], "/v1/check/batch", &checks)["results"].take();
            let statuses = [1, 4].map(|place: usize| results[place]["error"]["status"].clone());
            assert_eq!(statuses, [json!(409), json!(409)], "{policy} on {store}: {results}");
            let left = [0, 2, 3].map(|place: usize| results[place]["remaining"].clone());
            assert_eq!(left, [json!(3), json!(3), json!(0)], "{policy} on {store}: {results}");
            looked("c", 0);
            assert_eq!(ask("c", 1).json()["allowed"], false, "decided afresh");
        }
    });
}

#[test]
fn ids_accept_any_characters() {
    on_pairs_of_nodes(&policies(&[100], ""), |nodes, _| {
        let key = unique("odd");
        let ids = ["{", "}", "%7B", "\n", "\0", "ünïcödé 🦀", "a:b", ":", " ", &"x".repeat(64), "sliding-100:id:{"];
        for id in ids {
            let body = json!({"policy": "sliding-100", "key": key, "id": id});
            assert_eq!(check(nodes[0], &body)["replayed"], Value::Null, "{id:?} is another's");
            assert_eq!(check(nodes[1], &body)["replayed"], true, "{id:?} is forgotten");
        }
        assert_eq!(remaining(nodes[0], "sliding-100", &key), 100 - ids.len() as u64);
    });
}

/// This node's share is charged once, too.
#[test]
fn retry_during_fallback_gets_same_decision() {
    let away = format!("store: {{redis: [redis://127.0.0.1:{}]}}\nfallback: {{expected_nodes: 2}}\n", free_port());
    let node = Node::with_config(file_with(&(away + "policies: {p: {quotas: [4 per 1h]}}\n")));
    let once = |id: &str| check(&node, &json!({"policy": "p", "key": "k", "id": id}));
    let is = |answer: &Value, expected: [Value; 3]| {
        assert_eq!(["allowed", "remaining", "replayed"].map(|name| answer[name].clone()), expected, "{answer}");
    };
    let (new, again) = (Value::Null, json!(true));
    is(&once("a"), [json!(true), json!(1), new.clone()]);
    for _ in 0..3 {
        let answer = once("a");
        is(&answer, [json!(true), json!(1), again.clone()]);
        assert_eq!((&answer["source"], &answer["charged"]), (&json!("fallback"), &json!(0)), "{answer}");
    }
    let dearer = json!({"policy": "p", "key": "k", "id": "a", "cost": 2}).to_string();
    assert_eq!(http::post(&node.address, "/v1/check", dearer).status, 409);
    let look = |id: &str| json!({"policy": "p", "key": "k", "id": id, "cost": 0}).to_string();
    assert_eq!(http::post(&node.address, "/v1/check", look("a")).status, 409);
    for _ in 0..2 {
        let looked = http::post(&node.address, "/v1/check", look("b")).json();
        is(&looked, [json!(true), json!(1), new.clone()]);
    }
    is(&once("b"), [json!(true), json!(0), new.clone()]);
    is(&once("c"), [json!(false), json!(0), new]);
}

#[test]
fn batch_decides_ids_of_one_key_in_order() {
    on_pairs_of_nodes(&policies(&[100], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-100"), unique("many"));
            let item = |id: usize| json!({"policy": policy, "key": key, "id": id.to_string()});
            let body = json!({"checks": (0..150).map(item).collect::<Vec<_>>()}).to_string();
            let results = http::post(&nodes[0].address, "/v1/check/batch", body).json()["results"].clone();
            let told =
                |place: usize| (&results[place]["allowed"], &results[place]["source"], &results[place]["remaining"]);
            for place in 0..150 {
                let left = 99_usize.saturating_sub(place);
                let expected = (&json!(place < 100), &json!("store"), &json!(left));
                assert_eq!(told(place), expected, "{place} of {policy} on {store}: {}", results[place]);
            }
        }
    });
}

/// The store decides checks of one key in the order of the batch. This holds for any mix of checks
/// with and without ids. It also holds where fewer calls would do, and where a log needs several
/// calls.
#[test]
fn checks_with_and_without_ids_keep_order() {
    let long = "  log-9000: {algorithm: sliding-log, quotas: [9000 per 1h], timeout: 5s}\n";
    on_pairs_of_nodes(&(policies(&[100], "") + long), |nodes, store| {
        for (algorithm, limit) in ALGORITHMS.map(|algorithm| (algorithm, 100)).into_iter().chain([("log", 9000)]) {
            let (policy, key) = (format!("{algorithm}-{limit}"), unique("mixed"));
            // Runs of one to three, now and then a peek. For the log, more different costs than one
            // call may carry.
            let with_id = |place: usize| place < 40 && place % 7 < 3 || place == 149;
            let cost = |place: usize| if limit == 100 { place % 4 } else { place };
            let item = |place: usize| {
                let mut item = json!({"policy": policy, "key": key, "cost": cost(place)});
                if with_id(place) {
                    item["id"] = json!(place.to_string());
                }
                item
            };
            let body = json!({"checks": (0..150).map(item).collect::<Vec<_>>()});
            let results = posted(nodes[0], "/v1/check/batch", &body)["results"].take();
            let mut left = limit;
            for place in 0..150 {
                let allowed = cost(place) <= left;
                left -= if allowed { cost(place) } else { 0 };
                let told = (&results[place]["allowed"], &results[place]["remaining"]);
                assert_eq!(told, (&json!(allowed), &json!(left)), "{place} of {policy} on {store}: {results}");
            }
        }
    });
}

/// Each round trip takes 50 ms, and a thousand of them would take 50 s.
#[test]
fn alternating_batch_does_not_wait_per_check() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let policies = "policies: {p: {quotas: [5000 per 1h], on_store_failure: deny}}\n";
    let node = node_with(&format!("store: {{redis: ['{}'], timeout: 5s}}\n{policies}", proxy.url()));
    let once = json!({"policy": "p", "key": "first", "id": "once"});
    wait_until("the store decides", || check(&node, &once)["source"] == "store");
    proxy.delay(25);
    let item = |place: usize| match place % 2 {
        0 => json!({"policy": "p", "key": "k"}),
        _ => json!({"policy": "p", "key": "k", "id": place.to_string()}),
    };
    let body = json!({"checks": (0..1000).map(item).collect::<Vec<_>>()});
    let results = posted(&node, "/v1/check/batch", &body)["results"].take();
    for place in 0..1000 {
        let told = (&results[place]["source"], &results[place]["remaining"]);
        assert_eq!(told, (&json!("store"), &json!(4999 - place)), "{place}: {}", results[place]);
    }
}

#[test]
fn batch_checks_may_have_separate_ids() {
    on_pairs_of_nodes(&policies(&[5], ""), |nodes, store| {
        let key = unique("batch");
        let item = |id: Option<&str>, cost: u64| {
            let mut item = json!({"policy": "sliding-5", "key": key, "cost": cost});
            id.into_iter().for_each(|id| item["id"] = json!(id));
            item
        };
        let checks =
            [item(None, 1), item(Some("a"), 2), item(Some("a"), 2), item(None, 1), item(Some("a"), 1), item(None, 2)];
        let results = posted(nodes[0], "/v1/check/batch", &json!({"checks": checks}))["results"].take();
        let told = |place: usize| (results[place]["remaining"].clone(), results[place]["replayed"].clone());
        assert_eq!(told(0), (json!(4), Value::Null), "{store}");
        assert_eq!(told(1), (json!(2), Value::Null));
        assert_eq!(told(2), (json!(2), json!(true)));
        assert_eq!(told(3), (json!(1), Value::Null));
        assert_eq!(results[4]["error"]["status"], 409);
        assert_eq!(results[5]["allowed"], false);
    });
}

#[test]
fn disconnected_client_may_retry() {
    on_pairs_of_nodes(&policies(&[5], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-5"), unique("left"));
            let body = json!({"policy": policy, "key": key, "id": "once"}).to_string();
            for _ in 0..10 {
                let mut connection = Connection::open(&nodes[0].address).unwrap();
                connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
            }
            let again = http::post(&nodes[1].address, "/v1/check", &body).json();
            assert_eq!((&again["allowed"], &again["remaining"]), (&json!(true), &json!(4)), "{policy} on {store}");
            assert_eq!(remaining(nodes[1], &policy, &key), 4, "{policy} on {store}");
        }
    });
}

/// The first try times out while its call is in flight. Its outcome is unknown, and with an id it
/// does not matter.
#[test]
fn retry_finds_late_answer() {
    let server = Server::start();
    let store = format!("store: {{redis: ['{}'], timeout: 100ms}}\n", server.url());
    let options = ", on_store_failure: deny".to_owned();
    let policies = policies(&[1], &options).replace("timeout: 5s, ", "");
    let node = Node::with_config(file_with(&(store + &policies)));
    for algorithm in ALGORITHMS {
        let body = json!({"policy": format!("{algorithm}-1"), "key": "late", "id": "once"});
        let mut allowed = Value::Null;
        server.freeze();
        assert_eq!(check(&node, &body)["source"], "fallback");
        server.thaw();
        wait_until("the store answers the retry", || {
            allowed = check(&node, &body);
            allowed["source"] == "store"
        });
        // The only unit belongs to this check, whichever of its tries charged it.
        assert_eq!((&allowed["allowed"], &allowed["charged"]), (&json!(true), &json!(1)), "{algorithm}: {allowed}");
        wait_until("and the next one", || check(&node, &body)["replayed"] == true);
    }
}

/// A new connection knows the scripts of up to three quotas. A check of four has to send its script
/// first. The checks after it still wait.
#[test]
fn unknown_script_keeps_order() {
    let server = Server::start();
    let quotas = "[5 per 1h, 50 per 2h, 500 per 3h, 5000 per 4h]";
    let node = node_with(&format!(
        "store: {{redis: ['{}']}}\npolicies: {{p: {{quotas: {quotas}, timeout: 5s}}}}\n",
        server.url()
    ));
    let key = unique("unknown");
    let checks = json!([{"policy": "p", "key": key, "cost": 3}, {"policy": "p", "key": key, "cost": 3, "id": "x"}]);
    let results = posted(&node, "/v1/check/batch", &json!({"checks": checks}))["results"].take();
    assert_eq!([&results[0]["allowed"], &results[1]["allowed"]], [&json!(true), &json!(false)], "{results}");
}
