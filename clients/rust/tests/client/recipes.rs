//! The recipes of the README, as printed.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::json;
use tollgate_limiter::{Check, Client, Decision, Error, Fake, HoldHandle, LimitLayer, OnFailure, Stats};

use crate::browser::Browser;
use crate::cases::client;
use crate::node::{Node, clients, free_address};
use crate::servers::run;

const README: &str = include_str!("../../README.md");
const SOURCE: &str = include_str!("recipes.rs");

#[derive(Clone)]
struct User {
    id: String,
    plan: Option<String>,
}

struct Sessions;

impl Sessions {
    fn user(&self, request: &http::request::Parts) -> impl Future<Output = Option<String>> + Send + use<> {
        let user = text(request, "x-session");
        async { Some(format!("user-of-{}", user?)) }
    }
}

fn text(request: &http::request::Parts, name: &str) -> Option<String> {
    Some(request.headers.get(name)?.to_str().ok()?.to_owned())
}

fn by_user(client: Client, sessions: Sessions) -> LimitLayer {
    LimitLayer::new(client).policy("per-user").key_async(move |request| sessions.user(request))
}

fn tokens_after_the_answer(client: Client) -> LimitLayer {
    LimitLayer::new(client).policy("tokens").key(user).look(true).drain(|_, answered| {
        let used = answered.headers.get("x-tokens").and_then(|used| used.to_str().ok());
        used.and_then(|used| used.parse().ok()).unwrap_or(0)
    })
}

async fn answer() -> (&'static str, u64) {
    ("An answer of a model", 5)
}

fn tokens_and_places(client: Client, app: Router) -> Router {
    let chat = async |Extension(hold): Extension<HoldHandle>| {
        let (text, tokens) = answer().await;
        hold.set_cost(tokens);
        text
    };
    let limit = LimitLayer::new(client).policy("chat").key(user).cost(|_| 900).hold(true);
    app.route("/chat", get(chat)).layer(limit.on_failure(OnFailure::Closed))
}

async fn run_job(client: &Client, customer: &str) -> Result<(), Box<dyn std::error::Error>> {
    let run = async || 5;
    let hold = client.hold(Check::new(customer).policy("jobs").cost(900)).await?;
    let tokens = tokio::select! {
        tokens = run() => tokens,
        end = hold.ended() => return Err(format!("the hold has ended: {end:?}").into()),
    };
    hold.settle(tokens).await?;
    Ok(())
}

fn failed_logins_only(client: Client) -> LimitLayer {
    LimitLayer::new(client)
        .policy("logins")
        .key(user)
        .refund(|_, answered| answered.status.is_some_and(|status| status.is_success()))
}

fn by_plan(client: Client) -> LimitLayer {
    LimitLayer::new(client)
        .policy("reports")
        .key(user)
        .plan_of(|request| request.extensions.get::<User>().and_then(|user| user.plan.clone()))
}

fn page_for_browsers(client: Client) -> LimitLayer {
    LimitLayer::new(client).policy("per-user").key(user).body_with(|request, decision| {
        let wait = decision.retry_after().unwrap_or_default().as_secs();
        let accepts = request.headers.get("accept").and_then(|accepts| accepts.to_str().ok());
        if accepts.is_some_and(|accepts| accepts.contains("text/html")) {
            let page = format!("<!doctype html><title>Slow down</title><p>Please wait {wait} s.");
            (HeaderValue::from_static("text/html; charset=utf-8"), page.into())
        } else {
            (HeaderValue::from_static("text/plain"), format!("try again in {wait} s").into())
        }
    })
}

async fn unit_test_without_a_node() -> Result<(), Error> {
    let limits = Client::fake([Fake::Allow, Fake::Deny(Duration::from_secs(30)), Fake::Fail]);
    assert!(limits.check(Check::new("anna")).await?.allowed);
    assert!(!limits.check(Check::new("anna")).await?.allowed);
    assert!(limits.check(Check::new("anna")).await.is_err());
    Ok(())
}

fn counts(client: Client, app: Router) -> Router {
    let metrics = async move || {
        let Stats { allowed, denied, passed, failures, .. } = client.stats();
        let counts = [("allowed", allowed), ("denied", denied), ("passed", passed), ("failures", failures)];
        counts.map(|(name, count)| format!("tollgate_client_{name}_total {count}\n")).concat()
    };
    app.route("/metrics", get(metrics))
}

fn several_limits(client: Client, app: Router) -> Router {
    app.layer(LimitLayer::new(client.clone()).policy("burst").key(user))
        .layer(LimitLayer::new(client).policy("per-user").key(user))
}

fn user(request: &http::request::Parts) -> Option<String> {
    request.extensions.get().map(|user: &User| user.id.clone())
}

