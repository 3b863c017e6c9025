//! Follows the overrides in Redis.
//!
//! Each part has a log of changes. The node asks for those since the last one that it has, when a
//! message names the part. Twice a second it also looks at the states of all parts of a primary,
//! by one round trip. `part.rs` puts the changes of a part into force.
//!
//! Reading the streams by XREAD BLOCK would take a blocked connection for each part: the parts lie
//! in different slots, and a cluster rejects one command for several. The nodes ask instead,
//! and one subscription wakes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::MissedTickBehavior;

use super::audit::{AuditEntry, Kind, Note};
use super::entry::{Name, Stored};
use super::map::Map;
use super::part::{FollowedPart, KEPT_OF_PART, lag};
use crate::clock::unix_micros;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::StoreError;
use crate::store::redis::registry::{
    Address, Log, LoggedChange, PARTS, RecordChange, RecordWritten, Registry, lacks_rights,
};

/// How often a node looks whether parts have changed without a message. At every second look it
/// also looks one part through.
const EVERY: Duration = Duration::from_millis(500);

/// Messages of this time are one reason to ask.
const TOGETHER: Duration = Duration::from_millis(10);

/// Changes that are older than this are a reason in health, us.
const LATE: Micros = 3 * MICROS_PER_SECOND;

/// How long a node that starts waits for running nodes to write lost parts back, us.
const PATIENCE: Micros = 2 * MICROS_PER_SECOND;

/// How often a change is sent again to a part that was lost, or that others change.
const TRIES: usize = 4;

/// The most rounds by which a page of the audit is read.
const ROUNDS: usize = 50;

/// The overrides in Redis, as far as this node has them.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) registry: Registry,
    pub(super) parts: Vec<FollowedPart>,
    /// Whether the user of this node may not read overrides, so there can be none.
    has_no_rights: AtomicBool,
    /// Why the last change was refused for want of rights.
    refused: ArcSwapOption<String>,
    /// Whether some part has, or had, records.
    is_used: AtomicBool,
    /// Whether this node gives states to a registry of a former version, which has none.
    adopts: AtomicBool,
    /// When this node, which starts, first saw a lost part, us by this machine's clock.
    lost_since: AtomicU64,
    /// The newest version of all parts. The next change of this node exceeds it, so its changes of
    /// different parts keep their order in the audit.
    newest: AtomicU64,
    pub(super) restored: Restorals,
    /// Whether the log, and an author, know why servers may lose overrides.
    log_has_doubts: AtomicBool,
    author_has_doubts: AtomicBool,
}

/// The parts that this node has written back.
#[derive(Debug, Default)]
pub(super) struct Restorals {
    records: AtomicU64,
    removals: AtomicU64,
}

impl Restorals {
    pub(super) fn add(&self, records: u64, removals: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.removals.fetch_add(removals, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.removals.load(Ordering::Relaxed))
    }
}

impl Followed {
    pub(super) fn new(registry: Registry) -> Self {
        registry.hold_checks(true);
        let parts: Vec<FollowedPart> = (0..PARTS).map(|_| FollowedPart::default()).collect();
        let now = unix_micros();
        parts.iter().for_each(|part| part.complete_at.store(now, Ordering::Relaxed));
        let (has_no_rights, refused, is_used, adopts, lost_since, newest) = Default::default();
        let (restored, log_has_doubts, author_has_doubts) = Default::default();
        Self {
            registry,
            parts,
            has_no_rights,
            refused,
            is_used,
            adopts,
            lost_since,
            newest,
            restored,
            log_has_doubts,
            author_has_doubts,
        }
    }

    /// Whether all parts have been loaded once.
    pub(super) fn is_loaded(&self) -> bool {
        !self.has_rights() || self.parts.iter().all(FollowedPart::is_loaded)
    }

