//! Records that all nodes share, such as overrides: by name, in [`PARTS`] parts, each with a log of
//! its changes.
//!
//! The parts have hash tags of their own, so they lie on all primaries of a cluster. A change and
//! its entry in the log are one script call. A message names the part, and the nodes then ask for
//! its changes. They also ask without one, so a lost message only delays them.
//!
//! Each part has a state with its generation. A part without one, or with another one, has lost its
//! records, and the nodes write back what they know (`restore`).
//!
//! The calls use connections of their own: no check waits behind a long answer.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;

use super::connect::attempt::Attempt;
use super::connect::connection::Connection;
use super::connect::subscription::Subscription;
use super::lane::Lane;
pub use super::protocol::address::Address;
use super::protocol::failure::Failure;
use super::protocol::keys::Tag;
use super::topology::Topology;
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::store::StoreError;

mod glance;

mod reply;

mod send;

pub use glance::Glance;

/// Parts of the records.
pub const PARTS: usize = 64;

/// The most records of a part. A hash divides 1,000,000 records so evenly that no part is fuller.
const MOST_IN_PART: usize = 16_384;

/// How long a server may take to connect, and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long a failure to connect stands for further ones, us.
const AGAIN: Micros = 250 * MICROS_PER_MILLI;

/// How often a change is sent that no server executes, how often a question, and the pause between.
const TRIES: usize = 40;
const REDIRECTIONS: usize = 3;
const PAUSE: Duration = Duration::from_millis(25);

/// The most changes of an answer, and about how many records of a page.
const CHANGES: usize = 500;
const PAGE: usize = 500;

/// The most records that one call writes back.
pub const RESTORED: usize = 250;

/// The random part of a version, us. No change of a part gets the version of another one, whichever
/// registry that has lost changes gives it.
const RANDOM: u64 = 1024;

/// A script with the functions of all scripts.
macro_rules! script {
    ($name:literal) => {
        concat!(include_str!("../scripts/registry/part.lua"), include_str!(concat!("../scripts/registry/", $name)))
    };
}

const WRITE: &str = script!("write.lua");
const READ_CHANGES: &str = script!("changes.lua");
const RESTORE: &str = script!("restore.lua");

/// The keys of a part, in the order of the scripts.
const KEYS: [&str; 5] = ["records", "ends", "changes", "removals", "state"];

/// The field of the records that has the state of the part.
const STATE: &str = "%state";

/// The records in Redis.
#[derive(Debug)]
pub struct Registry {
    topology: Arc<Topology>,
    tags: Vec<Tag>,
    channel: String,
    links: Mutex<HashMap<Address, Arc<tokio::sync::Mutex<Link>>>>,
    subscription: tokio::sync::Mutex<Option<(Address, Subscription)>>,
    /// Wakes the reader of each part, when it may have changed.
    woken: Arc<Vec<Notify>>,
    /// Whether the user of this node may not ask for many parts by one command.
    asks_singly: AtomicBool,
}

/// The connection to a server.
#[derive(Debug, Default)]
enum Link {
    #[default]
    New,
    Open(Connection),
    /// It could not be opened, us.
    Failed(Failure, Micros),
}

/// The state of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordState {
    /// Another one after each loss of the records. It begins with the name of the registry, which
    /// a loss does not change as long as a node remembers it.
    pub generation: Box<str>,
    /// When the generation began, us by the clock of its server.
    pub birth: u64,
    pub newest: u64,
    /// The greatest version among the removals that the server no longer knows.
    pub dropped: u64,
}

/// A change to write.
#[derive(Debug, Default)]
pub struct RecordChange<'a> {
    /// None for an entry of the log that changes no record.
    pub name: Option<&'a str>,
    /// The version that the record must have; 0 if there must be none.
    pub expected: Option<u64>,
    /// A version that the next one exceeds.
    pub floor: u64,
    /// us until the record ends; 0 for never.
    pub ends_in: u64,
    /// A JSON object with a member or more; none removes the record.
    pub body: Option<&'a str>,
    /// Names and values for the log.
    pub fields: &'a [(&'a str, &'a str)],
    /// The most entries of the log of a part, and how long they stay, us.
    pub kept: (usize, u64),
    pub log: Log,
    /// The generation that this node knows; empty for none.
    pub generation: &'a str,
    /// The version of the record that this node has from another registry; 0 for none.
    pub known: u64,
}

/// The result of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordWritten {
    Done {
        version: u64,
        /// us by the clock of the server.
        at: u64,
        /// The texts of the record; empty for none.
        before: String,
        after: String,
    },
    /// The record has another version: its text, or empty for none.
    Stale(String),
    /// The part has as many records as it may have.
    Full,
    /// There was nothing to remove.
    Nothing,
    /// The part has lost records, or is another one than this node knows.
    Lost,
}

/// An entry of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedChange {
    pub version: u64,
    /// The version of the entry before this one.
    pub last: u64,
    pub fields: HashMap<String, String>,
}

