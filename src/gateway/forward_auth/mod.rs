//! Forward auth: a proxy asks about each request before it passes the request on.
//!
//! [`plan`] turns the proxy's question into checks, by the rules of a gate. It is pure. The method,
//! the host, the path and the address have one source each, which the gate names. A choice such as
//! "this header, or else that one" would let clients choose.

use crate::config::{Gate, GateCheck, GateRule, MissingKey};
use crate::engine::{Check, Door};
use crate::limit::address::parse;

mod address;

mod facts;

mod host;

mod missing;

mod path;

mod question;

mod readings;

mod rules;

mod template;

mod url;

pub use facts::{Facts, Fields};
pub use missing::{Denied, Missing, Why};
pub use question::{Question, header_map, is_trusted};

/// The checks of a question, and the rule that named them.
#[derive(Debug)]
pub struct Plan<'a> {
    pub rule: Option<&'a GateRule>,
    /// Without checks the request is allowed.
    pub checks: Result<Vec<Check>, Denied<'a>>,
}

/// The checks that the gate asks for.
///
/// The gate denies a request that it cannot read, or that its backend may read as one of another
/// rule: that rule may have a lower limit. Only a gate whose policies are all shadow policies never
/// denies.
pub fn plan<'a>(gate: &'a Gate, question: &Question<'a>) -> Plan<'a> {
    let facts = Facts::read(gate, question);
    let enforces = gate.enforces();
    if let Some(malformed) = facts.malformed().filter(|_| enforces) {
        return Plan { rule: None, checks: Err(Denied::Request(malformed)) };
    }
    let own = facts.path.as_ref().map(|paths| paths.own.as_str()).map_err(Clone::clone);
    let (rule, missing) = rules::first(gate, &facts, &own);
    let is_evaded = || enforces && rules::is_evaded(gate, &facts, rule);
    let denied = missing.or_else(|| is_evaded().then(|| Missing::new("the path", Why::Ambiguous)));
    let checks = match (denied, rule) {
        (Some(missing), _) => Err(Denied::Request(missing)),
        (None, Some(rule)) => checks(gate, rule, &facts).map_err(Denied::Key),
        (None, None) => Ok(Vec::new()),
    };
    Plan { rule, checks }
}

fn checks<'a>(gate: &Gate, rule: &'a GateRule, facts: &Facts<'a>) -> Result<Vec<Check>, Missing<'a>> {
    // A request without its plan gets the quotas of the policies.
    let plan = rule.plan.as_ref().and_then(|plan| template::render(plan, rule, facts).ok());
    let keys = rule.checks.iter().map(|check| Ok((check, key(gate, rule, check, facts)?)));
    keys.filter_map(|keyed| match keyed {
        Ok((check, Some(key))) => Some(Ok(ask(check, key, plan.as_deref()))),
        Ok((_, None)) => None,
        Err(missing) => Some(Err(missing)),
    })
    .collect()
}

fn ask(check: &GateCheck, key: String, plan: Option<&str>) -> Check {
    Check { plan: plan.map(Into::into), ..Check::new(check.policy.clone(), key, check.cost, Door::Gate) }
}

/// The key of a check; none if the gate skips the check.
fn key<'a>(
    gate: &Gate,
    rule: &'a GateRule,
    check: &'a GateCheck,
    facts: &Facts<'a>,
) -> Result<Option<String>, Missing<'a>> {
    let rendered =
        template::render(&check.key, rule, facts).and_then(|key| match check.is_ip && parse(&key).is_none() {
            true => Err(Missing::new("the key", Why::NoAddress)),
            false => Ok(key),
        });
    let key = match (rendered, gate.missing_key) {
        (Err(_), MissingKey::ClientIp) => facts.client.clone().map(|address| match check.is_ip {
            true => address.to_string(),
            false => template::of_address(address),
        }),
        (rendered, _) => rendered,
    };
    match key {
        Ok(key) => Ok(Some(key)),
        Err(missing) if gate.missing_key != MissingKey::Allow && !check.is_shadow => Err(missing),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
