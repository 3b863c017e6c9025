//! All settings, in a table.
//!
//! The readers take the known names, the ranges and the defaults from here. A test compares the
//! rows of `docs/configuration.md` with this table. The comment of a setting is its sentence there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::envoy::Counting;
use super::gate::{ClientFrom, MissingKey, RequestFrom};
use super::section::Shape;
use super::setting::{Address, Choice, Flag, Identifier, Integer, Own, Ratio, Setting, Time};
use crate::limit::hold::OnExpiry;
use crate::limit::log::{DEFAULT_ENTRIES, MAX_ENTRIES};
use crate::limit::policy::{Algorithm, Durability, OnStoreFailure};
use crate::limit::quota::{Anchor, MAX_UNITS};
use crate::limit::ticks::{DEFAULT_TICK, MAX_TICK, MIN_TICK};
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};

const HOUR: Micros = 3_600 * MICROS_PER_SECOND;

/// A section is a mapping: an example for faults, and its settings. `with` adds settings of another
/// section, and `rejects` lists some that the section's reader rejects with its own reason. A
/// setting without a note applies on reload.
macro_rules! settings {
    ($(
        $section:ident($prefix:literal, $suffix:literal, $example:literal)
        $(with $($other:ident::$other_id:ident),+)? $(rejects $($rejected:ident::$rejected_id:ident),+)?
        {
            $($(#[doc = $meaning:literal])+ $id:ident = $name:literal: $kind:ident$(<$of:ty>)?($($values:tt)*) $(, $reload:literal)?;)*
        }
    )*) => {
        $(pub(super) mod $section {
            use super::*;

            pub(in crate::config) const SHAPE: Shape = Shape {
                example: $example,
                known: &[$($(super::$other::$other_id.name,)+)? $($id.name),*],
                checked: &[$($(super::$rejected::$rejected_id.name),+)?],
            };

            $($(#[doc = $meaning])+
            pub(in crate::config) const $id: Setting<$kind$(<$of>)?> = Setting { name: $name, kind: $kind($($values)*) };)*
        })*

        /// The rows of the page, by section and in order.
        #[cfg(test)]
        pub(super) fn rows() -> Vec<super::tests::page::Row> {
            use super::tests::page::{Describe, Row};
            vec![$($(Row {
                section: stringify!($section),
                setting: concat!($prefix, $name),
                suffix: $suffix,
                meaning: concat!($($meaning),+).trim(),
                words: $section::$id.kind.describe(),
                reload: [$($reload,)? "yes"][0],
                samples: $section::$id.kind.samples(),
                schema: $section::$id.kind.schema(),
            },)*)*]
        }
    };
}

settings! {
    root("", "", "policies: {default: {quotas: [1000 per 1s]}}") {
        /// Address for checks. Beyond loopback it needs tokens for checks or
        /// `auth.allow_anonymous`.
        LISTEN = "listen": Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070)), "no";
        /// Address for operators' calls. Beyond loopback it needs admin tokens.
        ADMIN_LISTEN = "admin_listen": Own("IP address and port", "the same listener"), "no";
        /// Address for `GET /metrics` alone, which needs no token there.
        METRICS_LISTEN = "metrics_listen": Own("IP address and port", "none"), "no";
        /// Location of the counts. Without it, or with `max_keys` alone, they are in this process.
        STORE = "store": Own("mapping", "embedded"), "no, but for `timeout`";
        /// Bounds of the pre-filter.
        PREFILTER = "prefilter": Own("mapping", "as below"), "no";
        /// The answers without the store.
        FALLBACK = "fallback": Own("mapping", "as below"), "no";
        /// The token files. Without them no token is valid.
        AUTH = "auth": Own("mapping", "as below"), "yes";
        /// Tokens with names and rights of their own, beside those of `auth` ([page](tokens.md)).
        TOKENS = "tokens": Own("list of `{name, file, scopes}`", "none"), "yes";
        /// TLS of both listeners.
        TLS = "tls": Own("mapping", "off"), "no: only a restart turns TLS on or off";
        /// Limits for clients.
        LIMITS = "limits": Own("mapping", "as below"), "no";
        /// Envoy's rate limit service ([page](integrations/envoy.md)).
        ENVOY = "envoy": Own("mapping", "off"), "as below; a restart adds or removes it";
        /// The end of a node.
        SHUTDOWN = "shutdown": Own("mapping", "as below"), "no";
        /// The door for Redis clients, off without it ([CL.THROTTLE](integrations/redis-cell.md)).
        RESP = "resp": Own("mapping", "off"), "no";
        /// Traces, beside the variables of OpenTelemetry.
        TELEMETRY = "telemetry": Own("mapping", "as below"), "no";
        /// The [page for operators](integrations/dashboard.md).
        DASHBOARD = "dashboard": Own("mapping", "as below"), "yes";
        /// One or more policies, by name. The policy named `default` applies to checks that name
        /// none.
        POLICIES = "policies": Own("mapping; names are 1 to 64 of `A-Z a-z 0-9 _ . -`", "needed, but beside `envoy`");
        /// Sets of quotas by name, which a check or an override may name
        /// ([page](overrides.md#plans)). A policy has those plans that its algorithm can count.
        PLANS = "plans": Own("mapping of names to `{quotas: [...], in_flight: ..., policies: ...}`", "none");
        /// The overrides that operators make while the node runs ([page](overrides.md)).
        OVERRIDES = "overrides": Own("mapping", "in Redis"), "no";
        /// Forward auth: how a proxy's question becomes checks, by the name of the gate.
        GATES = "gates": Own("mapping; names as those of policies", "none");
    }

    store("store.", "", "{redis: [redis://127.0.0.1:7001]}") {
        /// One or more servers, each with its own URL. The node detects a cluster.
        REDIS = "redis": Own(
            "list of `redis://host:port`, or `rediss://` with TLS; `valkey://` and `valkeys://` mean the same. Or `unix:///path` alone",
            "needed beside the settings below but `max_keys` and `sentinel`, unless a flag or variable names some"
        ), "no";
        /// For servers that announce addresses which this node cannot reach: the address to dial in
        /// place of each ([servers](servers.md#announced-addresses)).
        ADDRESS_MAP = "address_map": Own("mapping of an announced `host:port` to another `host:port`", "none"), "no";
        /// Sentinels that report which server is the primary, instead of `redis`. A flag or
        /// variable that names servers overrides both.
        SENTINEL = "sentinel": Own("mapping", "none"), "no";
        /// Longest wait of a check for the store. A policy's own `timeout` overrides it.
        TIMEOUT = "timeout": Time(MICROS_PER_MILLI..=20 * MICROS_PER_SECOND, 100 * MICROS_PER_MILLI),
            "yes, up to a sixth of the `limits.request_timeout` of the node's start";
        /// Prefix of all keys in Redis.
        KEY_PREFIX = "key_prefix": Identifier("ratelimit"), "no";
        /// User in Redis; needs `password_file`.
        USERNAME = "username": Own("text", "the default user"), "no";
        /// The password of the user.
        PASSWORD_FILE = "password_file": Own("file", "none"), "no. The node reads the file again for each new connection";
        /// TLS for all servers.
        TLS = "tls": Own("mapping", "off, unless the URLs are `rediss://`"), "no";
        /// Keys and ids in the embedded store,
        /// [divided among the policies](sizing.md#capacity-of-the-embedded-store). The store
        /// behind `on_store_failure: local` has as many. Beside `redis` the setting bounds only
        /// that store.
        MAX_KEYS = "max_keys": Integer(1..=1_000_000_000, 4_000_000), "no";
    }

    store_tls("store.tls.", "", "{ca_file: ca.pem}") {
        /// Authority of the servers' certificates.
        CA_FILE = "ca_file": Own("PEM file", "authorities that the machine trusts"), "no. The node reads the file again for each new connection";
        /// The node's own certificate; needs `key_file`.
        CERT_FILE = "cert_file": Own("PEM file", "none"), "no; as above";
        /// The key of `cert_file`.
        KEY_FILE = "key_file": Own("PEM file", "none"), "no; as above";
    }

    store_sentinel("store.sentinel.", "", "{master: mymaster, nodes: [\"10.0.0.1:26379\"]}") {
        /// Name of the master in the configuration of the sentinels.
        MASTER = "master": Own("1 to 64 of `A-Z a-z 0-9 _ . -`", "needed"), "no";
        /// All sentinels that watch the master. A majority of this list selects the primary.
        NODES = "nodes": Own("list of `host:port`; the port may be absent for 26379", "needed"), "no";
        /// User at the sentinels; needs `password_file`. The setting of `store` is for the servers.
        USERNAME = "username": Own("text", "the default user"), "no";
        /// The password of that user.
        PASSWORD_FILE = "password_file": Own("file", "none"), "no. The node reads the file again for each new connection";
        /// TLS towards the sentinels.
        TLS = "tls": Own("as `store.tls`", "off"), "no";
    }

    prefilter("prefilter.", "", "{max_keys: 1000000}") {
        /// Denials that the pre-filter remembers.
        MAX_KEYS = "max_keys": Integer(1..=100_000_000, 250_000), "no";
        /// Longest validity of a remembered denial.
        MAX_DENIAL = "max_denial": Time(MICROS_PER_MILLI..=24 * HOUR, 60 * MICROS_PER_SECOND), "no";
    }

    fallback("fallback.", "", "{expected_nodes: 2}") {
        /// Number of nodes that share a limit when the store is away.
        EXPECTED_NODES = "expected_nodes": Integer(1..=10_000, 1), "no";
    }

    auth("auth.", "", "{admin_token_files: [admin.tokens]}") {
        /// One `sha256:` line for each token that may check.
        CHECK_TOKEN_FILES = "check_token_files": Own("list of files", "none"), "yes, files; not to none while the node listens beyond loopback";
        /// The same for operators.
        ADMIN_TOKEN_FILES = "admin_token_files": Own("list of files", "none"), "yes, files; not to none while `admin_listen` is beyond loopback";
        /// Everyone may check; not with `check_token_files`.
        ALLOW_ANONYMOUS = "allow_anonymous": Flag(false);
    }

    token("tokens.", "", "{name: ci, file: ci.token, scopes: [check]}") {
        /// Name in logs, traces and the audit. No two tokens have the same.
        NAME = "name": Own("1 to 64 of `A-Z a-z 0-9 _ . -`", "needed");
        /// One `sha256:` line for each secret of the token.
        FILE = "file": Own("file", "needed"), "yes, files";
        /// The [calls](tokens.md#the-scope-of-each-call) that it permits.
        SCOPES = "scopes": Own("list of `check`, `read`, `metrics`, `operate`, `admin`", "needed");
        /// The policies that it is for; not with `metrics` or `admin`.
        POLICIES = "policies": Own("list of names of policies", "all");
        /// The [plans](overrides.md#plans) that its checks may name.
        PLANS = "plans": Own("list of names of plans", "all");
        /// The doors that it is for.
        DOORS = "doors": Own("list of `http`, `gate`, `envoy`, `resp`", "all");
        /// The node rejects it from this instant on, by its own clock.
        EXPIRES = "expires": Own("`2027-01-01`, a day that begins in UTC, or `2027-01-01T09:00:00Z`", "never");
    }

    tls("tls.", "", "{cert_file: node.pem, key_file: node.key}") {
        /// Certificate, or chain.
        CERT_FILE = "cert_file": Own("PEM file", "needed"), "yes, files";
        /// Key of `cert_file`.
        KEY_FILE = "key_file": Own("PEM file", "needed"), "yes, files";
        /// The node accepts only clients with a certificate of this authority.
        CLIENT_CA_FILE = "client_ca_file": Own("PEM file", "the node asks for no certificate"),
            "yes, files. Only a restart adds or removes the setting";
    }

    limits("limits.", "", "{max_connections: 10000}") {
        /// Connections of each listener.
        MAX_CONNECTIONS = "max_connections": Integer(1..=1_000_000, 10_000), "no";
        /// Longest duration of a request; at least six times the longest `timeout` of a policy,
        /// which is also the default where that is longer.
        REQUEST_TIMEOUT = "request_timeout": Time(MICROS_PER_SECOND..=HOUR, 50 * MICROS_PER_SECOND), "no";
        /// Longest silence of a connection between two requests. The node may close it later, by up
        /// to the shorter of the two timeouts.
        IDLE_TIMEOUT = "idle_timeout": Time(MICROS_PER_SECOND..=HOUR, 120 * MICROS_PER_SECOND), "no";
    }

    envoy("envoy.", "", "{listen: \"127.0.0.1:8081\", config: [envoy/]}") {
        /// Address of the service. Beyond loopback it needs tokens for checks, client certificates
        /// or `auth.allow_anonymous`.
        LISTEN = "listen": Own("IP address and port", "needed"), "no";
        /// Descriptors in the format of envoyproxy/ratelimit: files, or folders with `.yaml` and
        /// `.yml` files. `envoy/**` is every file of a folder and of those below, and `envoy/.**`
        /// also has names that begin with a dot. A `policy: NAME` may replace a `rate_limit`. Or a
        /// mapping that names a [control plane](integrations/envoy-gateway.md).
        CONFIG = "config": Own("list of files and folders, or mapping", "needed"), "yes, files";
        /// How each `rate_limit` counts.
        ALGORITHM = "algorithm": Choice<Algorithm>(&[
            ("fixed-window", Algorithm::FixedWindow),
            ("sliding-window", Algorithm::SlidingWindow),
        ], Algorithm::FixedWindow);
        /// Whether all descriptors of a request are charged or none, or each for itself.
        COUNTING = "counting": Choice<Counting>(Counting::WORDS, Counting::AllOrNone);
        /// Longest wait of a call for the store. Two thirds of the caller's `grpc-timeout` apply if
        /// that is shorter.
        DEADLINE = "deadline": Time(MICROS_PER_MILLI..=20 * MICROS_PER_SECOND, 15 * MICROS_PER_MILLI);
        /// The fields `RateLimit-Policy`, `RateLimit` and `Retry-After` in answers.
        HEADERS = "headers": Choice<bool>(&[("draft-11", true), ("none", false)], true);
        /// How long a connection stays, give or take a quarter. Envoy then opens another, maybe to
        /// another node.
        CONNECTION_AGE = "connection_age": Time(MICROS_PER_SECOND..=24 * HOUR, 300 * MICROS_PER_SECOND), "no";
        /// Address of `GET /healthcheck` and `POST /json`, as envoyproxy/ratelimit serves them.
        HTTP_LISTEN = "http_listen": Own("IP address and port", "none"), "no";
        /// Whether `/metrics` has the metrics of envoyproxy/ratelimit, too.
        METRICS = "metrics": Choice<bool>(&[("own", false), ("reference", true)], false);
        /// Part of a limit above which these metrics count hits as near the limit.
        NEAR_LIMIT = "near_limit": Ratio(0.8);
        /// TLS of this listener.
        TLS = "tls": Own("mapping", "off"), "no: only a restart turns TLS on or off";
    }

    envoy_xds("envoy.config.", "", "{xds: \"envoy-gateway:18001\", node_id: envoy-ratelimit}") {
        /// The control plane that sends the descriptors by xDS, the whole set at each change.
        XDS = "xds": Own("`host:port`", "needed"), "no";
        /// Name of this node for the control plane.
        NODE_ID = "node_id": Own("text", "needed"), "no";
        /// Whether the node is ready before it has descriptors. It answers UNAVAILABLE until then.
        READY_WITHOUT_RULES = "ready_without_rules": Flag(false), "no";
        /// TLS towards the control plane.
        TLS = "tls": Own("as `store.tls`, with `server_name`", "off"), "no. The node reads the files again for each new connection";
    }

    envoy_xds_tls("envoy.config.tls.", "", "{ca_file: ca.pem}")
    with store_tls::CA_FILE, store_tls::CERT_FILE, store_tls::KEY_FILE {
        /// Name in the certificate of the control plane.
        SERVER_NAME = "server_name": Own("host name", "the host of `xds`"), "no";
    }

    envoy_tls("envoy.tls.", "", "{cert_file: node.pem, key_file: node.key}") {
        /// Certificate, or chain.
        CERT_FILE = "cert_file": Own("PEM file", "needed"), "yes, files";
        /// Key of `cert_file`.
        KEY_FILE = "key_file": Own("PEM file", "needed"), "yes, files";
        /// The listener accepts only clients with a certificate of this authority. They need no
        /// token.
        CA_FILE = "ca_file": Own("PEM file", "the listener asks for no certificate"),
            "yes, files. Only a restart adds or removes the setting";
    }

    shutdown("shutdown.", "", "{timeout: 30s}") {
        /// Time in which an ending node reports "not ready" and still answers.
        DELAY = "delay": Time(0..=HOUR, 0), "no";
        /// Time that requests under way may then still need.
        TIMEOUT = "timeout": Time(0..=HOUR, 30 * MICROS_PER_SECOND), "no";
    }

    resp("resp.", "", "{listen: 127.0.0.1:6380}") {
        /// Address for Redis clients. Beyond loopback it needs the same as `listen`.
        LISTEN = "listen": Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6380)), "no";
    }

    telemetry("telemetry.", "", "{keep_denials: 0.1}") {
        /// Traces, `/v1/live` and `/v1/top` name keys in clear, for everyone who may read them.
        RECORD_KEYS = "record_keys": Flag(false), "no";
        /// Part of the unsampled denials and failures that the node still traces.
        KEEP_DENIALS = "keep_denials": Ratio(0.0), "no";
        /// Page of a trace, for links in `/v1/live`.
        TRACE_URL = "trace_url": Own("`http://` or `https://` URL with `{trace_id}`", "none"), "no";
    }

    dashboard("dashboard.", "", "{nodes: [\"http://10.0.0.2:7071\"]}") {
        /// Other nodes whose numbers the page adds up and whose policies it compares, by the origins
        /// of their operators' calls. Pages of these origins may read this node's live view.
        NODES = "nodes": Own("list of up to 64 origins such as `http://10.0.0.2:7071`", "none");
    }

    overrides("overrides.", "", "{file: overrides.jsonl}") {
        /// File of the overrides, for the embedded store. The node writes it. Without it this store
        /// takes none.
        FILE = "file": Own("file", "none"), "no";
    }

    plan("", " of a plan", "{quotas: [100 per 1m]}") {
        /// Its quotas, in the form of those of the policy.
        QUOTAS = "quotas": Own("as `quotas` of a policy", "those of the policy");
        /// The most open holds of a key, under policies with `hold`.
        IN_FLIGHT = "in_flight": Own("integer, 1 to 100,000", "that of the policy");
        /// Limits under single policies instead, by their names: `export: {quotas: [10 per 1d]}`.
        /// `login: {}` has those of the policy. Without limits beside it, the plan is one of these
        /// policies alone.
        POLICIES = "policies": Own("mapping of policies to `{quotas: [...], in_flight: ...}`", "none");
    }

    plan_row("", " of a plan under a policy", "{quotas: [10 per 1d]}")
    with plan::QUOTAS, plan::IN_FLIGHT {}

    policy("", "", "{quotas: [1000 per 1s]}") {
        /// How the quotas count.
        ALGORITHM = "algorithm": Choice<Algorithm>(&[
            ("sliding-window", Algorithm::SlidingWindow),
            ("fixed-window", Algorithm::FixedWindow),
            ("sliding-log", Algorithm::SlidingLog),
            ("sliding-counter", Algorithm::SlidingCounter),
            ("token-bucket", Algorithm::TokenBucket),
        ], Algorithm::SlidingWindow);
        /// All must have room. No two quotas share a name or window. No two token buckets share a
        /// rate (`1 per 1s` is `2 per 2s`) or fill time.
        QUOTAS = "quotas": Own(
            "list of 1 to 8: `1000 per 1s`, or `{name, limit, per}`; for a token bucket `{name, rate, burst}`",
            "needed, except with `in_flight`"
        );
        /// Begin of fixed windows.
        ANCHOR = "anchor": Choice<Anchor>(&[("clock", Anchor::Clock), ("first-hit", Anchor::FirstHit)], Anchor::Clock);
        /// For windows of `1d`, `1w`, `1mo`, `1y` by the clock.
        TIMEZONE = "timezone": Own("IANA name such as `Europe/Berlin`", "`UTC`");
        /// For sliding logs: charges in a key's log for each quota.
        LOG_ENTRIES = "max_entries": Integer(1..=MAX_ENTRIES as u64, DEFAULT_ENTRIES as u64);
        /// For sliding counters: the span of one counter. Each window has 1 to 120 whole ticks.
        TICK = "tick": Time(MIN_TICK..=MAX_TICK, DEFAULT_TICK);
        /// For sliding counters: the counters of all shared policies are the same,
        /// `{<prefix>:<key>:}<tick>` in Redis, and other programs may use them. All shared policies
        /// have the same tick.
        SHARED = "shared": Flag(false);
        /// For sliding counters: the limit holds in any interval, not only of whole ticks. It
        /// counts one tick more.
        STRICT = "strict": Flag(false);
        /// How keys are read.
        KEY = "key": Own("`{type: text}`, or `{type: ip, ipv6_prefix: 64}` for addresses", "`{type: text}`");
        /// The answer without the store. `local`: each node's share; `error`: status 503. With
        /// `durability: replica` only `deny` (then the default) and `error` are possible.
        ON_STORE_FAILURE = "on_store_failure": Choice<OnStoreFailure>(OnStoreFailure::WORDS, OnStoreFailure::Local);
        /// Longest wait of a check for the store. A reload accepts up to a sixth of the running
        /// `limits.request_timeout`.
        TIMEOUT = "timeout": Own("as `store.timeout`", "that of `store.timeout`");
        /// Decide and count, but always allow.
        SHADOW = "shadow": Flag(false);
        /// A check may contain its own quotas, with separate counters. Refunds, resets and
        /// `/v1/usage` do not reach these counters.
        INLINE = "inline": Flag(false);
        /// Keys that the node denies without counting.
        DENY = "deny": Own("`{keys: [...], prefixes: [...], cidrs: [...]}`, at least one of them, or `{all: true}`", "none");
        /// Keys that the node allows without counting.
        ALLOW = "allow": Own("the same", "none");
        /// Other quotas for some keys.
        OVERRIDES = "overrides": Own("list of `{match: {key: ...}, quotas: [...]}`", "none");
        /// Each node buys units and spends them in its memory ([page](leases.md)). Not with `inline`
        /// or `shared`.
        LEASE = "lease": Own("`{span: ..., nodes: ..., callers: ...}`", "none");
        /// Checks may wait in line by `wait_ms` ([page](waiting.md)). Only for `token-bucket`.
        WAIT = "wait": Own("`{queue: ...}`, or `{}`", "none: `wait_ms` above 0 is rejected");
        /// A signed POST for each key that crosses a part of a limit ([page](notices.md)).
        NOTIFY = "notify": Own("`{at: [80, 100], url: ..., secret_file: ...}`", "none");
        /// A check holds its charge, and a place of its key, until it is settled ([page](holds.md)).
        /// Not with `lease`, `inline` or `shared`, and no gate uses such a policy.
        HOLD = "hold": Own("`{ttl: ..., in_flight: ..., on_expiry: ...}`", "none");
        /// `replica`: a check is allowed only after a replica acknowledges the charge. Without
        /// Redis no replica exists: the node warns at the start, and allows without one.
        DURABILITY = "durability": Choice<Durability>(Durability::WORDS, Durability::Primary);
    }

    wait("", " of a line", "{queue: 200}") {
        /// The most units that the line still has to repay.
        QUEUE = "queue": Own("integer from 1", "what the slowest bucket repays in a minute");
    }

    lease("", " of a lease", "{span: auto}") {
        /// How long a node may spend the units that it buys. A sliding counter permits as long as
        /// it counts ahead: 750ms for ticks of `1s`.
        SPAN = "span": Own("`auto`, or a duration from 1ms to an eighth of the shortest window", "`auto`: a 64th of the shortest window");
        /// Nodes that share what may be bought. Without it `fallback.expected_nodes`.
        NODES = "nodes": Integer(1..=10_000, 1);
        /// Callers that share what [clients buy](leases.md#callers): the tokens that lease at once.
        CALLERS = "callers": Own("integer, 1 to 10,000", "none: only nodes buy");
    }

    notify("", " of `notify`", "{at: [80, 100], url: \"https://example.com/hook\", secret_file: hook.secret}") {
        /// The parts of a limit.
        AT = "at": Own("list of percentages, 1 to 100", "needed");
        /// The receiver.
        URL = "url": Own("`https://` or `http://` URL", "needed");
        /// The secret that signs notices, on one line.
        SECRET_FILE = "secret_file": Own("file with 16 bytes or more", "needed");
    }

    hold("", " of a hold", "{ttl: 60s, in_flight: 4}") {
        /// How long a hold stays open without a renewal.
        TTL = "ttl": Own("duration, 1s to 1h", "needed");
        /// The most open holds of a key: its places.
        IN_FLIGHT = "in_flight": Own("integer, 1 to 100,000", "any number");
        /// The charge of a hold that expires: it counts on, or is given back.
        ON_EXPIRY = "on_expiry": Choice<OnExpiry>(OnExpiry::WORDS, OnExpiry::Charge);
    }

    window("", " of a quota", "{name: burst, limit: 20, per: 1s}") rejects bucket::RATE, bucket::BURST {
        /// Name in answers and metrics.
        NAME = "name": Own("1 to 64 of `A-Z a-z 0-9 _ . -`", "its window as written");
        /// Units in a window.
        LIMIT = "limit": Own("integer, 1 to 10^15", "needed");
        /// The window. By the clock, the default of fixed windows, the only window in days is `1d`;
        /// `1w`, `1mo` and `1y` are possible too.
        PER = "per": Own("duration, 100ms to 366d", "needed");
    }

    bucket("", " of a quota", "{rate: 10 per 1s, burst: 20}")
    with window::NAME rejects window::LIMIT, window::PER {
        /// Refill of a token bucket.
        RATE = "rate": Own("such as `10 per 1s`", "needed");
        /// Capacity of a token bucket. The maximum is smaller at a rate whose units and span have
        /// large coprime parts: 23,456 at `999999 per 30d`. The fault reports the maximum.
        BURST = "burst": Own("integer, 1 to 10^15", "needed");
    }

    key("", " of a key", "{type: ip}") {
        /// `ip`: one address in several spellings is one key, also with a port, brackets or a zone.
        /// An address inside IPv4-mapped IPv6 or `64:ff9b::/96` (NAT64) counts as IPv4.
        TYPE = "type": Choice<bool>(&[("ip", true), ("text", false)], false);
        /// An IPv6 network of this many bits counts as one key, such as `2001:db8::/64`.
        IPV6_PREFIX = "ipv6_prefix": Integer(1..=128, 64);
    }

    list("", " of a list", "{cidrs: [192.0.2.0/24]}") {
        /// Whole keys.
        KEYS = "keys": Own("list of keys", "none");
        /// Beginnings of keys.
        PREFIXES = "prefixes": Own("list of texts", "none");
        /// Networks of addresses.
        CIDRS = "cidrs": Own("list of networks such as `192.0.2.0/24`", "none");
        /// Every key: closes or opens the policy as a whole.
        ALL = "all": Flag(false);
    }

    override_("", " of an override", "{match: {key: alice}, quotas: [5 per 1s]}") {
        /// The keys that the override applies to.
        MATCH = "match": Own("mapping with one of the settings below", "needed");
        /// Their quotas, instead of those of the policy.
        QUOTAS = "quotas": Own("as `quotas` of a policy", "needed");
    }

    match_("", " of a match", "{key: alice}") {
        /// One key.
        KEY = "key": Own("key", "none");
        /// The beginning of keys.
        PREFIX = "prefix": Own("text", "none");
        /// A network of addresses.
        CIDR = "cidr": Own("network such as `192.0.2.0/24`", "none");
    }

    gate("", "", "{rules: [{checks: [{policy: per-ip, key: \"{client_ip}\"}]}]}") {
        /// Source of method, host and path. `forwarded`: X-Forwarded-Method, -Host and -Uri.
        /// `original`: X-Original-Method, X-Original-URI and Host. `original-url`:
        /// X-Original-Method and X-Original-URL. `request`: the request itself.
        REQUEST_FROM = "request_from": Choice<RequestFrom>(RequestFrom::WORDS, RequestFrom::Request);
        /// Source of the client's address.
        CLIENT_FROM = "client_from": Choice<ClientFrom>(ClientFrom::WORDS, ClientFrom::Peer);
        /// Only the forwarded and identity headers of these peers count.
        TRUSTED_PROXIES = "trusted_proxies": Own("list of networks such as `10.0.0.0/8`", "none");
        /// Headers that the proxy sets or strips. Only these may stand in keys.
        IDENTITY_HEADERS = "identity_headers": Own("list of names such as `x-user`", "none");
        /// Status of a denial.
        DENY_STATUS = "deny_status": Choice<u16>(&[("429", 429), ("403", 403), ("401", 401)], 429);
        /// Result of a check whose key is missing. `allow` skips it, `client_ip` counts the
        /// address.
        MISSING_KEY = "missing_key": Choice<MissingKey>(MissingKey::WORDS, MissingKey::Deny);
        /// `true`: trusted proxies need no token, and the gate rejects all other peers.
        ANONYMOUS = "anonymous": Flag(false);
        /// The first rule that matches decides. If none does, the request passes uncounted.
        RULES = "rules": Own("list of `{name, match, checks}`", "needed");
    }

    gate_rule("", " of a rule", "{checks: [{policy: per-ip, key: \"{client_ip}\"}]}") {
        /// Name for the placeholder `{rule}`.
        NAME = "name": Own("1 to 64 of `A-Z a-z 0-9 _ . -`", "none");
        /// The requests of the rule.
        MATCH = "match": Own("mapping with the settings below", "every request");
        /// Plan of each check, by the placeholders of a key. Without its values, or where a policy
        /// lacks the plan, the quotas of the policy count.
        PLAN = "plan": Own("template such as `{header.x-plan}`", "none");
        /// Longest wait of a request [in line](waiting.md), for one check under a token bucket. The
        /// answer comes at its start. 0 denies at once.
        PACE = "pace": Time(0..=10 * MICROS_PER_SECOND, 0);
        /// Charged all or none. An empty list allows without counting.
        CHECKS = "checks": Own("list of up to 16 of `{policy, key, cost}`", "needed");
    }

    gate_match("", " of a rule's match", "{paths: [/login]}") {
        /// Hosts without ports, in any case.
        HOSTS = "hosts": Own("list of hosts such as `api.example.com`", "any");
        /// Methods, in any case.
        METHODS = "methods": Own("list of methods such as `POST`", "any");
        /// Decoded paths. `/v1/*` is `/v1` and all below it.
        PATHS = "paths": Own("list of paths such as `/login` or `/v1/*`", "any");
        /// `true`: `/Login` is `/login`, as backends without case read it.
        IGNORE_CASE = "ignore_case": Flag(false);
        /// `true`: `/login;x=1` is `/login`, as servlets read it.
        STRIP_PARAMETERS = "strip_parameters": Flag(false);
        /// Headers of a trusted proxy, with their whole values.
        HEADERS = "headers": Own("mapping such as `{x-tier: free}`", "any");
    }

    gate_check("", " of a rule's check", "{policy: per-ip, key: \"{client_ip}\"}") {
        /// The policy that decides.
        POLICY = "policy": Own("name of a policy", "needed");
        /// The key, by the placeholders `{client_ip}`, `{header.NAME}`, `{host}`, `{method}`,
        /// `{rule}` and plain text.
        KEY = "key": Own("template such as `{client_ip}`; one placeholder for a policy of addresses", "needed");
        /// Cost of a request.
        COST = "cost": Integer(0..=MAX_UNITS, 1);
    }
}
