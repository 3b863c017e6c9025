//! A change of an override: checked, written with its entry of the audit, and put into force.

use std::sync::Arc;

use super::applied::{Applied, Less, less};
use super::audit::{AuditEntry, Kind, Note};
use super::entry::{Body, Entry, Grant, Name, Stored};
use super::follow::{Followed, stored};
use super::part::apply;
use super::{Keeper, MAX_ENTRIES, Overrides};
use crate::clock::unix_micros;
use crate::config::inline::{self, Limits, QuotaFault};
use crate::limit::policy::{Listed, Policy};
use crate::limit::quota::begin_anew;
use crate::limit::time::Micros;
use crate::store::redis::Registry;
use crate::store::redis::registry::{RecordChange, RecordWritten};

/// The grant of a new entry, as a caller writes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    Limits(Limits),
    Plan(String),
    Deny,
    Allow,
}

/// A new entry for a match.
#[derive(Debug, Clone)]
pub struct Put {
    /// `key`, `prefix` or `cidr`, and its text.
    pub matched: (String, String),
    pub wanted: Wanted,
    /// us; none for an entry that stays.
    pub expires_in: Option<Micros>,
    pub reason: Option<String>,
    /// The version that the entry must have; 0 if there must be none.
    pub if_version: Option<u64>,
    /// Whether it may give less than its keys have now.
    pub lower: bool,
    pub by: String,
}

/// The end of an entry.
#[derive(Debug, Clone)]
pub struct Removal {
    pub matched: (String, String),
    pub reason: Option<String>,
    /// As in [`Put`].
    pub if_version: Option<u64>,
    pub by: String,
}

/// A change that is in force.
#[derive(Debug)]
pub struct Changed {
    /// The entry of the match from now on.
    pub entry: Option<Entry>,
    /// Whether there was one before.
    pub existed: bool,
    /// Consequences that its author may not expect.
    pub warnings: Vec<String>,
}

/// Why nothing has changed.
#[derive(Debug)]
pub enum ChangeError {
    /// The node has no place for overrides.
    NoKeeper,
    /// The match is none for keys of the policy.
    Match {
        kind: String,
        fault: String,
    },
    Quotas(Vec<QuotaFault>),
    /// Places need a policy with holds.
    NoHold,
    /// The policy has no plan of that name.
    Plan(String),
    /// The entry has another version than the caller expects: this one, or there is none.
    Stale(Option<Arc<Entry>>),
    /// The keys have more now: by what, and of what.
    Lower(String, Less),
    /// There are as many entries as may be.
    Full,
    /// The keeper did not write it, or may not have.
    Unavailable(String),
}

/// How often a change is compared anew with an entry that others change meanwhile.
const TRIES: usize = 16;

/// A change for the keeper.
struct Write<'a> {
    name: &'a Name,
    /// The next body and how long it lasts; none removes the entry.
    next: Option<(Body, Option<Micros>)>,
    /// The version that the entry must have; 0 if there must be none.
    expected: Option<u64>,
    by: &'a str,
    reason: Option<&'a str>,
}

/// The change of an override, for the audit.
fn note_of(name: &Name, by: String, reason: Option<String>) -> Note {
    let (policy, matched) = (name.policy().to_owned(), name.matched().to_owned());
    Note { kind: Kind::Override, by, policy: Some(policy), matched: Some(matched), reason }
}

