//! An override: what a key, a prefix or a network gets instead of the quotas of a policy.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::inline::{self, Limits, QuotaSpec};
use crate::limit::matches::Pattern;
use crate::limit::policy::{Listed, Policy};
use crate::limit::time::Micros;

/// The longest reason, bytes.
pub const MAX_REASON_BYTES: usize = 256;

/// Separates the policy and the match in the name of an entry. Names of policies do not have it.
const SEPARATOR: char = '\0';

/// The name of an entry: its policy, and its match as `key:x`, `prefix:x` or `cidr:x`. A policy has
/// one entry for each match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    pub fn new(policy: &str, matched: &str) -> Self {
        Self(format!("{policy}{SEPARATOR}{matched}").into())
    }

    /// The name that another node or process has written, if it is one.
    pub fn parse(text: &str) -> Option<Self> {
        let name = Self(text.into());
        (text.contains(SEPARATOR) && name.pattern().is_some()).then_some(name)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn policy(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(policy, _)| policy)
    }

    /// The match, such as `key:alice`.
    pub fn matched(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(_, matched)| matched)
    }

    /// The kind and the text of the match, such as `key` and `alice`.
    pub fn parts(&self) -> (&str, &str) {
        self.matched().split_once(':').unwrap_or_default()
    }

    /// The keys that the entry matches.
    pub fn pattern(&self) -> Option<Pattern<'_>> {
        match self.parts() {
            ("key", text) => Some(Pattern::Key(text)),
            ("prefix", text) => Some(Pattern::Prefix(text)),
            ("cidr", text) => inline::network(text).map(Pattern::Network),
            _ => None,
        }
    }
}

/// The quotas or the verdict that the keys of an entry get.
#[derive(Debug, Clone)]
pub enum Grant {
    /// These limits instead of those of the policy.
    Quotas(Arc<Terms>),
    /// The quotas of this plan.
    Plan(Arc<str>),
    /// They are denied and not counted.
    Deny,
    /// They are allowed and not counted.
    Allow,
    /// One that only a later version of this program knows. It counts as none.
    Unknown,
}

impl Grant {
    /// The verdict, if keys are not counted.
    pub fn listed(&self) -> Option<Listed> {
        match self {
            Self::Deny => Some(Listed::Deny),
            Self::Allow => Some(Listed::Allow),
            Self::Quotas(_) | Self::Plan(_) | Self::Unknown => None,
        }
    }

    /// `policy` as it counts the keys of the entry. None if they are not counted, or if the policy
    /// has changed and can no longer count the quotas or lacks the plan.
    pub fn counted(&self, policy: &Arc<Policy>) -> Option<Arc<Policy>> {
        match self {
            Self::Quotas(terms) => terms.instead_of(policy),
            Self::Plan(name) => policy.plan(name).cloned(),
            Self::Deny | Self::Allow | Self::Unknown => None,
        }
    }
}

/// Limits of entries as their author wrote them. Entries of a policy with equal limits share them,
/// and so known denials and calls.
#[derive(Debug)]
pub struct Terms {
    pub limits: Limits,
    made: ArcSwapOption<Made>,
}

/// A policy with other limits.
#[derive(Debug)]
struct Made {
    /// Keeps the address of the policy from being used again.
    from: Weak<Policy>,
    policy: Option<Arc<Policy>>,
}

impl Terms {
    pub fn new(limits: Limits) -> Self {
        Self { limits, made: ArcSwapOption::empty() }
    }

    /// `policy` with these limits, built once for each policy that was reloaded.
    fn instead_of(&self, policy: &Arc<Policy>) -> Option<Arc<Policy>> {
        if let Some(made) = &*self.made.load()
            && std::ptr::eq(made.from.as_ptr(), Arc::as_ptr(policy))
        {
            return made.policy.clone();
        }
        let has_hold = policy.options.hold.is_some() || self.limits.in_flight.is_none();
        let made = has_hold.then(|| self.limits.instead_of(policy).ok()).flatten().map(Arc::new);
        self.made.store(Some(Arc::new(Made { from: Arc::downgrade(policy), policy: made.clone() })));
        made
    }
}

/// An entry in force.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: Name,
    pub grant: Grant,
    /// When it ends, us by the clock of its store; [`Micros::MAX`] for never.
    pub expires_at: Micros,
    pub reason: Option<Box<str>>,
    /// Its author.
    pub by: Box<str>,
    /// When it was made, us by the clock of its store.
    pub at: Micros,
    /// Grows with each change. No two changes of an entry have the same.
    pub version: u64,
    /// The text of its store, if this version of the program would write it otherwise.
    raw: Option<Box<str>>,
}

/// An entry as its store keeps it, without its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub version: u64,
    /// us.
    pub at: Micros,
    /// us; 0 for never.
    pub expires_at: Micros,
    #[serde(flatten)]
    pub body: Body,
}

