//! Records that all nodes share, such as overrides: by name, in [`PARTS`] parts, each with a log of
//! its changes.
//!
//! The parts have hash tags of their own, so they lie on all primaries of a cluster. A change and
//! its entry in the log are one script call. A message names the part, and the nodes then ask for
//! its changes. They also ask without one, so a lost message only delays them.
//!
//! The calls use connections of their own: no check waits behind a long answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;

use super::connect::attempt::Attempt;
use super::connect::connection::Connection;
use super::connect::questions::{bounded, name};
use super::connect::subscription::Subscription;
use super::protocol::address::Address;
use super::protocol::failure::Failure;
use super::protocol::keys::Tag;
use super::protocol::reply::{NoVerdict, refused, text};
use super::topology::Topology;
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::store::StoreError;

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

/// The longest line of a subscription, bytes.
const MOST_LINE: usize = 4096;

const WRITE: &str = include_str!("scripts/registry/write.lua");
const READ_CHANGES: &str = include_str!("scripts/registry/changes.lua");

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
}

/// A log of a part. Each has a room of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Log {
    /// What nodes follow, and acts of operators.
    #[default]
    Changes,
    /// Notices, which callers cause in any number.
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
    pub changes: Vec<LoggedChange>,
}

impl Registry {
    pub(super) fn new(topology: Arc<Topology>, prefix: &str) -> Self {
        // `%o` begins no key of a check.
        let tags = (0..PARTS).map(|part| Tag::unescaped(prefix, &format!("%o{part}"))).collect();
        let channel = format!("{{{prefix}:%o}}changes");
        let (links, subscription) = Default::default();
        let woken = Arc::new((0..PARTS).map(|_| Notify::new()).collect());
        Self { topology, tags, channel, links, subscription, woken }
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
        let mut call = self.script(WRITE, part, change.log);
        let (most, kept_for) = change.kept;
        call.arg(change.name.unwrap_or_default())
            .arg(change.expected.map(|version| version.to_string()).unwrap_or_default())
            .arg(change.floor)
            .arg(change.ends_in)
            .arg(change.body.unwrap_or_default())
            .arg(MOST_IN_PART)
            .arg(&self.channel)
            .arg(most)
            .arg(kept_for);
        change.fields.iter().for_each(|(name, value)| _ = call.arg(name).arg(value));
        written(&self.send(part, &call, TRIES).await?).ok_or_else(unfit)
    }

    /// The changes since a version; none before the first load of a part.
    ///
    /// # Errors
    /// No server answers.
    pub async fn changes(&self, part: usize, since: Option<u64>) -> Result<RecordChanges, StoreError> {
        let mut call = self.script(READ_CHANGES, part, Log::Changes);
        call.arg(since.map(id).unwrap_or_default()).arg(CHANGES);
        changes(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    /// The version of the newest change of a part, 0 without one. Far cheaper than
    /// [`Registry::changes`] where nothing has changed.
    ///
    /// # Errors
    /// No server answers.
    pub async fn newest(&self, part: usize) -> Result<u64, StoreError> {
        let mut call = redis::cmd("XREVRANGE");
        call.arg(self.key(part, "changes")).arg("+").arg("-").arg("COUNT").arg(1);
        newest(&self.ask(part, &call).await?).ok_or_else(unfit)
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
        page(&self.ask(part, &call).await?).ok_or_else(unfit)
    }

    /// Up to `most` entries of a log of a part with versions below `before`, the newest first.
    ///
    /// # Errors
    /// No server answers.
    pub async fn log(&self, part: usize, log: Log, before: u64, most: usize) -> Result<Vec<LoggedChange>, StoreError> {
        let mut call = redis::cmd("XREVRANGE");
        call.arg(self.key(part, log.key())).arg(format!("({before}-0")).arg("-").arg("COUNT").arg(most);
        let reply = self.ask(part, &call).await?;
        items(&reply).map(|entries| entries.iter().filter_map(logged).collect()).ok_or_else(unfit)
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
            named(bytes, &mut rest, &streams).into_iter().for_each(|part| woken[part].notify_one());
        };
        let opening =
            Subscription::open(&dialed, &shared.credentials, &self.channel, &attempt, shared.clock.clone(), wake);
        if let Ok(open) = attempt.within(TIMEOUT, opening).await {
            *subscription = Some((address, open));
        }
    }

    fn key(&self, part: usize, what: &str) -> String {
        format!("{}{what}", self.tags[part].as_str())
    }

    fn script(&self, source: &str, part: usize, log: Log) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg(source).arg(3);
        ["records", "ends", log.key()].iter().for_each(|what| _ = call.arg(self.key(part, what)));
        call
    }

