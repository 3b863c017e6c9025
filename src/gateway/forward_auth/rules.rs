//! Whether a rule matches a question.

use super::facts::Facts;
use super::missing::Missing;
use super::path;
use crate::config::{GateRule, RuleMatch};

/// The result of a match.
pub(super) enum Fit<'a> {
    Yes,
    No,
    /// A fact that the rule needs is missing, and all others match.
    Unknown(Missing<'a>),
}

pub(super) fn fit<'a>(rule: &GateRule, facts: &Facts<'a>) -> Fit<'a> {
    let Some(RuleMatch { hosts, methods, paths, headers }) = &rule.matches else { return Fit::Yes };
    if !headers.iter().all(|(name, value)| has_header(facts, name, value)) {
        return Fit::No;
    }
    let host = one_of(hosts, &facts.host, |host, known| host == known);
    let method = one_of(methods, &facts.method, |method, known| method == known);
    let path = one_of(paths.as_slice(), &facts.path, |path, paths| path::is_one_of(paths, path));
    let fits = [host, method, path];
    if fits.iter().any(|fit| matches!(fit, Fit::No)) {
        return Fit::No;
    }
    fits.into_iter().find(|fit| matches!(fit, Fit::Unknown(_))).unwrap_or(Fit::Yes)
}

fn one_of<'a, T, K>(known: &[K], fact: &Result<T, Missing<'a>>, is_equal: impl Fn(&T, &K) -> bool) -> Fit<'a> {
    match fact {
        _ if known.is_empty() => Fit::Yes,
        Ok(value) if known.iter().any(|known| is_equal(value, known)) => Fit::Yes,
        Ok(_) => Fit::No,
        Err(missing) => Fit::Unknown(missing.clone()),
    }
}

/// A repeated header matches nothing, as does a header of an untrusted peer.
fn has_header(facts: &Facts<'_>, name: &str, value: &str) -> bool {
    facts.fields.only(name, "".into()).is_ok_and(|found| found == value)
}
