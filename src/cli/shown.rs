//! Escapes text for a terminal.
//!
//! A name, a key or an answer may hold escape sequences, which control a terminal. It may also hold
//! letters that change the direction of a line. All output of a command passes through here.
//! Escaping a text twice changes nothing.

use std::borrow::Cow;

use crate::config::visible;

/// Lines for people: escapes all invisible characters except line ends.
pub(super) fn lines(text: &str) -> Cow<'_, str> {
    // Most lines are plain.
    if text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)) {
        return text.into();
    }
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n").into()
}

/// A JSON document whose invisible characters have JSON escapes: programs read the same values.
pub(super) fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '"' | '\'' | '\\' => shown.push(letter),
            // In JSON these characters appear only between values.
            '\r' | '\t' => shown.push(' '),
            _ if letter.escape_debug().len() == 1 => shown.push(letter),
            _ => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}")),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_reach_no_terminal() {
        for (text, shown) in [
            ("plain\nlines\n", "plain\nlines\n"),
            ("a\u{1b}[2J\r\n\tb\u{9b}1m\u{202e}", "a\\u{1b}[2J\\r\n\\tb\\u{9b}1m\\u{202e}"),
            ("ü \\u{1b}\n", "ü \\u{1b}\n"),
        ] {
            assert_eq!(lines(text), shown);
            assert_eq!(lines(&lines(text)), shown, "twice is once");
        }
    }

    #[test]
    fn json_stays_the_same_document() {
        let value = serde_json::json!({"a": "\u{1b}[2J\u{9b}\u{202e}\u{e0001}\u{301}ü\"\\\t"});
        for text in [value.to_string(), format!("{value:#}").replace(' ', "\t")] {
            let shown = json(&text);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
            assert_eq!(lines(&shown), shown);
        }
    }
}
