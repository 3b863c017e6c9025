//! The named values of a body's object or of a query, and all their faults.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::raw::{document, each_member, kind};
use crate::http::problem::{Problem, Violation, Violations, member};

/// The members that must be there.
const REQUIRED: [&str; 2] = ["key", "checks"];

/// The values of known names, each once, and the faults found so far.
pub(super) struct Members<'a, V> {
    /// The JSON pointer of the object in the body; empty for a query.
    at: &'a str,
    known: Vec<(Cow<'a, str>, V)>,
    pub(super) violations: Violations,
}

impl<'a, V> Members<'a, V> {
    pub(super) fn new(at: &'a str, violations: Violations) -> Self {
        Self { at, known: Vec::new(), violations }
    }

    /// Adds a value if its name is one of `names` and new.
    pub(super) fn add(&mut self, name: impl Into<Cow<'a, str>>, value: V, names: &[&str]) {
        let (at, name) = (self.at, name.into());
        if !names.contains(&&*name) {
            self.violations.note(|| Violation::unknown(at, &name, names));
        } else if self.has(&name) {
            self.violations.note(|| Violation::duplicate(at, &name));
        } else {
            self.known.push((name, value));
        }
    }

    /// Reports a missing name. A name whose value cannot be read is not missing.
    pub(super) fn require(&mut self, name: &str) {
        let pointer = member(self.at, name);
        if !self.has(name) && !self.violations.listed.iter().any(|violation| violation.is_at(&pointer)) {
            self.violations.note(|| Violation::missing(self.at, name));
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.known.iter().any(|(other, _)| other == name)
    }

    /// Removes the value of a name and reads it.
    pub(super) fn take<T>(&mut self, name: &str, read: impl FnOnce(V) -> Result<T, String>) -> Option<T> {
        let place = self.known.iter().position(|(other, _)| other == name)?;
        let (_, value) = self.known.swap_remove(place);
        let fault = |detail| self.violations.note(|| Violation::new(format!("{}/{name}", self.at), detail));
        read(value).map_err(fault).ok()
    }

    /// Reports a name that must not be there.
    pub(super) fn refuse(&mut self, name: &str, why: &str) {
        if self.has(name) {
            let pointer = member(self.at, name);
            self.violations.note(|| Violation::new(pointer, why.to_owned()));
        }
    }

    pub(super) fn finish<T>(self, value: T) -> Result<T, Violations> {
        if self.violations.is_empty() { Ok(value) } else { Err(self.violations) }
    }
}

impl<'a> Members<'a, &'a RawValue> {
    /// The members of a body.
    pub(super) fn of_body(body: &'a [u8], names: &[&str]) -> Result<Self, Problem> {
        Ok(Self::open(document(body)?, "", names, Violations::default())?)
    }

    /// The members of an object. Members with names outside `names` are faults.
    pub(super) fn open(
        value: &'a RawValue,
        at: &'a str,
        names: &[&str],
        mut violations: Violations,
    ) -> Result<Self, Violations> {
        if !value.get().starts_with('{') {
            violations.note(|| Violation::new(at, format!("must be an object, not {}", kind(value))));
            return Err(violations);
        }
        let mut members = Self::new(at, violations);
        match each_member(value, |name, value| members.add(name, value, names)) {
            Ok(()) => {
                // Many clients write absent members as `null`.
                members.known.retain(|(name, value)| REQUIRED.contains(&&**name) || value.get() != "null");
                Ok(members)
            }
            Err(detail) => {
                members.violations.note(|| Violation::new(at, detail));
                Err(members.violations)
            }
        }
    }
}
