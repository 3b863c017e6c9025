//! The trace of a check: spans, parents, links and attributes, as a real OTLP receiver gets them.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;

use crate::support::chaos::key_in;
use crate::support::collector::{Collector, PARENT, Spanned, attribute, attributes, hex, trace_id, traced};
use crate::support::redis::Server;
use crate::support::{Node, cluster, config_on, file_with, free_port, http, unique, wait_until};

const POLICIES: &str = "
policies:
  default: {quotas: [1000000 per 1h], timeout: 5s}
  one: {quotas: [1 per 1h], timeout: 5s}
  deny: {quotas: [5 per 1h], on_store_failure: deny}
  refused: {quotas: [5 per 1h], timeout: 5s, on_store_failure: deny}
  error: {quotas: [5 per 1h], on_store_failure: error}
";

const ALWAYS: &[(&str, &str)] = &[("OTEL_TRACES_SAMPLER", "parentbased_always_on")];

/// The sampler records nothing from the start, whatever a caller sends.
const UNDRAWN: &[(&str, &str)] = &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];

#[test]
fn allowed_check_is_a_span_tree_under_its_parent() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    // By default the node samples one root in a hundred, and every sampled parent.
    let variables = [("OTEL_SERVICE_NAME", "limits")];
    let node = Node::start_by(collector.tollgate(&variables), &["--config", file.path().to_str().unwrap()]);
    let (key, trace) = (unique("tree"), trace_id());
    assert_eq!(traced(&node, "/v1/check", &trace, "01", &json!({"key": key, "cost": 3})).json()["allowed"], true);
    let spans = collector.wait("the trace is there", |spans| {
        ["POST /v1/check", "store.take", "lane.wait", "EVALSHA sliding-window"]
            .iter()
            .all(|name| spans.named(&trace, name).len() == 1)
    });
    assert!(spans.0.iter().all(|received| received.service == "limits"));
    let first = &spans.0[0];
    assert_eq!((first.instance.len(), first.version.as_str()), (32, env!("CARGO_PKG_VERSION")));
    assert!(spans.0.iter().all(|received| received.instance == first.instance));

    let server = spans.one(&trace, "POST /v1/check");
    assert_eq!((hex(&server.parent_span_id).as_str(), server.kind()), (PARENT, SpanKind::Server));
    let http = ["http.request.method", "http.route", "url.path", "http.response.status_code", "client.address"];
    assert_eq!(attributes(server, http), ["POST", "/v1/check", "/v1/check", "200", "127.0.0.1"]);
    let (address, port) = node.address.split_once(':').unwrap();
    let called = ["server.address", "server.port", "user_agent.original"];
    assert_eq!(attributes(server, called), [address, port, "tests/1"]);
    let told = ["tollgate.policy", "tollgate.allowed", "tollgate.reason", "tollgate.source", "tollgate.cost"];
    assert_eq!(attributes(server, told), ["default", "true", "ok", "store", "3"]);
    assert_eq!(attribute(server, "tollgate.key_hash").len(), 16);
    assert!(spans.all().all(|span| !format!("{span:?}").contains(&key)), "the key is nowhere in clear");

    let store = spans.one(&trace, "store.take");
    assert_eq!(store.parent_span_id, server.span_id);
    let mut children: Vec<&str> = spans.children(store).iter().map(|span| span.name.as_str()).collect();
    children.sort_unstable();
    assert_eq!(children, ["EVALSHA sliding-window", "lane.wait"]);
    let (wait, call) = (spans.one(&trace, "lane.wait"), spans.one(&trace, "EVALSHA sliding-window"));
    assert_eq!((call.kind(), call.links.len()), (SpanKind::Client, 0));
    let db = ["db.system.name", "db.operation.name", "db.stored_procedure.name", "db.operation.batch.size"];
    assert_eq!(attributes(call, db), ["redis", "EVALSHA", "sliding-window", ""]);
    let address = ["server.address", "network.peer.address"];
    assert_eq!(attributes(call, address), ["127.0.0.1", "127.0.0.1"]);
    let shard = format!("127.0.0.1:{}", attribute(call, "server.port"));
    let health = node.health();
    let shards = health["store"]["shards"].as_array().unwrap();
    assert!(shards.iter().any(|known| known["address"] == shard.as_str()), "{shard} is none of {shards:?}");

    let ends = |span: &Span| (span.start_time_unix_nano, span.end_time_unix_nano);
    assert!(ends(wait).1 == ends(call).0 && ends(wait).0 <= ends(wait).1, "the wait ends where the wire begins");
    assert!(ends(server).0 <= ends(store).0 && ends(store).1 <= ends(server).1);
}

