//! `GET /v1/live` reports the present state each second, as server-sent events.
//!
//! All subscribers share the rendered snapshots. Only the first one has a history of its own.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::answer::{self, Object};
use super::head::bearer;
use super::health;
use super::policies::rfc3339;
use super::problem::Problem;
use super::request::query::{self, SHOWN};
use super::rights::Routed;
use super::top::{keys, shows_keys, write_consumers, write_denied, write_key};
use crate::clock::unix_micros;
use crate::engine::snapshot::{ShardState, Snapshot, StoreState};
use crate::engine::{Kind, Note, ServerInfo, ServerWatch};
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND};
use crate::live::rings::Second;
use crate::node::{Event, Node, Subscriber};
use crate::telemetry::metrics::revision;

/// The longest silence. Proxies close silent connections.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A comment, which clients ignore.
const SILENCE: &[u8] = b": heartbeat\n\n";

/// Names of policies in a snapshot. Configurations may have thousands.
const NAMES: usize = 1000;

/// Ends a second, and sends the snapshot to all subscribers. Called once a second.
pub fn publish(node: &Node) {
    let snapshot = OnceCell::new();
    let render = |in_clear| event(node, snapshot.get_or_init(|| node.engine.snapshot(1)), in_clear, &[]).into();
    node.watchers.publish(&node.reloader.running().access, || node.engine.observe(), render);
}

pub(super) async fn live(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let query::Live { seconds, minutes } = query::live(head.uri.query())?;
    rights.all_policies(&node)?;
    let access = node.reloader.running().access.clone();
    let in_clear = shows_keys(&node, &head.headers);
    // A long history takes milliseconds, so a blocking thread writes it.
    let first = move |node: &Node| {
        let past = node.engine.minutes(minutes);
        (event(node, &node.engine.snapshot(seconds), in_clear, &past), node.engine.watch_servers())
    };
    let token = access.find(bearer(&head.headers)).ok().cloned();
    // Without admin tokens every caller counts as an operator.
    let is_operator = !access.has_operators() || token.as_ref().is_some_and(|token| token.is_of_operator());
    let name = token.as_ref().map(|token| token.name.clone());
    let holder = rights.holder(&head.headers);
    let subscriber = Subscriber { in_clear, is_operator, holder, token, access };
    let (load, joined) = (node.load.clone(), node.clone());
    let joining = load.read(holder, move || joined.watchers.join(subscriber, || first(&joined)));
    let ((first, watch), events) = joining.await?.ok_or_else(Problem::too_many_watchers)?;
    let address = rights.caller.address;
    if let Some(name) = name.filter(|name| node.watchers.is_login(name, address, unix_micros())) {
        let from = address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string());
        node.engine.note(Note::of_node(Kind::Login, name, format!("the live view from {from}"))).await;
    }
    let mut response = Response::new(stream(first, events, HEARTBEAT, watch));
    let fields = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    response.headers_mut().extend(fields.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Ok(response)
}

/// The first event and those that follow, until they end. A comment breaks each `silence`.
fn stream(first: Vec<u8>, events: Receiver<Event>, silence: Duration, watch: Option<ServerWatch>) -> Body {
    let next = move |mut events: Receiver<Event>| async move {
        let bytes = match timeout(silence, events.recv()).await {
            Ok(event) => Bytes::from_owner(event?),
            Err(_) => Bytes::from_static(SILENCE),
        };
        Some((Ok::<_, Infallible>(bytes), events))
    };
    Body::new(Events { first: Some(first.into()), rest: Body::from_stream(unfold(events, next)), _watch: watch })
}

/// A body without an end. The node counts the first event before the client asks for it.
struct Events {
    first: Option<Bytes>,
    rest: Body,
    /// Meanwhile the servers of the store are asked about themselves.
    _watch: Option<ServerWatch>,
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.first.as_ref().map_or(0, Bytes::len) as u64);
        hint
    }
}

/// A snapshot as an event.
fn event(node: &Node, snapshot: &Snapshot, in_clear: bool, minutes: &[Arc<Second>]) -> Vec<u8> {
    let data = answer::bytes(|object| {
        write(object, node, snapshot, in_clear);
        if !minutes.is_empty() {
            object.list("minutes", minutes.iter(), |minute, object| write_second(object, minute));
        }
    });
    // JSON has no line breaks.
    [format!("event: snapshot\nid: {}\ndata: ", snapshot.at).as_bytes(), &data, b"\n\n"].concat()
}