    /// Whether the user of this node may read overrides, as far as is known.
    pub(super) fn has_rights(&self) -> bool {
        !self.has_no_rights.load(Ordering::Relaxed)
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    pub(super) fn note_use(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    pub(super) fn adopts(&self) -> bool {
        self.adopts.load(Ordering::Relaxed)
    }

    /// Gives states to all parts, none of which has one.
    pub(super) fn adopt(&self) {
        self.adopts.store(true, Ordering::Relaxed);
        self.note_use();
    }

    pub(super) fn note_version(&self, version: u64) {
        self.newest.fetch_max(version, Ordering::Relaxed);
    }

    /// Whether running nodes still have time to write back what is lost.
    pub(super) fn awaits_lost_parts(&self) -> bool {
        let now = unix_micros();
        let since = match self.lost_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        };
        !self.adopts() && now.saturating_sub(since) < PATIENCE
    }

    /// Follows all parts. A primary that does not answer delays no other. Never returns.
    pub(super) async fn follow(&self, map: &Map) {
        let woken = join_all((0..PARTS).map(|number| self.follow_one(number, map)));
        tokio::join!(woken, self.look(map), self.keep_subscribed(), self.warn_of_restorals());
    }

    async fn follow_one(&self, number: usize, map: &Map) {
        loop {
            self.registry.woken(number).await;
            tokio::time::sleep(TOGETHER).await;
            self.ask_one(number, map).await;
        }
    }

    /// Looks at all parts, by one round trip to each primary.
    async fn look(&self, map: &Map) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut asked, mut looks, mut turn) = (BTreeSet::new(), FuturesUnordered::new(), 0);
        loop {
            tokio::select! {
                Some(name) = looks.next() => { asked.remove(&name); }
                _ = ticks.tick() => {
                    turn += 1;
                    for (name, (address, parts)) in self.registry.by_primary() {
                        if asked.insert(name.clone()) {
                            looks.push(async move {
                                self.look_at(&address, &parts, turn, map).await;
                                name
                            });
                        }
                    }
                }
            }
        }
    }

    async fn look_at(&self, address: &Address, parts: &[usize], turn: usize, map: &Map) {
        if !self.has_rights() {
            return self.ask_one(parts[turn % parts.len()], map).await;
        }
        let whole = parts[turn / 2 % parts.len()];
        let whole = turn.is_multiple_of(2).then(|| (whole, self.parts[whole].version()));
        let glance = match self.registry.glance(address, parts, whole, self.is_used(), KEPT_OF_PART).await {
            Ok(glance) => glance,
            Err(error) => return parts.iter().for_each(|number| self.note_look(*number, Err(error.clone()))),
        };
        let mut suspects: BTreeSet<usize> = glance.suspects.into_iter().collect();
        let states: BTreeMap<usize, _> = glance.states.into_iter().collect();
        for number in parts {
            let part = &self.parts[*number];
            // A registry that is not used shows one part of each primary.
            let state = states.get(number).and_then(Option::as_ref);
            match part.is_current(state, glance.now, self.is_used()) {
                true => part.complete_at.store(unix_micros(), Ordering::Relaxed),
                false => _ = suspects.insert(*number),
            }
        }
        join_all(suspects.into_iter().map(|number| self.ask_one(number, map))).await;
    }

    /// Why servers may lose overrides, for the author of the first change at this node.
    pub(super) fn doubts(&self) -> Vec<String> {
        if self.author_has_doubts.swap(true, Ordering::Relaxed) { Vec::new() } else { self.registry.doubts() }
    }

    async fn keep_subscribed(&self) {
        loop {
            if self.is_loaded() {
                self.registry.subscribe().await;
            }
            if self.is_loaded() && self.is_used() && !self.log_has_doubts.swap(true, Ordering::Relaxed) {
                self.registry.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Logs once what all parts have lost at once.
    async fn warn_of_restorals(&self) {
        let (mut known, mut before) = ((0, 0), (0, 0));
        loop {
            tokio::time::sleep(EVERY).await;
            let restored = self.restored.read();
            // More may follow.
            if restored != known && restored == before {
                tracing::warn!(
                    overrides = restored.0 - known.0,
                    removals = restored.1 - known.1,
                    "Redis had lost overrides, and this node wrote them back: it must keep its data on disk \
                     (appendonly yes) and evict nothing (maxmemory-policy noeviction)"
                );
                known = restored;
            }
            before = restored;
        }
    }

    /// Asks for the changes of all parts.
    pub(super) async fn ask(&self, map: &Map) {
        join_all((0..PARTS).map(|number| self.ask_one(number, map))).await;
    }

    /// Asks for the changes of one part, and notes why it does not answer.
    pub(super) async fn ask_one(&self, number: usize, map: &Map) {
        let _asking = self.parts[number].asking.lock().await;
        let asked = self.catch_up(number, map).await;
        self.note_look(number, asked);
    }

    fn note_look(&self, number: usize, looked: Result<(), StoreError>) {
        let part = &self.parts[number];
        match looked {
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

    /// Now by the clock of an entry's server, us.
    pub(super) fn now(&self, name: &Name) -> Micros {
        self.registry.now(Registry::part(name.as_str()))
    }

    /// Has the server drop entries that have ended with this one.
    pub(super) fn note_end(&self, name: &Name) {
        self.parts[Registry::part(name.as_str())].note_end();
    }

    /// The latest time of all servers, us.
    pub(super) fn latest(&self) -> Micros {
        (0..PARTS).map(|part| self.registry.now(part)).max().unwrap_or_default()
    }

    /// How old the state of the least complete part is, us.
    pub(super) fn lag(&self) -> Micros {
        lag(&self.parts)
    }

    /// The entries that this node has and Redis has not, by policy.
    pub(super) fn missing(&self, map: &Map) -> BTreeMap<Box<str>, usize> {
        let mut counts = BTreeMap::new();
        for name in self.parts.iter().flat_map(|part| part.missing(map).0) {
            *counts.entry(name.policy().into()).or_default() += 1;
        }
        counts
    }

    /// The version of an entry that this node has and does not write to Redis; 0 without one.
    pub(super) fn set_apart(&self, name: &Name) -> u64 {
        self.parts[Registry::part(name.as_str())].set_apart(name)
    }

    /// Why some changes may not be in force here.
    pub(super) fn reason(&self, map: &Map) -> Option<String> {
        let trouble = || {
            let trouble = self.parts.iter().find_map(|part| part.trouble.load_full());
            trouble.map(|trouble| format!(": {trouble}")).unwrap_or_default()
        };
        if !self.has_rights() {
            // A user may have no right to overrides from the start.
            let is_blind = self.parts.iter().all(FollowedPart::is_loaded);
            return is_blind
                .then(|| format!("this node sees no change of overrides, since it lacks rights{}", trouble()));
        }
        let lag = self.lag();
        match self.is_loaded() {
            false if self.lost_since.load(Ordering::Relaxed) > 0 => {
                Some("a part of the overrides is lost in Redis: this node waits for others to write it back".to_owned())
            }
            false => Some(format!("the overrides are not loaded yet{}", trouble())),
            true if lag > LATE => {
                Some(format!("the overrides are those of {} s ago{}", lag / MICROS_PER_SECOND, trouble()))
            }
            true => self.loss(map).or_else(|| {
                let refused = self.refused.load_full()?;
                Some(format!("changes of overrides fail, since this node lacks rights, until one succeeds: {refused}"))
            }),
        }
    }

    /// The loss that this node does not write back.
    fn loss(&self, map: &Map) -> Option<String> {
        let foreign = self.parts.iter().map(|part| part.missing(map)).filter(|(_, are_foreign)| *are_foreign);
        let foreign: usize = foreign.map(|(names, _)| names.len()).sum();
        if foreign > 0 {
            return Some(format!(
                "the store has another registry of overrides than before, which existed before this node last saw its \
                 own, without {foreign} overrides that are in force here: `tollgate overrides export` and `import` \
                 write them there, and a restart of the node forgets them"
            ));
        }
        let ended: usize = self.parts.iter().map(FollowedPart::ended).sum();
        (ended > 0).then(|| {
            format!(
                "{ended} overrides ended at this node, since Redis lacks them and others may have removed them while \
                 the node was away: the log has their policies, and a restart clears this reason"
            )
        })
    }

    /// Writes a change, with a version above all that this node has seen. A part that has lost
    /// entries gets them back first.
    pub(super) async fn write(
        &self,
        name: &str,
        change: RecordChange<'_>,
        map: &Map,
    ) -> Result<RecordWritten, StoreError> {
        let number = Registry::part(name);
        for _ in 0..TRIES {
            let (floor, generation) = (self.newest.load(Ordering::Relaxed), self.parts[number].generation());
            let change = RecordChange { floor, kept: KEPT_OF_PART, generation: &generation, ..change };
            let written = self.registry.write(number, &change).await;
            let refused = written.as_ref().err().filter(|error| lacks_rights(error));
            self.refused.store(refused.map(|error| Arc::new(error.to_string())));
            let written = written?;
            if written != RecordWritten::Lost {
                return Ok(written);
            }
            match self.is_used() {
                true => self.ask_one(number, map).await,
                // The first change of a registry gives all parts a state.
                false => {
                    self.adopt();
                    self.ask(map).await;
                }
            }
            if let Some(trouble) = self.parts[number].trouble.load_full() {
                return Err(StoreError::Unreachable(trouble.to_string()));
            }
        }
        Err(StoreError::Unreachable("Redis loses the overrides again and again".to_owned()))
    }

    /// See [`super::Overrides::note`].
    pub(super) async fn note(&self, note: Note) -> Result<AuditEntry, StoreError> {
        let Note { kind, by, policy, matched, reason } = &note;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (policy, matched, reason) = (text(policy), text(matched), text(reason));
        let fields = [("kind", kind.name()), ("by", by), ("policy", &policy), ("match", &matched), ("reason", &reason)];
        let name = Name::new(&policy, &matched);
        let log = if kind.is_of_callers() { Log::Notices } else { Log::Changes };
        let change = RecordChange { fields: &fields, kept: KEPT_OF_PART, log, ..RecordChange::default() };
        let change = RecordChange { floor: self.newest.load(Ordering::Relaxed), ..change };
        let written = self.registry.write(Registry::part(name.as_str()), &change).await?;
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
