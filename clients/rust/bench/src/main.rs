//! Hello world in axum behind a limiter, for clients/bench/run:
//!
//! ```sh
//! tollgate-limiter-bench axum LIMITER SITUATION NODE_URL REDIS_URL CELL_URL PORT
//! ```
//!
//! And the time of a decision by a lease, under the policy `callers` of a node:
//!
//! ```sh
//! tollgate-limiter-bench lease NODE_URL
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use redis::Script;
use redis::aio::MultiplexedConnection;
use tollgate_limiter::{Check, Client, LimitLayer, OnFailure, Options, Source};
use tower_redis_cell::redis_cell::Policy;
use tower_redis_cell::{ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const WINDOW: Duration = Duration::from_secs(3600);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, node] = &arguments[..]
        && name == "lease"
    {
        return decide(node).await;
    }
    let arguments: Vec<String> = arguments.into_iter().skip(1).collect();
    let [limiter, situation, node, redis, cell, port] = arguments.try_into().map_err(|_| "6 arguments are missing")?;
    let units = if situation == "denied" { 1 } else { 1_000_000_000 };
    let hello = Router::new().route("/", get(async || "hello"));
    let app = match limiter.as_str() {
        "Tollgate" => {
            let client = Client::new(Options::default().nodes([node]).deadline(Duration::from_secs(5)))?;
            let layer = LimitLayer::new(client).policy(situation).on_failure(OnFailure::Closed);
            hello.layer(layer.key(|request| user(&request.headers)))
        }
        "tower-redis-cell" => {
            let rule = ByUser(situation, units);
            let config = RateLimitConfig::new(rule, |_, _: &Request| StatusCode::TOO_MANY_REQUESTS.into_response())
                .on_success(move |allowed, response: &mut Response| {
                    let details = allowed.details;
                    set_fields(response.headers_mut(), units, details.remaining as u64, details.reset_after);
                });
            hello.layer(RateLimitLayer::new(config, connection(&cell).await?))
        }
        "a script by hand" => {
            let (connection, script) = (connection(&redis).await?, Arc::new(Script::new(FIXED_WINDOW)));
            hello.layer(from_fn_with_state(ByHand { situation, units, connection, script }, limit_by_hand))
        }
        _ => hello,
    };
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

/// Prints the median of the time that a decision by a lease takes, and the share of such decisions.
async fn decide(node: &str) -> Result<()> {
    const CHECKS: usize = 1_000_000;
    let client = Client::new(Options::default().nodes([node]).deadline(Duration::from_secs(5)))?;
    let (mut leased, mut began) = (Vec::with_capacity(CHECKS), Instant::now());
    for _ in 0..CHECKS {
        let decision = client.check(Check::new("user-42").policy("callers")).await?;
        let ended = Instant::now();
        if decision.source == Source::Lease {
            leased.push(ended - began);
        }
        began = ended;
    }
    leased.sort_unstable();
    let [median, late] = [leased.len() / 2, leased.len() / 100 * 99].map(|place| leased.get(place).copied());
    println!("{} of {CHECKS} by leases: median {median:?}, 99 % below {late:?}", leased.len());
    client.close().await;
    Ok(())
}

fn user(headers: &HeaderMap) -> Option<String> {
    headers.get("x-user").and_then(|user| user.to_str().ok()).map(str::to_owned)
}

async fn connection(url: &str) -> Result<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// The rule of tower-redis-cell.
#[derive(Clone)]
struct ByUser(String, u64);

impl ProvideRule<Request<Body>> for ByUser {
    fn provide<'a>(&self, request: &'a Request<Body>) -> ProvideRuleResult<'a> {
        let Self(situation, units) = self;
        let user = user(request.headers()).ok_or("a request without a user")?;
        let burst = *units as usize;
        // A burst of 0 admits the one unit of `denied`.
        let policy = Policy::from_tokens_per_period(burst, WINDOW).max_burst(burst - 1);
        Ok(Some(Rule::new(format!("{situation}-{user}"), policy)))
    }
}

#[derive(Clone)]
struct ByHand {
    situation: String,
    units: u64,
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

/// The simplest script: a fixed window from its first hit. KEYS[1]: the counter; ARGV[1]: the
/// window in ms. It returns the count and the rest of the window in ms.
const FIXED_WINDOW: &str = "local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {n, redis.call('PTTL', KEYS[1])}";

async fn limit_by_hand(State(mut by_hand): State<ByHand>, request: Request, next: Next) -> Response {
    let user = user(request.headers()).unwrap_or_default();
    let mut call = by_hand.script.key(format!("{}-{user}", by_hand.situation));
    let call = call.arg(WINDOW.as_millis() as u64);
    let (mut response, count, wait) = match call.invoke_async::<(u64, u64)>(&mut by_hand.connection).await {
        Ok((count, wait)) if count <= by_hand.units => (next.run(request).await, count, wait),
        Ok((count, wait)) => (StatusCode::TOO_MANY_REQUESTS.into_response(), count, wait),
        Err(_) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    let (units, left) = (by_hand.units, by_hand.units.saturating_sub(count));
    set_fields(response.headers_mut(), units, left, wait.div_ceil(1000));
    response
}

/// Answers as much as the layer of Tollgate does.
fn set_fields(fields: &mut HeaderMap, units: u64, remaining: u64, reset: u64) {
    for (name, text) in [
        ("ratelimit-policy", format!("\"1h\";q={units};w={}", WINDOW.as_secs())),
        ("ratelimit", format!("\"1h\";r={remaining};t={reset}")),
    ] {
        if let Ok(value) = HeaderValue::try_from(text) {
            fields.append(HeaderName::from_static(name), value);
        }
    }
}
