//! The files that a configuration is read from, and whether they have changed since.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::fault::Faults;
use super::raw::{Node, Value};
use super::scalar::{excerpt, visible};
use super::source::Source;

/// What one of these files may hold, bytes: a bound for what is named by mistake.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The files that a configuration names, as they are read.
#[derive(Debug)]
pub(super) struct Files {
    /// Relative paths are found from here: the folder of the configuration.
    folder: PathBuf,
    read: Vec<Watched>,
    /// Warnings about files that others may write, or secrets that others may read.
    open: Vec<String>,
}

/// Permissions of the group and of others: to write, and to read.
const WRITABLE: u32 = 0o022;
const READABLE: u32 = 0o044;

/// A warning about the file at `path`, if its permissions have one of `refused`. Root gives files to a group that a
/// service is in: a group may read what its service does not own.
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
    /// So far only the configuration itself.
    pub(super) fn beside(source: &Source) -> Self {
        let parent = |file: &Watched| file.path.parent().map(Path::to_owned);
        let folder = source.file.as_ref().and_then(parent).unwrap_or_default();
        let open = source.file.iter().filter_map(|file| permissions(&file.path, WRITABLE)).collect();
        Self { folder, read: source.file.clone().into_iter().collect(), open }
    }

    /// Those that were read, and warnings about their permissions.
    pub(super) fn into_watched(mut self) -> (Vec<Watched>, Vec<String>) {
        self.open.sort();
        self.open.dedup();
        (self.read, self.open)
    }

    /// Warns if others may read the file that `node` names, which holds a secret.
    pub(super) fn secret(&mut self, node: &Node) {
        if let Value::Text { text, .. } = &node.value {
            self.open.extend(permissions(&self.folder.join(text), READABLE));
        }
    }

    /// The same of the configuration itself: it holds a password.
    pub(super) fn holds_secret(&mut self) {
        let itself = self.read.first().and_then(|file| permissions(&file.path, READABLE));
        self.open.extend(itself);
    }

    /// The path that `node` names; `what` says what it should be.
    pub(super) fn path(&self, node: &Node, what: &str, faults: &mut Faults) -> Option<PathBuf> {
        let name = node.text(what, faults)?;
        if name.is_empty() {
            node.must_be(what, faults);
            return None;
        }
        Some(self.folder.join(name))
    }

    /// What the file holds that `node` names.
    pub(super) fn bytes(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<Vec<u8>> {
        let read = self.read(node, what, faults)?;
        read.map_or_else(|error| node.complain(&format!("cannot be read: {error}"), faults), Some)
    }

    /// The same; why it cannot be read is for the caller to note.
    pub(super) fn read(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<Result<Vec<u8>, String>> {
        let path = self.path(node, what, faults)?;
        // Whoever opens a pipe waits for who writes to it.
        let (watched, read) = match is_other(&path) {
            true => (Watched::look(&path), Err("it is no file".to_owned())),
            false => watched(&path, MAX_BYTES),
        };
        self.read.push(watched);
        self.open.extend(permissions(&path, WRITABLE));
        Some(read)
    }

    /// The same, when it is text.
    pub(super) fn text(&mut self, node: &Node, what: &str, faults: &mut Faults) -> Option<String> {
        let bytes = self.bytes(node, what, faults)?;
        String::from_utf8(bytes).ok().or_else(|| node.complain("is not UTF-8", faults))
    }
}

/// Whether what is there is a pipe, a folder, a device.
pub(super) fn is_other(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file())
}

/// The file at `path` as it was before it was read, and what it holds if that is at most so many bytes; some that say
/// they are empty never end.
pub(super) fn watched(path: &Path, most: u64) -> (Watched, Result<Vec<u8>, String>) {
    let (watched, mut bytes) = (Watched::look(path), Vec::new());
    match File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)) {
        Ok(length) if length as u64 > most => (watched, Err(format!("it is larger than {most} bytes"))),
        Ok(_) => (watched, Ok(bytes)),
        Err(error) => (watched.unread(), Err(error.to_string())),
    }
}

impl Node {
    /// Notes what is wrong with the file that this names.
    pub(super) fn complain<T>(&self, what: &str, faults: &mut Faults) -> Option<T> {
        if let Value::Text { text, .. } = &self.value {
            faults.note(self.place, format!("the file `{}` {what}", excerpt(text)));
        }
        None
    }
}

/// A file as it was just before it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    path: PathBuf,
    /// None: it was not there, or could not be read. So one that is there is tried again until it can be, although
    /// nothing about it changes when a disk or the system recovers.
    stamp: Option<Stamp>,
}

/// What differs once a file was written, replaced by another, or reached through another symbolic link.
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

    /// Whether another file is there than before, and not the same one with other contents.
    pub fn has_taken_the_place_of(&self, before: &Self) -> bool {
        let which = |stamp: &Stamp| (stamp.device, stamp.inode);
        self.stamp.as_ref().map(which) != before.stamp.as_ref().map(which)
    }

    /// The same file, which could not be read.
    fn unread(self) -> Self {
        Self { stamp: None, ..self }
    }

    /// Whether it was not there, or could not be read.
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
        // Its start cannot be read, whoever asks.
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
