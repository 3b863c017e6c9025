//! Inline quotas of a check: read with the grammar and the rules of the configuration.

use std::num::NonZeroU64;
use std::rc::Rc;

use ipnet::IpNet;

use crate::limit::calendar::UTC;
use crate::limit::network::Network;
use crate::limit::policy::{Options, Policy};
use crate::limit::quota::{Anchor, MAX_QUOTAS, Quota, Rule};
use crate::limit::ticks::Ticks;

use super::fault::{Fault, Faults, Place, Reading};
use super::lease;
use super::matcher::MATCHER_KINDS;
use super::node::{Member, Node, Value};
use super::quota::{self, Form};
use super::settings::window;
use super::version;

/// A value as a request writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaSpec {
    Nothing,
    /// A number, `true` or `false`.
    Word(String),
    Text(String),
    List,
    Members(Vec<(String, QuotaSpec)>),
}

/// A fault in the quotas of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaFault {
    /// The place below the quotas, as a JSON pointer without escapes: empty, `/0` or `/0/limit`.
    pub pointer: Vec<String>,
    /// The error and its correction.
    pub message: String,
}

/// Reads a matcher, `kind` being `key`, `prefix` or `cidr`, for keys of `policy`. Returns its text
/// in the one spelling that equal matchers have.
///
/// # Errors
/// Why `text` matches no key.
pub fn matcher(policy: &Policy, kind: &str, text: &str) -> Result<String, String> {
    let reading = Rc::new(Reading::default());
    let known = MATCHER_KINDS.iter().find(|known| known.one == kind);
    let known = known.ok_or_else(|| "must be `key`, `prefix` or `cidr`".to_owned())?;
    let value = Value::Text { text: text.to_owned(), quoted: true };
    let node = Node { place: Place::Source, name: format!("`{kind}`"), value, reading: reading.clone() };
    let spelling = (known.read)(&node, policy.key_type).map(|matcher| matcher.pattern().to_string());
    let first = |faults: Faults| faults.iter().map(|fault| fault.message.clone()).next().unwrap_or_default();
    reading.conclude("", spelling).map_err(first)
}

/// The network that a matcher of the kind `cidr` writes.
pub fn network(text: &str) -> Option<Network> {
    let network: IpNet = text.parse().ok()?;
    Network::new(network.addr(), network.prefix_len())
}

/// Parses the quotas in `written`, in the form that the quotas of `policy` have.
///
/// # Errors
/// Every fault at once.
pub fn quotas(policy: &Policy, written: &[QuotaSpec]) -> Result<Vec<Quota>, Vec<QuotaFault>> {
    if written.is_empty() || written.len() > MAX_QUOTAS {
        let message = format!("there may be 1 to {MAX_QUOTAS} quotas, not {}", written.len());
        return Err(vec![QuotaFault { pointer: Vec::new(), message }]);
    }
    let reading = Rc::new(Reading::default());
    let items = written.iter().enumerate().map(|(quota, written)| item(quota, written, &reading)).collect();
    let (place, value) = (Place::Source, Value::List(items));
    let node = Node { place, name: "`quotas`".to_owned(), value, reading: reading.clone() };
    let quotas = quota::quotas(&node, form(policy));
    reading
        .conclude("", quotas)
        .map_err(|faults| faults.iter().map(|fault| quota_fault(fault, written)).collect())
}

/// The policy with these quotas and separate counters. Equal limits, windows and rates share their
/// counters, whatever their order, spelling and names.
pub fn policy(policy: &Policy, quotas: Vec<Quota>) -> Policy {
    let mut terms: Vec<String> = quotas.iter().map(version::terms).collect();
    terms.sort();
    let hash = blake3::hash(terms.join(" ").as_bytes()).to_hex();
    // No policy name may contain `~`. Limits of Envoy's requests count under their unit.
    let own = || format!("{}~{}", policy.name, &hash[..16]).into();
    let counters = policy.options.counters.clone().unwrap_or_else(own);
    let options = Options { counters: Some(counters), ..without_quotas(policy) };
    Policy { quotas, options, ..policy.clone() }
}

/// The policy with these quotas for some of its keys, and with the counters and the lease that it
/// has.
///
/// # Errors
/// Shared counters live no longer than the windows of the file.
pub fn instead(policy: &Policy, mut quotas: Vec<Quota>) -> Result<Policy, String> {
    let life = policy.ticks().map(Ticks::life);
    for quota in &mut quotas {
        if let (Rule::SlidingCounter(ticks), Some(life)) = (&mut quota.rule, life) {
            if ticks.shared && ticks.longest() > life {
                return Err("shared counters live only as long as the longest window of the file".to_owned());
            }
            *ticks = ticks.with_life(life);
        }
    }
    let (quotas, lease) = lease::instead(policy, quotas);
    let options = Options { lease, ..without_quotas(policy) };
    Ok(Policy { quotas, options, ..policy.clone() })
}

