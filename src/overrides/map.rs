//! The entries that a node knows, in memory. Each check looks here, so no check asks a store.
//!
//! Entries of whole keys are found by the fingerprint that a check has anyway. The others are few
//! distinct lengths of prefixes and networks, in the matchers of lists. An index has all names in
//! order, for operators.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use arc_swap::ArcSwap;
use dashmap::DashMap;

use super::entry::{Entry, Grant, Name, Ordered, Terms};
use super::removals::Removals;
use crate::config::inline::Limits;
use crate::limit::key::{Fingerprint, FingerprintState, Fingerprinter};
use crate::limit::matches::{Matches, Pattern};
use crate::limit::network::Network;
use crate::limit::policy::{Listed, Policy};
use crate::limit::time::Micros;
use crate::store::redis::Registry;
use crate::store::redis::registry::PARTS;

/// The entries of a node.
#[derive(Debug)]
pub(super) struct Map {
    fingerprinter: Fingerprinter,
    /// Number of entries. A node without entries looks no further.
    len: AtomicUsize,
    /// Number of changes so far.
    changes: AtomicU64,
    /// Number of entries whose grant a later version of this program knows.
    unknown: AtomicUsize,
    keys: DashMap<Fingerprint, Arc<Entry>, FingerprintState>,
    /// By policy, those that match more than one key.
    wide: ArcSwap<HashMap<Box<str>, Arc<RwLock<Wide>>>>,
    index: Mutex<Index>,
    /// Shared quotas by policy and text.
    terms: Mutex<HashMap<String, Weak<Terms>>>,
}

/// Entries of prefixes and networks under one policy, by what they grant.
#[derive(Debug, Default)]
struct Wide {
    deny: Matches<Arc<Entry>>,
    allow: Matches<Arc<Entry>>,
    counted: Matches<Arc<Entry>>,
}

#[derive(Debug)]
struct Index {
    names: BTreeSet<Ordered>,
    /// The entries that end, the first one first.
    ends: BTreeSet<(Micros, Name)>,
    /// Number of entries by policy.
    policies: BTreeMap<Box<str>, usize>,
    /// By the part of the registry, which may lose them.
    parts: Vec<Part>,
}

/// The entries of a part, and those that it had.
#[derive(Debug, Default)]
struct Part {
    entries: HashSet<Ordered>,
    removals: Removals,
}

/// The key of a check, and what identifies it under its policy.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// In the spelling that is counted.
    pub normalised: &'a str,
    /// As the caller wrote it.
    pub written: &'a str,
    pub fingerprint: Fingerprint,
}

/// The entry that decides for a key or a pattern, and the policy that counts by it.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) entry: Arc<Entry>,
    pub(super) counted: Option<Arc<Policy>>,
}

impl Wide {
    fn of(&mut self, grant: &Grant) -> &mut Matches<Arc<Entry>> {
        match grant.listed() {
            Some(Listed::Deny) => &mut self.deny,
            Some(Listed::Allow) => &mut self.allow,
            None => &mut self.counted,
        }
    }
}

