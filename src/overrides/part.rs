//! A part of the overrides in Redis, as far as this node knows it.
//!
//! The node applies the changes of the log. If they do not follow what it knows, or if the part is
//! lost or incomplete, it compares the whole part: for each name the greater version stands, here
//! and in Redis. So nodes restore what Redis has lost, in any order and any number of them at once.
//!
//! Two cases forbid to write: the registry has dropped removals that this node may not know, or it
//! has another name and is older than the last look of this node at the one before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use super::audit::{KEPT, KEPT_FOR};
use super::entry::{Entry, Name, Stored};
use super::follow::Followed;
use super::map::Map;
use crate::clock::unix_micros;
use crate::limit::time::Micros;
use crate::store::StoreError;
use crate::store::redis::registry::{PARTS, RESTORED, RecordChanges, RecordState, Restore, new_generation};

/// How much of its log and of its removals a part keeps.
pub(super) const KEPT_OF_PART: (usize, u64) = (KEPT / PARTS, KEPT_FOR);

/// The author of an entry of the audit that says what nodes have written back.
const AUTHOR: &str = "a node";

/// A part of the overrides.
#[derive(Debug, Default)]
pub(super) struct FollowedPart {
    /// Locked while the node asks, so that changes are applied in order.
    pub(super) asking: tokio::sync::Mutex<()>,
    is_loaded: AtomicBool,
    /// Whether the server has entries that have ended.
    has_ended: AtomicBool,
    /// When the part was last complete, us by this machine's clock.
    pub(super) complete_at: AtomicU64,
    pub(super) trouble: ArcSwapOption<String>,
    known: Mutex<Known>,
    missing: Mutex<Missing>,
}

/// The state of a part that this node knows.
#[derive(Debug, Default, Clone)]
struct Known {
    /// The version of the last change that is in force here.
    version: u64,
    /// None for a part that had no state when it was last seen.
    state: Option<RecordState>,
    /// When the state was last seen, us by the clock of its server.
    seen_at: Micros,
    /// The names of all registries that the node has followed here.
    registries: BTreeSet<Box<str>>,
    /// The fields of a part without a state, if the node has asked for it.
    fields: Option<u64>,
}

/// The entries that this node has, and Redis has not.
#[derive(Debug, Default)]
struct Missing {
    entries: HashMap<Name, u64>,
    /// Whether they are those of another registry, which this node does not write to this one.
    are_foreign: bool,
    /// How many entries have ended here, since Redis has dropped removals that this node lacks.
    ended: usize,
}

/// The content of a part in Redis.
struct Pulled {
    /// The versions of entries and removals.
    versions: HashMap<Name, u64>,
    /// Entries whose time is over, which the server has not yet dropped.
    ended: Vec<Arc<Entry>>,
}

