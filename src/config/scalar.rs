//! The words of a configuration, and how faults show them.

use std::borrow::Cow;

use crate::access::TOKEN;

/// Longest name of a policy or a quota, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// Longest part of a value that a fault repeats, in characters.
const MAX_SHOWN: usize = 60;

/// Visible characters, although Rust escapes them.
const AS_THEY_ARE: [char; 3] = ['\'', '"', '\\'];

/// The number of hexadecimal digits that distinguishes a token from a name with the same prefix.
const DIGITS: usize = 16;

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

/// There is no `what` of this name.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let shown = excerpt(name);
    match nearest(name, known.iter().copied()) {
        Some(meant) => format!("there is no {what} `{shown}`: did you mean `{meant}`?"),
        None if known.is_empty() => format!("there is no {what} `{shown}`"),
        None => format!("there is no {what} `{shown}`: there are {}", listed(known)),
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
