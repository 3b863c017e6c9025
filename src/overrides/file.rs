//! The file of the overrides, for the embedded store.
//!
//! Each line is a JSON object, and each change adds one line: the entry of the audit, which has the
//! override before and after it. So a change and its entry are written together, or the last line
//! is incomplete and the next start drops it. A line is on the disk before its change is in force.
//!
//! When the lines of former changes exceed those that count, the node writes the file anew: first
//! the overrides, then the audit. It replaces the former file in one step. It does the same when
//! somebody truncates, replaces or removes the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::audit::{AuditEntry, KEPT, KEPT_FOR, Kind, Note, Recent};
use super::entry::{Entry, Name, Stored};
use super::map::Map;
use crate::limit::time::Micros;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// An override in force when the file was written anew.
    Entry { policy: String, matched: String, stored: Stored },
    /// A change since, or one that the audit still keeps.
    Change(Box<AuditEntry>),
}

/// The open file, which no other process can open.
#[derive(Debug)]
pub(super) struct OverridesFile {
    path: PathBuf,
    file: File,
    /// Lines in the file.
    lines: usize,
    /// Bytes in the file.
    length: u64,
    pub(super) audit: Recent,
    /// The newest version.
    version: u64,
}

impl OverridesFile {
    /// Opens or creates the file, and puts its overrides into force. `now` is us since the Unix
    /// epoch.
    ///
    /// # Errors
    /// The file cannot be read or written, another process uses it, or a line is wrong.
    pub(super) fn open(path: &Path, map: &Map, now: Micros) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        lock(&file)?;
        let mut opened =
            Self { path: path.to_owned(), file, lines: 0, length: 0, audit: Recent::default(), version: 0 };
        opened.read(map, now)?;
        opened.write_anew_if_long(map, now)?;
        Ok(opened)
    }

    fn read(&mut self, map: &Map, now: Micros) -> io::Result<()> {
        let (mut reader, mut whole, mut line) = (BufReader::new(&self.file), 0, String::new());
        let mut changes = Vec::new();
        loop {
            line.clear();
            let length = reader.by_ref().read_line(&mut line)?;
            if length == 0 || !line.ends_with('\n') {
                break;
            }
            self.lines += 1;
            match serde_json::from_str(&line) {
                Ok(line) => changes.push(line),
                Err(error) => {
                    let wrong = || io::Error::other(format!("line {} is none of this node: {error}", self.lines));
                    self.version = self.version.max(later_version(&line).ok_or_else(wrong)?);
                }
            }
            whole += length as u64;
        }
        // A crash may have cut the last line off, and its change was not answered.
        self.file.set_len(whole)?;
        self.length = whole;
        for line in changes {
            match line {
                Line::Entry { policy, matched, stored } => {
                    self.version = self.version.max(stored.version);
                    apply(map, &Name::new(&policy, &matched), stored.version, Some(stored), now);
                }
                Line::Change(entry) => {
                    self.version = self.version.max(entry.version);
                    if let (Kind::Override, Some(policy), Some(matched)) = (entry.kind, &entry.policy, &entry.matched) {
                        apply(map, &Name::new(policy, matched), entry.version, entry.after.clone(), now);
                    }
                    self.audit.add(*entry, KEPT, now.saturating_sub(KEPT_FOR));
                }
            }
        }
        Ok(())
    }

    /// The version of the next change at `now`, us. Versions never repeat, also after the clock was
    /// set back.
    pub(super) fn next_version(&self, now: Micros) -> u64 {
        now.max(self.version + 1)
    }

    /// Writes a change, and puts it into force.
    ///
    /// # Errors
    /// The disk does not take it. The change is not in force then.
    pub(super) fn write(&mut self, entry: AuditEntry, map: &Map, now: Micros) -> io::Result<()> {
        self.write_unnamed(entry, map, now).map_err(|error| self.named(&error))
    }

    fn write_unnamed(&mut self, entry: AuditEntry, map: &Map, now: Micros) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line::Change(Box::new(entry.clone())))?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            // A part of the line would spoil the next one.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        self.lines += 1;
        self.version = entry.version;
        if let (Kind::Override, Some(policy), Some(matched)) = (entry.kind, &entry.policy, &entry.matched) {
            apply(map, &Name::new(policy, matched), entry.version, entry.after.clone(), now);
        }
        self.audit.add(entry, KEPT, now.saturating_sub(KEPT_FOR));
        if let Err(error) = self.write_anew_if_long(map, now) {
            tracing::warn!(%error, "the file of the overrides grows, since it cannot be written anew");
        }
        Ok(())
    }

    /// Writes the file anew if it is not the one that this node wrote. Returns what had happened to
    /// it.
    ///
    /// # Errors
    /// The file cannot be written, or another process uses the one at its path.
    pub(super) fn restore(&mut self, map: &Map, now: Micros) -> io::Result<Option<AuditEntry>> {
        self.restore_unnamed(map, now).map_err(|error| self.named(&error))
    }

    /// The error with the path of the file.
    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::other(format!("{}: {error}", self.path.display()))
    }

    fn restore_unnamed(&mut self, map: &Map, now: Micros) -> io::Result<Option<AuditEntry>> {
        let own = self.file.metadata()?;
        let what = match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) != (own.dev(), own.ino()) => {
                lock(&File::open(&self.path)?)?;
                "replaced"
            }
            Ok(found) if found.len() != self.length => "changed",
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "removed",
            Err(error) => return Err(error),
        };
        self.write_anew(map, now)?;
        let reason = format!("the file of the overrides was {what}, and the node wrote its {} anew", map.len());
        let note = Note::of_node(Kind::Restore, "a node".to_owned(), reason);
        let entry = note.entry(self.next_version(now), now);
        self.write_unnamed(entry.clone(), map, now)?;
        Ok(Some(entry))
    }

    fn write_anew_if_long(&mut self, map: &Map, now: Micros) -> io::Result<()> {
        if self.lines <= 2 * (map.len() + self.audit.iter().count()) + 1000 {
            return Ok(());
        }
        self.write_anew(map, now)
    }

    fn write_anew(&mut self, map: &Map, now: Micros) -> io::Result<()> {
        let mut next = self.path.clone().into_os_string();
        next.push(".new");
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&next)?;
        lock(&file)?;
        file.set_len(0)?;
        let mut out = BufWriter::new(&file);
        let mut lines = 0;
        let mut write = |line: &Line| {
            serde_json::to_writer(&mut out, line)?;
            lines += 1;
            out.write_all(b"\n")
        };
        for policy in map.counts().keys() {
            for entry in map.list(policy, "", None, usize::MAX).iter().filter(|entry| entry.expires_at > now) {
                let (policy, matched) = (policy.to_string(), entry.name.matched().to_owned());
                write(&Line::Entry { policy, matched, stored: Stored::from(&**entry) })?;
            }
        }
        for entry in self.audit.iter() {
            write(&Line::Change(Box::new(entry.clone())))?;
        }
        out.flush()?;
        drop(out);
        file.sync_all()?;
        std::fs::rename(&next, &self.path)?;
        (self.length, self.lines) = (file.metadata()?.len(), lines);
        self.file = file;
        Ok(())
    }
}

/// The version of an act whose kind only a later version of Tollgate knows.
fn later_version(line: &str) -> Option<u64> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (act, kind) = (&line["change"], line["change"]["kind"].as_str()?);
    act["version"].as_u64().filter(|_| Kind::ALL.iter().all(|known| known.name() != kind))
}

/// Puts what a store has of a name into force. An entry whose time is over has ended.
pub(super) fn apply(map: &Map, name: &Name, version: u64, stored: Option<Stored>, now: Micros) {
    let terms = |policy: &str, limits| map.terms(policy, limits);
    let next = stored.map(|stored| stored.entry(name.clone(), terms));
    map.apply(name, version, next.filter(|entry: &Entry| entry.expires_at > now));
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another process uses it"),
        TryLockError::Error(error) => error,
    })
}
