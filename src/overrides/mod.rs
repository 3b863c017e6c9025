//! Overrides: limits that operators change while the node runs.
//!
//! An entry gives a key, a prefix or a network other quotas, a plan, or a verdict. The node answers
//! checks from its memory (`map.rs`). A keeper has the entries beside the counts: a file for the
//! embedded store (`file.rs`), or Redis (`follow.rs`). Each change is one entry of the audit
//! (`audit.rs`), which the keeper writes together with the change.
//!
//! ```text
//! PUT, DELETE   change.rs    checked against what the keys have now
//!               keeper       written, with its entry of the audit
//!               map.rs       in force
//! check         applied.rs   file, override, plan or policy
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::MissedTickBehavior;

use crate::clock::unix_micros;
use crate::config::Policies;
use crate::limit::key::Fingerprinter;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::StoreError;
use crate::store::redis::Registry;

pub mod entry;

mod removals;

mod map;

mod applied;

mod change;

mod audit;

mod file;

mod part;

mod follow;

pub use applied::{Applied, Brought, By, Less};
pub use audit::{AuditEntry, Kind, Note};
pub use change::{ChangeError, Changed, Put, Removal, Wanted};
pub use entry::{Entry, Grant, Name};
pub use map::Key;

use audit::Recent;
use file::OverridesFile;
use follow::Followed;
use map::Map;

/// The most entries, of all policies.
pub const MAX_ENTRIES: usize = 1_000_000;

/// How often entries whose time is over are ended.
const EVERY: Duration = Duration::from_millis(100);

/// Longest time for an entry of the audit that is no change of an override. Its act is done.
const NOTE_WITHIN: Duration = Duration::from_secs(2);

/// How often a node that starts looks whether it has the entries.
const LOADED_EVERY: Duration = Duration::from_millis(10);

/// How often the node looks whether its file is there.
const FILE_EVERY: Duration = Duration::from_millis(500);

/// How often the node looks whether it must note which entries it cannot count, and after how many
/// looks it does so because of changes.
const NOTED_EVERY: Duration = Duration::from_secs(1);
const NOTED_ROUNDS: u32 = 60;

/// The overrides of a node.
#[derive(Debug)]
pub struct Overrides {
    map: Map,
    /// Absent without a place for overrides. The node then takes none.
    keeper: OnceLock<Keeper>,
    /// The audit of a node without a keeper.
    memory: Mutex<Recent>,
    /// Entries that the policies in force cannot count.
    absent: AtomicUsize,
}

/// Has the entries while no node runs.
#[derive(Debug)]
enum Keeper {
    File(Box<KeptFile>),
    Redis(Box<Followed>),
}

/// The file, and what happened to it.
#[derive(Debug)]
struct KeptFile {
    file: Mutex<OverridesFile>,
    /// Why it cannot be written.
    trouble: ArcSwapOption<String>,
    restored: AtomicU64,
}

impl KeptFile {
    /// The file as this node wrote it, whatever others did to it.
    fn whole(&self, map: &Map) -> io::Result<MutexGuard<'_, OverridesFile>> {
        let mut file = lock(&self.file);
        let restored = file.restore(map, unix_micros());
        self.note(restored.as_ref().err());
        if let Some(entry) = restored? {
            tracing::warn!(overrides = map.len(), "{}", entry.reason.as_deref().unwrap_or_default());
            self.restored.fetch_add(map.len() as u64, Ordering::Relaxed);
            entry.log();
        }
        Ok(file)
    }

    /// Notes why the file cannot be written, and logs each new reason.
    fn note(&self, error: Option<&io::Error>) {
        let trouble = error.map(ToString::to_string);
        if self.trouble.load().as_deref() != trouble.as_ref()
            && let Some(trouble) = &trouble
        {
            tracing::warn!("the overrides cannot be written: {trouble}");
        }
        self.trouble.store(trouble.map(Arc::new));
    }
}

impl Overrides {
    /// No entries, and no place for any. `fingerprinter` is that of the checks.
    pub fn new(fingerprinter: Fingerprinter) -> Self {
        let (keeper, memory, absent) = Default::default();
        Self { map: Map::new(fingerprinter), keeper, memory, absent }
    }

    /// Keeps the entries in this file, and puts those in it into force.
    ///
    /// # Errors
    /// The file cannot be read or written, another process uses it, or a line is wrong.
    pub fn open_file(&self, path: &Path) -> io::Result<()> {
        let file = OverridesFile::open(path, &self.map, unix_micros())?;
        // Nothing else opens one.
        let (trouble, restored) = Default::default();
        let _ = self.keeper.set(Keeper::File(Box::new(KeptFile { file: Mutex::new(file), trouble, restored })));
        Ok(())
    }

