//! Decodes the commands of a client: arrays of bulk strings, or lines of words.
//!
//! Nothing is allocated for a length that a client only announces. A limit holds for each length,
//! so an incomplete command is at most [`MAX_COMMAND`] bytes. The texts of the errors are those of
//! Redis.

use std::borrow::Cow;

use memchr::memchr;
use smallvec::SmallVec;

/// The longest command in bytes, with its framing.
pub(super) const MAX_COMMAND: usize = 64 * 1024;

/// The most words of one command.
const MAX_WORDS: usize = 1024;

/// The longest line that announces a length, without its end.
const MAX_HEADER: usize = 32;

/// A command and its arguments.
pub(super) type Words<'a> = SmallVec<[Cow<'a, [u8]>; 8]>;

/// A command and its length in bytes, or none while it is incomplete. One without words gets no
/// answer.
pub(super) type Decoded<'a> = Option<(Words<'a>, usize)>;

/// Bytes that are no RESP. The connection ends, since the next command cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("too big mbulk count string")]
    LongCount,
    #[error("too big bulk count string")]
    LongLength,
    #[error("too big inline request")]
    LongLine,
    #[error("invalid multibulk length")]
    Count,
    #[error("invalid bulk length")]
    Length,
    #[error("expected '$', got '{}'", char::from(*.0).escape_default())]
    NoBulk(u8),
    #[error("expected CRLF behind a bulk string")]
    NoEnd,
    #[error("unbalanced quotes in request")]
    Quotes,
    #[error("HTTP is served on another port")]
    Http,
    #[error("TLS is served on another port")]
    Tls,
    #[error("a command begins with '*' or a letter")]
    Binary,
}

type Result<T> = std::result::Result<T, ProtocolError>;

/// The first byte of a TLS handshake.
const TLS: u8 = 0x16;

/// Decodes the first command in `bytes`.
///
/// Bytes of another protocol may contain lines that an attacker chooses. So the first byte must be
/// one of a command.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded<'_>> {
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => array(bytes),
        Some(&TLS) => Err(ProtocolError::Tls),
        Some(byte) if byte.is_ascii_graphic() || byte.is_ascii_whitespace() => line(bytes),
        Some(_) => Err(ProtocolError::Binary),
    }
}

fn array(bytes: &[u8]) -> Result<Decoded<'_>> {
    let Some((count, mut at)) = header(bytes, 1, ProtocolError::LongCount)? else { return Ok(None) };
    let count = number(count).ok_or(ProtocolError::Count)?;
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_WORDS {
        return Err(ProtocolError::Count);
    }
    let mut words = Words::new();
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoBulk(*other)),
        }
        let Some((length, start)) = header(bytes, at + 1, ProtocolError::LongLength)? else {
            return Ok(None);
        };
        let length = number(length).and_then(|length| usize::try_from(length).ok());
        let end = length.map(|length| start.saturating_add(length)).filter(|end| end + 2 <= MAX_COMMAND);
        let end = end.ok_or(ProtocolError::Length)?;
        match bytes.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => words.push(Cow::Borrowed(&bytes[start..end])),
            Some(_) => return Err(ProtocolError::NoEnd),
        }
        at = end + 2;
    }
    Ok(Some((words, at)))
}

/// The line that begins at `start`, without its end, and where the next one begins. None if it has
/// not arrived as a whole.
fn header(bytes: &[u8], start: usize, too_long: ProtocolError) -> Result<Option<(&[u8], usize)>> {
    let line = &bytes[start..];
    let shown = &line[..line.len().min(MAX_HEADER + 2)];
    match memchr(b'\n', shown) {
        Some(end) => Ok(Some((shown[..end].strip_suffix(b"\r").unwrap_or(&shown[..end]), start + end + 1))),
        None if shown.len() > MAX_HEADER => Err(too_long),
        None => Ok(None),
    }
}

/// An integer in the only spelling that Redis knows.
pub(super) fn number(digits: &[u8]) -> Option<i64> {
    let (digits, sign) = digits.strip_prefix(b"-").map_or((digits, 1), |digits| (digits, -1));
    let append = |number: i64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| sign * i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    match digits {
        [b'0'] => (sign == 1).then_some(0),
        [b'1'..=b'9', ..] => digits.iter().try_fold(0, append),
        _ => None,
    }
}

/// A command as a person types it.
fn line(bytes: &[u8]) -> Result<Decoded<'_>> {
    let shown = &bytes[..bytes.len().min(MAX_COMMAND)];
    let Some(end) = memchr(b'\n', shown) else {
        return if shown.len() < MAX_COMMAND { Ok(None) } else { Err(ProtocolError::LongLine) };
    };
    let text = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let words = words(text)?;
    // A page in a browser can make it send such lines to this machine.
    if words
        .first()
        .is_some_and(|word| [&b"POST"[..], b"Host:", b"PRI"].iter().any(|head| word.eq_ignore_ascii_case(head)))
    {
        return Err(ProtocolError::Http);
    }
    Ok(Some((words, end + 1)))
}

fn words(mut rest: &[u8]) -> Result<Words<'_>> {
    let mut words = Words::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(words);
        }
        if words.len() == MAX_WORDS {
            return Err(ProtocolError::LongLine);
        }
        let end = rest.iter().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\''));
        let end = end.unwrap_or(rest.len());
        if rest.get(end).is_none_or(u8::is_ascii_whitespace) {
            words.push(Cow::Borrowed(&rest[..end]));
            rest = &rest[end..];
        } else {
            let (word, after) = quoted(rest)?;
            words.push(Cow::Owned(word));
            rest = after;
        }
    }
}