impl Map {
    pub(super) fn new(fingerprinter: Fingerprinter) -> Self {
        let (len, changes, unknown, keys, wide, terms) = Default::default();
        let (names, ends, policies) = Default::default();
        let parts = (0..PARTS).map(|_| Part::default()).collect();
        let index = Mutex::new(Index { names, ends, policies, parts });
        Self { fingerprinter, len, changes, unknown, keys, wide, index, terms }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Number of entries whose grant only a later version of this program knows.
    pub(super) fn unknown(&self) -> usize {
        self.unknown.load(Ordering::Relaxed)
    }

    fn fingerprint(&self, policy: &str, key: &str) -> Fingerprint {
        self.fingerprinter.fingerprint(policy, key)
    }

    /// The entry that decides for a key: `deny`, else `allow`, else the quotas of the most exact
    /// match that `policy` can count.
    pub(super) fn find(&self, policy: &Arc<Policy>, key: Key<'_>) -> Option<Live> {
        if self.len() == 0 {
            return None;
        }
        let own = self.keys.get(&key.fingerprint).map(|entry| entry.clone());
        let Some(wide) = self.wide_of(&policy.name) else { return own.and_then(|entry| live(entry, policy)) };
        let wide = wide.read().unwrap_or_else(PoisonError::into_inner);
        let listed = |listed, matches: &Matches<Arc<Entry>>| {
            let is_own = |entry: &&Arc<Entry>| entry.grant.listed() == Some(listed);
            let wider = || matches.find(key.normalised, key.written).map(|(_, entry)| entry);
            own.as_ref().filter(is_own).or_else(wider).map(|entry| Live { entry: entry.clone(), counted: None })
        };
        listed(Listed::Deny, &wide.deny).or_else(|| listed(Listed::Allow, &wide.allow)).or_else(|| {
            let wider = wide.counted.matching(key.normalised, key.written).map(|(_, entry)| entry);
            own.iter().chain(wider).find_map(|entry| live(entry.clone(), policy))
        })
    }

    /// The entry that decides for all keys of a pattern, itself or a wider one.
    pub(super) fn covering(&self, policy: &Arc<Policy>, name: &Name) -> Option<Live> {
        let pattern = name.pattern()?;
        let own = match pattern {
            Pattern::Key(_) => self.get(name),
            _ => None,
        };
        let wide = self.wide_of(&policy.name);
        let wide = wide.as_ref().map(|wide| wide.read().unwrap_or_else(PoisonError::into_inner));
        let of = |matches: fn(&Wide) -> &Matches<Arc<Entry>>| {
            let wider = wide.iter().flat_map(|wide| matches(wide).covering(pattern));
            wider.map(|(_, entry)| entry.clone()).collect::<Vec<_>>()
        };
        let listed = |listed, matches| {
            let is_listed = |entry: &Arc<Entry>| entry.grant.listed() == Some(listed);
            let mut all = own.iter().cloned().chain(of(matches));
            all.find(is_listed).map(|entry| Live { entry, counted: None })
        };
        listed(Listed::Deny, |wide| &wide.deny)
            .or_else(|| listed(Listed::Allow, |wide| &wide.allow))
            .or_else(|| {
                let mut all = own.iter().cloned().chain(of(|wide| &wide.counted));
                all.find_map(|entry| live(entry, policy))
            })
    }

    /// The entries of prefixes that count a part of a network.
    pub(super) fn counted_within(&self, policy: &Arc<Policy>, network: Network) -> Vec<Live> {
        let Some(wide) = self.wide_of(&policy.name) else { return Vec::new() };
        let wide = wide.read().unwrap_or_else(PoisonError::into_inner);
        wide.counted.prefixes_within(network).filter_map(|(_, entry)| live(entry.clone(), policy)).collect()
    }

    fn wide_of(&self, policy: &str) -> Option<Arc<RwLock<Wide>>> {
        let wide = self.wide.load();
        if wide.is_empty() { None } else { wide.get(policy).cloned() }
    }

    /// The entry of a name.
    pub(super) fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        self.lock().names.get(name.as_str()).map(|entry| entry.0.clone())
    }

    /// Puts the entry of a change into force, or ends the one of its name. A change of an older
    /// version than the entry in force, or than its removal, does nothing.
    pub(super) fn apply(&self, name: &Name, version: u64, next: Option<Entry>) {
        let mut index = self.lock();
        let known = index.names.get(name.as_str()).map(|entry| entry.0.clone());
        let part = Registry::part(name.as_str());
        let removed = index.parts[part].removals.version(name);
        if version <= removed || known.as_ref().is_some_and(|known| known.version >= version) {
            return;
        }
        if let Some(known) = known {
            self.remove(&mut index, &known);
        }
        match next {
            Some(next) => {
                index.parts[part].removals.forget(name);
                self.insert(&mut index, Arc::new(next));
            }
            None => index.parts[part].removals.note(name, version),
        }
    }

    /// Ends the entries whose time is over: `now` returns us by the clock of an entry's store, and
    /// `latest` is at least as late.
    pub(super) fn expire(&self, latest: Micros, now: impl Fn(&Name) -> Micros) -> Vec<Arc<Entry>> {
        let mut index = self.lock();
        let due = index.ends.iter().take_while(|(end, _)| *end <= latest).filter(|(end, name)| *end <= now(name));
        let due: Vec<Arc<Entry>> =
            due.filter_map(|(_, name)| index.names.get(name.as_str()).map(|entry| entry.0.clone())).collect();
        for entry in &due {
            self.remove(&mut index, entry);
            index.parts[Registry::part(entry.name.as_str())].removals.note(&entry.name, entry.version);
        }
        due
    }

    /// The entries of a part, its removals, and the greatest version among those that were dropped.
    pub(super) fn of_part(&self, part: usize) -> (Vec<Arc<Entry>>, Vec<(Name, u64)>, u64) {
        let index = self.lock();
        let Part { entries, removals } = &index.parts[part];
        let entries = entries.iter().map(|entry| entry.0.clone()).collect();
        let known = removals.iter().map(|(name, version)| (name.clone(), version)).collect();
        (entries, known, removals.dropped())
    }

    /// Ends entries whose removals the registry no longer knows.
    pub(super) fn end(&self, entries: &[Arc<Entry>]) {
        let mut index = self.lock();
        for entry in entries {
            let known = index.names.get(entry.name.as_str()).map(|known| known.0.clone());
            if let Some(known) = known.filter(|known| known.version == entry.version) {
                self.remove(&mut index, &known);
            }
        }
    }