/// The limits of a plan or of an override, as their author wrote them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// None: those of the policy.
    pub quotas: Option<Vec<QuotaSpec>>,
    /// Places of a key under a policy with a hold; none: those of the policy.
    pub in_flight: Option<NonZeroU64>,
}

impl Limits {
    /// `policy` with these limits. Without a hold it has no places.
    ///
    /// # Errors
    /// It cannot count the quotas.
    pub fn instead_of(&self, policy: &Policy) -> Result<Policy, Vec<QuotaFault>> {
        let fault = |message: String| vec![QuotaFault { pointer: Vec::new(), message }];
        let quotas = match &self.quotas {
            Some(written) => quotas(policy, written)?,
            None => policy.quotas.clone(),
        };
        let mut policy = instead(policy, quotas).map_err(fault)?;
        if let Some(hold) = &mut policy.options.hold {
            hold.in_flight = self.in_flight.or(hold.in_flight);
        }
        Ok(policy)
    }
}

/// The token bucket of `policy` with other numbers. The counters are those of the policy.
pub fn bucket(policy: &Policy, quota: Quota) -> Policy {
    Policy { quotas: vec![quota], options: without_quotas(policy), ..policy.clone() }
}

/// The options without those that have quotas of their own, or depend on those of the policy.
fn without_quotas(policy: &Policy) -> Options {
    Options { lists: None, plans: None, lease: None, ..policy.options.clone() }
}

/// Equal for quotas that produce equal answers.
pub fn text(quotas: &[Quota]) -> String {
    quotas.iter().map(version::quota).collect()
}

fn form(policy: &Policy) -> Form {
    match policy.quotas.first().map(|quota| quota.rule) {
        Some(Rule::TokenBucket(_)) => Form::Bucket,
        Some(Rule::FixedWindow(Anchor::Clock | Anchor::Calendar(_))) => Form::Clock(policy.options.zone.unwrap_or(UTC)),
        Some(rule) => Form::Window(rule),
        None => Form::Window(Rule::default()),
    }
}

fn item(quota: usize, written: &QuotaSpec, reading: &Rc<Reading>) -> Node {
    let place = Place::Asked { quota, member: None };
    let value = match written {
        QuotaSpec::Members(members) => Value::Mapping(self::members(quota, members, reading)),
        other => scalar(other),
    };
    Node { place, name: "an entry of `quotas`".to_owned(), value, reading: reading.clone() }
}

fn members(quota: usize, written: &[(String, QuotaSpec)], reading: &Rc<Reading>) -> Vec<Member> {
    let known = || window::SHAPE.known.iter().chain(window::SHAPE.checked);
    let member = |(number, (key, value)): (usize, &(String, QuotaSpec))| {
        let place = Place::Asked { quota, member: Some(number) };
        if written.iter().take(number).any(|(before, _)| before == key) {
            reading.note(place, format!("`{key}` is given more than once"));
        }
        // Many clients write an absent member so.
        let is_absent = *value == QuotaSpec::Nothing && known().any(|name| name == key);
        let node = || Node { place, name: format!("`{key}`"), value: scalar(value), reading: reading.clone() };
        (!is_absent).then(|| Member { place, key: key.clone(), node: node() })
    };
    written.iter().enumerate().filter_map(member).collect()
}

/// The contents of a collection are irrelevant: no collection is valid here.
fn scalar(written: &QuotaSpec) -> Value {
    match written {
        QuotaSpec::Nothing => Value::Empty,
        QuotaSpec::Word(text) => Value::Text { text: text.clone(), quoted: false },
        QuotaSpec::Text(text) => Value::Text { text: text.clone(), quoted: true },
        QuotaSpec::List => Value::List(Vec::new()),
        QuotaSpec::Members(_) => Value::Mapping(Vec::new()),
    }
}

fn quota_fault(fault: &Fault, written: &[QuotaSpec]) -> QuotaFault {
    let pointer = match fault.place {
        Place::Asked { quota, member } => {
            let name = match (written.get(quota), member) {
                (Some(QuotaSpec::Members(members)), Some(member)) => members.get(member).map(|(name, _)| name.clone()),
                _ => None,
            };
            [Some(quota.to_string()), name].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    };
    QuotaFault { pointer, message: fault.message.clone() }
}
