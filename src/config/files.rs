//! The files that a configuration names.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::fault::UNREADABLE;
use super::node::{Node, Value};
use super::scalar::{excerpt, visible};
use super::source::Source;
use super::watched::{Watched, is_other, watched};

/// Largest size of one of these files, bytes: a bound for files named by mistake.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The files that a configuration names.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The folder of the configuration: relative paths start here.
    folder: PathBuf,
    /// The configuration, unless it is no file.
    itself: Option<PathBuf>,
    read: Vec<Watched>,
    /// Warnings about files that others may write, secrets that others may read, and members that
    /// have no effect.
    warnings: Vec<String>,
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
        let parent = |file: &Watched| file.path().parent().map(Path::to_owned);
        let folder = source.file.as_ref().and_then(parent).unwrap_or_default();
        let itself = source.file.as_ref().map(|file| file.path().to_owned());
        let warnings = source.file.iter().filter_map(|file| permissions(file.path(), WRITABLE)).collect();
        Self { folder, itself, read: source.file.clone().into_iter().collect(), warnings }
    }

    /// The files read so far, and warnings about them.
    pub(super) fn watched(&mut self) -> (Vec<Watched>, Vec<String>) {
        self.warnings.sort();
        self.warnings.dedup();
        (std::mem::take(&mut self.read), std::mem::take(&mut self.warnings))
    }

    /// Warns if others may read the configuration itself, because it holds a password.
    pub(super) fn warn_of_readers(&mut self) {
        let itself = self.itself.as_deref().and_then(|path| permissions(path, READABLE));
        self.warnings.extend(itself);
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Adds the warnings about the contents of a file.
    pub(super) fn absorb(&mut self, of_file: &mut Self) {
        self.warnings.append(&mut of_file.warnings);
    }

    /// The contents of the file at `path`.
    pub(super) fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        // Opening a pipe would block until another process writes to it.
        let (watched, read) = match is_other(path) {
            true => (Watched::look(path), Err("it is no file".to_owned())),
            false => watched(path, MAX_BYTES),
        };
        self.read.push(watched);
        self.warnings.extend(permissions(path, WRITABLE));
        read
    }

    /// The paths in a folder that `is_wanted` selects, by name. The folder is watched, since files
    /// may come and go.
    pub(super) fn folder(&mut self, path: &Path, is_wanted: impl Fn(&Path) -> bool) -> std::io::Result<Vec<PathBuf>> {
        self.read.push(Watched::look(path));
        let entries: std::io::Result<Vec<PathBuf>> = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
        let mut found = entries?;
        found.retain(|path| is_wanted(path));
        found.sort();
        Ok(found)
    }

    /// All files in a folder and in those below. Links to folders are not followed. A name that
    /// begins with `..` is a former or half-written state of a mounted ConfigMap.
    pub(super) fn tree(&mut self, path: &Path, with_hidden: bool) -> std::io::Result<Vec<PathBuf>> {
        let skipped = if with_hidden { ".." } else { "." };
        let mut found = Vec::new();
        for path in self.folder(path, |path| !begins_with(path, skipped))? {
            match std::fs::symlink_metadata(&path).is_ok_and(|data| data.is_dir()) {
                true => found.extend(self.tree(&path, with_hidden)?),
                false if path.is_dir() => self.warnings.push(format!(
                    "{}: a link to a folder is not read: name that folder, too",
                    visible(&path.display().to_string())
                )),
                false => found.push(path),
            }
        }
        Ok(found)
    }
}

/// Whether the last part of the path begins with `start`.
pub(super) fn begins_with(path: &Path, start: &str) -> bool {
    path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(start.as_bytes()))
}

/// The file that a node names.
impl Node {
    /// Its path; `what` describes the expected file.
    pub(super) fn path(&self, what: &str) -> Option<PathBuf> {
        Some(self.reading.files.borrow().folder.join(self.word(what)?))
    }

    /// Its contents.
    pub(super) fn bytes(&self, what: &str) -> Option<Vec<u8>> {
        let path = self.path(what)?;
        let read = self.reading.files.borrow_mut().read(&path);
        read.map_or_else(|error| self.note_file_fault(&format!("{UNREADABLE}{error}")), Some)
    }

    /// Its contents as text.
    pub(super) fn text_of_file(&self, what: &str) -> Option<String> {
        String::from_utf8(self.bytes(what)?).ok().or_else(|| self.note_file_fault("is not UTF-8"))
    }

    /// Warns if others may read the file, which holds a secret.
    pub(super) fn warn_of_secret_readers(&self) {
        if let Value::Text { text, .. } = &self.value {
            let files = &mut *self.reading.files.borrow_mut();
            files.warnings.extend(permissions(&files.folder.join(text), READABLE));
        }
    }

    /// Notes a fault of the file.
    pub(super) fn note_file_fault<T>(&self, what: &str) -> Option<T> {
        if let Value::Text { text, .. } = &self.value {
            self.note(format!("the file `{}` {what}", excerpt(text)));
        }
        None
    }
}
