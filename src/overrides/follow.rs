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
    LoggedChange, RecordChange, RecordChanges, RecordWritten, Registry, SHARDS, lacks_rights,
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
    shards: Vec<Shard>,
    /// Whether the user of this node may not read overrides, so there can be none.
    has_no_rights: AtomicBool,
}

/// A part of the overrides.
#[derive(Debug, Default)]
struct Shard {
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

impl Shard {
    /// Whether the part is loaded, and its server answers.
    fn is_settled(&self) -> bool {
        self.is_loaded.load(Ordering::Relaxed) && self.trouble.load().is_none()
    }
}

impl Followed {
    pub(super) fn new(registry: Registry) -> Self {
        registry.hold_checks(true);
        let shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::default()).collect();
        let now = unix_micros();
        shards.iter().for_each(|shard| shard.complete_at.store(now, Ordering::Relaxed));
        Self { registry, shards, has_no_rights: AtomicBool::new(false) }
    }

    /// Whether all parts have been loaded once.
    pub(super) fn is_loaded(&self) -> bool {
        !self.has_rights() || self.shards.iter().all(|shard| shard.is_loaded.load(Ordering::Relaxed))
    }

    /// Whether the user of this node may read overrides, as far as is known.
    pub(super) fn has_rights(&self) -> bool {
        !self.has_no_rights.load(Ordering::Relaxed)
    }

    /// Follows all parts, each for itself: a server that does not answer delays no other. Never
    /// returns.
    pub(super) async fn follow(&self, map: &Map) {
        let parts = join_all((0..SHARDS).map(|place| self.follow_one(place, map)));
        let looks = join_all((0..SHARDS).map(|place| self.look_often(place)));
        tokio::join!(parts, looks, self.keep_subscribed());
    }

    async fn follow_one(&self, place: usize, map: &Map) {
        loop {
            if self.shards[place].is_settled() {
                self.registry.woken(place).await;
                tokio::time::sleep(TOGETHER).await;
            } else {
                let _ = timeout(AGAIN, self.registry.woken(place)).await;
            }
            self.ask_one(place, map).await;
        }
    }

