//! JSON values as their text, which is read no deeper than needed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use crate::http::problem::Problem;

/// The most brackets that may be open at once. Requests need three.
const MAX_DEPTH: usize = 128;

/// The body as one JSON value whose parts are not read yet.
pub(super) fn document(body: &[u8]) -> Result<&RawValue, Problem> {
    if let Some(fault) = encoding_fault(body) {
        return Err(Problem::malformed(fault));
    }
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::malformed(format!("not UTF-8 from byte {} on", error.valid_up_to())))?;
    if text.trim_ascii().is_empty() {
        return Err(Problem::malformed("the body is empty"));
    }
    if depth(text) > MAX_DEPTH {
        return Err(Problem::malformed(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    serde_json::from_str(text).map_err(|error| Problem::malformed(syntax(&error)))
}

/// Names a byte order mark, and the encodings in which ASCII has zero bytes.
fn encoding_fault(body: &[u8]) -> Option<&'static str> {
    Some(match body {
        [0xef, 0xbb, 0xbf, ..] => "the body begins with a byte order mark (EF BB BF): send it without",
        [0xff, 0xfe, ..] => {
            "the body begins with a byte order mark of UTF-16 (FF FE): send it in UTF-8, without the mark"
        }
        [0xfe, 0xff, ..] => {
            "the body begins with a byte order mark of UTF-16 (FE FF): send it in UTF-8, without the mark"
        }
        [0, ..] | [_, 0, ..] => "the body is not in UTF-8, but in UTF-16 or UTF-32: send it in UTF-8",
        _ => return None,
    })
}

/// Describes malformed JSON. serde_json calls the name of any member a key, but in a check `key` is
/// one member.
fn syntax(error: &serde_json::Error) -> String {
    error
        .to_string()
        .replace("key must be a string", "expected the name of a member, in double quotes,")
}

/// The most brackets that are open at once, outside of strings.
fn depth(text: &str) -> usize {
    let (mut open, mut deepest, mut quoted, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => open += 1,
            b']' | b'}' if !quoted => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

pub(super) fn string(value: &RawValue) -> Result<String, String> {
    if !value.get().starts_with('"') {
        return Err(format!("must be a string, not {}", kind(value)));
    }
    // The first reading accepted the JSON, so the only possible fault is half a surrogate pair.
    serde_json::from_str(value.get()).map_err(|_| "must be Unicode text: it holds half a surrogate pair".into())
}

/// An array of 1 to `most` items, which have the name `items`.
pub(super) fn list_of<'a>(value: &'a RawValue, most: usize, name: &str) -> Result<Vec<&'a RawValue>, String> {
    if !value.get().starts_with('[') {
        return Err(format!("must be an array, not {}", kind(value)));
    }
    let items: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
    match items.len() {
        length if (1..=most).contains(&length) => Ok(items),
        length => Err(format!("must hold 1 to {most} {name}, not {length}")),
    }
}

pub(super) fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The value of a number that is an integer in any notation: `20`, `20.0` and `2e1` are one number.
pub(super) fn integer(value: &RawValue) -> Option<u64> {
    if kind(value) != "a number" {
        return None;
    }
    let (digits, exponent) = value.get().split_once(['e', 'E']).unwrap_or((value.get(), "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = whole.trim_start_matches('-').to_owned() + fraction;
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    // An exponent beyond i64 is beyond every integer here, too.
    let exponent: i64 = exponent.parse().ok()?;
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    let zeros = exponent.checked_add_unsigned(trailing as u64)?.checked_sub_unsigned(fraction.len() as u64)?;
    let scale = 10u64.checked_pow(u32::try_from(zeros).ok()?)?;
    let number = significant.parse::<u64>().ok()?.checked_mul(scale)?;
    (!whole.starts_with('-')).then_some(number)
}

/// Visits the members of an object as written: in order, with duplicates. It keeps none of them.
///
/// # Errors
/// A name is not Unicode text.
pub(super) fn each_member<'a>(
    object: &'a RawValue,
    visit: impl FnMut(Cow<'a, str>, &'a RawValue),
) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_str(object.get());
    reader.deserialize_map(MemberVisitor(visit)).map_err(|error| error.to_string())
}

struct MemberVisitor<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Visitor<'de> for MemberVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = map.next_entry()? {
            (self.0)(name, value);
        }
        Ok(())
    }
}

/// A name. Only names with escapes are copied.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_has_many_notations() {
        let max = "9".repeat(400);
        for (written, number) in [
            ("0", Some(0)),
            ("-0.000e9", Some(0)),
            ("20", Some(20)),
            ("20.0", Some(20)),
            ("2e1", Some(20)),
            ("2E+01", Some(20)),
            ("0.0002e5", Some(20)),
            ("20000e-3", Some(20)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1e20", None),
            ("1e99999999999999999999", None),
            ("1e-99999999999999999999", None),
            ("-1", None),
            ("20.5", None),
            ("2e-1", None),
            ("true", None),
            (r#""1e1""#, None),
            (max.as_str(), None),
        ] {
            assert_eq!(integer(serde_json::from_str(written).unwrap()), number, "{written}");
        }
    }

    #[test]
    fn only_brackets_outside_of_strings_are_deep() {
        for (text, levels) in [(r#"{"a": [1, [2]], "b": {}}"#, 3), (r#"["[[\"[[", "\\"]"#, 1), ("1", 0), ("]][", 1)] {
            assert_eq!(depth(text), levels, "{text}");
        }
    }
}
