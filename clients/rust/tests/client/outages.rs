//! Runs clients/outages.json: what passes, what is logged and what is counted while no node decides.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use serde_json::{Value, json};
use tollgate_limiter::{Client, Source, Stats};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::browser::Browser;
use crate::cases::{client_at, known, layer_of};
use crate::client_cases::within;
use crate::node::{binary, clients};
use crate::servers::Host;

/// Longer than the pause between two lines.
const QUIET: Duration = Duration::from_millis(1100);

#[tokio::test]
async fn failures_are_logged_and_counted() {
    let text = std::fs::read_to_string(clients().join("outages.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(rows.len() >= 14, "the rows were misread");
    for row in rows {
        let members = "name state options requests decides failures what cause warned returns within_ms";
        known(&row, &members.split(' ').collect::<Vec<_>>());
        let mut other = OtherSide::play(row["state"].as_str().unwrap());
        for on_failure in ["open", "closed"] {
            let lines = Lines::default();
            // All tasks run on this thread.
            let _logged = tracing::subscriber::set_default(lines.clone());
            observe(&row, &mut other, on_failure, &lines).await;
        }
    }
}

async fn observe(row: &Value, other: &mut OtherSide, on_failure: &str, lines: &Lines) {
    let name = format!("{}, {on_failure}", row["name"]);
    let mut case = json!({"options": row.get("options").cloned().unwrap_or(json!({}))});
    case["options"]["on_failure"] = on_failure.into();
    for option in ["token", "ca_file"] {
        if let Some(value) = other.side.get(option) {
            case["options"][option] = value.clone();
        }
    }
    let client = client_at(&case, &[other.side["url"].as_str().unwrap().to_owned()]);
    let url = Host::Axum.start(layer_of(&case, client.clone())).await;
    let (is_open, returns) = (on_failure == "open", row["returns"] == true);
    let requests = row["requests"].as_u64().unwrap_or(3);
    let failures = row["failures"].as_u64().unwrap_or(requests);
    if returns {
        assert_eq!(get(&url).await.status(), 200, "{name}");
        other.toggle();
    }
    let decides = row["decides"].as_str();
    for _ in 0..requests {
        let status = if is_open || decides.is_some() { 200 } else { 503 };
        let began = Instant::now();
        assert_eq!(get(&url).await.status(), status, "{name}");
        within(row, began);
    }
    let Stats { allowed, denied, passed, sources, .. } = stats_with(&client, failures).await;
    let want = match decides {
        Some(_) => (requests, 0, 0),
        None => (u64::from(returns), 0, if is_open { requests } else { 0 }),
    };
    assert_eq!((allowed, denied, passed), want, "{name}");
    if let Some(source) = decides {
        let source: Source = serde_json::from_value(source.into()).unwrap();
        assert_eq!(sources.get(&source), Some(&requests), "{name}");
    }
    verify(row, &name, is_open, failures > 0, lines).await;
    if returns {
        other.toggle();
        while !get(&url).await.headers().contains_key("ratelimit") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(QUIET).await;
        get(&url).await;
        let last = lines.written().pop().unwrap();
        assert!(last.starts_with("decisions are back after ") && last.ends_with(" s"), "{name}: {last}");
    }
}

async fn verify(row: &Value, name: &str, is_open: bool, fails: bool, lines: &Lines) {
    let end = if is_open { "passes" } else { "ends with 503" };
    let what = row["what"].as_str().map_or_else(|| format!("no decision, so the request {end}"), str::to_owned);
    let cause = row["cause"].as_str().unwrap_or_default();
    for _ in 0..1000 {
        if !fails || lines.written().iter().any(|line| line.contains(cause)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let warned = row["warned"].as_str();
    let is_warning = |line: &String| warned.is_some_and(|text| line.contains(text));
    let (warnings, failed): (Vec<_>, Vec<_>) = lines.written().into_iter().partition(is_warning);
    assert_eq!(warnings.len(), usize::from(warned.is_some()), "{name}: {warnings:?} {failed:?}");
    assert_eq!(!failed.is_empty(), fails, "{name}: {failed:?}");
    for line in failed {
        let is_known = line.starts_with(&format!("{what}: ")) || line.starts_with("the settle of a hold failed: ");
        assert!(is_known && line.contains(cause), "{name}: {line}");
    }
}

async fn stats_with(client: &Client, failures: u64) -> Stats {
    for _ in 0..1000 {
        if client.stats().failures >= failures {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(client.stats().failures >= failures);
    client.stats()
}

async fn get(url: &str) -> Response<Bytes> {
    let headers = HeaderMap::from_iter([("x-used".parse().unwrap(), HeaderValue::from(1))]);
    Browser::new().send(Method::GET, url, headers, Bytes::new()).await
}

/// The program that plays a state.
struct OtherSide {
    program: Child,
    output: BufReader<ChildStdout>,
    side: Value,
}

impl OtherSide {
    fn play(state: &str) -> Self {
        let mut program = Command::new("python3")
            .arg(clients().join("outages.py"))
            .arg(state)
            .env("TOLLGATE_BIN", binary())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("install python3");
        let mut output = BufReader::new(program.stdout.take().unwrap());
        let side = serde_json::from_str(&line(&mut output)).unwrap();
        Self { program, output, side }
    }

    /// Kills the node, or starts it again.
    fn toggle(&mut self) {
        self.program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        line(&mut self.output);
    }
}

impl Drop for OtherSide {
    fn drop(&mut self) {
        drop(self.program.stdin.take());
        _ = self.program.wait();
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// Keeps what a client logs.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn written(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate_limiter")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}
