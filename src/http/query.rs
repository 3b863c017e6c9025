//! Query strings, as strict as bodies: no unknown, duplicate or missing parameters.

use std::borrow::Cow;

use axum::http::StatusCode;
use percent_encoding::percent_decode;

use super::inspect::MAX_VIOLATIONS;
use super::request::{self, DEFAULT_POLICY};
use super::violations::Violation;
use crate::engine::Check;

/// The status of a denial: `?deny_status=`, else 200.
pub(super) fn deny_status(query: Option<&str>) -> Result<StatusCode, Vec<Violation>> {
    let mut parameters = Parameters::read(query, &["deny_status"]);
    let status = parameters.take("deny_status", |text| match text {
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        "401" => Ok(StatusCode::UNAUTHORIZED),
        "403" => Ok(StatusCode::FORBIDDEN),
        _ => Err("must be 429, 401 or 403".into()),
    });
    parameters.finish(status.unwrap_or(StatusCode::OK))
}

/// A call without parameters.
pub(super) fn none(query: Option<&str>) -> Result<(), Vec<Violation>> {
    Parameters::read(query, &[]).finish(())
}

/// `?policy=&key=`: the check of cost 0.
pub(super) fn usage(query: Option<&str>) -> Result<Check, Vec<Violation>> {
    let mut parameters = Parameters::read(query, &["policy", "key"]);
    parameters.require("key");
    let policy = parameters.take("policy", |name| Ok(name.to_owned()));
    let key = parameters.take("key", |key| request::check_key(key).map(|()| key.to_owned()));
    let policy = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
    parameters.finish(Check { policy, key: key.unwrap_or_default(), cost: 0, meta: None, id: None, quotas: None })
}

struct Parameters<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    violations: Vec<Violation>,
}

impl<'a> Parameters<'a> {
    fn read(query: Option<&'a str>, known: &[&str]) -> Self {
        let mut read = Self { pairs: Vec::new(), violations: Vec::new() };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(name), decoded(value)) {
                (Some(name), Some(value)) => read.add(name, value, known),
                _ => read.note(|| Violation::new(format!("/{name}"), "is not percent-encoded UTF-8")),
            }
        }
        read
    }

    fn add(&mut self, name: Cow<'a, str>, value: Cow<'a, str>, known: &[&str]) {
        if !known.contains(&&*name) {
            self.note(|| Violation::unknown("", &name, known));
        } else if self.pairs.iter().any(|(other, _)| *other == name) {
            self.note(|| Violation::duplicate("", &name));
        } else {
            self.pairs.push((name, value));
        }
    }

    /// So many are enough, and looking for what was meant takes time.
    fn note(&mut self, violation: impl FnOnce() -> Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation());
        }
    }

    fn require(&mut self, name: &str) {
        let pointer = format!("/{name}");
        let is_given = self.pairs.iter().any(|(other, _)| other == name);
        if !is_given && !self.violations.iter().any(|violation| violation.is_at(&pointer)) {
            self.violations.push(Violation::missing("", name));
        }
    }

    fn take<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let (_, value) = self.pairs.iter().find(|(other, _)| other == name)?;
        read(value).map_err(|detail| self.violations.push(Violation::new(format!("/{name}"), detail))).ok()
    }

    fn finish<T>(self, value: T) -> Result<T, Vec<Violation>> {
        if self.violations.is_empty() { Ok(value) } else { Err(self.violations) }
    }
}

/// As forms write it: `+` is a space, `%XX` a byte of UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    let is_escape =
        |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return percent_decode(spaced.as_bytes()).decode_utf8().ok().map(|text| Cow::Owned(text.into_owned()));
    }
    percent_decode(text.as_bytes()).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_as_forms_are() {
        let check = usage(Some("key=a+b%26c%C3%A4&policy=p")).unwrap();
        assert_eq!((check.key.as_str(), check.policy.as_str()), ("a b&cä", "p"));
        assert_eq!(usage(Some("key=a")).unwrap().policy, "default");
    }

    #[test]
    fn every_fault_is_told() {
        let faults = usage(Some("polic=a&x=%FF&policy=a&policy=b")).unwrap_err();
        let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "/polic is not known: did you mean \"policy\"?",
                "/x is not percent-encoded UTF-8",
                "/policy is given more than once",
                "/key is required",
            ]
        );
        assert!(none(Some("a=1")).is_err() && none(Some("")).is_ok());
        assert!(deny_status(Some("deny_status=200")).is_err());
        for key in ["%", "%z", "%zz", "a%4", "%%41", "%+41"] {
            assert!(usage(Some(&format!("key={key}"))).is_err(), "{key}");
        }
    }
}
