//! Variables of the form `key=value,key=value`, percent-encoded: headers and resource attributes.
//!
//! The SDK skips malformed entries. Errors never repeat an entry, since headers hold tokens.

use percent_encoding::percent_decode_str;

use super::InvalidVariable;

/// The rule that an entry breaks.
const FORM: &str =
    "is not `key=value`: write `key=value,key=value`, with `%2C` for a comma and `%25` for `%` in a value";

/// The keys and decoded values of `text`, the value of `variable`.
///
/// # Errors
/// An entry is malformed, or repeats a key.
pub(super) fn pairs<'a>(variable: &'static str, text: &'a str) -> Result<Vec<(&'a str, String)>, InvalidVariable> {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    for (number, entry) in (1..).zip(text.split(',')).filter(|(_, entry)| !entry.trim().is_empty()) {
        let wrong = |what| InvalidVariable { variable, wrong: format!("entry {number} {what}") };
        let (key, value) = pair(entry).ok_or_else(|| wrong(FORM))?;
        if pairs.iter().any(|(other, _)| other.eq_ignore_ascii_case(key)) {
            return Err(wrong("repeats the key of an entry before it: write each key once"));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Checks the header fields in `text`, which the SDK reads, too.
///
/// # Errors
/// As [`pairs`]; also a value that no header field can have.
pub(super) fn require_headers(variable: &'static str, text: &str) -> Result<(), InvalidVariable> {
    let is_sendable = |value: &str| !value.is_empty() && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match pairs(variable, text)?.iter().position(|(_, value)| !is_sendable(value)) {
        None => Ok(()),
        Some(place) => {
            let wrong = format!("header {} has no value of visible ASCII characters", place + 1);
            Err(InvalidVariable { variable, wrong })
        }
    }
}

fn pair(entry: &str) -> Option<(&str, String)> {
    let (key, value) = entry.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_escape =
        |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    let is_valid = !key.is_empty() && key.bytes().all(is_token) && value.split('%').skip(1).all(is_escape);
    let value = percent_decode_str(value).decode_utf8().ok().filter(|_| is_valid)?;
    Some((key, value.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        let read = pairs("V", " a=b , c = d e=f ,,g=%C3%A4%2c%25,h=,").unwrap();
        let expected = [("a", "b"), ("c", "d e=f"), ("g", "ä,%"), ("h", "")];
        assert_eq!(read, expected.map(|(key, value)| (key, value.to_owned())));
    }

    #[test]
    fn malformed_entries_are_rejected_and_not_printed() {
        for text in [
            "hunter2",
            "a=b,Authorization: Bearer hunter2",
            "hunter2: x=",
            "=hunter2",
            "a=hunter2%2",
            "a=hunter2%zz",
            "a=hunter2%ff",
            "a=1,A=hunter2",
        ] {
            let said = pairs("V", text).unwrap_err().to_string();
            assert!(said.starts_with("V: entry ") && !said.contains("hunter2"), "{text}: {said}");
        }
        for text in ["a=", "a=hunter2%0A", "a=hunter2ä"] {
            assert!(require_headers("V", text).is_err(), "{text}");
        }
        assert!(require_headers("V", "Authorization=Basic%20aHVudGVyMg==,x-a=b c").is_ok());
    }
}
