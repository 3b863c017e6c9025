//! The files that a configuration is read from, and whether they have changed since.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file as it was just before it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    path: PathBuf,
    /// None: it was not there.
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
}