/// The changes of a part since a version.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecordChanges {
    /// us by the clock of the server.
    pub now: u64,
    /// The newest version; 0 without a change.
    pub newest: u64,
    /// None for a part that is new, of a former version, or lost.
    pub state: Option<RecordState>,
    /// Whether something of the part is missing.
    pub is_damaged: bool,
    /// The records of the part, and its state.
    pub fields: u64,
    pub changes: Vec<LoggedChange>,
}

/// A log of a part. Each has a room of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Log {
    /// The changes that nodes follow, and acts of operators.
    #[default]
    Changes,
    /// Notices and logins, which callers cause in any number.
    Notices,
}

impl Log {
    pub const ALL: [Self; 2] = [Self::Changes, Self::Notices];

    fn key(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Notices => "notices",
        }
    }
}

/// A write of a node back into a part.
#[derive(Debug, Default)]
pub struct Restore<'a> {
    /// The generation of a part that has none; empty while more pages follow.
    pub generation: &'a str,
    /// The newest version that the node knows.
    pub newest: u64,
    /// The greatest version among the removals that the node no longer knows.
    pub dropped: u64,
    /// As in [`RecordChange`].
    pub kept: (usize, u64),
    /// For the log.
    pub author: &'a str,
    /// The writes of the pages before.
    pub before: (u64, u64),
    /// Name, version, text or none for a removal, and the end in us, 0 for never.
    pub records: Vec<(&'a str, u64, Option<String>, u64)>,
}

/// The answer to a write back.
#[derive(Debug, PartialEq, Eq)]
pub struct Restored {
    pub records: u64,
    pub removals: u64,
    /// After the last page: the state of the part, and the newest version before.
    pub sealed: Option<(RecordState, u64)>,
}

impl Registry {
    pub(super) fn new(topology: Arc<Topology>, prefix: &str) -> Self {
        // `%o` begins no key of a check.
        let tags = (0..PARTS).map(|part| Tag::unescaped(prefix, &format!("%o{part}"))).collect();
        let channel = format!("{{{prefix}:%o}}changes");
        let (links, subscription) = Default::default();
        let woken = Arc::new((0..PARTS).map(|_| Notify::new()).collect());
        Self { topology, tags, channel, links, subscription, woken, asks_singly: AtomicBool::new(false) }
    }

    /// The part of a name.
    pub fn part(name: &str) -> usize {
        usize::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % PARTS
    }

    /// Writes a change and its entry in the log, or neither.
    ///
    /// # Errors
    /// Whether it is written is unknown, unless [`StoreError::is_unexecuted`].
    pub async fn write(&self, part: usize, change: &RecordChange<'_>) -> Result<RecordWritten, StoreError> {
        let mut call = self.script_of_log(WRITE, part, change.log);
        let (most, kept_for) = change.kept;
        call.arg(change.name.unwrap_or_default())
            .arg(change.expected.map(|version| version.to_string()).unwrap_or_default())
            .arg(change.floor)
            .arg(change.ends_in)
            .arg(change.body.unwrap_or_default())
            .arg(MOST_IN_PART)
            .arg(&self.channel)
            .arg(most)
            .arg(kept_for)
            .arg(change.generation)
            .arg(change.known)
            .arg(random() % RANDOM);
        change.fields.iter().for_each(|(name, value)| _ = call.arg(name).arg(value));
        reply::written(&self.send(part, &call, TRIES).await?).ok_or_else(unfit)
    }

