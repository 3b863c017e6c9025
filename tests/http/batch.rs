//! A batch decides each check separately and checks for one key in order. Results keep the order of
//! the checks.

use serde_json::{Value, json};

use crate::support::{Node, file_with, http};

#[test]
fn batch_results_keep_request_order() {
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
fn invalid_batch_item_leaves_others_unaffected() {
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

/// A long list of violations would make a long response without use.
#[test]
fn response_lists_violations_of_at_most_eight_checks() {
    let node = Node::start();
    let members: Vec<String> = (0..60).map(|member| format!(r#""m{member}":1"#)).collect();
    let check = format!("{{{}}}", members.join(","));
    let batch = format!(r#"{{"checks":[{}]}}"#, vec![check; 300].join(","));
    let answer = http::post(&node.address, "/v1/check/batch", &batch);
    assert!(answer.body.len() < 200_000, "{} bytes", answer.body.len());
    let results = answer.json()["results"].as_array().unwrap().clone();
    let listed = |result: &Value| result["error"]["violations"].as_array().map_or(0, Vec::len);
    let omitted = |result: &Value| result["error"]["omitted_violations"].as_u64().unwrap();
    assert_eq!(results.iter().map(listed).collect::<Vec<_>>(), [vec![50; 8], vec![0; 292]].concat());
    // Each of the others has 60 unknown members and no key.
    assert_eq!(results.iter().skip(8).map(omitted).collect::<Vec<_>>(), vec![61; 292]);
    assert!(results.iter().all(|result| result["error"]["status"] == 422));
}

/// The engine finds faults as well, and the bound covers both kinds together.
#[test]
fn engine_faults_count_among_the_eight() {
    let node = Node::start();
    let checks: Vec<Value> = (0..20)
        .map(|place| match place {
            0..5 => json!({"key": ""}),
            _ => json!({"policy": "per-ip", "key": "no address"}),
        })
        .collect();
    let results = results(&node, &json!(checks));
    let listed = |result: &Value| result["error"]["violations"].as_array().is_some_and(|listed| !listed.is_empty());
    assert_eq!((0..20).map(|place| listed(&results[place])).filter(|listed| *listed).count(), 8);
    assert_eq!(results[19]["error"]["omitted_violations"], 1);
}

/// The suggestion for a misspelt name and the list of known names appear a few times only.
#[test]
fn many_unknown_policies_do_not_slow_a_batch() {
    let name = |number: usize| format!("{number:04}{}", "x".repeat(58));
    let policies: String = (0..2000).map(|number| format!("  {}: {{quotas: [5 per 1h]}}\n", name(number))).collect();
    let file = file_with(&format!("policies:\n{policies}  short: {{quotas: [5 per 1h]}}\n"));
    let node = Node::with_config(&file);
    let unknown = |number: usize| json!({"policy": format!("{}y", name(number)), "key": "k"});
    let mut checks: Vec<Value> = vec![json!({"policy": "shrot", "key": "k"}); 10];
    checks.extend((0..990).map(unknown));
    let results = results(&node, &json!(checks));
    let problems: Vec<&Value> = results.as_array().unwrap().iter().map(|result| &result["error"]).collect();
    assert_eq!(problems[0]["detail"], "the policy \"shrot\" is not configured: did you mean \"short\"?");
    assert!(problems.iter().all(|problem| problem["status"] == 404), "{problems:?}");
    let explained = problems.iter().filter(|problem| problem["known"].is_array()).count();
    assert_eq!(explained, 8);
    let all = node.post("/v1/check/all", &json!({"checks": checks[10..26]}));
    assert_eq!(all.status, 404, "{all:?}");
}

/// The last of several checks for a key reports the remaining units, also to the pre-filter.
#[test]
fn batch_that_exhausts_a_key_teaches_prefilter() {
    let file = file_with("policies: {three: {quotas: [3 per 1h]}}\n");
    let node = Node::with_config(&file);
    let check = json!({"policy": "three", "key": "k"});
    let remaining = |results: &Value| results[0]["remaining"].clone();
    let three = results(&node, &json!([check, check, check]));
    assert_eq!((remaining(&three), &three[2]["remaining"]), (json!(2), &json!(0)));
    let known = results(&node, &json!([check]));
    assert_eq!((&known[0]["source"], remaining(&known)), (&json!("prefilter"), json!(0)));
}

#[test]
fn invalid_batch_envelope_rejects_the_call() {
    let node = Node::start();
    let many = |count: usize| json!({"checks": vec![json!({"key": "a", "cost": 0}); count]});
    for (body, pointer) in [
        (json!({}), "/checks"),
        (json!({"checks": []}), "/checks"),
        (json!({"checks": {}}), "/checks"),
        (json!({"checks": [{"key": "a"}], "check": 1}), "/check"),
        (json!([]), ""),
        (
            json!({"checks": [{"key": ""}, {"key": "a", "cost": -1}], "check": 1}),
            "/check /checks/0/key /checks/1/cost",
        ),
        (many(1001), "/checks"),
    ] {
        for path in ["/v1/check/batch", "/v1/check/all"] {
            let answer = node.post(path, &body);
            let violations = answer.json()["violations"].clone();
            let pointers = violations.as_array().unwrap().iter().map(|each| each["pointer"].as_str().unwrap());
            assert_eq!((answer.status, pointers.collect::<Vec<_>>().join(" ")), (422, pointer.to_owned()), "{path}");
        }
    }
    let answer = node.post("/v1/check/batch", &many(1000));
    assert_eq!((answer.status, answer.json()["results"].as_array().map(Vec::len)), (200, Some(1000)));
    assert_eq!(results(&node, &json!([{"key": "a", "cost": 0}]))[0]["remaining"], 1000);
}

fn results(node: &Node, checks: &Value) -> Value {
    let answer = node.post("/v1/check/batch", &json!({"checks": checks}));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["results"].clone()
}
