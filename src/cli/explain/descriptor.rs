//! `tollgate explain FILE --domain D --descriptor KEY=VALUE`: the rule of a descriptor of Envoy.

use serde_json::{Value, json};

use super::policy;
use crate::config::Config;
use crate::config::envoy::{Rule, RuleKind};
use crate::gateway::envoy::find::Entry;
use crate::gateway::envoy::key::{counter_key, policy_key};

/// The rule that decides a descriptor with these entries, and the effect of its policy.
pub(super) fn explain(config: &Config, domain: &str, descriptor: &[String]) -> Result<Value, String> {
    let origin = &config.policies.origin;
    let envoy = config.envoy.as_ref().ok_or_else(|| format!("{origin} has no section `envoy`"))?;
    if let Some(xds) = &envoy.xds {
        let reason = "no file has its rules: `GET /v1/policies` of a node shows them";
        return Err(format!("{origin}: the control plane {} sends the rules of Envoy, and {reason}", xds.server));
    }
    let level = envoy.rules.domains.get(domain).ok_or_else(|| {
        let known: Vec<_> = envoy.rules.domains.keys().map(String::as_str).collect();
        format!("there is no domain {domain:?}: there are {}", known.join(", "))
    })?;
    let entries: Vec<Entry<'_>> = descriptor.iter().map(|entry| self::entry(entry)).collect::<Result<_, _>>()?;
    let Some(found) = level.find(&entries) else {
        return Ok(json!({"domain": domain, "rule": "none: the descriptor is allowed and not counted"}));
    };
    let (policy, key) = match &found.rule.kind {
        RuleKind::Unlimited => return Ok(json!({"domain": domain, "rule": told(found.rule, "unlimited")})),
        RuleKind::Limit(limit) => (&limit.policy, counter_key(domain, &entries, Some(&found))),
        RuleKind::Policy(policy) => (policy, policy_key(&entries)),
    };
    let (is_limit, rule) = match found.rule.kind {
        RuleKind::Limit(_) => (true, told(found.rule, "rate_limit")),
        _ => (false, told(found.rule, "policy")),
    };
    let mut explained = match policy::explain(config, policy, &key) {
        Ok(explained) => explained,
        // The service denies what is no address, since a client chooses it.
        Err(why) => return Ok(json!({"domain": domain, "rule": rule, "answer": format!("over_limit: {why}")})),
    };
    explained["domain"] = json!(domain);
    explained["rule"] = json!(rule);
    if is_limit {
        // The list that denies everything under a limit of 0 stands in no file.
        explained["match"] = Value::Null;
    }
    Ok(explained)
}

fn entry(text: &str) -> Result<Entry<'_>, String> {
    text.split_once('=')
        .ok_or_else(|| format!("the entry {text:?} must be KEY=VALUE, such as user=alice"))
}

fn told(rule: &Rule, kind: &str) -> String {
    let (file, line) = &rule.place;
    format!("{kind}, {file}:{line}")
}