#[test]
fn drain_span_has_the_units_owed() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let (key, trace) = (unique("drained"), trace_id());
    let check = json!({"policy": "one", "key": key, "cost": 7, "over": "drain"});
    assert_eq!(traced(&node, "/v1/check", &trace, "01", &check).json()["charged"], 1);
    let spans = collector.wait("the trace is there", |spans| spans.named(&trace, "POST /v1/check").len() == 1);
    let told = ["tollgate.allowed", "tollgate.cost", "tollgate.owed", "tollgate.source"];
    assert_eq!(attributes(spans.one(&trace, "POST /v1/check"), told), ["false", "7", "6", "store"]);
}

#[test]
fn prefilter_denial_trace_has_no_store_span() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), &format!("telemetry: {{record_keys: true}}{POLICIES}"));
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let (key, trace) = (unique("prefilter"), trace_id());
    let check = json!({"policy": "one", "key": key});
    node.post("/v1/check", &check);
    assert_eq!(traced(&node, "/v1/check", &trace, "01", &check).json()["source"], "prefilter");
    let spans = collector.wait("the denial is there", |spans| !spans.named(&trace, "POST /v1/check").is_empty());
    let server = spans.one(&trace, "POST /v1/check");
    let told = ["tollgate.allowed", "tollgate.reason", "tollgate.source", "tollgate.key"];
    assert_eq!(attributes(server, told), ["false", "over_limit", "prefilter", &key]);
    assert_eq!(
        (spans.children(server).len(), server.status.clone().unwrap_or_default().code()),
        (0, StatusCode::Unset)
    );
    // The first check had no parent, so it began a trace and reached the store.
    let first = spans.all().find(|span| span.name == "POST /v1/check" && hex(&span.trace_id) != trace).unwrap();
    assert!(first.parent_span_id.is_empty());
    assert_eq!(attribute(first, "tollgate.key_hash"), attribute(server, "tollgate.key_hash"));
}

#[test]
fn batch_trace_has_span_per_key() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    // Keys on different shards do not share a call.
    let (a, b, trace) = (key_in(0), key_in(1), trace_id());
    let checks = json!({"checks": [{"key": a}, {"key": b}, {"key": a}, {"policy": "nobody", "key": a}]});
    assert_eq!(traced(&node, "/v1/check/batch", &trace, "01", &checks).status, 200);
    let spans = collector.wait("the batch is there", |spans| !spans.named(&trace, "POST /v1/check/batch").is_empty());
    let server = spans.one(&trace, "POST /v1/check/batch");
    let mut parts = spans.children(server);
    parts.sort_by_key(|part| attribute(part, "tollgate.checks"));
    let seen: Vec<_> = parts.iter().map(|part| (part.name.as_str(), attribute(part, "tollgate.checks"))).collect();
    assert_eq!(seen, [("check", String::new()), ("check", "2".into())]);
    let sizes = parts.iter().map(|part| {
        let [store] = spans.children(part)[..] else { panic!("one store.take") };
        let call = spans.children(store).into_iter().find(|span| span.kind() == SpanKind::Client).unwrap();
        attribute(call, "db.operation.batch.size")
    });
    assert_eq!(sizes.collect::<Vec<_>>(), ["", "2"]);
    assert!(parts.iter().all(|part| attribute(part, "tollgate.allowed") == "true"));
}

#[test]
fn shared_call_span_links_each_check() {
    let collector = Collector::start();
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let key = unique("merged");
    // Queued checks of one key become one call.
    let merged = |spans: &Spanned| {
        let call = spans.all().find(|span| span.links.len() > 1).cloned()?;
        let all = call.links.iter().all(|link| spans.all().any(|span| span.span_id == link.span_id));
        all.then_some(call)
    };
    let spans = collector.wait("a call carries several checks", |spans| {
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| node.post("/v1/check", &json!({"key": key})));
            }
        });
        merged(spans).is_some()
    });
    let call = merged(&spans).unwrap();
    assert_eq!(attribute(&call, "db.operation.batch.size"), call.links.len().to_string());
    for link in &call.links {
        let store = spans.by_id(&link.span_id);
        assert_eq!((store.name.as_str(), &store.trace_id), ("store.take", &link.trace_id));
        let back = store.links.iter().find(|back| back.span_id == call.span_id).expect("it is linked with the call");
        assert_eq!(back.trace_id, call.trace_id);
        assert!(spans.children(store).iter().any(|span| span.name == "lane.wait"), "each check tells its own wait");
        assert_eq!(spans.by_id(&store.parent_span_id).name, "POST /v1/check");
    }
    assert_eq!(call.parent_span_id, call.links[0].span_id, "it is a child of the first");
}

