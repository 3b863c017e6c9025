//! What is wrong with a request that can be read: each fault with a pointer to it, all of them at once.

use std::fmt;

use serde::Serialize;

use super::error::Problem;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Violation {
    /// A JSON pointer (RFC 6901) into the body, or `/name` of a query parameter.
    pointer: String,
    /// What is wrong and what would be right.
    detail: String,
}

impl Violation {
    pub(super) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }

    /// A member or parameter that does not exist; `known` are those that do.
    pub(super) fn unknown(at: &str, name: &str, known: &[&str]) -> Self {
        let hint = did_you_mean(name, known.iter().copied());
        let hint = if hint.is_empty() { choice(known) } else { hint };
        Self::new(member(at, name), format!("is not known{hint}"))
    }

    pub(super) fn duplicate(at: &str, name: &str) -> Self {
        Self::new(member(at, name), "is given more than once")
    }

    /// Whether it is about what the pointer points to.
    pub(super) fn is_at(&self, pointer: &str) -> bool {
        self.pointer == pointer
    }

    pub(super) fn missing(at: &str, name: &str) -> Self {
        Self::new(member(at, name), "is required")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "the body" } else { &self.pointer };
        write!(f, "{place} {}", self.detail)
    }
}

/// Both parts of a request, or the faults of both.
pub(super) fn both<A, B>(body: Result<A, Problem>, query: Result<B, Vec<Violation>>) -> Result<(A, B), Problem> {
    match (body, query) {
        (Ok(body), Ok(query)) => Ok((body, query)),
        (Ok(_), Err(violations)) => Err(Problem::invalid(violations)),
        (Err(problem), Ok(_)) => Err(problem),
        (Err(problem), Err(more)) => {
            let mut violations = problem.into_violations()?;
            violations.extend(more);
            Err(Problem::invalid(violations))
        }
    }
}

/// Letters that are inserted, missing, wrong or swapped in a word that was meant to be another, at most.
const SLIPS: usize = 2;

/// Longer words are no slips of the hand, bytes: a comparison takes its length squared.
const LONGEST: usize = 32;

/// Words that a wrong one is compared with at most: a policy may have thousands of others beside it, and whoever
/// misspells it must not keep a thread busy with them.
const MOST: usize = 64;

/// `: did you mean "key"?`, if one of `known` is close to `name`, else nothing. Of many, those count that begin or end
/// as it does.
pub(super) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
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

fn choice(known: &[&str]) -> String {
    if known.is_empty() { ": there are none".into() } else { format!(": there are {}", known.join(", ")) }
}

/// The pointer of a member of what `at` points to.
pub(super) fn member(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["policy", "key", "cost"];
        for (name, hint) in
            [("polcy", ": did you mean \"policy\"?"), ("Key", ": did you mean \"key\"?"), ("colour", ""), ("k", "")]
        {
            assert_eq!(did_you_mean(name, known.into_iter()), hint, "{name}");
        }
    }

    #[test]
    fn a_pointer_escapes_what_it_is_made_of() {
        assert_eq!(Violation::duplicate("/checks/3", "a/b~c").pointer, "/checks/3/a~1b~0c");
    }
}
