//! Follows the overrides in Redis.
//!
//! Each part has a log of changes. The node asks for those since the last one that it has, when a
//! message names the part. Twice a second it also looks whether a part has changed without one.
//! Each change names the one before it. If the first is not the successor of the last known one,
//! the log was trimmed, or a failover has lost changes. The node then loads the part anew.
//!
//! Reading the streams by XREAD BLOCK would take a blocked connection for each part: the parts lie
//! in different slots, and a cluster rejects one command for several. The nodes ask instead,
//! and one subscription wakes them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::audit::{AuditEntry, KEPT, KEPT_FOR, Kind, Note};
use super::entry::{Name, Stored};
use super::file::apply;
use super::map::Map;
use crate::clock::unix_micros;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::StoreError;
use crate::store::redis::registry::{
    Log, LoggedChange, PARTS, RecordChange, RecordChanges, RecordWritten, Registry, lacks_rights,
};

/// How often a node looks whether parts have changed without a message.
const EVERY: Duration = Duration::from_millis(500);

/// How long after a failure it asks for the changes of a part again.
const AGAIN: Duration = Duration::from_secs(1);

/// Messages of this time are one reason to ask.
const TOGETHER: Duration = Duration::from_millis(10);

/// Changes that are older than this are a reason in health, us.
const LATE: Micros = 3 * MICROS_PER_SECOND;

/// The most rounds by which a page of the audit is read.
const ROUNDS: usize = 50;

/// The overrides in Redis, as far as this node has them.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) registry: Registry,
    parts: Vec<FollowedPart>,
    /// Whether the user of this node may not read overrides, so there can be none.
    has_no_rights: AtomicBool,
}

/// A part of the overrides.
#[derive(Debug, Default)]
struct FollowedPart {
    /// Locked while the node asks, so that changes are applied in order.
    asking: tokio::sync::Mutex<()>,
    is_loaded: AtomicBool,
    /// The version of the last change that is in force here.
    version: AtomicU64,
    /// Whether the server has entries that have ended.
    has_ended: AtomicBool,
    /// When the part was last complete, us by this machine's clock.
    complete_at: AtomicU64,
    trouble: ArcSwapOption<String>,
}

impl Followed {
    pub(super) fn new(registry: Registry) -> Self {
        registry.hold_checks(true);
        let parts: Vec<FollowedPart> = (0..PARTS).map(|_| FollowedPart::default()).collect();
        let now = unix_micros();
        parts.iter().for_each(|part| part.complete_at.store(now, Ordering::Relaxed));
        Self { registry, parts, has_no_rights: AtomicBool::new(false) }
    }

    /// Whether all parts have been loaded once.
    pub(super) fn is_loaded(&self) -> bool {
        !self.has_rights() || self.parts.iter().all(|part| part.is_loaded.load(Ordering::Relaxed))
    }

    /// Whether the user of this node may read overrides, as far as is known.
    pub(super) fn has_rights(&self) -> bool {
        !self.has_no_rights.load(Ordering::Relaxed)
    }

    /// Follows all parts, each for itself: a server that does not answer delays no other. Never
    /// returns.
    pub(super) async fn follow(&self, map: &Map) {
        let parts = join_all((0..PARTS).map(|number| self.follow_one(number, map)));
        tokio::join!(parts, self.keep_subscribed());
    }

    async fn follow_one(&self, number: usize, map: &Map) {
        loop {
            let is_well = self.parts[number].trouble.load().is_none();
            let woken = timeout(if is_well { EVERY } else { AGAIN }, self.registry.woken(number)).await;
            if woken.is_ok() {
                tokio::time::sleep(TOGETHER).await;
            }
            self.ask_one(number, map).await;
        }
    }

