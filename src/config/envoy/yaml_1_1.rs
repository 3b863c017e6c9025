//! Scalars as YAML 1.1 has them, which the reference reads (<https://yaml.org/type/>).

/// A boolean.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// An integer from 0 on: decimal, `0x`, `0b`, or octal after `0` or `0o`, with `_` between digits.
pub(super) fn integer(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &text[2..]),
        [b'0', b'b' | b'B', ..] => (2, &text[2..]),
        [b'0', b'o' | b'O', ..] => (8, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text.as_str()),
    };
    // `from_str_radix` accepts a sign.
    digits
        .bytes()
        .all(|digit| digit.is_ascii_alphanumeric())
        .then(|| u64::from_str_radix(digits, radix).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_forms_of_yaml_1_1() {
        for (text, number) in
            [("0", 0), ("60", 60), ("+5", 5), ("1_000", 1_000), ("0x0A", 10), ("0b11", 3), ("010", 8), ("0o17", 15)]
        {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in ["", "+", "-1", "++1", "08", "0x", "1.5", "1e3", "0x+1", "ten", "99999999999999999999"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
