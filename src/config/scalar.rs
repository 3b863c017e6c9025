//! Reads a node as the expected type, or notes a fault, with a suggestion for a misspelt word.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::fault::{Faults, Place};
use super::raw::{Member, Node, Value};
use crate::access::TOKEN;

/// Longest name of a policy or a quota, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Longest part of a value that a fault repeats, in characters.
const MAX_SHOWN: usize = 60;

/// Visible characters, although Rust escapes them.
const AS_THEY_ARE: [char; 3] = ['\'', '"', '\\'];

/// The number of hexadecimal digits that distinguishes a token from a name with the same prefix.
const DIGITS: usize = 16;

impl Node {
    /// An empty value at the start of the file.
    pub(super) fn empty(name: &str) -> Self {
        Self { place: Place::At { line: 1, column: 1 }, name: name.to_owned(), value: Value::Empty }
    }

    /// Notes that this should be `what`.
    pub(super) fn must_be(&self, what: &str, faults: &mut Faults) {
        if let Some(shown) = self.shown() {
            faults.note(self.place, format!("{} must be {what}, not {shown}", self.name));
        }
    }

    /// Describes the value in words; none when it has its fault already.
    fn shown(&self) -> Option<String> {
        match &self.value {
            Value::Empty => Some("empty".to_owned()),
            Value::Text { text, quoted: false } => Some(format!("`{}`", excerpt(text))),
            Value::Text { text, quoted: true } => Some(format!("the text `\"{}\"`", excerpt(text))),
            Value::List(_) => Some("a list".to_owned()),
            Value::Mapping(_) => Some("a mapping".to_owned()),
            Value::Refused => None,
        }
    }

    /// A text, quoted or not.
    pub(super) fn text(&self, what: &str, faults: &mut Faults) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => self.refuse(what, faults),
        }
    }

    /// A text that is not empty.
    pub(super) fn word(&self, what: &str, faults: &mut Faults) -> Option<&str> {
        let text = self.text(what, faults)?;
        if text.is_empty() { self.refuse(what, faults) } else { Some(text) }
    }

    /// Like [`Self::text`], where the text often ends in `:`. YAML reads that as a mapping unless
    /// it has quotes.
    pub(super) fn text_of_any_end(&self, what: &str, faults: &mut Faults) -> Option<&str> {
        match self.before_colon() {
            Some(text) => {
                let hint = format!("a text that ends in `:` needs quotes, `\"{}:\"`", excerpt(text));
                faults.note(self.place, format!("{} must be {what}, not a mapping: {hint}", self.name));
                None
            }
            None => self.text(what, faults),
        }
    }

    /// The part before the colon of `text:`; none for a mapping in braces. Braces begin on the
    /// key's line and before the key.
    fn before_colon(&self) -> Option<&str> {
        let Value::Mapping(members) = &self.value else { return None };
        let [Member { place, key, node: Self { value: Value::Empty, .. } }] = members.as_slice() else { return None };
        let in_braces = matches!((self.place, place), (Place::At { line, .. }, Place::At { line: of_key, .. })
            if self.place != *place && line == *of_key);
        (!in_braces).then_some(key.as_str())
    }

    /// An integer within the range, in digits.
    pub(super) fn integer(&self, range: RangeInclusive<u64>, faults: &mut Faults) -> Option<u64> {
        let what = format!("an integer from {} to {}", range.start(), range.end());
        match &self.value {
            Value::Text { text, quoted: false } => {
                digits(text).filter(|number| range.contains(number)).or_else(|| self.refuse(&what, faults))
            }
            _ => self.refuse(&what, faults),
        }
    }

    /// A name that is valid in header fields, metrics and Redis keys.
    pub(super) fn identifier(&self, faults: &mut Faults) -> Option<&str> {
        let what = "1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`";
        let text = self.text(what, faults)?;
        if is_identifier(text) { Some(text) } else { self.refuse(what, faults) }
    }

    /// The entries of a list.
    pub(super) fn list(&self, example: &str, faults: &mut Faults) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => self.refuse(&format!("a list such as `{example}`"), faults),
        }
    }

    pub(super) fn refuse<T>(&self, what: &str, faults: &mut Faults) -> Option<T> {
        self.must_be(what, faults);
        None
    }
}

