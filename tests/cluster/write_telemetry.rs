//! All-or-nothing calls, checks with ids, refunds and resets have the same metrics and traces as
//! every decision.

use serde_json::{Value, json};

use crate::support::collector::{Collector, attribute, attributes, trace_id, traced};
use crate::support::{Node, cluster, config_on, free_port, http, unique};

const POLICIES: &str = "
policies:
  wide: {quotas: [1000 per 1h], timeout: 5s}
  one: {quotas: [1 per 1h], timeout: 5s}
  watched: {quotas: [1 per 1h], timeout: 5s, shadow: true}
  error: {quotas: [5 per 1h], on_store_failure: error}
";

const ALWAYS: &[(&str, &str)] = &[("OTEL_TRACES_SAMPLER", "parentbased_always_on")];

fn start() -> Node {
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    Node::with_config(&file)
}

#[test]
fn all_call_counts_each_check_by_its_verdict() {
    let node = start();
    let key = unique("together");
    let all = json!({"checks": [
        {"policy": "wide", "key": key}, {"policy": "one", "key": key}, {"policy": "wide", "key": key},
    ]});
    assert_eq!(node.post("/v1/check/all", &all).json()["allowed"], true);
    let denied = node.post("/v1/check/all", &all).json();
    assert_eq!((&denied["allowed"], &denied["denied_by"]), (&json!(false), &json!([1])));
    assert_eq!(counted(&node, ["wide", "allowed", "store", "ok"]), 4);
    assert_eq!(counted(&node, ["one", "allowed", "store", "ok"]), 1);
    let known = counted(&node, ["one", "denied", "prefilter", "over_limit"]);
    assert_eq!(known + counted(&node, ["one", "denied", "store", "over_limit"]), 1);

    let alone = json!({"checks": [{"policy": "wide", "key": key}, {"policy": "wide", "key": key}]});
    assert_eq!(node.post("/v1/check/all", &alone).json()["allowed"], true);
    assert_eq!(counted(&node, ["wide", "allowed", "store", "ok"]), 6);

    let beside = json!({"checks": [{"policy": "one", "key": key, "cost": 0}, {"policy": "one", "key": key}]});
    assert_eq!(node.post("/v1/check/all", &beside).json()["denied_by"], json!([1]));
    let looked = counted(&node, ["one", "allowed", "store", "ok"]);
    assert_eq!(looked, 2, "the charge, and the look beside what was denied");
    assert_eq!(
        sum(&node, "tollgate_prefilter_denials_total"),
        counted(&node, ["one", "denied", "prefilter", "over_limit"]),
        "a look is no denial"
    );

    let watched = json!({"checks": [{"policy": "watched", "key": key, "cost": 2}, {"policy": "wide", "key": key}]});
    assert_eq!(node.post("/v1/check/all", &watched).json()["allowed"], true);
    assert_eq!(counted(&node, ["watched", "allowed", "store", "shadow"]), 1);
}

#[test]
fn invalid_item_of_all_call_counts_nothing() {
    let node = start();
    let all = json!({"checks": [{"policy": "wide", "key": "k"}, {"policy": "nobody", "key": "k"}]});
    assert_eq!(node.post("/v1/check/all", &all).status, 404);
    assert_eq!(sum(&node, "tollgate_checks_total{"), 0);
}

#[test]
fn without_store_failing_check_is_counted_with_cause() {
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], POLICIES);
    let node = Node::with_config(&file);
    let all = json!({"checks": [{"policy": "wide", "key": "k"}, {"policy": "error", "key": "k"}]});
    assert_eq!(node.post("/v1/check/all", &all).status, 503);
    assert_eq!(counted(&node, ["error", "error", "fallback", "store_unavailable"]), 1);
    assert_eq!(sum(&node, "tollgate_checks_total{"), 1);
    assert_eq!(sum(&node, "tollgate_fallback_total{"), 1);
}