/// Text without its spaces, since README and source break lines elsewhere.
fn dense(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn readme_prints_the_recipes_that_run_here() {
    let start = |name: &str| if name == "run_job" { "    let run = async || 5;\n" } else { "{\n" };
    for name in [
        "by_user",
        "tokens_after_the_answer",
        "tokens_and_places",
        "run_job",
        "failed_logins_only",
        "by_plan",
        "counts",
        "page_for_browsers",
        "unit_test_without_a_node",
        "several_limits",
    ] {
        let (_, function) = SOURCE.split_once(&format!("fn {name}(")).unwrap();
        let (_, body) = function.split_once(start(name)).unwrap();
        let (body, _) = body.split_once("\n}\n").unwrap();
        assert!(dense(README).contains(&dense(body)), "README does not print {name}:\n{body}");
    }
}

const POLICIES: &str = "plans:
  pro: {quotas: [5 per 1h]}
policies:
  default: {quotas: [100 per 1h], timeout: 5s}
  per-user: {quotas: [2 per 1h], timeout: 5s}
  burst: {quotas: [3 per 1h], timeout: 5s}
  tokens: {quotas: [1000 per 1h], timeout: 5s}
  logins: {quotas: [3 per 1h], timeout: 5s}
  reports: {quotas: [1 per 1h], timeout: 5s}
  chat: {quotas: [1000 per 1h], hold: {ttl: 30s}, timeout: 5s}
  jobs: {quotas: [1000 per 1h], hold: {ttl: 30s, in_flight: 1}, timeout: 5s}
";

struct App {
    _node: Node,
    _folder: tempfile::TempDir,
    client: Client,
    url: String,
}

impl App {
    /// Runs an application whose handler answers the header fields of the request back.
    async fn start(limit: impl FnOnce(Client, Router) -> Router) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("recipes.yaml");
        std::fs::write(&file, POLICIES).unwrap();
        let node = Node::start(file.to_str().unwrap());
        let client = client(&node.url());
        let answer = async |headers: HeaderMap, decision: Option<Extension<Decision>>| {
            let status = headers.get("x-status").map_or(200, |status| status.to_str().unwrap().parse().unwrap());
            let mut answered = HeaderMap::new();
            answered.extend(
                headers.get("x-tokens").map(|tokens| (http::HeaderName::from_static("x-tokens"), tokens.clone())),
            );
            let policy = decision.map(|Extension(decision)| decision.policy).unwrap_or_default();
            (StatusCode::from_u16(status).unwrap(), answered, policy)
        };
        let router = limit(client.clone(), Router::new().route("/", get(answer)));
        let identify = axum::middleware::from_fn(identify);
        Self { url: run(router.layer(identify)).await, client, _node: node, _folder: folder }
    }

    async fn get(&self, fields: &[(&'static str, &str)]) -> http::Response<Bytes> {
        let headers = fields.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        Browser::new().send(Method::GET, &self.url, headers.collect(), Bytes::new()).await
    }

    async fn remaining(&self, policy: &str, key: &str) -> Option<u64> {
        self.client.close().await;
        self.client.usage(Check::new(key).policy(policy)).await.unwrap().decision.remaining
    }

    /// Waits for a charge that follows a response.
    async fn until_remaining(&self, policy: &str, key: &str, units: u64) {
        for _ in 0..3000 {
            if self.remaining(policy, key).await == Some(units) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{policy} {key}: {:?} remain, want {units}", self.remaining(policy, key).await);
    }
}

async fn identify(mut request: axum::extract::Request, next: axum::middleware::Next) -> axum::response::Response {
    let headers = request.headers();
    let [id, plan] = ["x-user", "x-plan"].map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()));
    if let Some(id) = id {
        request.extensions_mut().insert(User { id, plan });
    }
    next.run(request).await
}

#[tokio::test]
async fn user_comes_from_a_session_store() {
    let app = App::start(|client, app| app.layer(by_user(client, Sessions))).await;
    let response = app.get(&[("x-session", "s")]).await;
    assert_eq!((response.status(), response.body()), (StatusCode::OK, &Bytes::from("per-user")));
    assert_eq!(app.remaining("per-user", "user-of-s").await, Some(1));
}

#[tokio::test]
async fn tokens_are_charged_after_the_answer_and_then_deny() {
    let app = App::start(|client, app| app.layer(tokens_after_the_answer(client))).await;
    for left in [400, 0] {
        assert_eq!(app.get(&[("x-user", "u"), ("x-tokens", "600")]).await.status(), StatusCode::OK);
        app.until_remaining("tokens", "u", left).await;
    }
    assert_eq!(app.get(&[("x-user", "u"), ("x-tokens", "600")]).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn answer_costs_its_tokens_and_a_job_runs_once_at_a_time() {
    let app = App::start(tokens_and_places).await;
    let headers = [(http::HeaderName::from_static("x-user"), "u".parse().unwrap())];
    let url = format!("{}/chat", app.url);
    let response = Browser::new().send(Method::GET, &url, HeaderMap::from_iter(headers), Bytes::new()).await;
    assert_eq!(response.body(), "An answer of a model");
    app.until_remaining("chat", "u", 995).await;
    run_job(&app.client, "anna").await.unwrap();
    assert_eq!(app.remaining("jobs", "anna").await, Some(995));
    let _running = app.client.hold(Check::new("anna").policy("jobs")).await.unwrap();
    let denied = run_job(&app.client, "anna").await.unwrap_err();
    assert_eq!(denied.to_string(), "jobs denies the check: in_flight");
}

#[tokio::test]
async fn only_failed_logins_count() {
    let app = App::start(|client, app| app.layer(failed_logins_only(client))).await;
    for _ in 0..5 {
        assert_eq!(app.get(&[("x-user", "u")]).await.status(), StatusCode::OK);
        app.until_remaining("logins", "u", 3).await;
    }
    for _ in 0..3 {
        assert_eq!(app.get(&[("x-user", "u"), ("x-status", "401")]).await.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(app.get(&[("x-user", "u")]).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn plan_selects_the_quotas() {
    let app = App::start(|client, app| app.layer(by_plan(client))).await;
    for (headers, allowed) in [(&[("x-user", "anna")][..], 1), (&[("x-user", "ben"), ("x-plan", "pro")], 5)] {
        for _ in 0..allowed {
            assert_eq!(app.get(headers).await.status(), StatusCode::OK);
        }
        let denied = app.get(headers).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let document: serde_json::Value = serde_json::from_slice(denied.body()).unwrap();
        assert_eq!(document["violated-policies"], json!(["1h"]));
    }
}

#[tokio::test]
async fn denial_is_a_page_for_browsers() {
    unit_test_without_a_node().await.unwrap();
    let app = App::start(|client, app| app.layer(page_for_browsers(client))).await;
    for _ in 0..2 {
        assert_eq!(app.get(&[("x-user", "u")]).await.status(), StatusCode::OK);
    }
    let page = app.get(&[("x-user", "u"), ("accept", "text/html,*/*;q=0.8")]).await;
    assert_eq!((page.status(), &page.headers()["content-type"]), (StatusCode::TOO_MANY_REQUESTS, &html()));
    let other = app.get(&[("x-user", "u"), ("accept", "application/json")]).await;
    assert!(other.body().starts_with(b"try again in "), "{other:?}");
}

fn html() -> HeaderValue {
    HeaderValue::from_static("text/html; charset=utf-8")
}

#[tokio::test]
async fn recipes_pass_requests_while_no_node_answers() {
    let dead = client(&format!("http://{}", free_address()));
    let hello = || Router::new().route("/", get(async || "hello"));
    let layers = [
        by_user(dead.clone(), Sessions),
        tokens_after_the_answer(dead.clone()),
        failed_logins_only(dead.clone()),
        by_plan(dead.clone()),
    ];
    let mut apps: Vec<Router> = layers.into_iter().map(|layer| hello().layer(layer)).collect();
    apps.push(several_limits(dead.clone(), hello()));
    for app in apps {
        let url = run(counts(dead.clone(), app)).await;
        assert_eq!(Browser::new().get(&url).await.status(), StatusCode::OK);
    }
    let url = run(counts(dead.clone(), Router::new())).await;
    let text = Browser::new().get(&format!("{url}/metrics")).await;
    assert!(String::from_utf8_lossy(text.body()).contains("tollgate_client_passed_total 6\n"), "{text:?}");
    let closed = format!("{}/chat", run(tokens_and_places(dead, Router::new())).await);
    assert_eq!(Browser::new().get(&closed).await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn several_limits_count_and_their_quotas_differ_in_the_fields() {
    let app = App::start(several_limits).await;
    let response = app.get(&[("x-user", "u")]).await;
    let fields: Vec<_> = response.headers().get_all("ratelimit").iter().map(|value| value.to_str().unwrap()).collect();
    assert!(fields[0].starts_with("\"1h\";r=2"), "{fields:?}");
    assert!(fields[1].starts_with("\"per-user/1h\";r=1"), "{fields:?}");
    assert_eq!(app.get(&[("x-user", "u")]).await.status(), StatusCode::OK);
    assert_eq!(app.get(&[("x-user", "u")]).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn install_line_of_the_readme_adds_the_crate_to_an_empty_program() {
    let line = README.lines().find(|line| line.starts_with("cargo add ")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let cargo = |words: &[&str]| {
        let root = clients();
        let mut command = std::process::Command::new(env!("CARGO"));
        assert!(command.args(words).current_dir(root.parent().unwrap()).status().unwrap().success(), "{words:?}");
    };
    cargo(&["new", "--quiet", "--vcs", "none", program.to_str().unwrap()]);
    let line = line.replace("YOUR_PROGRAM", program.to_str().unwrap());
    cargo(&line.split(' ').skip(1).chain(["--quiet", "--offline"]).collect::<Vec<_>>());
    let written = std::fs::read_to_string(program.join("Cargo.toml")).unwrap();
    assert!(written.contains("tollgate-limiter = { "), "{written}");
}