    async fn keep_subscribed(&self) {
        loop {
            if self.is_loaded() {
                self.registry.subscribe().await;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Asks for the changes of all parts.
    pub(super) async fn ask(&self, map: &Map) {
        join_all((0..PARTS).map(|number| self.ask_one(number, map))).await;
    }

    /// Asks for the changes of one part, and notes why it does not answer.
    pub(super) async fn ask_one(&self, number: usize, map: &Map) {
        let part = &self.parts[number];
        let _asking = part.asking.lock().await;
        match self.catch_up(number, map).await {
            Ok(()) => {
                part.complete_at.store(unix_micros(), Ordering::Relaxed);
                part.trouble.store(None);
                self.has_no_rights.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                if lacks_rights(&error) && !self.has_no_rights.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "this node can have no overrides, since it lacks rights in Redis");
                }
                part.trouble.store(Some(Arc::new(error.to_string())));
            }
        }
    }

    async fn catch_up(&self, number: usize, map: &Map) -> Result<(), StoreError> {
        let part = &self.parts[number];
        loop {
            let known = part.version.load(Ordering::Relaxed);
            let since = part.is_loaded.load(Ordering::Relaxed).then_some(known);
            let has_ended = part.has_ended.swap(false, Ordering::Relaxed);
            if since.is_some() && !has_ended && self.registry.newest(number).await? == known {
                return Ok(());
            }
            let RecordChanges { now, newest, changes } = self.registry.changes(number, since).await?;
            if since == Some(newest) {
                return Ok(());
            }
            let follows = changes.first().is_some_and(|first| first.last == known);
            if since.is_none() || !follows {
                self.load(number, newest, now, map).await?;
                continue;
            }
            for change in &changes {
                let name = change.fields.get("name").and_then(|name| Name::parse(name));
                if let Some(name) = name {
                    let after = change.fields.get("after").and_then(|text| stored(text));
                    apply(map, &name, change.version, after, now);
                }
                part.version.store(change.version, Ordering::Relaxed);
            }
            if part.version.load(Ordering::Relaxed) == newest {
                return Ok(());
            }
        }
    }

    /// Loads all entries of a part, which has had changes up to the version `newest`. Changes after
    /// that are applied next, whether or not a page has them already.
    async fn load(&self, number: usize, newest: u64, now: Micros, map: &Map) -> Result<(), StoreError> {
        let (part, mut cursor, mut names) = (&self.parts[number], 0, HashSet::new());
        let was_loaded = part.is_loaded.load(Ordering::Relaxed);
        loop {
            let (next, records) = self.registry.page(number, cursor).await?;
            for (name, text) in records {
                let Some((name, stored)) = Name::parse(&name).zip(self::stored(&text)) else { continue };
                let terms = |policy: &str, written| map.terms(policy, written);
                if was_loaded {
                    names.insert(name.clone());
                }
                let entry = stored.entry(name, terms);
                if entry.expires_at > now {
                    map.replace(entry);
                } else {
                    part.has_ended.store(true, Ordering::Relaxed);
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        if was_loaded {
            tracing::info!(part = number, "the overrides of a part were loaded anew");
            map.remove_gone(|entry| Registry::part(entry.name.as_str()) == number && !names.contains(&entry.name));
        }
        part.version.store(newest, Ordering::Relaxed);
        part.is_loaded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Now by the clock of an entry's server, us.
    pub(super) fn now(&self, name: &Name) -> Micros {
        self.registry.now(Registry::part(name.as_str()))
    }

    /// Has the server drop entries that have ended with this one.
    pub(super) fn note_end(&self, name: &Name) {
        self.parts[Registry::part(name.as_str())].has_ended.store(true, Ordering::Relaxed);
    }

    /// The latest time of all servers, us.
    pub(super) fn latest(&self) -> Micros {
        (0..PARTS).map(|part| self.registry.now(part)).max().unwrap_or_default()
    }

    /// How old the state of the least complete part is, us.
    pub(super) fn lag(&self) -> Micros {
        let complete = self.parts.iter().map(|part| part.complete_at.load(Ordering::Relaxed));
        unix_micros().saturating_sub(complete.min().unwrap_or_default())
    }

    /// Why some changes may not be in force here.
    pub(super) fn reason(&self) -> Option<String> {
        if !self.has_rights() {
            return None;
        }
        let lag = self.lag();
        let trouble = || {
            let trouble = self.parts.iter().find_map(|part| part.trouble.load_full());
            trouble.map(|trouble| format!(": {trouble}")).unwrap_or_default()
        };
        match self.is_loaded() {
            false => Some(format!("the overrides are not loaded yet{}", trouble())),
            true if lag > LATE => {
                Some(format!("the overrides are those of {} s ago{}", lag / MICROS_PER_SECOND, trouble()))
            }
            true => None,
        }
    }

    /// Writes a change, with a version above all that this node has seen of its part.
    pub(super) async fn write(&self, name: &str, change: RecordChange<'_>) -> Result<RecordWritten, StoreError> {
        let number = Registry::part(name);
        let floor = self.parts[number].version.load(Ordering::Relaxed);
        let kept = (KEPT / PARTS, KEPT_FOR);
        self.registry.write(number, &RecordChange { floor, kept, ..change }).await
    }

    /// See [`super::Overrides::note`].
    pub(super) async fn note(&self, note: Note) -> Result<AuditEntry, StoreError> {
        let Note { kind, by, policy, matched, reason } = &note;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (policy, matched, reason) = (text(policy), text(matched), text(reason));
        let fields = [("kind", kind.name()), ("by", by), ("policy", &policy), ("match", &matched), ("reason", &reason)];
        let name = Name::new(&policy, &matched);
        let log = if *kind == Kind::Notice { Log::Notices } else { Log::Changes };
        let change = RecordChange { fields: &fields, log, ..RecordChange::default() };
        let written = self.write(name.as_str(), change).await?;
        match written {
            RecordWritten::Done { version, at, .. } => Ok(note.entry(version, at)),
            other => Err(StoreError::Unknown(format!("an entry of the audit was answered by {other:?}"))),
        }
    }

    /// See [`super::Overrides::audit`]. The logs answer for themselves. Entries are complete down to
    /// the oldest one of a log that has more.
    pub(super) async fn audit(
        &self,
        mut before: u64,
        most: usize,
        is_wanted: impl Fn(&AuditEntry) -> bool,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let mut found: Vec<AuditEntry> = Vec::new();
        for _ in 0..ROUNDS {
            let logs = (0..PARTS).flat_map(|part| Log::ALL.map(|log| self.registry.log(part, log, before, most)));
            let logs = join_all(logs).await;
            let logs: Vec<Vec<LoggedChange>> = logs.into_iter().collect::<Result<_, _>>()?;
            let full = logs.iter().filter(|log| log.len() == most).filter_map(|log| log.last());
            let complete = full.map(|oldest| oldest.version).max();
            let changes = logs.into_iter().flatten().filter(|change| Some(change.version) >= complete);
            let mut entries: Vec<AuditEntry> = changes.filter_map(audit_entry).filter(&is_wanted).collect();
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.version));
            found.append(&mut entries);
            match complete {
                Some(complete) if found.len() < most => before = complete,
                _ => break,
            }
        }
        // Entries of the last version are on one page, since the next one begins below it.
        let last = found.get(most.saturating_sub(1)).map_or(0, |entry| entry.version);
        found.retain(|entry| entry.version >= last);
        Ok(found)
    }
}

/// An entry as the scripts write it. A text of another program is none.
pub(super) fn stored(text: &str) -> Option<Stored> {
    serde_json::from_str(text).ok()
}

fn audit_entry(change: LoggedChange) -> Option<AuditEntry> {
    let LoggedChange { version, mut fields, .. } = change;
    let mut take = |name: &str| fields.remove(name).filter(|text| !text.is_empty());
    let kind = take("kind")?;
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
    let (at, by) = (take("at")?.parse().ok()?, take("by").unwrap_or_default());
    let (policy, matched, reason) = (take("policy"), take("match"), take("reason"));
    let (before, after) = (take("before"), take("after"));
    let (before, after) = (before.and_then(|text| stored(&text)), after.and_then(|text| stored(&text)));
    Some(AuditEntry { version, at, kind, by, policy, matched, before, after, reason })
}
