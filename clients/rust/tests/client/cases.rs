//! Reads the cases, and makes clients and layers with their options.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::request::Parts;
use serde_json::Value;
use tollgate_limiter::{Check, Client, LimitLayer, OnFailure, Options, safe_key};

use crate::matching::assert_matches;
use crate::node::{Node, clients, free_address};
use crate::servers::{Mode, Proxy, silent};

/// The two nodes of all cases.
pub struct Nodes {
    pub plain: Node,
    secure: Node,
}

impl Nodes {
    pub fn start() -> Arc<Self> {
        Arc::new(Self { plain: Node::start("cases.yaml"), secure: Node::start("cases-secure.yaml") })
    }
}

/// The nodes that a case configures.
#[derive(Default)]
pub struct List {
    urls: Vec<String>,
    pub proxy: Option<Proxy>,
    _silent: Vec<TcpListener>,
}

impl List {
    pub async fn of(case: &Value, nodes: &Nodes) -> Self {
        let mut list = Self::default();
        let kinds = case.get("nodes").map_or(vec!["node"], texts);
        for kind in kinds {
            let url = match kind {
                "node" => nodes.plain.url(),
                "secure" => format!("https://{}", nodes.secure.address),
                "down" => format!("http://{}", free_address()),
                "silent" => {
                    let (url, listener) = silent();
                    list._silent.push(listener);
                    url
                }
                "proxy" | "lossy" => {
                    let mode = if kind == "lossy" { Mode::Lossy } else { Mode::Faithful };
                    let proxy = list.proxy.insert(Proxy::start(nodes.plain.url(), mode).await);
                    proxy.url.clone()
                }
                _ => panic!("unknown kind of node {kind}"),
            };
            list.urls.push(url);
        }
        list
    }

    /// Compares the calls that a proxy saw with the member `seen`.
    pub fn verify(&self, case: &Value) {
        let Some(want) = case.get("seen") else { return };
        known(want, &["calls", "connections", "headers", "some_path", "every_path", "checks"]);
        let seen = self.proxy.as_ref().expect("a proxy").seen.lock().unwrap();
        let numbers = [("calls", seen.paths.len()), ("connections", seen.connections)];
        for (name, number) in numbers {
            if let Some(want) = want.get(name) {
                assert_matches(name, want, &number.into());
            }
        }
        for (name, want) in want["headers"].as_object().into_iter().flatten() {
            for headers in &seen.headers {
                let got = headers.get(name).map_or(Value::Null, |value| value.to_str().unwrap().into());
                assert_matches(name, want, &got);
            }
        }
        if let Some(checks) = want.get("checks") {
            assert_matches("checks", checks, &seen.checks.clone().into());
        }
        if let Some(path) = want["some_path"].as_str() {
            assert!(seen.paths.iter().any(|seen| seen == path), "no call of {path}: {:?}", seen.paths);
        }
        if let Some(path) = want["every_path"].as_str() {
            assert!(seen.paths.iter().all(|seen| seen == path), "another call than {path}: {:?}", seen.paths);
        }
    }
}

/// Makes the client of a case. Its deadline is long, so that a busy machine fails no test.
pub fn client_of(case: &Value, list: &List) -> Client {
    client_at(case, &list.urls)
}

pub fn client_at(case: &Value, urls: &[String]) -> Client {
    let options = &case["options"];
    let deadline = options["deadline_ms"].as_u64().unwrap_or(5000);
    let mut chosen = Options::default()
        .nodes(urls)
        .deadline(Duration::from_millis(deadline))
        .retry(options["retry"].as_bool().unwrap_or(true))
        .coalesce(options["coalesce"].as_bool().unwrap_or(true));
    if let Some(longest) = options["denial_cache_ms"].as_u64() {
        chosen = chosen.denial_cache(Duration::from_millis(longest));
    }
    if let Some(token) = options["token"].as_str() {
        chosen = chosen.token(token);
    }
    if let Some(file) = options["ca_file"].as_str() {
        chosen = chosen.ca_file(clients().join(file));
    }
    Client::new(chosen).unwrap()
}

/// A client of one node, for tests without a case.
pub fn client(url: &str) -> Client {
    Client::new(Options::default().nodes([url]).deadline(Duration::from_secs(20))).unwrap()
}

