//! The requests of Tollgate and of its peers.
//!
//! Tollgate answers by HTTP, by RESP, and by gRPC. Each peer answers by HTTP:
//!
//! - throttlecrab-server 0.4: `POST /throttle`, and by RESP `THROTTLE`.
//! - limitador-server 2: `POST /check_and_report`, where 429 is a denial.
//! - gubernator 2: `POST /v1/GetRateLimits`.
//! - envoyproxy/ratelimit: `POST /json`, where 429 is a denial, and by gRPC `ShouldRateLimit`.
//!
//! limitador and ratelimit read the quotas from a file of their own.

use std::str::FromStr;

use serde_json::{Value, json};

use tollgate::config::span;
use tollgate::limit::quota::MAX_UNITS;
use tollgate::limit::time::Micros;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Service {
    Throttlecrab,
    Limitador,
    Gubernator,
    Envoy,
}

#[derive(Debug, Clone)]
pub(super) enum Dialect {
    Tollgate {
        batch: Option<u32>,
    },
    /// The question of a proxy to the gate of this name; `X-User` has the key.
    Gate(String),
    /// Commands of a Redis client: Tollgate's, or throttlecrab's with this rate.
    Resp {
        pipeline: u32,
        throttle: Option<Throttle>,
    },
    /// Envoy's question by gRPC over connections that the clients share. It has a descriptor for
    /// each quota.
    Grpc {
        connections: u32,
        quotas: usize,
    },
    /// A peer by HTTP.
    Peer(Service, Vec<PeerQuota>),
}

/// `1000 per 10s`
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerQuota {
    limit: u64,
    /// In us.
    window: Micros,
}

/// The rate of throttlecrab's calls, which is also their burst.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throttle {
    pub(super) limit: u64,
    pub(super) seconds: u64,
}

/// The members of each check beside its key.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) policy: String,
    pub(super) key_prefix: String,
    pub(super) cost: u64,
}

impl Dialect {
    pub(super) fn checks_per_call(&self) -> u64 {
        match self {
            Self::Tollgate { batch } => batch.unwrap_or(1).into(),
            Self::Resp { pipeline, .. } => (*pipeline).into(),
            Self::Gate(_) | Self::Grpc { .. } | Self::Peer(..) => 1,
        }
    }

    /// The connections that clients share. None: each has its own.
    pub(super) fn shared_connections(&self) -> Option<u32> {
        match self {
            Self::Grpc { connections, .. } => Some(*connections),
            _ => None,
        }
    }

    /// The path of a call by HTTP.
    pub(super) fn path(&self) -> String {
        let path = match self {
            Self::Gate(name) => return format!("/v1/gate/{name}"),
            Self::Tollgate { batch: None } => "/v1/check",
            Self::Tollgate { batch: Some(_) } => "/v1/check/batch",
            Self::Resp { .. } | Self::Grpc { .. } => "",
            Self::Peer(Service::Throttlecrab, _) => "/throttle",
            Self::Peer(Service::Limitador, _) => "/check_and_report",
            Self::Peer(Service::Gubernator, _) => "/v1/GetRateLimits",
            Self::Peer(Service::Envoy, _) => "/json",
        };
        path.to_owned()
    }

    pub(super) fn token_field(&self, token: &str) -> String {
        match self {
            Self::Gate(_) => format!("X-Tollgate-Token: {token}\r\n"),
            _ => format!("Authorization: Bearer {token}\r\n"),
        }
    }

    /// The header fields of a call: a gate finds the key there, and others the type of the body.
    pub(super) fn fields(&self, key: &str) -> String {
        match self {
            Self::Gate(_) => format!("X-User: {key}\r\n"),
            _ => "Content-Type: application/json\r\n".to_owned(),
        }
    }

    /// The body of a call by HTTP.
    ///
    /// # Errors
    /// When the peer does not support the settings.
    pub(super) fn body(&self, subject: &Subject, key: &str) -> Result<String, String> {
        let Subject { policy, cost, .. } = subject;
        let body = match self {
            Self::Gate(_) | Self::Resp { .. } | Self::Grpc { .. } => return Ok(String::new()),
            Self::Tollgate { batch } => {
                let check = match cost {
                    1 => json!({"policy": policy, "key": key}),
                    _ => json!({"policy": policy, "key": key, "cost": cost}),
                };
                match batch {
                    None => check,
                    Some(count) => json!({"checks": vec![check; *count as usize]}),
                }
            }
            Self::Peer(Service::Throttlecrab, quotas) => throttlecrab(key, *cost, Throttle::try_from(&quotas[..])?),
            Self::Peer(Service::Limitador, _) => json!({"namespace": policy, "values": {"key": key}, "delta": cost}),
            Self::Peer(Service::Gubernator, quotas) => gubernator(policy, key, *cost, quotas),
            Self::Peer(Service::Envoy, quotas) => envoy(policy, key, hits(*cost)?, quotas.len()),
        };
        Ok(body.to_string())
    }
}