fn write(object: &mut Object<'_>, node: &Node, snapshot: &Snapshot, in_clear: bool) {
    object.number("at", snapshot.at);
    object.object("node", |object| write_node(object, node, snapshot, in_clear));
    object.object("policies", |object| write_policies(object, node));
    object.list("seconds", snapshot.seconds.iter(), |second, object| write_second(object, second));
    write_denied(object, node, in_clear, &snapshot.denials.heaviest(None, SHOWN));
    write_consumers(object, node, in_clear, &snapshot.used.heaviest(None, SHOWN));
    object.object("store", |object| write_store(object, &snapshot.store));
    object.list("recent", snapshot.recent.iter(), |recent, object| {
        object.number("at_ms", recent.at / MICROS_PER_MILLI);
        object.value("policy", &*recent.policy);
        write_key(object, node, in_clear, &recent.policy, &recent.key);
        object.given("cost", recent.cost);
        object.bool("allowed", recent.allowed);
        object.word("reason", recent.reason);
        object.word("source", recent.source);
        object.given("quota", recent.quota.as_deref());
        object.number("took_us", recent.took);
        object.given("trace_id", recent.trace_id.as_deref());
    });
    if !snapshot.holds.is_empty() {
        object.list("holds", snapshot.holds.iter(), |(policy, open), object| {
            object.value("policy", &**policy);
            object.value("open", &(*open as i64));
        });
    }
    if !snapshot.held.is_empty() {
        object.list("held", snapshot.held.iter(), |held, object| {
            object.value("policy", &*held.policy);
            write_key(object, node, in_clear, &held.policy, &held.key);
            object.number("in_flight", held.in_flight);
            object.given("in_flight_limit", held.limit);
            object.number("at_ms", held.at / MICROS_PER_MILLI);
        });
    }
    object.given("trace_url", node.reloader.telemetry().trace_url.as_ref());
}

fn write_node(object: &mut Object<'_>, node: &Node, snapshot: &Snapshot, in_clear: bool) {
    object.word("version", env!("CARGO_PKG_VERSION"));
    object.value("revision", revision());
    object.number("uptime_s", snapshot.now.saturating_sub(node.reloader.started_at()) / MICROS_PER_SECOND);
    object.word("status", health::status(node, &node.engine.health()));
    object.word("keys", keys(in_clear));
}

fn write_policies(object: &mut Object<'_>, node: &Node) {
    let (policies, last) = (node.engine.policies(), node.reloader.last());
    object.word("version", &policies.version);
    object.word("loaded_at", &rfc3339(policies.loaded_at));
    object.bool("reload_successful", last.successful());
    object.value("faults", &last.faults.len());
    object.value("names", &policies.by_name.keys().take(NAMES).collect::<Vec<_>>());
}

fn write_second(object: &mut Object<'_>, second: &Second) {
    object.number("at", second.at);
    object.given("p50_us", second.p50);
    object.given("p99_us", second.p99);
    object.list("checks", second.checks.iter(), |checks, object| {
        object.value("policy", &*checks.policy);
        object.word("outcome", checks.outcome);
        object.word("source", checks.source);
        object.number("count", checks.count);
        object.number("units", checks.units);
    });
    object.list("shards", second.shards.iter(), |shard, object| {
        object.value("shard", &*shard.shard);
        object.number("calls", shard.calls);
        object.number("checks", shard.checks);
        object.number("errors", shard.errors);
    });
}

fn write_store(object: &mut Object<'_>, store: &StoreState) {
    object.word("kind", store.kind);
    object.given("topology_age_ms", store.topology_age.map(|age| age / MICROS_PER_MILLI));
    object.given("slots_without_owner", store.slots_without_owner);
    object.given("full", Some(true).filter(|_| store.is_full));
    object.given("reason", store.reason.as_ref());
    object.list("shards", store.shards.iter(), |shard, object| write_shard(object, shard));
}

fn write_shard(object: &mut Object<'_>, shard: &ShardState) {
    object.value("address", &shard.address);
    object.bool("up", shard.up);
    object.given("reason", shard.reason.as_ref());
    object.given("breaker", shard.breaker_open.map(|is_open| if is_open { "open" } else { "closed" }));
    object.given("queued", shard.queued);
    object.given("clock_offset_us", shard.clock_offset);
    object.given("errors", shard.errors);
    if let Some(server) = &shard.server {
        object.object("server", |object| write_server(object, server));
    }
}

fn write_server(object: &mut Object<'_>, server: &ServerInfo) {
    object.given("memory_bytes", server.memory_bytes);
    object.given("max_memory_bytes", server.max_memory_bytes);
    object.given("memory_policy", server.memory_policy.as_ref());
    object.given("operations_per_s", server.operations_per_s);
    object.given("replication_lag_bytes", server.replication_lag_bytes);
    object.given("keys", server.keys);
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn silence_is_broken_by_heartbeats() {
        let (sender, events) = channel(2);
        let mut body = stream(b"first".to_vec(), events, Duration::from_millis(5), None);
        let mut next = async || {
            let frame = body.frame().await?;
            frame.unwrap().into_data().ok()
        };
        let expected: [&[u8]; 3] = [b"first", SILENCE, SILENCE];
        assert_eq!([next().await, next().await, next().await].map(Option::unwrap), expected);
        sender.try_send(b"second"[..].into()).unwrap();
        drop(sender);
        let rest = loop {
            match next().await {
                Some(bytes) if bytes == SILENCE => {}
                other => break (other, next().await),
            }
        };
        assert_eq!(rest, (Some(Bytes::from_static(b"second")), None));
    }
}
