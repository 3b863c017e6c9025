//! The faults of a readable request, each with a pointer, all at once.

use std::fmt;

use serde::Serialize;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::http) struct Violation {
    /// A JSON pointer (RFC 6901) into the body, or `/name` of a query parameter.
    pointer: String,
    /// The fault and its correction.
    detail: String,
}

impl Violation {
    pub(in crate::http) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }

    /// An unknown member or parameter; `known` are the valid names.
    pub(in crate::http) fn unknown(at: &str, name: &str, known: &[&str]) -> Self {
        let hint = did_you_mean(name, known.iter().copied());
        let hint = if hint.is_empty() { choice(known) } else { hint };
        Self::new(member(at, name), format!("is not known{hint}"))
    }

    pub(in crate::http) fn duplicate(at: &str, name: &str) -> Self {
        Self::new(member(at, name), "is given more than once")
    }

    /// Whether the violation has this pointer.
    pub(in crate::http) fn is_at(&self, pointer: &str) -> bool {
        self.pointer == pointer
    }

    pub(in crate::http) fn missing(at: &str, name: &str) -> Self {
        Self::new(member(at, name), "is required")
    }
}

/// The most violations that an answer lists for one object, query or call.
const MAX_LISTED: usize = 50;

/// The most invalid checks of one call whose violations are listed. For the others the answer gives
/// the number of violations.
pub(in crate::http) const MAX_EXPLAINED: usize = 8;

/// The faults of one object, query or call. The list is bounded, so an attacker cannot make answers
/// long.
#[derive(Debug)]
pub(in crate::http) struct Violations {
    pub(in crate::http) listed: Vec<Violation>,
    /// The number of further faults.
    pub(in crate::http) omitted: usize,
    max_listed: usize,
}

impl Default for Violations {
    fn default() -> Self {
        Self::at_most(MAX_LISTED)
    }
}

impl From<Vec<Violation>> for Violations {
    fn from(listed: Vec<Violation>) -> Self {
        Self { listed, ..Self::default() }
    }
}

impl Violations {
    pub(in crate::http) fn at_most(max_listed: usize) -> Self {
        Self { listed: Vec::new(), omitted: 0, max_listed }
    }

    /// Adds a violation once. Beyond the bound it only counts, since descriptions take time too.
    pub(in crate::http) fn note(&mut self, violation: impl FnOnce() -> Violation) {
        if self.listed.len() >= self.max_listed {
            self.omitted += 1;
            return;
        }
        let violation = violation();
        if !self.listed.contains(&violation) {
            self.listed.push(violation);
        }
    }

    pub(in crate::http) fn extend(&mut self, more: Self) {
        more.listed.into_iter().for_each(|violation| self.note(|| violation));
        self.omitted += more.omitted;
    }

    pub(in crate::http) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.omitted == 0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "the body" } else { &self.pointer };
        write!(f, "{place} {}", self.detail)
    }
}

fn choice(known: &[&str]) -> String {
    if known.is_empty() { ": there are none".into() } else { format!(": there are {}", known.join(", ")) }
}

/// Letters of a name that a pointer repeats. Longer names end in `...`, since a caller may send a
/// megabyte.
const MAX_NAME: usize = 64;

/// The pointer of a member of the value at `at`.
pub(in crate::http) fn member(at: &str, name: &str) -> String {
    let cut = name.char_indices().nth(MAX_NAME).map_or(name.len(), |(end, _)| end);
    let dots = if cut < name.len() { "..." } else { "" };
    format!("{at}/{}{dots}", name[..cut].replace('~', "~0").replace('/', "~1"))
}

/// The most inserted, missing, wrong or swapped letters of a misspelled word.
const SLIPS: usize = 2;

/// The longest word that counts as misspelled, bytes. A comparison takes its length squared.
const LONGEST: usize = 32;

/// The most words that a wrong one is compared with. There may be thousands of policies, and a
/// misspelled name must not keep a thread busy.
const MOST: usize = 64;

/// `: did you mean "key"?` if one of `known` is close to `name`, else nothing. Only names with the
/// same first or last letter count.
pub(in crate::http) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    if name.len() > LONGEST {
        return String::new();
    }
    let name = name.to_ascii_lowercase();
    let is_alike = |known: &&str| {
        let (known, name) = (known.as_bytes(), name.as_bytes());
        known.len().abs_diff(name.len()) <= SLIPS && (known.first() == name.first() || known.last() == name.last())
    };
    let known = known.filter(is_alike).take(MOST);
    let near = known.map(|known| (strsim::osa_distance(&name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= SLIPS && distance * 2 < known.len() => {
            format!(": did you mean {known:?}?")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointers_escape_their_separators() {
        assert_eq!(Violation::duplicate("/checks/3", "a/b~c").pointer, "/checks/3/a~1b~0c");
        assert_eq!(member("", &"é".repeat(65)), format!("/{}...", "é".repeat(64)));
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["policy", "key", "cost"];
        for (name, hint) in
            [("polcy", ": did you mean \"policy\"?"), ("Key", ": did you mean \"key\"?"), ("colour", ""), ("k", "")]
        {
            assert_eq!(did_you_mean(name, known.into_iter()), hint, "{name}");
        }
    }
}
