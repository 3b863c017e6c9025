use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use redis::Script;
use redis::aio::MultiplexedConnection;
use tollgate_limiter::{Client, LimitLayer, OnFailure, Options};
use tower_redis_cell::redis_cell::Policy;
use tower_redis_cell::{ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

use crate::Result;

pub const KINDS: [&str; 4] = ["alone", "with Tollgate", "with tower-redis-cell", "with a script by hand"];

/// A limit that no run reaches, so that each request has its whole way.
pub const UNITS: u64 = 1_000_000_000;
const WINDOW: Duration = Duration::from_secs(3600);

#[tokio::main]
pub async fn serve(kind: &str, listen: &str, node: &str, cell: &str, redis: &str) -> Result<()> {
    let hello = Router::new().route("/", get(async || "hello"));
    let app = match kind {
        "with Tollgate" => {
            let options = Options::default().nodes([node]).deadline(Duration::from_secs(1));
            hello.layer(LimitLayer::new(Client::new(options)?).on_failure(OnFailure::Closed))
        }
        "with tower-redis-cell" => {
            let config =
                RateLimitConfig::new(ByAddress, |_, _: &Request| StatusCode::SERVICE_UNAVAILABLE.into_response())
                    .on_success(|allowed, response: &mut Response| {
                        set_fields(
                            response.headers_mut(),
                            allowed.details.remaining as u64,
                            allowed.details.reset_after,
                        );
                    });
            hello.layer(RateLimitLayer::new(config, connection(cell).await?))
        }
        "with a script by hand" => {
            let by_hand = ByHand { connection: connection(redis).await?, script: Arc::new(Script::new(FIXED_WINDOW)) };
            hello.layer(from_fn_with_state(by_hand, limit_by_hand))
        }
        _ => hello,
    };
    let listener = tokio::net::TcpListener::bind(listen).await?;
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

async fn connection(url: &str) -> Result<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// The rule of tower-redis-cell.
#[derive(Clone)]
struct ByAddress;

impl ProvideRule<Request<Body>> for ByAddress {
    fn provide<'a>(&self, request: &'a Request<Body>) -> ProvideRuleResult<'a> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().ok_or("a request without an address")?;
        let policy = Policy::from_tokens_per_period(UNITS as usize, WINDOW).max_burst(UNITS as usize);
        Ok(Some(Rule::new(peer.ip().to_string(), policy)))
    }
}

#[derive(Clone)]
struct ByHand {
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

/// The simplest script: a fixed window from its first hit. KEYS[1]: the counter; ARGV[1]: the
/// window in ms. It returns the count and the rest of the window in ms.
const FIXED_WINDOW: &str = "local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {n, redis.call('PTTL', KEYS[1])}";

async fn limit_by_hand(
    State(ByHand { mut connection, script }): State<ByHand>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let mut call = script.key(peer.ip().to_string());
    match call.arg(WINDOW.as_millis() as u64).invoke_async::<(u64, u64)>(&mut connection).await {
        Ok((count, wait)) if count <= UNITS => {
            let mut response = next.run(request).await;
            set_fields(response.headers_mut(), UNITS - count, wait.div_ceil(1000));
            response
        }
        Ok(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Answers as much as the layer of Tollgate does.
fn set_fields(fields: &mut HeaderMap, remaining: u64, reset: u64) {
    for (name, text) in [
        ("ratelimit-policy", format!("\"1h\";q={UNITS};w={}", WINDOW.as_secs())),
        ("ratelimit", format!("\"1h\";r={remaining};t={reset}")),
    ] {
        if let Ok(value) = HeaderValue::try_from(text) {
            fields.append(name, value);
        }
    }
}
