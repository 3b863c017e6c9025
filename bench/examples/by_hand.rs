//! A handwritten rate limiter, as articles describe it. Each key and quota has a counter for every
//! second. One round trip reads all quotas by MGET, and one charges them all by a script.
//!
//! Its faults are inherent: all callers pass that read before the others charge.
//!
//! `cargo run --release -p tollgate-bench --example by_hand -- 127.0.0.1:7080
//! redis://127.0.0.1:6379 1000/10 5000/60`
//!
//! The quotas, `LIMIT/SECONDS`, follow the address and the URL. The program detects a cluster.
//!
//! `shared` before the quotas: all quotas read one counter for each second,
//! `{ratelimit:<key>:}<second>`, as Tollgate's `sliding-counter` with `shared: true`.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing::post};
use futures_util::future::try_join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Script};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Counts, and keeps the counter until it has left the window.
const COUNT: &str = "local n = redis.call('INCRBY', KEYS[1], ARGV[1])
if n == tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return n";

#[derive(Clone, Copy)]
struct Quota {
    limit: u64,
    seconds: u64,
}

#[derive(Clone)]
struct Limiter {
    redis: Redis,
    quotas: Vec<Quota>,
    /// Whether all quotas read one counter for each second.
    is_shared: bool,
    count: Script,
}

#[derive(Deserialize)]
struct Check {
    policy: String,
    key: String,
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

#[derive(Serialize)]
struct Decision {
    allowed: bool,
    policy: String,
    key: String,
    cost: u64,
    limit: u64,
    remaining: u64,
    retry_after_ms: u64,
    source: &'static str,
    quotas: Vec<QuotaState>,
}

#[derive(Serialize)]
struct QuotaState {
    limit: u64,
    window_ms: u64,
    remaining: u64,
}

async fn check(State(limiter): State<Limiter>, Json(check): Json<Check>) -> Result<Json<Decision>, StatusCode> {
    limiter.decide(check).await.map(Json).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

impl Limiter {
    async fn decide(mut self, check: Check) -> RedisResult<Decision> {
        let now = now();
        let name = |quota: &Quota, second: u64| match self.is_shared {
            true => format!("{{ratelimit:{}:}}{second}", check.key),
            false => format!("{{ratelimit:{}:}}{}:{}:{second}", check.key, check.policy, quota.seconds),
        };
        let counted: Vec<Quota> = match self.is_shared {
            true => self.quotas.iter().copied().max_by_key(|quota| quota.seconds).into_iter().collect(),
            false => self.quotas.clone(),
        };
        let mut read = redis::cmd("MGET");
        for quota in &counted {
            (now + 1 - quota.seconds..=now).for_each(|second| {
                read.arg(name(quota, second));
            });
        }
        let counts: Vec<Option<u64>> = self.redis.ask(&read).await?;
        let mut rest = &counts[..];
        let mut sum = |quota: &Quota| {
            let seconds = quota.seconds as usize;
            if self.is_shared {
                return counts[counts.len().saturating_sub(seconds)..].iter().flatten().sum();
            }
            rest.split_off(..seconds).unwrap_or_default().iter().flatten().sum()
        };
        let used: Vec<u64> = self.quotas.iter().map(&mut sum).collect();
        let allowed = self.quotas.iter().zip(&used).all(|(quota, used)| used + check.cost <= quota.limit);
        if allowed {
            let charges = counted.iter().map(|quota| {
                let (key, life, mut redis) = (name(quota, now), quota.seconds + 1, self.redis.clone());
                let script = &self.count;
                async move { redis.count(script, &key, check.cost, life).await }
            });
            try_join_all(charges).await?;
        }
        let charged = if allowed { check.cost } else { 0 };
        let quotas: Vec<QuotaState> = self
            .quotas
            .iter()
            .zip(&used)
            .map(|(quota, used)| QuotaState {
                limit: quota.limit,
                window_ms: quota.seconds * 1000,
                remaining: quota.limit.saturating_sub(used + charged),
            })
            .collect();
        let tightest = quotas.iter().min_by_key(|quota| quota.remaining);
        Ok(Decision {
            allowed,
            limit: tightest.map_or(0, |quota| quota.limit),
            remaining: tightest.map_or(0, |quota| quota.remaining),
            retry_after_ms: if allowed { 0 } else { 1000 },
            policy: check.policy,
            key: check.key,
            cost: check.cost,
            source: "store",
            quotas,
        })
    }
}

#[derive(Clone)]
enum Redis {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Redis {
    async fn open(url: &str) -> RedisResult<Self> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = redis::IntoConnectionInfo::into_connection_info(url)?.set_tcp_settings(tcp.clone());
        let mut single = Client::open(info)?
            .get_multiplexed_async_connection_with_config(&AsyncConnectionConfig::new())
            .await?;
        let about: String = redis::cmd("INFO").arg("cluster").query_async(&mut single).await?;
        if about.contains("cluster_enabled:1") {
            let cluster = ClusterClientBuilder::new([url]).tcp_settings(tcp).build()?;
            return Ok(Self::Cluster(cluster.get_async_connection().await?));
        }
        Ok(Self::Single(single))
    }

    async fn ask(&mut self, cmd: &Cmd) -> RedisResult<Vec<Option<u64>>> {
        match self {
            Self::Single(connection) => cmd.query_async(connection).await,
            Self::Cluster(connection) => cmd.query_async(connection).await,
        }
    }

    async fn count(&mut self, script: &Script, key: &str, cost: u64, life: u64) -> RedisResult<u64> {
        match self {
            Self::Single(connection) => invoke(connection, script, key, cost, life).await,
            Self::Cluster(connection) => invoke(connection, script, key, cost, life).await,
        }
    }
}

async fn invoke(
    connection: &mut impl ConnectionLike,
    script: &Script,
    key: &str,
    cost: u64,
    life: u64,
) -> RedisResult<u64> {
    script.key(key).arg(cost).arg(life).invoke_async(connection).await
}

#[expect(clippy::disallowed_methods, reason = "written as one would by hand")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_secs())
}

fn quota(text: &str) -> Result<Quota, String> {
    let parsed = text.split_once('/').and_then(|(limit, seconds)| {
        let (limit, seconds) = (limit.parse().ok()?, seconds.parse().ok().filter(|seconds| *seconds > 0)?);
        Some(Quota { limit, seconds })
    });
    parsed.ok_or_else(|| format!("`{text}` is no LIMIT/SECONDS"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let (Some(address), Some(url)) = (arguments.next(), arguments.next()) else {
        return Err("by_hand ADDRESS REDIS_URL [shared] LIMIT/SECONDS...".into());
    };
    let is_shared = arguments.next_if(|argument| argument == "shared").is_some();
    let quotas = arguments.map(|text| quota(&text)).collect::<Result<Vec<_>, _>>()?;
    if quotas.is_empty() {
        return Err("name at least one quota, LIMIT/SECONDS".into());
    }
    let limiter = Limiter { redis: Redis::open(&url).await?, quotas, is_shared, count: Script::new(COUNT) };
    let routes = Router::new().route("/v1/check", post(check)).with_state(limiter);
    let listener = axum::serve::ListenerExt::tap_io(TcpListener::bind(address).await?, |stream| {
        // The first read detects a closed connection.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, routes).await?;
    Ok(())
}