fn throttlecrab(key: &str, cost: u64, Throttle { limit, seconds }: Throttle) -> Value {
    json!({"key": key, "max_burst": limit, "count_per_period": limit, "period": seconds, "quantity": cost})
}

/// One limit for each quota; gubernator decides each separately.
fn gubernator(policy: &str, key: &str, cost: u64, quotas: &[PeerQuota]) -> Value {
    let request = |(place, quota): (usize, &PeerQuota)| {
        json!({"name": format!("{policy}-{place}"), "unique_key": key, "hits": cost, "limit": quota.limit,
            "duration": quota.window / 1000})
    };
    json!({"requests": quotas.iter().enumerate().map(request).collect::<Vec<_>>()})
}

fn envoy(policy: &str, key: &str, hits: u32, quotas: usize) -> Value {
    let descriptor = |place| json!({"entries": [{"key": descriptor_key(place), "value": key}]});
    json!({"domain": policy, "hitsAddend": hits, "descriptors": (1..=quotas).map(descriptor).collect::<Vec<_>>()})
}

/// The descriptor of quota 1, 2, ...: the configuration of the service holds its limit.
pub(super) fn descriptor_key(quota: usize) -> String {
    format!("q{quota}")
}

/// The cost by Envoy's protocol.
///
/// # Errors
/// When the protocol does not support it.
pub(super) fn hits(cost: u64) -> Result<u32, String> {
    let hits = u32::try_from(cost).ok().filter(|hits| *hits > 0);
    hits.ok_or_else(|| format!("Envoy's protocol counts 0 as 1: --cost must be from 1 to {}", u32::MAX))
}

impl TryFrom<&[PeerQuota]> for Throttle {
    type Error = String;

    fn try_from(quotas: &[PeerQuota]) -> Result<Self, String> {
        let [PeerQuota { limit, window }] = *quotas else {
            return Err("throttlecrab holds a key to one --quota".into());
        };
        match window / 1_000_000 {
            0 => Err("throttlecrab counts whole seconds: the --quota must be for 1s or longer".into()),
            seconds => Ok(Self { limit, seconds }),
        }
    }
}

impl FromStr for PeerQuota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, window) = text.split_once(" per ").ok_or("write `LIMIT per SPAN`, such as `1000 per 10s`")?;
        let limit = limit.trim().parse().ok().filter(|limit| (1..=MAX_UNITS).contains(limit));
        let limit = limit.ok_or_else(|| format!("the limit must be from 1 to {MAX_UNITS}"))?;
        Ok(Self { limit, window: span(window.trim())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(dialect: &Dialect) -> String {
        let subject = Subject { policy: "p".into(), key_prefix: String::new(), cost: 2 };
        dialect.body(&subject, "k\"-7").unwrap()
    }

    #[test]
    fn each_is_asked_in_its_own_words() {
        let peer = |service| Dialect::Peer(service, vec!["5 per 10s".parse().unwrap()]);
        let cases = [
            (Dialect::Tollgate { batch: None }, r#"{"cost":2,"key":"k\"-7","policy":"p"}"#),
            (
                peer(Service::Throttlecrab),
                r#"{"count_per_period":5,"key":"k\"-7","max_burst":5,"period":10,"quantity":2}"#,
            ),
            (peer(Service::Limitador), r#"{"delta":2,"namespace":"p","values":{"key":"k\"-7"}}"#),
            (
                peer(Service::Gubernator),
                r#"{"requests":[{"duration":10000,"hits":2,"limit":5,"name":"p-0","unique_key":"k\"-7"}]}"#,
            ),
            (
                peer(Service::Envoy),
                r#"{"descriptors":[{"entries":[{"key":"q1","value":"k\"-7"}]}],"domain":"p","hitsAddend":2}"#,
            ),
        ];
        for (dialect, expected) in cases {
            let (asked, expected): (Value, Value) =
                (serde_json::from_str(&body(&dialect)).unwrap(), serde_json::from_str(expected).unwrap());
            assert_eq!(asked, expected);
        }
    }

    #[test]
    fn a_batch_has_a_key_for_each_check() {
        assert_eq!(body(&Dialect::Tollgate { batch: Some(3) }).matches("k\\\"-7").count(), 3);
    }
}