    fn insert(&self, index: &mut Index, entry: Arc<Entry>) {
        let (policy, pattern) = (entry.name.policy(), entry.name.pattern());
        match pattern {
            Some(Pattern::Key(key)) => drop(self.keys.insert(self.fingerprint(policy, key), entry.clone())),
            Some(pattern) => {
                let wide = self.wide_of(policy).unwrap_or_else(|| {
                    let wide = Arc::<RwLock<Wide>>::default();
                    let mut all = HashMap::clone(&self.wide.load());
                    all.insert(policy.into(), wide.clone());
                    self.wide.store(Arc::new(all));
                    wide
                });
                let mut wide = wide.write().unwrap_or_else(PoisonError::into_inner);
                wide.of(&entry.grant).insert(pattern, entry.clone());
            }
            None => return,
        }
        if entry.expires_at < Micros::MAX {
            index.ends.insert((entry.expires_at, entry.name.clone()));
        }
        *index.policies.entry(policy.into()).or_default() += 1;
        index.parts[Registry::part(entry.name.as_str())].entries.insert(Ordered(entry.clone()));
        self.unknown.fetch_add(usize::from(matches!(entry.grant, Grant::Unknown)), Ordering::Relaxed);
        index.names.insert(Ordered(entry.clone()));
        self.len.fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, index: &mut Index, entry: &Arc<Entry>) {
        let policy = entry.name.policy();
        match entry.name.pattern() {
            Some(Pattern::Key(key)) => drop(self.keys.remove(&self.fingerprint(policy, key))),
            Some(pattern) => {
                if let Some(wide) = self.wide_of(policy) {
                    let mut wide = wide.write().unwrap_or_else(PoisonError::into_inner);
                    wide.of(&entry.grant).remove(pattern);
                }
            }
            None => return,
        }
        index.ends.remove(&(entry.expires_at, entry.name.clone()));
        if let Some(count) = index.policies.get_mut(policy) {
            *count -= 1;
        }
        index.parts[Registry::part(entry.name.as_str())].entries.remove(entry.name.as_str());
        self.unknown.fetch_sub(usize::from(matches!(entry.grant, Grant::Unknown)), Ordering::Relaxed);
        index.names.remove(entry.name.as_str());
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Up to `most` entries of a policy in the order of their matches, from those after `after`, of
    /// which each match begins with `start`.
    pub(super) fn list(&self, policy: &str, start: &str, after: Option<&str>, most: usize) -> Vec<Arc<Entry>> {
        let first = Name::new(policy, start);
        let after = after.map(|after| Name::new(policy, after)).filter(|after| *after >= first);
        let from = match &after {
            Some(after) => Bound::Excluded(after.as_str()),
            None => Bound::Included(first.as_str()),
        };
        let index = self.lock();
        let names = index.names.range::<str, _>((from, Bound::Unbounded)).map(|entry| &entry.0);
        names
            .take_while(|entry| entry.name.as_str().starts_with(first.as_str()))
            .take(most)
            .cloned()
            .collect()
    }

    /// Number of entries by policy; also of policies that had some.
    pub(super) fn counts(&self) -> BTreeMap<Box<str>, usize> {
        self.lock().policies.clone()
    }

    /// Entries that the policies in force cannot count, such as those of a plan that left the file.
    pub(super) fn absent(&self, policy: impl Fn(&str) -> Option<Arc<Policy>>) -> usize {
        let is_absent = |entry: &Entry| {
            let policy = policy(entry.name.policy());
            let is_known = !matches!(entry.grant, Grant::Unknown);
            let is_none = |policy| entry.grant.listed().is_none() && entry.grant.counted(&policy).is_none();
            is_known && policy.is_some_and(is_none)
        };
        // A node with a million entries holds the lock for a page at a time.
        let (mut absent, mut from) = (0, None::<Name>);
        loop {
            let index = self.lock();
            let bound = from.as_ref().map_or(Bound::Unbounded, |from| Bound::Excluded(from.as_str()));
            let page: Vec<_> = index.names.range::<str, _>((bound, Bound::Unbounded)).take(1000).cloned().collect();
            drop(index);
            let Some(last) = page.last() else { return absent };
            from = Some(last.0.name.clone());
            absent += page.iter().filter(|entry| is_absent(&entry.0)).count();
        }
    }

    /// The shared limits of a policy's entries.
    pub(super) fn terms(&self, policy: &str, limits: Limits) -> Arc<Terms> {
        let text = format!("{policy} {limits:?}");
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = terms.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Terms::new(limits));
        terms.insert(text, Arc::downgrade(&new));
        new
    }

    /// Drops quotas that no entry has; called periodically.
    pub(super) fn sweep(&self) {
        self.terms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, terms| terms.strong_count() > 0);
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The effect of an entry under a policy; none if it counts as absent.
fn live(entry: Arc<Entry>, policy: &Arc<Policy>) -> Option<Live> {
    let counted = entry.grant.counted(policy);
    (counted.is_some() || entry.grant.listed().is_some()).then_some(Live { entry, counted })
}
