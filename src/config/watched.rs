//! Detects a change of a file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// Whether this is the file of `before`, and it has become longer. A file that replaces another
    /// is complete when it appears.
    pub fn has_grown(&self, before: &Self) -> bool {
        let (Some(now), Some(before)) = (&self.stamp, &before.stamp) else { return false };
        (now.device, now.inode) == (before.device, before.inode) && now.size > before.size
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

/// Whether the path is a pipe, a folder or a device.
pub(super) fn is_other(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file())
}

/// How often a file is read that changes meanwhile, or is empty: a program may be writing it.
const READS: u32 = 5;

/// The pause before such a file is read again. Most files are written in less.
const PAUSE: Duration = Duration::from_millis(5);

/// The stamp of the file at `path` before the read, and its contents up to `most` bytes. Some
/// endless files report a size of 0.
pub(super) fn watched(path: &Path, most: u64) -> (Watched, Result<Vec<u8>, String>) {
    let mut read = read_once(path, most);
    for _ in 1..READS {
        let (watched, bytes) = &read;
        let is_empty = bytes.as_ref().is_ok_and(Vec::is_empty);
        // A pipe changes with each read, and cannot be read again.
        if watched.is_unread() || is_other(path) || !is_empty && watched.look_again() == *watched {
            break;
        }
        std::thread::sleep(PAUSE);
        read = read_once(path, most);
    }
    read
}

fn read_once(path: &Path, most: u64) -> (Watched, Result<Vec<u8>, String>) {
    let watched = Watched::look(path);
    match File::open(path).and_then(|file| bounded(file, most)) {
        Ok(bytes) => (watched, bytes),
        Err(error) => (watched.unread(), Err(error.to_string())),
    }
}

/// The contents of `input`; the inner `Err` if they are more than `most` bytes.
///
/// # Errors
/// When it cannot be read.
pub fn bounded(input: impl Read, most: u64) -> io::Result<Result<Vec<u8>, String>> {
    let mut bytes = Vec::new();
    let length = input.take(most + 1).read_to_end(&mut bytes)?;
    Ok(if length as u64 > most { Err(format!("it is larger than {most} bytes")) } else { Ok(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_or_replaced_file_counts_as_changed() {
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
    fn only_a_longer_version_of_the_same_file_has_grown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let absent = Watched::look(&path);
        std::fs::write(&path, "four").unwrap();
        let four = absent.look_again();
        std::fs::write(&path, "fiver").unwrap();
        let five = four.look_again();
        let other = folder.path().join("other");
        std::fs::write(&other, "sixsix").unwrap();
        std::fs::rename(&other, &path).unwrap();
        let six = five.look_again();
        let grown = [(&five, &four), (&four, &five), (&four, &absent), (&six, &five), (&six, &six)];
        assert_eq!(grown.map(|(now, before)| now.has_grown(before)), [true, false, false, false, false]);
    }

    #[test]
    fn unreadable_file_counts_as_changed() {
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