pub fn layer_of(case: &Value, client: Client) -> LimitLayer {
    let header = |option: &str| case["options"][option]["header"].as_str().map(str::to_owned);
    let options = &case["options"];
    let mut layer = LimitLayer::new(client);
    if let Some(policy) = options["policy"].as_str() {
        layer = layer.policy(policy);
    }
    if let Some(name) = header("policy") {
        let plan =
            move |request: &Parts| request.headers.get(&name).and_then(|plan| plan.to_str().ok()).map(str::to_owned);
        layer = layer.policy_of(move |request| plan(request).unwrap_or_else(|| "default".to_owned()));
    }
    if let Some(plan) = options["plan"].as_str() {
        layer = layer.plan(plan);
    }
    if let Some(name) = header("plan") {
        layer = layer.plan_of(move |request| Some(request.headers.get(&name)?.to_str().ok()?.to_owned()));
    }
    if let Some(units) = options["cost"].as_u64() {
        layer = layer.cost(move |_| units);
    }
    if let Some(name) = header("refund") {
        layer = layer.refund(move |request, _| request.headers.contains_key(&name));
    }
    layer = layer.look(options["look"] == true).once(options["once"] == true).hold(options["hold"] == true);
    if let Some(name) = header("key") {
        layer = layer.key(move |request| request.headers.get(&name).map(safe_key));
    }
    if let Some(name) = header("cost") {
        layer = layer.cost(move |request| number(request, &name));
    }
    if let Some(name) = header("skip") {
        layer = layer.skip(move |request| request.headers.contains_key(&name));
    }
    if let Some(name) = header("drain") {
        layer = layer.drain(move |request, _| number(request, &name));
    }
    if let Some(status) = options["status"].as_u64() {
        layer = layer.status(StatusCode::from_u16(status.try_into().unwrap()).unwrap());
    }
    if let Some(text) = options["body"].as_str() {
        layer = layer.body(text.to_owned());
    }
    if options["on_failure"] == "closed" {
        layer = layer.on_failure(OnFailure::Closed);
    }
    layer
}

fn number(request: &Parts, name: &str) -> u64 {
    request.headers.get(name).map_or(0, |value| value.to_str().unwrap().parse().unwrap())
}

/// The cases of `client` or `middleware`.
pub fn read(kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(clients().join("cases.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    cases[kind].as_array().unwrap().clone()
}

/// Fills in a key that no other run has.
fn fresh(case: &Value) -> Value {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let key = format!("rust-{now:x}-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let text = case.to_string().replace("{key}", &key).replace("{long}", &"k".repeat(2000));
    let case: Value = serde_json::from_str(&text).unwrap();
    known(&case, &["name", "nodes", "options", "needs", "reset", "steps", "requests", "seen"]);
    let options = "deadline_ms retry coalesce denial_cache_ms token ca_file policy plan key cost hold look once skip drain \
                   refund on_failure status body";
    known(&case["options"], &options.split(' ').collect::<Vec<_>>());
    case
}

/// Fails on a member that this runner does not know, so that it ignores none.
pub fn known(object: &Value, members: &[&str]) {
    for name in object.as_object().into_iter().flatten().map(|(name, _)| name) {
        assert!(members.contains(&name.as_str()), "unknown member {name} of a case");
    }
}

/// Runs each case as a task, and fails with the names of those that failed.
pub async fn run_all<F: Future<Output = ()> + Send + 'static>(cases: Vec<Value>, run: impl Fn(Value) -> F) {
    assert!(cases.len() > 20, "the cases were misread");
    let mut failed = Vec::new();
    for case in cases {
        let name = case["name"].clone();
        if tokio::spawn(run(fresh(&case))).await.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed cases: {failed:?}");
}

pub fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

pub fn counter(policy: &Value, key: &Value) -> Check {
    Check::new(key.as_str().unwrap()).policy(policy.as_str().unwrap())
}

/// Whether the node does not know the member that a case needs.
pub async fn lacks(case: &Value, nodes: &Nodes) -> bool {
    let check = match case["needs"].as_str() {
        None => return false,
        Some("look") => Check::new("needs").look(true),
        Some("id_ttl_ms") => Check::new("needs").once(true),
        Some(member) => panic!("no check has {member}"),
    };
    client(&nodes.plain.url()).check(check).await.is_err()
}