/// The part of an entry that its author decides, beside its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// Empty beside places alone: a former version then counts the entry as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<NonZeroU64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub deny: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub by: String,
    /// Members of later versions of this program.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Body {
    pub fn new(grant: &Grant, reason: Option<&str>, by: &str) -> Self {
        let body = Self { reason: reason.map(Into::into), by: by.to_owned(), ..Self::default() };
        match grant {
            Grant::Quotas(terms) => {
                let Limits { quotas, in_flight } = &terms.limits;
                Self { quotas: Some(quotas.iter().flatten().map(to_json).collect()), in_flight: *in_flight, ..body }
            }
            Grant::Plan(name) => Self { plan: Some(name.to_string()), ..body },
            Grant::Deny => Self { deny: true, ..body },
            Grant::Allow => Self { allow: true, ..body },
            Grant::Unknown => body,
        }
    }
}

impl Stored {
    /// The entry of this name. `terms` returns the shared quotas.
    pub fn entry(self, name: Name, terms: impl FnOnce(&str, Limits) -> Arc<Terms>) -> Entry {
        let raw = serde_json::to_string(&self).unwrap_or_default();
        self.entry_of(&raw, name, terms)
    }

    /// The entry of this name that a store keeps as `text`; none for a text of another program.
    pub fn parse(text: &str, name: Name, terms: impl FnOnce(&str, Limits) -> Arc<Terms>) -> Option<Entry> {
        let stored: Self = serde_json::from_str(text).ok()?;
        Some(stored.entry_of(text, name, terms))
    }

    fn entry_of(self, text: &str, name: Name, terms: impl FnOnce(&str, Limits) -> Arc<Terms>) -> Entry {
        let Body { quotas, in_flight, plan, deny, allow, reason, by, other: _ } = self.body;
        let grant = match (quotas, plan) {
            (Some(quotas), _) => {
                let is_of_policy = quotas.is_empty() && in_flight.is_some();
                let quotas = (!is_of_policy).then(|| quotas.iter().map(of_json).collect());
                Grant::Quotas(terms(name.policy(), Limits { quotas, in_flight }))
            }
            (None, Some(plan)) => Grant::Plan(plan.into()),
            (None, None) if deny => Grant::Deny,
            (None, None) if allow => Grant::Allow,
            (None, None) => Grant::Unknown,
        };
        let expires_at = if self.expires_at == 0 { Micros::MAX } else { self.expires_at };
        let (reason, by) = (reason.map(Into::into), by.into());
        let mut entry = Entry { name, grant, expires_at, reason, by, at: self.at, version: self.version, raw: None };
        if entry.text() != text {
            entry.raw = Some(text.into());
        }
        entry
    }
}

/// A quota as its author wrote it. A form that no quota has becomes `null`.
fn to_json(spec: &QuotaSpec) -> Value {
    match spec {
        QuotaSpec::Word(word) => serde_json::from_str(word).unwrap_or_else(|_| Value::from(&**word)),
        QuotaSpec::Text(text) => Value::from(&**text),
        QuotaSpec::Members(members) => members.iter().map(|(name, spec)| (name.clone(), to_json(spec))).collect(),
        QuotaSpec::Nothing | QuotaSpec::List => Value::Null,
    }
}

/// The inverse of [`to_json`].
fn of_json(value: &Value) -> QuotaSpec {
    match value {
        Value::Null => QuotaSpec::Nothing,
        Value::Bool(_) | Value::Number(_) => QuotaSpec::Word(value.to_string()),
        Value::String(text) => QuotaSpec::Text(text.clone()),
        Value::Array(_) => QuotaSpec::List,
        Value::Object(members) => {
            QuotaSpec::Members(members.iter().map(|(name, value)| (name.clone(), of_json(value))).collect())
        }
    }
}

impl Entry {
    /// The entry as its store keeps it, without its name.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.raw {
            Some(raw) => Cow::Borrowed(raw),
            None => serde_json::to_string(&Stored::from(self)).unwrap_or_default().into(),
        }
    }

    /// When it ends, us; 0 for never.
    pub fn ends(&self) -> Micros {
        if self.expires_at == Micros::MAX { 0 } else { self.expires_at }
    }
}

impl From<&Entry> for Stored {
    fn from(entry: &Entry) -> Self {
        if let Some(stored) = entry.raw.as_deref().and_then(|raw| serde_json::from_str(raw).ok()) {
            return stored;
        }
        let body = Body::new(&entry.grant, entry.reason.as_deref(), &entry.by);
        Self { version: entry.version, at: entry.at, expires_at: entry.ends(), body }
    }
}

impl fmt::Display for Name {
    /// The match for people: `key alice`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = self.parts();
        write!(f, "{kind} {text}")
    }
}

/// An entry in the order of names, for lists.
#[derive(Debug, Clone)]
pub(super) struct Ordered(pub(super) Arc<Entry>);

impl Borrow<str> for Ordered {
    fn borrow(&self) -> &str {
        self.0.name.as_str()
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Ordered {}

impl Hash for Ordered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.as_str().hash(state);
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}