    /// Wakes the followers of parts that have changed without a message.
    async fn look_often(&self, place: usize) {
        loop {
            tokio::time::sleep(EVERY).await;
            let parts = self.registry.read_with(place);
            // The other parts ask for themselves.
            if !parts.clone().any(|part| self.shards[part].is_settled()) {
                continue;
            }
            let newest = self.registry.newest(parts.clone()).await.unwrap_or_default();
            for part in parts.clone().filter(|part| self.shards[*part].is_settled()) {
                let shard = &self.shards[part];
                let known = shard.version.load(Ordering::Relaxed);
                if newest.get(part - parts.start) == Some(&known) && !shard.has_ended.load(Ordering::Relaxed) {
                    shard.complete_at.store(unix_micros(), Ordering::Relaxed);
                } else {
                    self.registry.wake(part);
                }
            }
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
        join_all((0..SHARDS).map(|place| self.ask_one(place, map))).await;
    }

    /// Asks for the changes of one part, and notes why it does not answer.
    pub(super) async fn ask_one(&self, place: usize, map: &Map) {
        let shard = &self.shards[place];
        let _asking = shard.asking.lock().await;
        match self.catch_up(place, map).await {
            Ok(()) => {
                shard.complete_at.store(unix_micros(), Ordering::Relaxed);
                shard.trouble.store(None);
                self.has_no_rights.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                if lacks_rights(&error) && !self.has_no_rights.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "this node can have no overrides, since it lacks rights in Redis");
                }
                shard.trouble.store(Some(Arc::new(error.to_string())));
            }
        }
    }

    async fn catch_up(&self, place: usize, map: &Map) -> Result<(), StoreError> {
        let shard = &self.shards[place];
        loop {
            let known = shard.version.load(Ordering::Relaxed);
            let since = shard.is_loaded.load(Ordering::Relaxed).then_some(known);
            shard.has_ended.store(false, Ordering::Relaxed);
            let RecordChanges { now, newest, changes } = self.registry.changes(place, since).await?;
            if since == Some(newest) {
                return Ok(());
            }
            let follows = changes.first().is_some_and(|first| first.last == known);
            if since.is_none() || !follows {
                self.load(place, newest, now, map).await?;
                continue;
            }
            for change in &changes {
                let name = change.fields.get("name").and_then(|name| Name::parse(name));
                if let Some(name) = name {
                    let after = change.fields.get("after").and_then(|text| stored(text));
                    apply(map, &name, change.version, after, now);
                }
                shard.version.store(change.version, Ordering::Relaxed);
            }
            if shard.version.load(Ordering::Relaxed) == newest {
                return Ok(());
            }
        }
    }

    /// Loads all entries of a part, which has had changes up to the version `newest`. Changes after
    /// that are applied next, whether or not a page has them already.
    async fn load(&self, place: usize, newest: u64, now: Micros, map: &Map) -> Result<(), StoreError> {
        let (shard, mut cursor, mut names) = (&self.shards[place], 0, HashSet::new());
        let was_loaded = shard.is_loaded.load(Ordering::Relaxed);
        loop {
            let (next, records) = self.registry.page(place, cursor).await?;
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
                    shard.has_ended.store(true, Ordering::Relaxed);
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        if was_loaded {
            tracing::info!(part = place, "the overrides of a part were loaded anew");
            map.remove_gone(|entry| Registry::shard(entry.name.as_str()) == place && !names.contains(&entry.name));
        }
        shard.version.store(newest, Ordering::Relaxed);
        shard.is_loaded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Now by the clock of an entry's server, us.
    pub(super) fn now(&self, name: &Name) -> Micros {
        self.registry.now(Registry::shard(name.as_str()))
    }

    /// Has the server drop entries that have ended with this one.
    pub(super) fn note_end(&self, name: &Name) {
        self.shards[Registry::shard(name.as_str())].has_ended.store(true, Ordering::Relaxed);
    }

    /// The latest time of all servers, us.
    pub(super) fn latest(&self) -> Micros {
        (0..SHARDS).map(|shard| self.registry.now(shard)).max().unwrap_or_default()
    }

    /// How old the state of the least complete part is, us.
    pub(super) fn lag(&self) -> Micros {
        let complete = self.shards.iter().map(|shard| shard.complete_at.load(Ordering::Relaxed));
        unix_micros().saturating_sub(complete.min().unwrap_or_default())
    }

    /// Why some changes may not be in force here.
    pub(super) fn reason(&self) -> Option<String> {
        if !self.has_rights() {
            return None;
        }
        let lag = self.lag();
        let trouble = || {
            let trouble = self.shards.iter().find_map(|shard| shard.trouble.load_full());
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
        let place = Registry::shard(name);
        let floor = self.shards[place].version.load(Ordering::Relaxed);
        let kept = (KEPT / SHARDS, KEPT_FOR);
        self.registry.write(place, &RecordChange { floor, kept, ..change }).await
    }

    /// See [`super::Overrides::note`].
    pub(super) async fn note(&self, note: Note) -> Result<AuditEntry, StoreError> {
        let Note { kind, by, policy, matched, reason } = &note;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (policy, matched, reason) = (text(policy), text(matched), text(reason));
        let fields = [("kind", kind.name()), ("by", by), ("policy", &policy), ("match", &matched), ("reason", &reason)];
        let name = Name::new(&policy, &matched);
        let written = self.write(name.as_str(), RecordChange { fields: &fields, ..RecordChange::default() }).await?;
        match written {
            RecordWritten::Done { version, at, .. } => Ok(note.entry(version, at)),
            other => Err(StoreError::Unknown(format!("an entry of the audit was answered by {other:?}"))),
        }
    }

    /// See [`super::Overrides::audit`]. The parts answer for themselves. Entries are complete down
    /// to the oldest one of a part that has more.
    pub(super) async fn audit(
        &self,
        mut before: u64,
        most: usize,
        is_wanted: impl Fn(&AuditEntry) -> bool,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let mut found: Vec<AuditEntry> = Vec::new();
        for _ in 0..ROUNDS {
            let logs = join_all((0..SHARDS).map(|shard| self.registry.log(shard, before, most))).await;
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
