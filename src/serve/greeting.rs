//! The text that a starting node prints for a person.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

use super::{Listeners, reach};
use crate::access::Need;
use crate::config::Policies;
use crate::http::GATE_PREFIX;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::node::Node;

/// Policies shown by name.
const MAX_SHOWN: usize = 5;

/// The lines of the text, each with a line end.
pub(super) fn text(node: &Node, listeners: &Listeners) -> String {
    let (policies, kind) = (node.engine.policies(), node.engine.health().kind);
    let scheme = if node.reloader.tls().is_some() { "https" } else { "http" };
    let redis = if node.reloader.tls().is_some() { "rediss" } else { "redis" };
    let checks = url(scheme, &listeners.checks);
    let mut lines = vec![format!("Tollgate {}: listening on {checks}", env!("CARGO_PKG_VERSION"))];
    lines.extend(listeners.admin.as_ref().map(|admin| format!("  operators  {}", url(scheme, admin))));
    lines.extend(listeners.resp.as_ref().map(|resp| format!("  RESP       {}", url(redis, resp))));
    lines.extend(listeners.envoy.as_ref().map(|envoy| {
        let encrypted = node.reloader.running().envoy.as_ref().is_some_and(|envoy| envoy.tls.is_some());
        format!("  Envoy      {}", url(if encrypted { "https" } else { "http" }, envoy))
    }));
    let operators = listeners.admin.as_ref().map_or_else(|| checks.clone(), |admin| url(scheme, admin));
    lines.push(format!("  dashboard  {operators}/dashboard"));
    let metrics = listeners.metrics.as_ref().map_or(operators, |metrics| url(scheme, metrics));
    lines.push(format!("  metrics    {metrics}/metrics"));
    lines.extend(listeners.reference.as_ref().map(|http| format!("  Envoy HTTP {}", url(scheme, http))));
    lines.push(match kind {
        "embedded" => {
            let most = node.engine.max_keys();
            format!("  store      embedded: counts live in this process alone, at most {most} keys")
        }
        kind => format!("  store      {kind}"),
    });
    let written = || policies.by_name.values().filter(|policy| !policy.is_of_envoy());
    lines.push(format!("  policies   {} from {}", written().count(), policies.origin));
    lines.extend(written().take(MAX_SHOWN).map(|policy| format!("    {}", summary(policy))));
    if written().count() > MAX_SHOWN {
        lines.push("    ...".into());
    }
    lines.extend(gates(node, &checks));
    let with_token = !node.reloader.running().access.is_open(Need::Check, reach(&listeners.checks));
    lines.extend(try_line(&policies, &checks, with_token));
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The gates, with the URL that a proxy asks.
fn gates(node: &Node, url: &str) -> Vec<String> {
    let gates = &node.reloader.running().gates.0;
    let more = (gates.len() > MAX_SHOWN).then(|| "    ...".to_owned());
    let shown = gates.keys().take(MAX_SHOWN).map(|name| format!("    {name}: {url}{GATE_PREFIX}{name}"));
    let head = (!gates.is_empty()).then(|| format!("  gates      {}", gates.len()));
    head.into_iter().chain(shown).chain(more).collect()
}

fn summary(policy: &Policy) -> String {
    let quotas: Vec<_> = policy.quotas.iter().map(Quota::to_string).collect();
    let shadow = if policy.options.shadow { ", shadow" } else { "" };
    format!("{}: {} ({}{shadow})", policy.name, quotas.join(", "), policy.algorithm.name())
}

/// A command for a shell. It uses the policy that denies soonest; policies with inline quotas and
/// shadow policies are the last choices. The key suits any type. A required token comes from the
/// variable that the commands read as well.
fn try_line(policies: &Policies, url: &str, with_token: bool) -> Option<String> {
    let smallest = |policy: &Policy| policy.quotas.iter().map(|quota| quota.limit).min();
    let policy = policies
        .by_name
        .values()
        .filter(|policy| !policy.is_of_envoy())
        .min_by_key(|policy| (policy.options.shadow, policy.options.inline, smallest(policy)))?;
    let body = format!(r#"{{"policy":"{}","key":"203.0.113.7"}}"#, policy.name);
    let token = if with_token { r#" -H "Authorization: Bearer $TOLLGATE_TOKEN""# } else { "" };
    Some(format!(
        "  try        curl -i{token} -H 'Content-Type: application/json' -d '{body}' {url}/v1/check"
    ))
}

/// The URL of the listener for a client on this machine.
fn url(scheme: &str, listener: &TcpListener) -> String {
    let Ok(address) = listener.local_addr() else { return "an unknown address".into() };
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}
