//! The rule that matches a question.

use super::facts::Facts;
use super::missing::Missing;
use super::path;
use crate::config::{Gate, GateRule, RuleMatch};

/// The path of a request, by one of its readings.
type Path<'p, 'a> = Result<&'p str, Missing<'a>>;

/// The first rule that matches with this path. If the gate enforces limits, a rule matches that
/// needs a missing fact, which comes with it.
pub(super) fn first<'a>(
    gate: &'a Gate,
    facts: &Facts<'a>,
    path: &Path<'_, 'a>,
) -> (Option<&'a GateRule>, Option<Missing<'a>>) {
    for rule in &gate.rules {
        match fit(rule, facts, path) {
            Fit::Yes => return (Some(rule), None),
            Fit::Unknown(missing) if gate.enforces() => return (Some(rule), Some(missing)),
            Fit::No | Fit::Unknown(_) => {}
        }
    }
    (None, None)
}

/// Whether a backend may serve the request by the path of another rule that counts, or by any rule
/// that counts where this one does not.
pub(super) fn is_evaded<'a>(gate: &'a Gate, facts: &Facts<'a>, rule: Option<&GateRule>) -> bool {
    let counts = |rule: Option<&GateRule>| rule.is_some_and(|rule| rule.checks.iter().any(|check| !check.is_shadow));
    let has_paths = |rule: &GateRule| rule.matches.as_ref().is_some_and(|matches| matches.paths.is_some());
    let others = facts.path.iter().flat_map(|paths| &paths.others);
    others.filter_map(|path| first(gate, facts, &Ok(path)).0).any(|other| {
        let is_same = rule.is_some_and(|rule| std::ptr::eq(rule, other));
        !is_same && counts(Some(other)) && (has_paths(other) || !counts(rule))
    })
}

/// The result of a match.
enum Fit<'a> {
    Yes,
    No,
    /// A fact that the rule needs is missing, and all others match.
    Unknown(Missing<'a>),
}

fn fit<'a>(rule: &GateRule, facts: &Facts<'a>, path: &Path<'_, 'a>) -> Fit<'a> {
    let Some(RuleMatch { hosts, methods, paths, headers }) = &rule.matches else { return Fit::Yes };
    if !headers.iter().all(|(name, value)| has_header(facts, name, value)) {
        return Fit::No;
    }
    let host = one_of(hosts, &facts.host, |host, known| host == known);
    let method = one_of(methods, &facts.method, |method, known| method == known);
    let path = one_of(paths.as_slice(), path, |path, paths| path::is_one_of(paths, path));
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