#[test]
fn ids_refunds_and_resets_are_counted_separately_from_checks() {
    let node = start();
    let key = unique("id");
    let check = json!({"policy": "wide", "key": key, "cost": 3, "id": "order-1"});
    assert_eq!(node.post("/v1/check", &check).json()["charged"], 3);
    assert_eq!(node.post("/v1/check", &check).json()["replayed"], true);
    assert_eq!(counted(&node, ["wide", "allowed", "store", "ok"]), 2);
    // A different cost under the same id is the caller's fault, and no decision.
    assert_eq!(node.post("/v1/check", &json!({"policy": "wide", "key": key, "id": "order-1"})).status, 409);
    assert_eq!(counted(&node, ["wide", "allowed", "store", "ok"]), 2);
    assert_eq!(sum(&node, "tollgate_store_checks_per_call_sum "), 3);

    let refund = json!({"policy": "wide", "key": key, "id": "order-1"});
    assert_eq!(node.post("/v1/refund", &refund).json()["refunded"], 3);
    let path = format!("/v1/usage?policy=wide&key={key}");
    assert_eq!(http::exchange(&node.address, &http::request("DELETE", &path, &[], b"")).status, 200);
    for operation in ["refund", "reset"] {
        let series = format!(r#"tollgate_operations_total{{policy="wide",operation="{operation}",outcome="done"}} 1"#);
        assert!(node.metrics().lines().any(|line| line == series), "{series}");
    }
    assert_eq!(counted(&node, ["wide", "allowed", "store", "ok"]), 2);
    assert_eq!(sum(&node, "tollgate_check_duration_seconds_count{source=\"store\"}"), 2);
    assert_eq!(sum(&node, "tollgate_store_checks_per_call_count "), 3, "a refund and a reset carry no check");
}

#[test]
fn all_call_trace_has_span_per_key_and_release() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    // Reservations follow the order of policies: `one` comes before `wide`.
    let (key, full, trace) = (unique("tree"), unique("full"), trace_id());
    let all = json!({"checks": [
        {"policy": "one", "key": key}, {"policy": "wide", "key": full, "cost": 1000}, {"policy": "one", "key": key, "cost": 0},
    ]});
    assert_eq!(node.post("/v1/check", &json!({"policy": "wide", "key": full})).status, 200);
    assert_eq!(traced(&node, "/v1/check/all", &trace, "01", &all).json()["denied_by"], json!([1]));
    let spans = collector.wait("the call is there", |spans| !spans.named(&trace, "POST /v1/check/all").is_empty());
    let server = spans.one(&trace, "POST /v1/check/all");
    let parts = spans.named(&trace, "check");
    assert!(parts.iter().all(|part| part.parent_span_id == server.span_id));
    let told = ["tollgate.policy", "tollgate.allowed", "tollgate.source", "tollgate.checks"];
    let mut seen: Vec<_> = parts.iter().map(|part| attributes(part, told)).collect();
    seen.sort();
    assert_eq!(seen, [["one", "true", "store", "2"], ["wide", "false", "store", ""]]);
    for part in parts {
        let [store] = spans.children(part)[..] else { panic!("one store.take") };
        assert!(spans.children(store).iter().any(|span| span.name == "EVALSHA sliding-window reserve"));
    }
    let back = spans.one(&trace, "store.give_back");
    assert_eq!(back.parent_span_id, server.span_id);
    assert!(spans.children(back).iter().any(|span| span.name == "EVALSHA sliding-window give back"));
}

#[test]
fn refund_trace_has_remaining() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let (key, trace) = (unique("refund"), trace_id());
    assert_eq!(node.post("/v1/check", &json!({"policy": "wide", "key": key, "id": "a"})).status, 200);
    let refund = json!({"policy": "wide", "key": key, "id": "a"});
    assert_eq!(traced(&node, "/v1/refund", &trace, "01", &refund).json()["refunded"], 1);
    let spans = collector.wait("the refund is there", |spans| !spans.named(&trace, "POST /v1/refund").is_empty());
    let server = spans.one(&trace, "POST /v1/refund");
    let told = ["tollgate.policy", "tollgate.allowed", "tollgate.cost", "tollgate.source"];
    assert_eq!(attributes(server, told), ["wide", "true", "0", "store"]);
    assert_eq!(attribute(spans.one(&trace, "store.give_back"), "error.type"), "");
    assert!(
        spans
            .all()
            .any(|span| span.name == "EVALSHA sliding-window once" || span.name == "EVAL sliding-window once")
    );
}

#[test]
fn denial_in_request_can_be_sampled_with_unique_attributes() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), &format!("telemetry: {{keep_denials: 1}}{POLICIES}"));
    let variables = [("OTEL_TRACES_SAMPLER", "parentbased_always_off")];
    let node = Node::start_by(collector.tollgate(&variables), &["--config", file.path().to_str().unwrap()]);
    let (a, b) = (unique("a"), unique("b"));
    let checks: Vec<Value> = [&a, &a, &b, &b].map(|key| json!({"policy": "one", "key": key})).into();
    for path in ["/v1/check/batch", "/v1/check/all"] {
        assert_eq!(node.post(path, &json!({"checks": checks})).status, 200);
    }
    let named = |name: &'static str| {
        move |spans: &crate::support::collector::Spanned| spans.all().any(|span| span.name == name)
    };
    for name in ["POST /v1/check/batch", "POST /v1/check/all"] {
        let spans = collector.wait(name, named(name));
        let kept = spans.all().find(|span| span.name == name).unwrap();
        let policies = kept.attributes.iter().filter(|attribute| attribute.key == "tollgate.policy");
        assert_eq!((policies.count(), attribute(kept, "tollgate.allowed").as_str()), (1, "false"), "{name}");
    }
}

fn counted(node: &Node, [policy, outcome, source, reason]: [&str; 4]) -> u64 {
    let series = format!(
        "tollgate_checks_total{{policy=\"{policy}\",outcome=\"{outcome}\",source=\"{source}\",reason=\"{reason}\",door=\"http\"}}"
    );
    sum(node, &series)
}

fn sum(node: &Node, beginning: &str) -> u64 {
    let text = node.metrics();
    let lines = text.lines().filter(|line| line.starts_with(beginning));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}