/// A word with quotes, and the rest of the line.
fn quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        match rest {
            [] => return Ok((word, rest)),
            [quote @ (b'"' | b'\''), inside @ ..] => {
                rest = unquoted(*quote, inside, &mut word)?;
                // Behind the closing quote the word must end.
                return if rest.first().is_none_or(u8::is_ascii_whitespace) {
                    Ok((word, rest))
                } else {
                    Err(ProtocolError::Quotes)
                };
            }
            [byte, after @ ..] if !byte.is_ascii_whitespace() => {
                word.push(*byte);
                rest = after;
            }
            _ => return Ok((word, rest)),
        }
    }
}

/// Appends the text up to the closing quote, and returns the bytes after it.
fn unquoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8]> {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::Quotes),
            [byte, after @ ..] if *byte == quote => return Ok(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                word.push(b'\'');
                after
            }
            [b'\\', b'x', high, low, after @ ..] if quote == b'"' && hex(*high).and(hex(*low)).is_some() => {
                word.push(hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0));
                after
            }
            [b'\\', byte, after @ ..] if quote == b'"' => {
                word.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> std::result::Result<Option<(Vec<String>, usize)>, String> {
        let text = |word: &Cow<'_, [u8]>| String::from_utf8_lossy(word).into_owned();
        let decoded = decode(bytes).map_err(|error| error.to_string())?;
        Ok(decoded.map(|(words, length)| (words.iter().map(text).collect(), length)))
    }

    #[test]
    fn commands_decode_from_arrays_and_from_lines() {
        let rows: [(&str, &[&str]); 11] = [
            ("*1\r\n$4\r\nPING\r\n", &["PING"]),
            ("*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\n", &["ECHO", "a\r\nb"]),
            ("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &["ECHO", ""]),
            ("*0\r\n", &[]),
            ("*-1\r\n", &[]),
            ("PING\r\n", &["PING"]),
            ("  cl.throttle   k 15 30 60\n", &["cl.throttle", "k", "15", "30", "60"]),
            ("\r\n", &[]),
            ("ECHO \"a \\\"b\\\" \\x41\\n\"\r\n", &["ECHO", "a \"b\" A\n"]),
            ("ECHO 'it\\'s' \"\"\r\n", &["ECHO", "it's", ""]),
            ("ECHO k'v w'\r\n", &["ECHO", "kv w"]),
        ];
        for (text, words) in rows {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(decoded(text.as_bytes()), Ok(Some((words, text.len()))), "{text:?}");
            for length in 0..text.len() {
                assert_eq!(decoded(&text.as_bytes()[..length]), Ok(None), "{:?}", &text[..length]);
            }
        }
    }

    #[test]
    fn broken_framing_has_the_words_of_redis() {
        let rows = [
            ("*1\r\n+PING\r\n", "expected '$', got '+'"),
            ("*x\r\n", "invalid multibulk length"),
            ("*1025\r\n", "invalid multibulk length"),
            ("*99999999999999999999\r\n", "invalid multibulk length"),
            ("*+1\r\n", "invalid multibulk length"),
            ("*1\r\n$-1\r\n", "invalid bulk length"),
            ("*1\r\n$65536\r\n", "invalid bulk length"),
            ("*1\r\n$9223372036854775807\r\n", "invalid bulk length"),
            ("*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
            ("*1\r\n$4\r\nPINGxx", "expected CRLF behind a bulk string"),
            ("ECHO \"open\r\n", "unbalanced quotes in request"),
            ("ECHO \"a\"b\r\n", "unbalanced quotes in request"),
            ("POST / HTTP/1.1\r\n", "HTTP is served on another port"),
            ("PRI * HTTP/2.0\r\n", "HTTP is served on another port"),
            ("\u{16}\u{3}\u{1}\r\nPING\r\n", "TLS is served on another port"),
            ("\u{0}\r\n", "a command begins with '*' or a letter"),
            ("é\r\nPING\r\n", "a command begins with '*' or a letter"),
        ];
        for (text, error) in rows {
            assert_eq!(decoded(text.as_bytes()), Err(error.to_owned()), "{text:?}");
        }
        let digits = "1".repeat(40);
        assert_eq!(decoded(format!("*{digits}").as_bytes()), Err("too big mbulk count string".to_owned()));
        assert_eq!(decoded(format!("*1\r\n${digits}").as_bytes()), Err("too big bulk count string".to_owned()));
        assert_eq!(decoded(&vec![b'a'; MAX_COMMAND]), Err("too big inline request".to_owned()));
        assert_eq!(decoded(&vec![b'a'; MAX_COMMAND - 1]), Ok(None));
    }

    #[test]
    fn an_integer_has_one_spelling() {
        let (least, most) = (i64::MIN.to_string(), i64::MAX.to_string());
        for (digits, value) in [("0", 0), ("7", 7), ("-10", -10), (&*least, i64::MIN), (&*most, i64::MAX)] {
            assert_eq!(number(digits.as_bytes()), Some(value), "{digits}");
        }
        for wrong in ["", "-", "-0", "00", "01", "+1", "1a", "9223372036854775808", "-9223372036854775809"] {
            assert_eq!(number(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