    /// Keeps the entries in Redis beside the counts. Checks wait for the first load.
    pub fn open_registry(&self, registry: Registry) {
        let _ = self.keeper.set(Keeper::Redis(Box::new(Followed::new(registry))));
    }

    /// Asks the keeper for its entries until this node has them all.
    pub async fn load(&self) {
        let Some(Keeper::Redis(followed)) = self.keeper.get() else { return };
        while !followed.is_loaded() {
            followed.ask(&self.map).await;
            if !followed.is_loaded() {
                tokio::time::sleep(EVERY).await;
            }
        }
    }

    /// Waits until the node has the entries. It is not ready before.
    pub async fn loaded(&self) {
        while !self.is_loaded() {
            tokio::time::sleep(LOADED_EVERY).await;
        }
    }

    /// Lets the store decide checks, which the fallback did until the entries were there.
    pub fn let_checks_pass(&self) {
        if let Some(Keeper::Redis(followed)) = self.keeper.get() {
            followed.registry.hold_checks(false);
        }
    }

    /// Whether the node has the entries.
    pub fn is_loaded(&self) -> bool {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => followed.is_loaded(),
            Some(Keeper::File(_)) | None => true,
        }
    }

    /// How old the state of the entries is, us; none without Redis.
    pub fn lag(&self) -> Option<Micros> {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => Some(followed.lag()),
            Some(Keeper::File(_)) | None => None,
        }
    }

    /// How `policy` applies to a key, by its file, the entries and what the check brings.
    pub fn applied<'a>(&self, policy: &'a Arc<Policy>, key: Key<'_>, brought: Brought) -> Applied<'a> {
        self.map.applied(policy, key, brought)
    }

    /// The policy that counts a key, whether or not a list decides for it.
    pub fn counting(&self, policy: &Arc<Policy>, key: Key<'_>) -> Arc<Policy> {
        self.map.counting(policy, key)
    }

    /// Up to `most` entries of a policy in the order of their matches, after the match `after`. Each
    /// match begins with `start`.
    pub fn list(&self, policy: &str, start: &str, after: Option<&str>, most: usize) -> Vec<Arc<Entry>> {
        self.map.list(policy, start, after, most)
    }

    /// Number of entries by policy, for the policies that have or had some.
    pub fn counts(&self) -> BTreeMap<Box<str>, usize> {
        self.map.counts()
    }

    /// Number of entries that this node has and Redis has not, by policy.
    pub fn missing(&self) -> BTreeMap<Box<str>, usize> {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => followed.missing(&self.map),
            // A restart has none of them.
            Some(Keeper::File(kept)) if kept.trouble.load().is_some() => self.map.counts(),
            Some(Keeper::File(_)) | None => BTreeMap::new(),
        }
    }

    /// Number of entries that this node has written back after a loss.
    pub fn restored(&self) -> u64 {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => followed.restored.read().0,
            Some(Keeper::File(kept)) => kept.restored.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Now by the clock of the entries' keeper, us since the Unix epoch.
    pub fn now(&self) -> Micros {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => followed.latest(),
            Some(Keeper::File(_)) | None => unix_micros(),
        }
    }

    /// Why the entries are not all in force, in one sentence.
    pub fn reason(&self) -> Option<String> {
        if let Some(Keeper::Redis(followed)) = self.keeper.get()
            && let Some(reason) = followed.reason(&self.map)
        {
            return Some(reason);
        }
        if let Some(Keeper::File(kept)) = self.keeper.get()
            && let Some(trouble) = kept.trouble.load_full()
        {
            return Some(format!("the file of the overrides cannot be written: {trouble}"));
        }
        let unknown = self.map.unknown();
        if unknown > 0 {
            return Some(format!(
                "{unknown} overrides count as absent, since only a later version of Tollgate knows what they grant"
            ));
        }
        let absent = self.absent.load(Ordering::Relaxed);
        (absent > 0).then(|| {
            format!(
                "{absent} overrides count as absent, since the file no longer has their plan or counts their quotas"
            )
        })
    }

    /// Ends entries in time, follows the keeper, and notes which entries the policies in force
    /// cannot count. Never returns.
    pub async fn keep(self: &Arc<Self>, policies: impl Fn() -> Arc<Policies>) {
        tokio::select! {
            () = self.end_in_time() => {}
            () = self.follow() => {}
            () = self.watch_file() => {}
            () = self.note_absent(policies) => {}
        }
    }

    async fn end_in_time(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.keeper.get() {
                Some(Keeper::Redis(followed)) => {
                    let ended = self.map.expire(followed.latest(), |name| followed.now(name));
                    ended.iter().for_each(|entry| followed.note_end(&entry.name));
                }
                Some(Keeper::File(_)) | None => {
                    let now = unix_micros();
                    let _ = self.map.expire(now, |_| now);
                }
            }
        }
    }

    async fn follow(&self) {
        match self.keeper.get() {
            Some(Keeper::Redis(followed)) => followed.follow(&self.map).await,
            Some(Keeper::File(_)) | None => std::future::pending().await,
        }
    }

    /// Looks whether the file is still the one that this node wrote.
    async fn watch_file(self: &Arc<Self>) {
        let Some(Keeper::File(_)) = self.keeper.get() else { return std::future::pending().await };
        loop {
            tokio::time::sleep(FILE_EVERY).await;
            let overrides = self.clone();
            let looking = move || match overrides.keeper.get() {
                Some(Keeper::File(kept)) => kept.whole(&overrides.map).map(drop),
                _ => Ok(()),
            };
            // Health has the reason of a failure.
            let _ = tokio::task::spawn_blocking(looking).await;
        }
    }

    /// A million entries take a while to look through, and the calls accept none that count as
    /// absent. So the node looks after a reload, and seldom otherwise.
    async fn note_absent(self: &Arc<Self>, policies: impl Fn() -> Arc<Policies>) {
        let (mut noted, mut changes, mut rounds) = (None, 0, 0);
        loop {
            tokio::time::sleep(NOTED_EVERY).await;
            rounds += 1;
            let (present, made) = (policies(), self.map.changes());
            let is_reloaded = noted.as_ref().is_none_or(|noted| !Arc::ptr_eq(noted, &present));
            if !is_reloaded && (made == changes || rounds < NOTED_ROUNDS) {
                continue;
            }
            let (overrides, policies) = (self.clone(), present.clone());
            let noting = move || {
                overrides.map.sweep();
                let absent = overrides.map.absent(|name| policies.by_name.get(name).cloned());
                overrides.absent.store(absent, Ordering::Relaxed);
            };
            let _ = tokio::task::spawn_blocking(noting).await;
            (noted, changes, rounds) = (Some(present), made, 0);
        }
    }

    /// Adds an entry to the audit that is no change of an override. The log has it in any case.
    pub async fn note(self: &Arc<Self>, note: Note) {
        let written = match self.keeper.get() {
            Some(Keeper::Redis(followed)) if followed.has_rights() => {
                let written = tokio::time::timeout(NOTE_WITHIN, followed.note(note.clone())).await;
                written.unwrap_or(Err(StoreError::Timeout)).map_err(|error| error.to_string())
            }
            _ => {
                let (overrides, note) = (self.clone(), note.clone());
                let written = tokio::task::spawn_blocking(move || overrides.note_here(note)).await;
                written
                    .map_err(|error| error.to_string())
                    .and_then(|written| written.map_err(|error| error.to_string()))
            }
        };
        match written {
            Ok(entry) => entry.log(),
            Err(error) => {
                note.entry(0, unix_micros()).log();
                tracing::error!(error, "the audit lacks an entry, which only the log has");
            }
        }
    }

    fn note_here(&self, note: Note) -> io::Result<AuditEntry> {
        let now = unix_micros();
        if let Some(Keeper::File(kept)) = self.keeper.get() {
            let mut file = kept.whole(&self.map)?;
            let entry = note.entry(file.next_version(now), now);
            file.write(entry.clone(), &self.map, now)?;
            return Ok(entry);
        }
        let mut memory = lock(&self.memory);
        let entry = note.entry(now.max(memory.newest() + 1), now);
        memory.add_to_memory(entry.clone());
        Ok(entry)
    }

    /// Up to `most` entries of the audit of versions below `before`, the newest first: all, or
    /// those of one policy, or of one kind.
    ///
    /// # Errors
    /// Why the keeper does not answer.
    pub async fn audit(
        &self,
        policy: Option<&str>,
        kind: Option<Kind>,
        before: u64,
        most: usize,
    ) -> Result<Vec<AuditEntry>, String> {
        let is_wanted = |entry: &AuditEntry| {
            policy.is_none_or(|policy| entry.policy.as_deref() == Some(policy))
                && kind.is_none_or(|kind| entry.kind == kind)
        };
        match self.keeper.get() {
            Some(Keeper::File(kept)) => Ok(lock(&kept.file).audit.page(before, most, is_wanted)),
            Some(Keeper::Redis(followed)) if followed.has_rights() => {
                followed.audit(before, most, is_wanted).await.map_err(|error| error.to_string())
            }
            _ => Ok(lock(&self.memory).page(before, most, is_wanted)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
