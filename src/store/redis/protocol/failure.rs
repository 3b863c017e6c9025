//! Why a server is of no use now: one sentence of this program that names the likely cause.
//!
//! A caller and the log receive this sentence. Neither receives the words of the driver or the
//! source of a script. The text of an error that this program does not know reaches the log alone,
//! see [`Failure::for_log`].

use std::borrow::Cow;
use std::fmt;

/// The most bytes of a sentence. With the words before it, callers see at most 300.
pub const MOST_TEXT: usize = 240;

/// The sentence of [`Failure::too_long`].
const TOO_LONG: &str = "the server's answer is longer than any that this node asks for";

/// The meaning of a failure for the connection and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no connection, or it broke.
    Connection,
    /// There is no connection, because no working Redis is at the other end.
    NotRedis,
    /// The server answered, so its connection is sound.
    Answer,
    /// The server answered, but another server may make the charges by now, or this one soon.
    NotNow,
    /// The server does not let this node in.
    Login,
    /// The user of this node lacks a right.
    Rights,
    /// The server is part of no cluster.
    NoCluster,
    /// The value at one key is corrupt; the server refuses nothing else.
    Key,
    /// Another server has the key, or will have it.
    Moved,
}

/// Why a server is of no use now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    /// Whether the connection is sound in spite of the failure.
    is_sound: bool,
    sentence: Cow<'static, str>,
    /// The server's own text if its error is unknown; cleaned and cut.
    said: Option<Box<str>>,
}

/// The sentence for callers.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Failure {
    pub fn new(kind: Kind, sentence: impl Into<Cow<'static, str>>) -> Self {
        let sentence = match sentence.into() {
            Cow::Owned(long) => Cow::Owned(cleaned(&long, MOST_TEXT)),
            known @ Cow::Borrowed(_) => known,
        };
        Self { kind, is_sound: !matches!(kind, Kind::Connection | Kind::NotRedis), sentence, said: None }
    }

    /// A failure of a connection.
    pub fn connection(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Connection, sentence)
    }

    /// The server did not answer in time.
    pub fn late() -> Self {
        Self::connection("the server does not answer in time")
    }

    /// The server's answer is not one to this question.
    pub fn unfit(question: &str) -> Self {
        Self::new(Kind::NotRedis, format!("the server's answer to {question} is not one that a Redis gives"))
    }

    /// The same failure, with the server's own text for the log.
    pub fn with_text(self, said: String) -> Self {
        Self { said: Some(said.into()), ..self }
    }

    /// The same failure, after which the connection is broken.
    pub fn broken(self) -> Self {
        Self { is_sound: false, ..self }
    }

    /// The server's answer is longer than any that this node expects.
    pub fn too_long() -> Self {
        Self::new(Kind::NotRedis, TOO_LONG)
    }

    /// Whether the server's answer was longer than any that this node expects.
    pub fn is_too_long(&self) -> bool {
        self.sentence == TOO_LONG
    }

    /// Returns the sentence for the log, with the server's own text if its error is unknown.
    pub fn for_log(&self) -> Cow<'_, str> {
        match &self.said {
            Some(said) => Cow::Owned(format!("the server refuses with an error that this node does not know: {said}")),
            None => Cow::Borrowed(&self.sentence),
        }
    }

    /// Returns the server's own text if its error is unknown.
    pub fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Adds the question to the sentence.
    pub fn about(self, question: &str) -> Self {
        let sentence = cleaned(&format!("{question}: {}", self.sentence), MOST_TEXT).into();
        Self { sentence, ..self }
    }

    /// Whether the server answered, so that its connection is sound.
    pub fn is_told(&self) -> bool {
        self.is_sound
    }

    /// Whether usually only an operator can fix the cause, so retries need no hurry.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, Kind::Login | Kind::Rights | Kind::NotRedis)
    }
}

/// Returns a text of at most `most` bytes. Characters that could disturb a terminal or a log line
/// become `?`.
pub fn cleaned(text: &str, most: usize) -> String {
    let mut clean = String::new();
    for letter in text.chars() {
        let is_plain = letter.is_alphanumeric() || letter.is_ascii_graphic() || letter == ' ';
        let letter = if is_plain { letter } else { '?' };
        if clean.len() + letter.len_utf8() > most {
            clean.truncate(cut(&clean, most.saturating_sub(3)).len());
            clean.push_str("...");
            break;
        }
        clean.push(letter);
    }
    clean
}

pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_character_boundaries() {
        assert_eq!(cleaned("abc", 3), "abc");
        assert_eq!(cleaned("abcdef", 5), "ab...");
        assert_eq!(cleaned("äöü", 5), "ä...");
        assert_eq!(cleaned("a\nb\u{1b}c", 9), "a?b?c");
    }
}