#[test]
fn fallback_span_has_mode_and_cause() {
    let collector = Collector::start();
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let (denied, failed) = (trace_id(), trace_id());
    assert_eq!(traced(&node, "/v1/check", &denied, "01", &json!({"policy": "deny", "key": "k"})).status, 200);
    assert_eq!(traced(&node, "/v1/check", &failed, "01", &json!({"policy": "error", "key": "k"})).status, 503);
    let spans = collector.wait("both are there", |spans| {
        [&denied, &failed].iter().all(|trace| spans.named(trace, "POST /v1/check").len() == 1)
    });
    let server = spans.one(&denied, "POST /v1/check");
    let told = ["tollgate.source", "tollgate.reason", "tollgate.fallback.mode", "tollgate.fallback.cause"];
    assert_eq!(attributes(server, told), ["fallback", "store_unavailable", "deny", "breaker_open"]);
    let store = spans.one(&denied, "store.take");
    assert_eq!(
        (store.parent_span_id.as_slice(), attribute(store, "error.type").as_str()),
        (&server.span_id[..], "unreachable")
    );

    let server = spans.one(&failed, "POST /v1/check");
    assert_eq!(attributes(server, ["http.response.status_code", "error.type"]), ["503", "503"]);
    assert_eq!(attributes(server, told), ["fallback", "store_unavailable", "error", "breaker_open"]);
    assert_eq!(server.status.clone().unwrap().code(), StatusCode::Error);
}

/// An id with a different cost is the caller's fault, and a failed refund has no fallback.
#[test]
fn rejected_checks_and_failed_refunds_are_no_fallback() {
    let collector = Collector::start();
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    let check = |cost: u64| json!({"policy": "refused", "key": "k", "id": "once", "cost": cost});
    wait_until("it is charged by the store", || node.post("/v1/check", &check(1)).json()["source"] == "store");
    let (reused, away) = (trace_id(), trace_id());
    assert_eq!(traced(&node, "/v1/check", &reused, "01", &check(2)).status, 409);
    let refund = json!({"policy": "refused", "key": "k", "cost": 1});
    server.end();
    assert_eq!(traced(&node, "/v1/refund", &away, "01", &refund).status, 503);
    let spans = collector.wait("both are there", |spans| {
        !spans.named(&reused, "POST /v1/check").is_empty() && !spans.named(&away, "POST /v1/refund").is_empty()
    });
    let told = ["tollgate.source", "tollgate.reason", "tollgate.fallback.mode", "http.response.status_code"];
    assert_eq!(attributes(spans.one(&reused, "POST /v1/check"), told), ["", "", "", "409"]);
    assert_eq!(attributes(spans.one(&away, "POST /v1/refund"), told), ["fallback", "store_unavailable", "", "503"]);
    let metrics = node.metrics();
    let counted = |line: &&str| line.starts_with("tollgate_fallback_total{mode=\"error\"") && !line.ends_with(" 0");
    assert_eq!(metrics.lines().find(counted), None);
}

#[test]
fn unanswered_store_call_span_is_an_error() {
    let collector = Collector::start();
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::start_by(collector.tollgate(ALWAYS), &["--config", file.path().to_str().unwrap()]);
    wait_until("the store answers", || {
        let check = json!({"policy": "deny", "key": unique("warm")});
        node.post("/v1/check", &check).json()["source"] == "store"
    });
    let trace = trace_id();
    server.freeze();
    traced(&node, "/v1/check", &trace, "01", &json!({"policy": "deny", "key": unique("frozen")}));
    let spans =
        collector.wait("the call was given up", |spans| !spans.named(&trace, "EVALSHA sliding-window").is_empty());
    server.thaw();
    let (store, call) = (spans.one(&trace, "store.take"), spans.one(&trace, "EVALSHA sliding-window"));
    assert_eq!(
        (attribute(store, "error.type").as_str(), attribute(call, "error.type").as_str()),
        ("timeout", "timeout")
    );
    assert_eq!(attribute(spans.one(&trace, "POST /v1/check"), "tollgate.fallback.cause"), "timeout");
}