    /// Writes back what a part has lost.
    ///
    /// # Errors
    /// The server may have written the page.
    pub async fn restore(&self, part: usize, restore: &Restore<'_>) -> Result<Restored, StoreError> {
        let mut call = self.script(RESTORE, part);
        let ((most, kept_for), (records, removals)) = (restore.kept, restore.before);
        call.arg(restore.generation)
            .arg(restore.newest)
            .arg(restore.dropped)
            .arg(random() % RANDOM)
            .arg(&self.channel)
            .arg(most)
            .arg(kept_for)
            .arg(restore.author)
            .arg(records)
            .arg(removals);
        for (name, version, text, ends) in &restore.records {
            call.arg(name).arg(version).arg(text.as_deref().unwrap_or_default()).arg(ends);
        }
        reply::restored(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    /// The changes of a part since a version; none before the first load of a part. `kept` as in
    /// [`RecordChange`].
    ///
    /// # Errors
    /// No server answers.
    pub async fn changes(
        &self,
        part: usize,
        since: Option<u64>,
        kept: (usize, u64),
    ) -> Result<RecordChanges, StoreError> {
        let call = self.changes_call(part, since, kept);
        reply::changes(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    fn changes_call(&self, part: usize, since: Option<u64>, (most, kept_for): (usize, u64)) -> Cmd {
        let mut call = self.script(READ_CHANGES, part);
        call.arg(since.map(id).unwrap_or_default()).arg(CHANGES).arg(most).arg(kept_for);
        call
    }

    /// Waits until a part may have changed.
    pub async fn woken(&self, part: usize) {
        self.woken[part].notified().await;
    }

    /// Now by the clock of the server of a part, us; by this node's while none is known.
    pub fn now(&self, part: usize) -> Micros {
        let shared = &self.topology.shared;
        match self.topology.owner(self.tags[part].slot()) {
            Some(lane) => shared.time().unwrap_or_else(|| lane.shard().shard_now()),
            None => shared.clock.now(),
        }
    }

    /// A page of the records of a part from a cursor on, 0 first, and the next cursor, 0 at the end.
    /// A record that stays meanwhile is on one page or more.
    ///
    /// # Errors
    /// No server answers.
    pub async fn page(&self, part: usize, cursor: u64) -> Result<(u64, Vec<(String, String)>), StoreError> {
        let mut call = redis::cmd("HSCAN");
        call.arg(self.key(part, "records")).arg(cursor).arg("COUNT").arg(PAGE);
        reply::page(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    /// The names of removed records of a part, and the versions of their removals.
    ///
    /// # Errors
    /// No server answers.
    pub async fn removals(&self, part: usize) -> Result<Vec<(String, u64)>, StoreError> {
        let mut call = redis::cmd("ZRANGEBYSCORE");
        call.arg(self.key(part, "removals")).arg("-inf").arg("(+inf").arg("WITHSCORES");
        reply::removals(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    /// Up to `most` entries of the log of a part with versions below `before`, the newest first.
    ///
    /// # Errors
    /// No server answers.
    pub async fn log(&self, part: usize, log: Log, before: u64, most: usize) -> Result<Vec<LoggedChange>, StoreError> {
        let mut call = redis::cmd("XREVRANGE");
        call.arg(self.key(part, log.key())).arg(format!("({before}-0")).arg("-").arg("COUNT").arg(most);
        let reply = self.ask(part, &call).await?;
        reply::items(&reply)
            .map(|entries| entries.iter().filter_map(reply::logged).collect())
            .ok_or_else(unfit)
    }

    /// Holds all checks back, as if no server were reachable, or lets them pass.
    pub fn hold_checks(&self, are_held: bool) {
        self.topology.shared.hold_checks(are_held);
    }

    /// Opens the subscription that wakes this node, if it is not open.
    pub async fn subscribe(&self) {
        let mut subscription = self.subscription.lock().await;
        let primaries = self.topology.primaries();
        let is_open = |(address, open): &(Address, Subscription)| primaries.contains(address) && !open.has_ended();
        if subscription.as_ref().is_some_and(is_open) {
            return;
        }
        *subscription = None;
        // Each server of a cluster passes messages on to all others.
        let Some(address) = primaries.into_iter().next() else { return };
        let (shared, attempt) = (&self.topology.shared, Attempt::default());
        let dialed = shared.address_map().get(&address.lowercase()).unwrap_or(&address).clone();
        let (woken, mut rest) = (self.woken.clone(), Vec::new());
        let streams: Vec<String> = (0..PARTS).map(|part| self.key(part, "changes")).collect();
        let wake = move |bytes: &[u8]| {
            reply::named(bytes, &mut rest, &streams).into_iter().for_each(|part| woken[part].notify_one());
        };
        let opening =
            Subscription::open(&dialed, &shared.credentials, &self.channel, &attempt, shared.clock.clone(), wake);
        if let Ok(open) = attempt.within(TIMEOUT, opening).await {
            *subscription = Some((address, open));
        }
    }

    /// Why servers may lose records, each with its remedy.
    pub fn doubts(&self) -> Vec<String> {
        let lanes = self.topology.primaries().into_iter().filter_map(|address| self.topology.lane(&address));
        let of =
            |lane: Lane| lane.shard().preflight.doubts().into_iter().map(move |doubt| (lane.address().clone(), doubt));
        lanes
            .flat_map(of)
            .map(|(address, doubt)| format!("{address} keeps the overrides, and {doubt}"))
            .collect()
    }

    fn key(&self, part: usize, what: &str) -> String {
        format!("{}{what}", self.tags[part].as_str())
    }

    fn script(&self, source: &str, part: usize) -> Cmd {
        self.script_of_log(source, part, Log::Changes)
    }

    fn script_of_log(&self, source: &str, part: usize, log: Log) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg(source).arg(KEYS.len());
        let name = |what: &'static str| if what == Log::Changes.key() { log.key() } else { what };
        KEYS.iter().for_each(|what| _ = call.arg(self.key(part, name(what))));
        call
    }
}

impl RecordState {
    /// The name of the registry.
    pub fn registry(&self) -> &str {
        self.generation.split_once('-').map_or("", |(registry, _)| registry)
    }
}

/// A new generation, of a registry that the node knows or of a new one.
pub fn new_generation(registry: Option<&str>) -> String {
    let new = || format!("{:016x}", random());
    format!("{}-{}", registry.map_or_else(new, str::to_owned), new())
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Whether the server forbids this node a command that the records need, or does not know it.
pub fn lacks_rights(error: &StoreError) -> bool {
    const WORDS: [&str; 4] = ["NOPERM", "lacks a right", "does not know the command", "forbids a command"];
    matches!(error, StoreError::Refused(why) if WORDS.iter().any(|words| why.contains(words)))
}

fn id(version: u64) -> String {
    format!("{version}-0")
}

fn unfit() -> StoreError {
    StoreError::Unknown(Failure::unfit("a script").to_string())
}