impl Overrides {
    /// Puts an entry into force, in place of one for the same match.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub async fn put(self: &Arc<Self>, policy: &Arc<Policy>, put: Put) -> Result<Changed, ChangeError> {
        let name = self.name(policy, &put.matched)?;
        let grant = self.grant(policy, put.wanted)?;
        let body = Body::new(&grant, put.reason.as_deref(), &put.by);
        let next = grant.counted(policy);
        for _ in 0..TRIES {
            let known = self.map.get(&name).map_or(0, |entry| entry.version);
            let mut warnings = Vec::new();
            if let Some(next) = &next {
                let present = self.map.present(policy, &name);
                let is_denied = present.listed == Some(Listed::Deny);
                let is_allowed = present.listed == Some(Listed::Allow);
                if !put.lower && !is_denied {
                    let less = if is_allowed { Some(Less::Counted) } else { less(&present.policy, next) };
                    if let Some(less) = less {
                        return Err(ChangeError::Lower(present.by.text(), less));
                    }
                }
                if !put.lower && present.listed.is_none() {
                    let outranked = self.map.outranked(policy, &name, &present.by);
                    let lower = |more: &Applied<'_>| Some((more.by.text(), less(&more.policy, next)?));
                    if let Some((by, less)) = outranked.iter().find_map(lower) {
                        return Err(ChangeError::Lower(by, less));
                    }
                }
                if present.listed.is_none() && begin_anew(&present.policy.quotas, &next.quotas) {
                    warnings.push(format!(
                        "a window or the algorithm differs from that of {}: counts begin anew, so a key may get the sum \
                         of both once",
                        present.by.text()
                    ));
                }
            }
            // Another author may change the entry meanwhile, and it was compared with this one.
            let expected = put.if_version.or(next.is_some().then_some(known));
            let next = Some((body.clone(), put.expires_in));
            let write = Write { name: &name, next, expected, by: &put.by, reason: put.reason.as_deref() };
            match self.write(write).await {
                Err(ChangeError::Stale(_)) if put.if_version.is_none() => {}
                written => {
                    let with = |mut changed: Changed| {
                        changed.warnings.append(&mut warnings);
                        changed
                    };
                    return written.map(with);
                }
            }
        }
        Err(ChangeError::Unavailable("others change the override all the time: send the call again".to_owned()))
    }

    /// Ends an entry.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub async fn remove(self: &Arc<Self>, policy: &Arc<Policy>, removal: Removal) -> Result<Changed, ChangeError> {
        let name = self.name(policy, &removal.matched)?;
        let Removal { reason, if_version, by, .. } = &removal;
        let write = Write { name: &name, next: None, expected: *if_version, by, reason: reason.as_deref() };
        self.write(write).await
    }

    fn name(&self, policy: &Policy, (kind, text): &(String, String)) -> Result<Name, ChangeError> {
        // A reload may have changed how the policy spells keys.
        let listed = Name::new(&policy.name, &format!("{kind}:{text}"));
        if self.map.get(&listed).is_some() {
            return Ok(listed);
        }
        let spelling = inline::matcher(policy, kind, text);
        let spelling = spelling.map_err(|fault| ChangeError::Match { kind: kind.clone(), fault })?;
        Ok(Name::new(&policy.name, &format!("{kind}:{spelling}")))
    }

    fn grant(&self, policy: &Arc<Policy>, wanted: Wanted) -> Result<Grant, ChangeError> {
        match wanted {
            Wanted::Limits(limits) => {
                if limits.in_flight.is_some() && policy.options.hold.is_none() {
                    return Err(ChangeError::NoHold);
                }
                limits.instead_of(policy).map_err(ChangeError::Quotas)?;
                Ok(Grant::Quotas(self.map.terms(&policy.name, limits)))
            }
            Wanted::Plan(name) if policy.plan(&name).is_none() => Err(ChangeError::Plan(name)),
            Wanted::Plan(name) => Ok(Grant::Plan(name.into())),
            Wanted::Deny => Ok(Grant::Deny),
            Wanted::Allow => Ok(Grant::Allow),
        }
    }

    async fn write(self: &Arc<Self>, write: Write<'_>) -> Result<Changed, ChangeError> {
        match self.keeper.get() {
            None => Err(ChangeError::NoKeeper),
            Some(Keeper::Redis(followed)) => self.write_to_redis(followed, write).await,
            Some(Keeper::File(_)) => {
                let Write { name, next, expected, by, reason } = write;
                let (overrides, name, by, reason) = (self.clone(), name.clone(), by.to_owned(), reason.map(Into::into));
                let writing = move || overrides.write_to_file(&name, next, expected, by, reason);
                let written = tokio::task::spawn_blocking(writing).await;
                written.unwrap_or_else(|error| Err(ChangeError::Unavailable(error.to_string())))
            }
        }
    }

    async fn write_to_redis(&self, followed: &Followed, write: Write<'_>) -> Result<Changed, ChangeError> {
        let Write { name, next, expected, by, reason } = write;
        if next.is_some() && self.map.get(name).is_none() && self.map.len() >= MAX_ENTRIES {
            return Err(ChangeError::Full);
        }
        let (body, ends_in) = match &next {
            Some((body, expires_in)) => (serde_json::to_string(body).ok(), expires_in.unwrap_or_default()),
            None => (None, 0),
        };
        let fields = [
            ("kind", Kind::Override.name()),
            ("by", by),
            ("policy", name.policy()),
            ("match", name.matched()),
            ("reason", reason.unwrap_or_default()),
        ];
        let (text, body, known) = (name.as_str(), body.as_deref(), followed.set_apart(name));
        let fields = &fields;
        let change =
            RecordChange { name: Some(text), expected, ends_in, body, fields, known, ..RecordChange::default() };
        let written = followed.write(text, change, &self.map).await.map_err(|error| match error.is_unexecuted() {
            true => ChangeError::Unavailable(error.to_string()),
            false => ChangeError::Unavailable(format!("{error}: read the override, since it may have changed")),
        })?;
        // Redis may lose the change before the node reads it back.
        if let RecordWritten::Done { version, at, after, .. } = &written {
            apply(&self.map, name, *version, Some(after.as_str()).filter(|after| !after.is_empty()), *at);
        }
        // The caller sees its change here, and the version that it was compared with.
        followed.ask_one(Registry::part(text), &self.map).await;
        let entry = |text: &str| {
            let terms = |policy: &str, limits| self.map.terms(policy, limits);
            Stored::parse(text, name.clone(), terms)
        };
        match written {
            RecordWritten::Done { version, at, before, after } => {
                let note = note_of(name, by.to_owned(), reason.map(Into::into)).entry(version, at);
                AuditEntry { before: stored(&before), after: stored(&after), ..note }.log();
                let warnings = if after.is_empty() { Vec::new() } else { followed.doubts() };
                Ok(Changed { entry: entry(&after), existed: !before.is_empty() || known > 0, warnings })
            }
            RecordWritten::Stale(present) => Err(ChangeError::Stale(entry(&present).map(Arc::new))),
            RecordWritten::Full => Err(ChangeError::Full),
            RecordWritten::Lost => Err(ChangeError::Unavailable("Redis has lost the override".to_owned())),
            RecordWritten::Nothing => Ok(Changed { entry: None, existed: false, warnings: Vec::new() }),
        }
    }

    fn write_to_file(
        &self,
        name: &Name,
        next: Option<(Body, Option<Micros>)>,
        expected: Option<u64>,
        by: String,
        reason: Option<String>,
    ) -> Result<Changed, ChangeError> {
        let Some(Keeper::File(kept)) = self.keeper.get() else { return Err(ChangeError::NoKeeper) };
        let unwritable = |error: std::io::Error| ChangeError::Unavailable(error.to_string());
        let mut file = kept.whole(&self.map).map_err(unwritable)?;
        let now = unix_micros();
        let _ = self.map.expire(now, |_| now);
        let before = self.map.get(name);
        let known = before.as_ref().map_or(0, |entry| entry.version);
        if expected.is_some_and(|expected| expected != known) {
            return Err(ChangeError::Stale(before));
        }
        if next.is_none() && before.is_none() {
            return Ok(Changed { entry: None, existed: false, warnings: Vec::new() });
        }
        if next.is_some() && before.is_none() && self.map.len() >= MAX_ENTRIES {
            return Err(ChangeError::Full);
        }
        let version = file.next_version(now);
        let after = next.map(|(body, expires_in)| {
            let expires_at = expires_in.map_or(0, |span| now + span);
            Stored { version, at: now, expires_at, body }
        });
        let note = note_of(name, by, reason).entry(version, now);
        let entry = AuditEntry { before: before.as_deref().map(Stored::from), after: after.clone(), ..note };
        let written = file.write(entry.clone(), &self.map, now);
        kept.note(written.as_ref().err());
        written.map_err(unwritable)?;
        entry.log();
        let terms = |policy: &str, limits| self.map.terms(policy, limits);
        let entry = after.map(|stored| stored.entry(name.clone(), terms));
        Ok(Changed { entry, existed: before.is_some(), warnings: Vec::new() })
    }
}
