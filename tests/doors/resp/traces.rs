//! The spans of Redis commands, as a real OTLP receiver gets them.

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use super::{Door, encoded};
use crate::support::collector::{Collector, attributes};
use crate::support::{Node, file_with, unique};

#[test]
fn commands_that_are_decided_together_share_a_span() {
    let collector = Collector::start();
    let file = file_with("resp: {listen: 127.0.0.1:0}\npolicies: {p: {quotas: [5 per 1h]}}\n");
    let program = collector.tollgate(&[("OTEL_TRACES_SAMPLER", "always_on")]);
    let door = Door::of(Node::start_by(program, &["--config", file.path().to_str().unwrap()]));
    let (one, other) = (unique("one"), unique("other"));
    let throttle = |key: &str| encoded(&["CL.THROTTLE", key, "0", "1", "3600"]);
    door.exchange(encoded(&["PING"]) + &throttle(&one));
    door.exchange(throttle(&one) + &throttle(&other));
    let is_complete = |count: usize, name: &'static str| {
        collector.wait("the spans are there", |spans| spans.all().filter(|span| span.name == name).count() == count)
    };
    let spans = is_complete(2, "RESP");
    let mut shown: Vec<_> = spans
        .all()
        .filter(|span| span.name == "RESP")
        .map(|span| {
            assert_eq!(span.kind(), SpanKind::Server);
            attributes(span, ["network.protocol.name", "tollgate.checks", "client.address", "tollgate.policy"])
        })
        .collect();
    shown.sort();
    assert_eq!(
        shown,
        [["resp", "1", "127.0.0.1", "cl.throttle"], ["resp", "2", "127.0.0.1", ""]],
        "each key has its own"
    );
    let spans = is_complete(2, "check");
    let mut allowed: Vec<_> = spans
        .all()
        .filter(|span| span.name == "check")
        .map(|span| attributes(span, ["tollgate.allowed"]))
        .collect();
    allowed.sort();
    assert_eq!(allowed, [["false"], ["true"]]);
}