/// The number that ASCII digits without leading zeros write, saturated at the largest u64.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let octal = text.len() > 1 && text.starts_with('0');
    (plain && !octal).then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether the text is of `[A-Za-z0-9_.-]` and 1 to 64 bytes long.
pub(super) fn is_identifier(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// The start of a value, on one line, without its secrets.
pub(super) fn excerpt(text: &str) -> String {
    let text = masked(text);
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => visible(&text[..end]) + "...",
        None => visible(&text),
    }
}

/// The text on one line, with invisible characters escaped, since they can control a terminal.
/// Quotes and backslashes stay, so a key appears as requested.
pub fn visible(text: &str) -> String {
    let pieces = text.split_inclusive(AS_THEY_ARE).flat_map(|piece| {
        let (before, mark) = piece.split_at(piece.trim_end_matches(AS_THEY_ARE).len());
        before.escape_debug().chain(mark.chars())
    });
    pieces.collect()
}

/// Keeps only the scheme of a URL that may hold a password. Keeps only the prefix of a token
/// written in place of its file.
fn masked(text: &str) -> Cow<'_, str> {
    if let Some((scheme, rest)) = text.split_once("://")
        && rest.contains('@')
    {
        return format!("{scheme}://...").into();
    }
    let of_secret =
        |(_, rest): &(&str, &str)| rest.bytes().take(DIGITS).filter(u8::is_ascii_hexdigit).count() == DIGITS;
    match text.split_once(TOKEN).filter(of_secret) {
        Some((before, _)) => format!("{before}{TOKEN}...").into(),
        None => text.into(),
    }
}

/// Longer words get no suggestion, bytes.
const LONGEST: usize = 64;

/// The candidate nearest to `word`, if it is near enough.
///
/// Uses the optimal string alignment distance. An inserted, missing or wrong letter, or two swapped
/// letters, count 1. Case, and `-` instead of `_`, count nothing. One mistake in three letters is
/// near enough.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The words as a sentence lists them: `a`, `b` or `c`.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [before @ .., last] => format!("{} or {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invisible_characters_are_escaped() {
        for (text, shown) in [
            (r#"it's "a\b""#, r#"it's "a\b""#),
            (r#"""'"#, r#"""'"#),
            ("cafe\u{301} ü", "cafe\u{301} ü"),
            ("a\u{1b}[2J\r\n\t\u{202e}\0", r"a\u{1b}[2J\r\n\t\u{202e}\0"),
            ("", ""),
        ] {
            assert_eq!(visible(text), shown);
        }
        assert_eq!(excerpt(&"'".repeat(MAX_SHOWN + 1)), "'".repeat(MAX_SHOWN) + "...");
    }

    #[test]
    fn secrets_are_not_repeated() {
        let token = format!("{TOKEN}{}", "5ad2".repeat(16));
        for (text, shown) in [
            (token.as_str(), "tollgate_..."),
            (&format!("Bearer {token} # mine"), "Bearer tollgate_..."),
            (&token[..TOKEN.len() + DIGITS], "tollgate_..."),
            ("redis://me:hunter2@host", "redis://..."),
            ("tollgate_check.tokens", "tollgate_check.tokens"),
            ("tollgate_", "tollgate_"),
        ] {
            assert_eq!(excerpt(text), shown);
        }
    }

    #[test]
    fn misspelled_names_get_suggestions() {
        let members = ["algorithm", "quotas", "key", "on_store_failure", "timeout"];
        let cases = [
            ("algoritm", Some("algorithm")),
            ("quota", Some("quotas")),
            ("qoutas", Some("quotas")),
            ("kye", Some("key")),
            ("Timeout", Some("timeout")),
            ("on-store-failure", Some("on_store_failure")),
            ("on_store_faliures", Some("on_store_failure")),
            ("colour", None),
            ("k", None),
            ("", None),
        ];
        for (word, meant) in cases {
            assert_eq!(nearest(word, members), meant, "{word}");
        }
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
