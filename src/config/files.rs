//! The files that a configuration is read from, and how a change of them is detected.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::fault::Faults;
use super::raw::{Node, Value};
use super::scalar::{excerpt, visible};
use super::source::Source;

/// Largest size of one of these files, bytes: a bound for files named by mistake.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The files that a configuration names.
#[derive(Debug)]
pub(super) struct Files {
    /// The folder of the configuration: relative paths start here.
    folder: PathBuf,
    read: Vec<Watched>,
    /// Warnings about files that others may write, or secrets that others may read.
    open: Vec<String>,
}

/// Permissions of the group and of others: write, and read.
const WRITABLE: u32 = 0o022;
const READABLE: u32 = 0o044;

/// Returns a warning about the file at `path` if its permissions include one of `refused`. Root
/// often shares a secret with the service's group, so the group may read files of another owner.
fn permissions(path: &Path, refused: u32) -> Option<String> {
    let data = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let is_ours = data.uid() == rustix::process::geteuid().as_raw();
    let refused = if refused == READABLE && !is_ours { 0o004 } else { refused };
    let found = data.mode() & refused;
    let (may, right) = match refused {
        _ if found == 0 => return None,
        WRITABLE => ("write it", "g-w,o-w"),
        _ => ("read it, and it holds a secret", "g-r,o-r"),
    };
    let who = if found & 0o007 == 0 { "its group" } else { "every user of this machine" };
    let path = visible(&path.display().to_string());
    Some(format!("{path}: {who} may {may}: `chmod {right}` ends that"))
}

impl Files {
    /// Starts with the configuration alone.
    pub(super) fn beside(source: &Source) -> Self {
        let parent = |file: &Watched| file.path.parent().map(Path::to_owned);
        let folder = source.file.as_ref().and_then(parent).unwrap_or_default();
        let open = source.file.iter().filter_map(|file| permissions(&file.path, WRITABLE)).collect();
        Self { folder, read: source.file.clone().into_iter().collect(), open }
    }

    /// The files read so far, and warnings about their permissions.
    pub(super) fn into_watched(mut self) -> (Vec<Watched>, Vec<String>) {
        self.open.sort();
        self.open.dedup();
        (self.read, self.open)
    }

    /// Warns if others may read the secret file that `node` names.
    pub(super) fn secret(&mut self, node: &Node) {
        if let Value::Text { text, .. } = &node.value {
            self.open.extend(permissions(&self.folder.join(text), READABLE));
        }
    }

    /// Warns if others may read the configuration itself, because it holds a password.
    pub(super) fn holds_secret(&mut self) {
        let itself = self.read.first().and_then(|file| permissions(&file.path, READABLE));
        self.open.extend(itself);
    }

    /// The path that `node` names; `what` describes the expected file.
    pub(super) fn path(&self, node: &Node, what: &str, faults: &mut Faults) -> Option<PathBuf> {
        let name = node.text(what, faults)?;
        if name.is_empty() {
            node.must_be(what, faults);
            return None;
        }
        Some(self.folder.join(name))
    }

    /// The contents of the file that `node` names.
    pub(super) fn bytes(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<Vec<u8>> {
        let read = self.read(node, what, faults)?;
        read.map_or_else(|error| node.complain(&format!("cannot be read: {error}"), faults), Some)
    }

    /// Like [`Self::bytes`], but the caller notes a read error.
    pub(super) fn read(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<Result<Vec<u8>, String>> {
        let path = self.path(node, what, faults)?;
        // Opening a pipe would block until another process writes to it.
        let (watched, read) = match is_other(&path) {
            true => (Watched::look(&path), Err("it is no file".to_owned())),
            false => watched(&path, MAX_BYTES),
        };
        self.read.push(watched);
        self.open.extend(permissions(&path, WRITABLE));
        Some(read)
    }

    /// The contents of the file as text.
    pub(super) fn text(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<String> {
        let bytes = self.bytes(node, what, faults)?;
        String::from_utf8(bytes).ok().or_else(|| node.complain("is not UTF-8", faults))
    }
}

/// Whether the path is a pipe, a folder or a device.
pub(super) fn is_other(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file())
}

/// The stamp of the file at `path` before the read, and its contents up to `most` bytes. Some
/// endless files report a size of 0.
pub(super) fn watched(path: &Path, most: u64) -> (Watched, Result<Vec<u8>, String>) {
    let (watched, mut bytes) = (Watched::look(path), Vec::new());
    match File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)) {
        Ok(length) if length as u64 > most => (watched, Err(format!("it is larger than {most} bytes"))),
        Ok(_) => (watched, Ok(bytes)),
        Err(error) => (watched.unread(), Err(error.to_string())),
    }
}

impl Node {
    /// Notes a fault of the file that this node names.
    pub(super) fn complain<T>(&self, what: &str, faults: &mut Faults) -> Option<T> {
        if let Value::Text { text, .. } = &self.value {
            faults.note(self.place, format!("the file `{}` {what}", excerpt(text)));
        }
        None
    }
}

/// A file as it was just before the read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    path: PathBuf,
    /// None: the file was missing or unreadable. An existing file then differs from this, so it is
    /// read again until that succeeds. Nothing about the file changes when a disk or the system
    /// recovers.
    stamp: Option<Stamp>,
}

/// Changes when the file is written, replaced, or reached through another symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Watched {
    /// The file at `path` as it is now.
    pub fn look(path: &Path) -> Self {
        let stamp = |data: std::fs::Metadata| Stamp {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        };
        Self { path: path.to_owned(), stamp: std::fs::metadata(path).map(stamp).ok() }
    }

    /// The same file as it is now.
    #[must_use]
    pub fn look_again(&self) -> Self {
        Self::look(&self.path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another file has replaced this one: new contents of the same file do not count.
    pub fn has_taken_the_place_of(&self, before: &Self) -> bool {
        let which = |stamp: &Stamp| (stamp.device, stamp.inode);
        self.stamp.as_ref().map(which) != before.stamp.as_ref().map(which)
    }

    /// The same file, marked as unreadable.
    fn unread(self) -> Self {
        Self { stamp: None, ..self }
    }

    /// Whether the file was missing or unreadable.
    pub fn is_unread(&self) -> bool {
        self.stamp.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_or_replaced_looks_different() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let absent = Watched::look(&path);
        assert_eq!(absent, absent.look_again());
        std::fs::write(&path, "one").unwrap();
        let one = absent.look_again();
        assert_ne!(one, absent);
        assert_eq!(one, one.look_again());
        std::fs::write(&path, "four").unwrap();
        let four = one.look_again();
        assert_ne!(four, one);
        let other = folder.path().join("other");
        std::fs::write(&other, "five").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(four.look_again(), four);
    }

    #[test]
    fn what_is_there_and_cannot_be_read_looks_different_as_long_as_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        // No process can read the start of this file.
        let path = folder.path().join("file");
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        let (unread, bytes) = watched(&path, 10);
        assert!(bytes.is_err() && unread.is_unread());
        assert_ne!(unread.look_again(), unread);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(unread.look_again(), unread);
        std::fs::write(&path, "one").unwrap();
        for (most, read) in [(3, Ok(b"one".to_vec())), (2, Err("it is larger than 2 bytes".to_owned()))] {
            let (one, bytes) = watched(&path, most);
            assert_eq!((bytes, one.look_again()), (read, one));
        }
    }
}
