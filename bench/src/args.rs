//! The arguments, as written.

use tollgate::cli::bearer::Bearer;
use tollgate::config::span;
use tollgate::limit::quota::MAX_UNITS;
use tollgate::limit::time::Micros;

use super::dialect::{PeerQuota, Service};
use super::keys::Keys;

/// Put load on a running node, or on another rate limiter. Exit code: 0 all checks answered,
/// 1 some not answered, 2 no run.
#[derive(Debug, clap::Parser)]
#[command(
    name = "tollgate-bench",
    version,
    group = clap::ArgGroup::new("quotas_named").args(["peer", "grpc"]).multiple(true),
    after_help = "A closed loop finds the highest rate, an open one (--rate) the latency at a given rate:\n  \
    tollgate-bench --policy per-user --keys zipf:100000 --concurrency 256\n  \
    tollgate-bench --policy per-user --keys zipf:100000 --rate 5000 --duration 30s"
)]
pub(super) struct Args {
    /// The node, `http://host:port`, without TLS; several nodes share the load.
    #[arg(
        long = "url",
        value_name = "URL",
        env = "TOLLGATE_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    pub(super) urls: Vec<String>,
    #[command(flatten)]
    pub(super) bearer: Bearer,
    /// Clients: the checks (or batches) under way, in an open loop at most. Each has a connection,
    /// unless --grpc shares some.
    #[arg(long, short = 'c', value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) concurrency: u32,
    /// Open loop: checks that fall due in a second, whether answered or not.
    #[arg(long, short = 'r', value_name = "R", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) rate: Option<u64>,
    /// Duration after the warm-up; 10s unless --checks is given.
    #[arg(long, short = 'd', value_name = "SPAN", value_parser = span)]
    pub(super) duration: Option<Micros>,
    /// Number of checks after which the run ends.
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) checks: Option<u64>,
    /// Duration of uncounted load before the run; 1s, or none if --checks is given.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(super) warmup: Option<Micros>,
    /// Choice of keys: one, uniform:N, zipf:N or zipf:N:S (weight of key k: 1/k^S; default of S:
    /// 1).
    #[arg(long, value_name = "KEYS", default_value = "uniform:1000")]
    pub(super) keys: Keys,
    /// The text before the number of each key.
    #[arg(long, value_name = "TEXT", default_value = "bench-")]
    pub(super) key_prefix: String,
    /// The policy; a peer's namespace, limit name or domain.
    #[arg(long, value_name = "P", default_value = "default")]
    pub(super) policy: String,
    /// Units of each check.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=MAX_UNITS))]
    pub(super) cost: u64,
    /// Checks per call, by /v1/check/batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "peer")]
    pub(super) batch: Option<u32>,
    /// Commands per call, by RESP: TG.CHECK, or THROTTLE of throttlecrab. The URL has the port for
    /// Redis clients.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with_all = ["batch", "gate"])]
    pub(super) pipeline: Option<u32>,
    /// Call Envoy's rate limit service by gRPC, over N connections that the clients share. The
    /// policy is the domain, and the URL has the port of the service.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with_all = ["batch", "gate", "pipeline"])]
    pub(super) grpc: Option<u32>,
    /// Ask a gate by forward auth; the key is in `X-User`, and the gate names the policy.
    #[arg(long, value_name = "GATE", conflicts_with_all = ["batch", "peer"])]
    pub(super) gate: Option<String>,
    /// Call another rate limiter by its own protocol.
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) peer: Option<Service>,
    /// The quota of a key, for peers whose callers name it: `LIMIT per SPAN`, several if supported.
    /// Envoy's protocol has a descriptor for each, `q1`, `q2`, ...; the service knows their limits.
    #[arg(long = "quota", value_name = "QUOTA", requires = "quotas_named", default_value = "1000000000 per 10s")]
    pub(super) quotas: Vec<PeerQuota>,
    /// Threads that generate load; they share the connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) threads: u32,
    /// Seed of the random choice of keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Report as JSON; latencies are us.
    #[arg(long)]
    pub(super) json: bool,
}