#[test]
fn unsampled_parent_stays_unsampled_and_denied_root_can_be_sampled() {
    let collector = Collector::start();
    let file = config_on(&cluster::shared().seeds(), &format!("telemetry: {{keep_denials: 1}}{POLICIES}"));
    let variables = [("OTEL_TRACES_SAMPLER", "parentbased_always_off")];
    let node = Node::start_by(collector.tollgate(&variables), &["--config", file.path().to_str().unwrap()]);
    let (key, unsampled) = (unique("kept"), trace_id());
    let check = json!({"policy": "one", "key": key});
    for _ in 0..2 {
        traced(&node, "/v1/check", &unsampled, "00", &check);
    }
    // Allowed, and then denied, as roots.
    node.post("/v1/check", &json!({"key": key}));
    node.post("/v1/check", &check);
    // A fault of the caller is no denial either.
    for (cost, status) in [(1, 200), (2, 409)] {
        let once = json!({"key": key, "id": "once", "cost": cost});
        assert_eq!(node.post("/v1/check", &once).status, status);
    }
    let sampled = trace_id();
    traced(&node, "/v1/check", &sampled, "01", &check);
    let spans = collector.wait("the last one is there", |spans| !spans.named(&sampled, "POST /v1/check").is_empty());
    assert!(spans.named(&unsampled, "POST /v1/check").is_empty());
    let kept: Vec<&Span> = spans.all().filter(|span| hex(&span.trace_id) != sampled).collect();
    let [kept] = kept[..] else { panic!("one is kept: {kept:?}") };
    let told = ["tollgate.kept", "tollgate.allowed", "tollgate.source", "http.response.status_code"];
    assert_eq!(attributes(kept, told), ["true", "false", "prefilter", "200"]);
    assert!(kept.parent_span_id.is_empty() && kept.start_time_unix_nano <= kept.end_time_unix_nano);
}

/// The sampler ignores callers. A kept denial of a sampled caller appears in its trace.
#[test]
fn denial_sampling_respects_parent() {
    let collector = Collector::start();
    let file = file_with(&format!("telemetry: {{keep_denials: 1}}{POLICIES}"));
    for variables in [&[("OTEL_TRACES_SAMPLER", "always_off")][..], UNDRAWN] {
        let node = Node::start_by(collector.tollgate(variables), &["--config", file.path().to_str().unwrap()]);
        let [allowed, sampled, unsampled] = [trace_id(), trace_id(), trace_id()];
        let check = json!({"policy": "one", "key": "k"});
        for (trace, flags) in [(&allowed, "01"), (&unsampled, "00"), (&sampled, "01")] {
            assert_eq!(traced(&node, "/v1/check", trace, flags, &check).status, 200);
        }
        let spans = collector.wait("the denial is there", |spans| !spans.named(&sampled, "POST /v1/check").is_empty());
        let kept = spans.one(&sampled, "POST /v1/check");
        let told = ["tollgate.kept", "tollgate.allowed"];
        assert_eq!(
            (hex(&kept.parent_span_id).as_str(), attributes(kept, told)),
            (PARENT, ["true", "false"].map(str::to_owned))
        );
        assert!([&allowed, &unsampled].iter().all(|trace| spans.named(trace, "POST /v1/check").is_empty()));
    }
}

/// The last check of the key is a peek, which is always allowed.
#[test]
fn denial_anywhere_in_batch_is_sampled() {
    let collector = Collector::start();
    let file = file_with(&format!("telemetry: {{keep_denials: 1}}{POLICIES}"));
    let check = |cost: u64| json!({"policy": "one", "key": "k", "cost": cost});
    let batch = json!({"checks": [check(1), check(1), check(0)]});
    for (variables, part) in [(ALWAYS, "check"), (UNDRAWN, "POST /v1/check/batch")] {
        let node = Node::start_by(collector.tollgate(variables), &["--config", file.path().to_str().unwrap()]);
        let trace = trace_id();
        let answer = traced(&node, "/v1/check/batch", &trace, "01", &batch).json();
        let allowed: Vec<_> = answer["results"].as_array().unwrap().iter().map(|result| &result["allowed"]).collect();
        assert_eq!(allowed, [true, false, true]);
        let spans = collector.wait("the batch is there", |spans| !spans.named(&trace, part).is_empty());
        assert_eq!(attributes(spans.one(&trace, part), ["tollgate.allowed", "tollgate.cost"]), ["false", "1"]);
    }
}

