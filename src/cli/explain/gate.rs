//! `tollgate explain --gate`: the effect of a gate on a request, offline.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::policy::{self, lines, word};
use crate::config::{Config, Gate, GateRule, RequestFrom};
use crate::gateway::forward_auth::{self, Denied, Facts, Missing, Plan, header_map};
use crate::limit::address;

/// A request, as its client sent it, and the peer that asks about it.
#[derive(Debug, clap::Args)]
pub(super) struct GateQuestion {
    /// A gate, instead of a policy and a key: what it does with the request below.
    #[arg(long, conflicts_with_all = ["policy", "key"])]
    pub(super) gate: Option<String>,
    /// The method of the client's request.
    #[arg(long, default_value = "GET", requires = "gate")]
    method: String,
    /// The path of the client's request.
    #[arg(long, default_value = "/", requires = "gate")]
    path: String,
    /// The host of the client's request.
    #[arg(long, requires = "gate")]
    host: Option<String>,
    /// A header of the question, `name: value`; any number of them.
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "gate")]
    headers: Vec<String>,
    /// The peer that asks the gate.
    #[arg(long, default_value = "127.0.0.1", value_parser = peer, requires = "gate")]
    peer: IpAddr,
}

fn peer(text: &str) -> Result<IpAddr, &'static str> {
    address::parse(text).ok_or("write an IP address such as 203.0.113.7 or 2001:db8::1")
}

pub(super) fn explain(config: &Config, name: &str, asked: &GateQuestion) -> Result<Value, String> {
    let gate = config.gates.0.get(name).ok_or_else(|| {
        let known: Vec<_> = config.gates.0.keys().map(String::as_str).collect();
        let known =
            if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
        format!("{} has no gate {name:?}: {known}", config.policies.origin)
    })?;
    let fields = fields(gate, asked)?;
    let headers = header_map(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    let question = forward_auth::Question {
        peer: Some(asked.peer),
        method: &asked.method,
        host: asked.host.as_deref(),
        path: &asked.path,
        headers: &headers,
    };
    let facts = Facts::read(gate, &question);
    let Plan { rule, checks } = forward_auth::plan(gate, &question);
    let (answer, missing) = match &checks {
        Ok(checks) if checks.is_empty() => ("allowed", None),
        Ok(_) => ("checked", None),
        Err(Denied::Request(missing)) => ("malformed_request", Some(missing.to_string())),
        Err(Denied::Key(missing)) => ("missing_key", Some(missing.to_string())),
    };
    let explained = checks.unwrap_or_default().into_iter().map(|check| {
        let mut told = policy::explain(config, &check.policy, &check.key)?;
        told["cost"] = check.cost.into();
        Ok(told)
    });
    Ok(json!({
        "file": config.policies.origin,
        "gate": gate.name,
        "peer": {"address": asked.peer, "trusted": facts.fields.is_trusted},
        "method": fact(&facts.method, String::clone),
        "host": fact(&facts.host, String::clone),
        "path": fact(&facts.path, |paths| paths.own.clone()),
        "client_ip": fact(&facts.client, IpAddr::to_string),
        "rule": rule.map(|GateRule { name, line, .. }| json!({"name": name, "line": line})),
        "answer": answer,
        "deny_status": gate.deny_status,
        "missing": missing,
        "checks": explained.collect::<Result<Vec<_>, String>>()?,
    }))
}

/// The headers of the question. The flags imply the headers that describe the request.
fn fields(gate: &Gate, asked: &GateQuestion) -> Result<Vec<(String, String)>, String> {
    let mut fields = Vec::new();
    for header in &asked.headers {
        let (name, value) = header.split_once(':').ok_or(format!("--header {header:?} must be `name: value`"))?;
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    let url = asked.host.as_ref().map(|host| format!("http://{host}{}", asked.path));
    let names = match gate.request_from {
        RequestFrom::Request => ["", "", ""],
        RequestFrom::Forwarded => ["X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Uri"],
        RequestFrom::Original => ["X-Original-Method", "", "X-Original-URI"],
        RequestFrom::OriginalUrl => ["X-Original-Method", "X-Original-URL", ""],
    };
    let host = if gate.request_from == RequestFrom::OriginalUrl { url.as_ref() } else { asked.host.as_ref() };
    let values = [Some(&asked.method), host, Some(&asked.path)];
    for (name, value) in names.into_iter().zip(values) {
        let is_given = fields.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        fields.extend(value.filter(|_| !name.is_empty() && !is_given).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(fields)
}

fn fact<T>(fact: &Result<T, Missing<'_>>, show: impl FnOnce(&T) -> String) -> Value {
    match fact {
        Ok(fact) => json!({"value": show(fact)}),
        Err(missing) => json!({"missing": missing.to_string()}),
    }
}

pub(super) fn text(told: &Value) -> String {
    let mut said = vec![("gate", word(&told["gate"]))];
    let trust = if told["peer"]["trusted"] == true { "a trusted proxy" } else { "not in trusted_proxies" };
    said.push(("peer", format!("{}, {trust}", word(&told["peer"]["address"]))));
    for (name, member) in [("method", "method"), ("host", "host"), ("path", "path"), ("client", "client_ip")] {
        let fact = &told[member];
        let missing = || format!("unknown: {}", word(&fact["missing"]));
        said.push((name, fact["value"].as_str().map_or_else(missing, str::to_owned)));
    }
    let (rule, file) = (&told["rule"], word(&told["file"]));
    let place = || format!("{file}:{}", rule["line"]);
    said.push((
        "rule",
        match (rule["name"].as_str(), rule.is_object()) {
            (Some(name), _) => format!("{name}, {}", place()),
            (None, true) => place(),
            (None, false) => "none matches".to_owned(),
        },
    ));
    said.push((
        "answer",
        match word(&told["answer"]).as_str() {
            "missing_key" | "malformed_request" => {
                format!("denied with {}: {}", told["deny_status"], word(&told["missing"]))
            }
            "allowed" => "allowed, and nothing counts".to_owned(),
            _ => "by the checks below, all or none".to_owned(),
        },
    ));
    let checks = told["checks"].as_array().into_iter().flatten();
    let checks = checks
        .map(|check| format!("\n{}", lines(&policy::text(check)) + &lines(&[("cost", check["cost"].to_string())])));
    lines(&said) + &checks.collect::<String>()
}