impl FollowedPart {
    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Relaxed)
    }

    /// Has the server drop entries that have ended.
    pub(super) fn note_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// The version of the last change that is in force here.
    pub(super) fn version(&self) -> u64 {
        self.known().version
    }

    /// The generation that this node knows; empty for none.
    pub(super) fn generation(&self) -> Box<str> {
        self.known().state.as_ref().map(|state| state.generation.clone()).unwrap_or_default()
    }

    /// Whether a state that the server has at `now` (us) is the one that the node knows.
    pub(super) fn is_current(&self, state: Option<&RecordState>, now: Micros, is_used: bool) -> bool {
        let mut known = self.known();
        let is_same = match (&known.state, state) {
            (None, None) => !is_used,
            (Some(seen), Some(state)) => {
                (&seen.generation, seen.newest) == (&state.generation, state.newest) && known.version >= state.newest
            }
            _ => false,
        };
        let is_current =
            is_same && self.is_loaded() && self.trouble.load().is_none() && !self.has_ended.load(Ordering::Relaxed);
        if is_current {
            known.seen_at = known.seen_at.max(now);
        }
        is_current
    }

    /// The entries that this node has and Redis has not, and whether they are of another registry.
    pub(super) fn missing(&self, map: &Map) -> (Vec<Name>, bool) {
        let missing = self.lock_missing();
        let is_in_force =
            |(name, version): &(&Name, &u64)| map.get(name).is_some_and(|entry| entry.version == **version);
        let names = missing.entries.iter().filter(is_in_force).map(|(name, _)| name.clone()).collect();
        (names, missing.are_foreign)
    }

    /// The version of an entry that this node does not write to Redis; 0 without one.
    pub(super) fn set_apart(&self, name: &Name) -> u64 {
        let missing = self.lock_missing();
        missing.entries.get(name).copied().filter(|_| missing.are_foreign).unwrap_or_default()
    }

    /// How many entries have ended here without their removal.
    pub(super) fn ended(&self) -> usize {
        self.lock_missing().ended
    }

    /// Redis has all entries, but for those of another registry.
    fn note_written(&self) {
        let mut missing = self.lock_missing();
        if !missing.are_foreign {
            missing.entries.clear();
        }
    }

    fn saw(&self, look: &RecordChanges) {
        let mut known = self.known();
        (known.version, known.state, known.seen_at) = (look.newest, look.state.clone(), look.now);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_missing(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    /// Puts the changes of a part into force, and compares the whole part if they do not suffice.
    pub(super) async fn catch_up(&self, number: usize, map: &Map) -> Result<(), StoreError> {
        let part = &self.parts[number];
        let (look, follows) = self.apply_changes(number, map).await?;
        let Some(state) = &look.state else {
            let is_used = self.is_used() || look.fields > 0;
            return match part.is_loaded() {
                false => self.begin(number, &look, map).await,
                true if is_used => self.compare(number, &look, map).await,
                true => {
                    part.saw(&look);
                    Ok(())
                }
            };
        };
        self.note_use();
        let is_same = part.generation() == state.generation;
        if !part.is_loaded() || !follows || look.is_damaged || !is_same {
            return self.compare(number, &look, map).await;
        }
        part.saw(&look);
        Ok(())
    }

    /// Puts the changes of the log into force. Returns the last look, and whether each change
    /// follows the one before. The node has all changes up to the first that does not.
    async fn apply_changes(&self, number: usize, map: &Map) -> Result<(RecordChanges, bool), StoreError> {
        let part = &self.parts[number];
        let (mut last, mut follows) = (part.version(), true);
        loop {
            part.has_ended.store(false, Ordering::Relaxed);
            let since = part.is_loaded().then_some(last);
            let look = self.registry.changes(number, since, KEPT_OF_PART).await?;
            self.note_version(look.newest);
            if since.is_none() {
                return Ok((look, true));
            }
            for change in &look.changes {
                follows &= change.last == last;
                last = change.version;
                if let Some(name) = change.fields.get("name").and_then(|name| Name::parse(name)) {
                    let text = change.fields.get("after").filter(|text| !text.is_empty());
                    apply(map, &name, change.version, text.map(String::as_str), look.now);
                }
                if follows {
                    part.known().version = last;
                }
            }
            if last == look.newest || look.changes.is_empty() {
                follows &= last == look.newest;
                return Ok((look, follows));
            }
        }
    }

    /// Begins with a part that has no state. All parts of a new registry have none. If others have
    /// one, this part is lost, and running nodes write it back within a while.
    async fn begin(&self, number: usize, look: &RecordChanges, map: &Map) -> Result<(), StoreError> {
        let part = &self.parts[number];
        part.known().fields = Some(look.fields);
        let fields = |part: &FollowedPart| part.known().fields;
        if !self.parts.iter().all(|part| part.is_loaded() || fields(part).is_some()) {
            return Ok(());
        }
        if !self.is_used() {
            if self.parts.iter().all(|part| fields(part).is_none_or(|fields| fields == 0)) {
                part.saw(look);
                part.is_loaded.store(true, Ordering::Relaxed);
                return Ok(());
            }
            // Entries of a former version, which knew no generations.
            self.adopt();
        }
        if self.awaits_lost_parts() {
            return Ok(());
        }
        if !self.adopts() {
            tracing::warn!(part = number, "a part of the overrides is lost in Redis, and no running node has it");
        }
        self.compare(number, look, map).await
    }

    /// Compares all entries of a part: the greater version of each stands, here and in Redis.
    async fn compare(&self, number: usize, look: &RecordChanges, map: &Map) -> Result<(), StoreError> {
        let part = &self.parts[number];
        let Pulled { versions: found, ended } = self.pull(number, look, map).await?;
        let is_newer = |name: &Name, version: u64| found.get(name).is_none_or(|found| *found < version);
        let (entries, removals, dropped) = map.of_part(number);
        let lives = |entry: &Arc<Entry>| entry.expires_at > look.now;
        let (mut missing, present): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| is_newer(&entry.name, entry.version));
        missing.retain(lives);
        // The sorted set of ends may be lost alone, and the server drops nothing without it.
        let has_end = |entry: &Arc<Entry>| entry.ends() > 0;
        let ends: Vec<_> = present.into_iter().filter(has_end).chain(ended).filter(|_| look.is_damaged).collect();
        let mut removals: Vec<_> = removals.into_iter().filter(|(name, version)| is_newer(name, *version)).collect();
        let known = part.known().clone();
        if part.is_loaded() && look.state.as_ref().is_some_and(|state| state.dropped > known.version) {
            end(part, map, number, &missing);
            (missing, removals) = Default::default();
        } else if is_foreign(&known, look) {
            set_apart(part, number, &missing);
            (missing, removals) = Default::default();
        }
        keep_apart(part, &mut missing);
        let registry = known.state.as_ref().map(|state| state.registry().to_owned());
        let mut next = Known { version: look.newest, state: look.state.clone(), seen_at: look.now, ..known.clone() };
        if look.state.is_none() || look.is_damaged || !missing.is_empty() || !removals.is_empty() {
            let entries: Vec<_> = missing.into_iter().chain(ends).collect();
            let (state, before) =
                self.write_back(number, (known.version, dropped), registry, &entries, &removals).await?;
            // Otherwise others have changed the part meanwhile, and the node looks again.
            if before == look.newest {
                next.version = state.newest;
            }
            self.note_version(state.newest);
            self.note_use();
            next.state = Some(state);
        }
        next.registries.extend(next.state.as_ref().map(|state| state.registry().into()));
        part.note_written();
        *part.known() = next;
        part.is_loaded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Puts the entries and the removals of a part into force as far as they are newer. Changes after
    /// the look are applied next, whether or not a page has them already.
    async fn pull(&self, number: usize, look: &RecordChanges, map: &Map) -> Result<Pulled, StoreError> {
        let (part, mut cursor, mut found, mut ended) = (&self.parts[number], 0, HashMap::new(), Vec::new());
        loop {
            let (next, records) = self.registry.page(number, cursor).await?;
            for (name, text) in records {
                let terms = |policy: &str, limits| map.terms(policy, limits);
                let entry = Name::parse(&name).and_then(|name| Stored::parse(&text, name, terms));
                let Some(entry) = entry else { continue };
                let (name, version) = (entry.name.clone(), entry.version);
                if entry.expires_at <= look.now {
                    part.note_end();
                    map.apply(&name, version, None);
                    ended.push(Arc::new(entry));
                } else {
                    map.apply(&name, version, Some(entry));
                }
                found.insert(name, version);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        for (name, version) in self.registry.removals(number).await? {
            let Some(name) = Name::parse(&name) else { continue };
            map.apply(&name, version, None);
            let known = found.entry(name).or_default();
            *known = version.max(*known);
        }
        Ok(Pulled { versions: found, ended })
    }

    /// Writes entries and removals back, and the ends of entries that Redis has. Returns the state of
    /// the part, and its newest version before.
    async fn write_back(
        &self,
        number: usize,
        (newest, dropped): (u64, u64),
        registry: Option<String>,
        missing: &[Arc<Entry>],
        removals: &[(Name, u64)],
    ) -> Result<(RecordState, u64), StoreError> {
        let entries = missing
            .iter()
            .map(|entry| (entry.name.as_str(), entry.version, Some(entry.text().into_owned()), entry.ends()));
        let removals = removals.iter().map(|(name, version)| (name.as_str(), *version, None, 0));
        let all: Vec<_> = entries.chain(removals).collect();
        let mut pages: Vec<Vec<_>> = all.chunks(RESTORED).map(<[_]>::to_vec).collect();
        let last = pages.pop().unwrap_or_default();
        let mut before = (0, 0);
        let of = |records, before, generation| {
            let (kept, author) = (KEPT_OF_PART, AUTHOR);
            Restore { generation, newest, dropped, kept, author, before, records }
        };
        for page in pages {
            let restored = self.registry.restore(number, &of(page, before, "")).await?;
            before = (restored.records, restored.removals);
        }
        let restored = self.registry.restore(number, &of(last, before, &new_generation(registry.as_deref()))).await?;
        self.restored.add(restored.records, restored.removals);
        restored.sealed.ok_or_else(|| StoreError::Unknown("a restored part has no state".to_owned()))
    }
}

/// Whether this is another registry than the node has followed, and older than its last look at
/// that one. A younger one replaces a lost one.
fn is_foreign(known: &Known, look: &RecordChanges) -> bool {
    let is_other = |state: &&RecordState| known.state.is_some() && !known.registries.contains(state.registry());
    look.state.as_ref().filter(is_other).is_some_and(|state| state.birth < known.seen_at)
}

/// Ends entries that others may have removed while this node was away.
fn end(part: &FollowedPart, map: &Map, number: usize, entries: &[Arc<Entry>]) {
    if entries.is_empty() {
        return;
    }
    map.end(entries);
    part.lock_missing().ended += entries.len();
    tracing::warn!(
        part = number,
        overrides = entries.len(),
        policies = policies(entries),
        "overrides of this node ended, since Redis lacks them and has dropped removals that this node may not know"
    );
}

/// Keeps entries of another registry from this one.
fn set_apart(part: &FollowedPart, number: usize, entries: &[Arc<Entry>]) {
    let mut missing = part.lock_missing();
    missing.are_foreign = !entries.is_empty();
    missing.entries = entries.iter().map(|entry| (entry.name.clone(), entry.version)).collect();
    if entries.is_empty() {
        return;
    }
    tracing::warn!(
        part = number,
        overrides = entries.len(),
        policies = policies(entries),
        "the store has another registry of overrides than before, which lacks overrides of this node"
    );
}

/// Leaves those entries out that belong to another registry, and notes the others until Redis has
/// them.
fn keep_apart(part: &FollowedPart, missing: &mut Vec<Arc<Entry>>) {
    let mut known = part.lock_missing();
    if known.are_foreign {
        let Missing { entries, .. } = &*known;
        missing.retain(|entry| entries.get(&entry.name) != Some(&entry.version));
    } else {
        known.entries = missing.iter().map(|entry| (entry.name.clone(), entry.version)).collect();
    }
}

fn policies(entries: &[Arc<Entry>]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    entries.iter().for_each(|entry| *counts.entry(entry.name.policy()).or_default() += 1);
    counts.keys().copied().collect::<Vec<_>>().join(", ")
}

/// Puts what the log has of a name into force. An entry whose time is over has ended.
pub(super) fn apply(map: &Map, name: &Name, version: u64, text: Option<&str>, now: Micros) {
    let terms = |policy: &str, limits| map.terms(policy, limits);
    let next = text.and_then(|text| Stored::parse(text, name.clone(), terms));
    map.apply(name, version, next.filter(|entry| entry.expires_at > now));
}

/// The age of the state of the least complete part, us.
pub(super) fn lag(parts: &[FollowedPart]) -> Micros {
    let complete = parts.iter().map(|part| part.complete_at.load(Ordering::Relaxed));
    unix_micros().saturating_sub(complete.min().unwrap_or_default())
}