    /// Sends a question to the primary of a part. The node asks again soon, so only redirections are
    /// followed.
    async fn ask(&self, part: usize, question: &Cmd) -> Result<Value, StoreError> {
        self.send(part, question, REDIRECTIONS).await
    }

    /// Sends a call to the primary of a part, up to `tries` times. Sends it again only if no server
    /// executed it.
    async fn send(&self, part: usize, call: &Cmd, tries: usize) -> Result<Value, StoreError> {
        let slot = self.tags[part].slot();
        let mut last = StoreError::Unreachable(self.topology.nobody(slot));
        for _ in 0..tries {
            let Some(lane) = self.topology.owner(slot) else {
                self.topology.shared.request_refresh();
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let address = lane.address();
            let mut connection = match self.connection(address).await {
                Ok(connection) => connection,
                Err(failure) => return Err(StoreError::Unreachable(format!("{address}: {failure}"))),
            };
            let reply = match bounded(TIMEOUT, connection.send(call)).await {
                Ok(reply) => reply,
                Err(failure) => {
                    self.forget(address);
                    return Err(StoreError::Unknown(format!("{address}: {failure}")));
                }
            };
            let Value::ServerError(error) = &reply else { return Ok(reply) };
            last = match refused(error, address) {
                NoVerdict::Moved(owner) => {
                    self.topology.moved(slot, &owner);
                    StoreError::Unreachable(format!("{address}: the slot has moved"))
                }
                NoVerdict::Failed(error) => return Err(error),
                NoVerdict::NotNow(why) => StoreError::Unreachable(format!("{address}: {why}")),
                NoVerdict::Ask(_) | NoVerdict::TryAgain => {
                    StoreError::Unreachable(format!("{address}: the slot is moving"))
                }
            };
            self.topology.shared.request_refresh();
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }

    /// The connection to a server. The calls of all parts wait for one attempt to open it, and share
    /// its failure for a while.
    async fn connection(&self, address: &Address) -> Result<Connection, Failure> {
        let link = {
            let primaries = self.topology.primaries();
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.retain(|known, _| known == address || primaries.contains(known));
            links.entry(address.clone()).or_default().clone()
        };
        let mut link = link.lock().await;
        let (shared, now) = (&self.topology.shared, self.topology.shared.clock.now());
        if let Link::Open(connection) = &mut *link
            && !connection.has_ended()
        {
            return Ok(connection.clone());
        }
        if let Link::Failed(failure, at) = &*link
            && now < *at + AGAIN
        {
            return Err(failure.clone());
        }
        let attempt = Attempt::default();
        let opening = async {
            let mut new = shared.connect(address, &attempt).await?;
            new.send(&name()).await?;
            Ok(new)
        };
        let opened = attempt.within(TIMEOUT, opening).await;
        *link = match &opened {
            Ok(connection) => Link::Open(connection.clone()),
            Err(failure) => Link::Failed(failure.clone(), shared.clock.now()),
        };
        opened
    }

    /// Gives up a connection whose answer is late or broken.
    fn forget(&self, address: &Address) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
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

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// The version in the id of a change.
fn version(value: &Value) -> Option<u64> {
    text(value)?.split_once('-')?.0.parse().ok()
}

fn written(reply: &Value) -> Option<RecordWritten> {
    let (word, rest) = items(reply)?.split_first()?;
    Some(match (text(word)?, rest) {
        ("ok", [version, at, before, after]) => RecordWritten::Done {
            version: number(version)?,
            at: number(at)?,
            before: text(before)?.to_owned(),
            after: text(after)?.to_owned(),
        },
        ("stale", [present]) => RecordWritten::Stale(text(present)?.to_owned()),
        ("full", []) => RecordWritten::Full,
        ("none", []) => RecordWritten::Nothing,
        _ => return None,
    })
}

fn changes(reply: &Value) -> Option<RecordChanges> {
    let [now, newest, changes] = items(reply)? else { return None };
    let changes = items(changes)?.iter().filter_map(logged).collect();
    Some(RecordChanges { now: number(now)?, newest: version(newest)?, changes })
}

/// The parts that may have changed, by the bytes that a subscription brings, which are none at its
/// end. A message names the stream of a part. One of an earlier version is empty and means all
/// parts, as do the beginning and the end. `rest` keeps a line that has not arrived whole.
fn named(bytes: &[u8], rest: &mut Vec<u8>, streams: &[String]) -> Vec<usize> {
    rest.extend_from_slice(bytes);
    let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines: Vec<u8> = rest.drain(..end).collect();
    if bytes.is_empty() || rest.len() > MOST_LINE {
        rest.clear();
        return (0..PARTS).collect();
    }
    let parts = |line: &[u8]| match line.trim_ascii_end() {
        b"" | b"subscribe" => 0..PARTS,
        name => streams.iter().position(|stream| stream.as_bytes() == name).map_or(0..0, |part| part..part + 1),
    };
    lines.split_inclusive(|byte| *byte == b'\n').flat_map(parts).collect()
}

fn newest(reply: &Value) -> Option<u64> {
    match items(reply)? {
        [] => Some(0),
        [entry] => version(items(entry)?.first()?),
        _ => None,
    }
}

fn page(reply: &Value) -> Option<(u64, Vec<(String, String)>)> {
    let [cursor, records] = items(reply)? else { return None };
    let record = |pair: &[Value]| Some((text(&pair[0])?.to_owned(), text(&pair[1])?.to_owned()));
    Some((number(cursor)?, items(records)?.chunks_exact(2).filter_map(record).collect()))
}

fn logged(entry: &Value) -> Option<LoggedChange> {
    let [id, fields] = items(entry)? else { return None };
    let field = |pair: &[Value]| Some((text(&pair[0])?.to_owned(), text(&pair[1])?.to_owned()));
    let mut fields: HashMap<String, String> = items(fields)?.chunks_exact(2).filter_map(field).collect();
    let last = fields.remove("last")?.split_once('-')?.0.parse().ok()?;
    Some(LoggedChange { version: version(id)?, last, fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_part_that_changed() {
        let streams: Vec<String> = (0..PARTS).map(|part| format!("{{ratelimit:%o{part}}}changes")).collect();
        let message = |text: &str| format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n{text}\r\n", text.len());
        let (mut rest, all): (_, Vec<usize>) = (Vec::new(), (0..PARTS).collect());
        let mut read = |bytes: &[u8]| named(bytes, &mut rest, &streams);
        assert_eq!(read(b"+OK\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), all);
        assert_eq!(read((message(&streams[7]) + &message(&streams[63])).as_bytes()), [7, 63]);
        // A message arrives in pieces.
        let (first, last) = (&message(&streams[17])[..40], &message(&streams[17])[40..]);
        assert_eq!((read(first.as_bytes()), read(last.as_bytes())), (vec![], vec![17]));
        assert_eq!(read(message("").as_bytes()), all, "a node of an earlier version");
        assert_eq!(read(message("another program").as_bytes()), [0; 0]);
        assert_eq!(read(&[b'x'; MOST_LINE + 1]), all);
        assert_eq!(read(&[]), all, "the connection ended");
    }
}
