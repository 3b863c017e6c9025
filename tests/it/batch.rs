//! Many checks in one call: each by itself, those for one key in order, answers in the order of the checks.

use serde_json::{Value, json};

use crate::harness::{Node, http};

#[test]
fn each_is_answered_in_its_place() {
    let node = Node::start();
    let five = |cost: u64| json!({"policy": "five-per-minute", "key": "k", "cost": cost});
    let checks = json!([five(3), {"key": "other"}, five(3), five(2), five(0), five(6)]);
    let results = results(&node, &checks);
    let verdict = |place: usize| (results[place]["allowed"].clone(), results[place]["charged"].clone());
    assert_eq!(verdict(0), (json!(true), json!(3)));
    assert_eq!(results[1]["policy"], "default");
    assert_eq!(verdict(2), (json!(false), json!(0)));
    assert_eq!(verdict(3), (json!(true), json!(2)));
    assert_eq!((verdict(4).0, &results[4]["remaining"]), (json!(true), &json!(0)));
    assert_eq!((&results[5]["reason"], &results[5]["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
}

#[test]
fn a_bad_item_does_not_spoil_the_others() {
    let node = Node::start();
    let checks = json!([{"key": "a"}, {"key": ""}, 7, {"key": "a", "policy": "nope"}, ["default", "a"],
        {"key": "a", "colour": 1}, {"key": "a"}]);
    let results = results(&node, &checks);
    assert_eq!((&results[0]["remaining"], &results[6]["remaining"]), (&json!(999), &json!(998)));
    let fault = |place: usize| {
        let problem = &results[place]["error"];
        (problem["status"].clone(), problem["violations"][0]["pointer"].clone())
    };
    assert_eq!(fault(1), (json!(422), json!("/checks/1/key")));
    assert_eq!(fault(2), (json!(422), json!("/checks/2")));
    assert_eq!(fault(3), (json!(404), Value::Null));
    assert_eq!(fault(4), (json!(422), json!("/checks/4")));
    assert_eq!(fault(5), (json!(422), json!("/checks/5/colour")));
}

#[test]
fn a_bad_envelope_refuses_the_call() {
    let node = Node::start();
    let many = |count: usize| json!({"checks": vec![json!({"key": "a", "cost": 0}); count]});
    for (body, pointer) in [
        (json!({}), "/checks"),
        (json!({"checks": []}), "/checks"),
        (json!({"checks": {}}), "/checks"),
        (json!({"checks": [{"key": "a"}], "check": 1}), "/check"),
        (json!([]), ""),
        (many(1001), "/checks"),
    ] {
        let answer = http::post(&node.address, "/v1/check/batch", body.to_string());
        assert_eq!((answer.status, &answer.json()["violations"][0]["pointer"]), (422, &json!(pointer)));
    }
    let answer = http::post(&node.address, "/v1/check/batch", many(1000).to_string());
    assert_eq!((answer.status, answer.json()["results"].as_array().map(Vec::len)), (200, Some(1000)));
    assert_eq!(results(&node, &json!([{"key": "a", "cost": 0}]))[0]["remaining"], 1000);
}

fn results(node: &Node, checks: &Value) -> Value {
    let answer = http::post(&node.address, "/v1/check/batch", json!({"checks": checks}).to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["results"].clone()
}
