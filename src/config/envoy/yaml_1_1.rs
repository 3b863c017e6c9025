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

/// A finite number, as close as a double comes to it.
pub(super) fn number(text: &str) -> Option<f64> {
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => (-1.0, size),
        None => (1.0, text),
    };
    if let Some(integer) = integer(size) {
        #[expect(clippy::cast_precision_loss, reason = "a Struct has only doubles")]
        return Some(sign * integer as f64);
    }
    // Rust reads words such as `inf`, too.
    let is_decimal = size.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    size.parse()
        .ok()
        .filter(|number: &f64| is_decimal && number.is_finite())
        .map(|number| sign * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_finite() {
        let rows = [("7", 7.0), ("-7", -7.0), ("1.5", 1.5), ("-.5", -0.5), ("1e3", 1000.0), ("0x10", 16.0)];
        for (text, expected) in rows {
            assert_eq!(number(text), Some(expected), "{text}");
        }
        for text in ["inf", ".inf", "nan", "-", "", ".", "1.2.3", "2026-07-01", "1e999", "--1", "1 000"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

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
