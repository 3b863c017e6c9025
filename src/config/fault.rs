//! Faults of a configuration: the error, its place and the correction.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use super::files::Files;
use super::watched::Watched;

/// The place of a fault. Faults are sorted in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A flag of the command line or its environment variable.
    Flag(&'static str),
    /// The source as a whole: it cannot be read.
    Source,
    /// In the text: line and column from 1, columns in characters.
    At { line: usize, column: usize },
    /// In a resource of a control plane: the number of the descriptor, from 1 and parents first. 0
    /// is the resource itself.
    Descriptor(usize),
    /// In the quotas of a request: the quota's index and its member's index, from 0.
    Asked { quota: usize, member: Option<usize> },
}

impl Place {
    /// The line in the text, or the number of the descriptor; 0 for any other place.
    pub(super) fn line(self) -> usize {
        match self {
            Self::At { line, .. } | Self::Descriptor(line) => line,
            _ => 0,
        }
    }

    /// The place in words, for the fault of another place.
    pub(super) fn words(self) -> String {
        match self {
            Self::Descriptor(number) => format!("as descriptor {number}"),
            _ => format!("in line {}", self.line()),
        }
    }
}

/// One fault: a sentence, and where it applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The file, if it is not the configuration itself but one that it names.
    pub file: Option<Arc<str>>,
    pub place: Place,
    pub message: String,
}

impl Fault {
    pub(super) fn at(place: Place, message: impl Into<String>) -> Self {
        Self { file: None, place, message: message.into() }
    }

    /// Whether this machine lacks a file that the configuration names.
    pub fn is_of_an_absent_file(&self) -> bool {
        self.message.contains(UNREADABLE)
    }
}

/// A part of the fault of a file that is absent, or that the node may not read.
pub(super) const UNREADABLE: &str = "cannot be read: ";

impl fmt::Display for Fault {
    /// `line:column: message`, or the flag instead of a line. A file of its own precedes the line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(out, "{file}:")?;
        }
        match self.place {
            Place::At { line, column } => write!(out, "{line}:{column}: {}", self.message),
            Place::Flag(name) => write!(out, "{name}: {}", self.message),
            Place::Descriptor(number @ 1..) => write!(out, " descriptor {number}: {}", self.message),
            Place::Descriptor(0) => write!(out, " {}", self.message),
            Place::Source | Place::Asked { .. } => out.write_str(&self.message),
        }
    }
}

/// The reading of one text: its faults, and the files that it names. All nodes of the text have it.
///
/// A reader notes each fault and goes on with a placeholder, which [`Reading::conclude`] rejects.
#[derive(Debug, Default)]
pub(super) struct Reading {
    found: RefCell<Vec<Fault>>,
    pub(super) files: RefCell<Files>,
}

impl Reading {
    /// A reading of a text beside these files.
    pub(super) fn beside(files: Files) -> Self {
        Self { found: RefCell::default(), files: RefCell::new(files) }
    }

    pub(super) fn note(&self, place: Place, message: impl Into<String>) {
        self.found.borrow_mut().push(Fault::at(place, message));
    }

    /// The value of a result; notes its error.
    pub(super) fn noted<T>(&self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.found.borrow_mut().push(fault)).ok()
    }

    /// Adds the faults and warnings of a file that the text names.
    pub(super) fn absorb(&self, file: &Arc<str>, of_file: &Self) {
        let found = of_file.found.take().into_iter().map(|fault| Fault { file: Some(file.clone()), ..fault });
        self.found.borrow_mut().extend(found);
        self.files.borrow_mut().absorb(&mut of_file.files.borrow_mut());
    }

    pub(super) fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// The result of `read`; none if it notes a fault.
    pub(super) fn checked<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let before = self.count();
        let value = read();
        (self.count() == before).then_some(value)
    }

    /// `value` if there is one and no fault was noted, otherwise the faults, by place.
    pub(super) fn conclude<T>(&self, origin: &str, value: Option<T>) -> Result<T, Faults> {
        let mut found = self.found.take();
        found.sort();
        // Aliases repeat the faults of a value.
        found.dedup();
        debug_assert!(value.is_some() || !found.is_empty(), "a missing value must have a fault");
        let is_sound = found.is_empty();
        value
            .filter(|_| is_sound)
            .ok_or_else(|| Faults { origin: origin.to_owned(), found, read: Vec::new() })
    }
}

/// All faults of one configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    origin: String,
    found: Vec<Fault>,
    /// The files as they were before the read. When one changes, its faults may be gone.
    read: Vec<Watched>,
}

impl Faults {
    /// One fault of the source as a whole.
    pub fn of_source(origin: &str, message: impl Into<String>) -> Self {
        Self::at(origin, Place::Source, message)
    }

    /// One fault of the text that was read from `origin`.
    pub(super) fn at(origin: &str, place: Place, message: impl Into<String>) -> Self {
        let found = vec![Fault::at(place, message)];
        Self { origin: origin.to_owned(), found, read: Vec::new() }
    }

    /// Adds the files that the configuration was read from.
    pub(super) fn read_from(self, read: Vec<Watched>) -> Self {
        Self { read, ..self }
    }

    /// Whether one of the files was missing or unreadable.
    pub fn is_unread(&self) -> bool {
        self.read.iter().any(Watched::is_unread)
    }

    /// The files as they were before the read.
    pub fn files(&self) -> &[Watched] {
        &self.read
    }

    /// The faults, by place.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.found.iter()
    }
}

impl fmt::Display for Faults {
    /// `file:line:column: message`, one a line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.found.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            match fault.place {
                Place::Flag(_) => write!(out, "{line_end}{fault}")?,
                _ if fault.file.is_some() => write!(out, "{line_end}{fault}")?,
                Place::Source => write!(out, "{line_end}{}: {fault}", self.origin)?,
                Place::At { .. } | Place::Descriptor(_) | Place::Asked { .. } => {
                    write!(out, "{line_end}{}:{fault}", self.origin)?
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