/// Proxies may add header lines.
#[test]
fn tracestate_lines_join_and_duplicate_traceparent_is_ignored() {
    let collector = Collector::start();
    let node = Node::start_by(collector.tollgate(ALWAYS), &[]);
    let ask = |parents: &[&str], states: &[&str]| {
        let parents: Vec<_> = parents.iter().map(|trace| format!("00-{trace}-{PARENT}-01")).collect();
        let mut fields = vec![("content-type", "application/json")];
        fields.extend(parents.iter().map(|parent| ("traceparent", parent.as_str())));
        fields.extend(states.iter().map(|state| ("tracestate", *state)));
        let request = http::request("POST", "/v1/check", &fields, br#"{"key": "k"}"#);
        assert_eq!(http::exchange(&node.address, &request).status, 200);
    };
    let [one, two, last] = [trace_id(), trace_id(), trace_id()];
    ask(&[&one, &two], &["a=1"]);
    ask(&[&last], &["a=1,b=2", "c=3"]);
    let spans = collector.wait("the last one is there", |spans| !spans.named(&last, "POST /v1/check").is_empty());
    let root = spans.all().find(|span| span.name == "POST /v1/check" && hex(&span.trace_id) != last).unwrap();
    assert!(root.parent_span_id.is_empty() && ![&one, &two].contains(&&hex(&root.trace_id)), "{root:?}");
    assert_eq!(spans.one(&last, "POST /v1/check").trace_state, "a=1,b=2,c=3");
}

/// The other attribute only ends like the name of the service.
#[test]
fn default_service_name_is_tollgate() {
    for (attributes, service) in [("my.service.name=x", "tollgate"), ("a=b, service.name=limits", "limits")] {
        let collector = Collector::start();
        let variables = [ALWAYS[0], ("OTEL_RESOURCE_ATTRIBUTES", attributes)];
        let node = Node::start_by(collector.tollgate(&variables), &[]);
        node.check("default", "k", 1);
        let spans = collector.wait("a span is there", |spans| !spans.0.is_empty());
        assert_eq!(spans.0[0].service, service, "{attributes}");
    }
}

/// A dual-stack listener reports IPv4 clients in this form.
#[test]
fn ipv4_client_address_is_not_mapped() {
    let collector = Collector::start();
    let port = free_port();
    let mut node = Node::start_unread(collector.tollgate(ALWAYS), format!("[::ffff:127.0.0.1]:{port}"));
    node.address = format!("127.0.0.1:{port}");
    let health = http::request("GET", "/health/live", &[], b"");
    wait_until("it answers", || http::try_exchange(&node.address, &health).is_ok());
    node.check("default", "k", 1);
    let spans = collector.wait("a span is there", |spans| !spans.0.is_empty());
    assert_eq!(attribute(&spans.0[0].span, "client.address"), "127.0.0.1");
}

#[test]
fn traces_export_over_http() {
    let collector = Collector::start();
    let node = Node::start_by(collector.tollgate(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]), &[]);
    let trace = trace_id();
    assert_eq!(traced(&node, "/v1/check", &trace, "01", &json!({"key": "k"})).status, 200);
    // A node exports the last spans at shutdown.
    node.terminate();
    let spans = collector.wait("the trace is there", |spans| !spans.named(&trace, "POST /v1/check").is_empty());
    let server = spans.one(&trace, "POST /v1/check");
    assert_eq!(attribute(server, "tollgate.source"), "store");
    assert!(spans.0.iter().all(|received| received.service == "tollgate"));
}

#[test]
fn root_requests_are_sampled_by_ratio() {
    let collector = Collector::start();
    let node = Node::start_by(collector.tollgate(&[("OTEL_TRACES_SAMPLER_ARG", "0.5")]), &[]);
    for _ in 0..400 {
        assert_eq!(http::post(&node.address, "/v1/check", r#"{"key": "k"}"#).status, 200);
    }
    // Exports keep the order of spans.
    let last = trace_id();
    traced(&node, "/v1/check", &last, "01", &json!({"key": "k"}));
    let spans = collector.wait("the last one is there", |spans| !spans.named(&last, "POST /v1/check").is_empty());
    let drawn = spans.all().filter(|span| span.parent_span_id.is_empty()).count();
    // The odds of a value outside by chance are below 1 to 10^20.
    assert!((100..300).contains(&drawn), "{drawn} of 400");
}
