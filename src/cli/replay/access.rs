//! Access logs as web servers write them: the common log format, and combined, which adds two fields.
//!
//! `client ident user [10/Oct/2000:13:55:36 -0700] "GET /path HTTP/1.1" 200 2326 "referer" "user-agent"`

use std::borrow::Cow;

use super::Failure;
use super::entry::Entry;
use super::instant;
use crate::limit::time::Micros;

/// A field that can be the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Client,
    User,
    Method,
    Path,
    Status,
    Referer,
    UserAgent,
}

const FIELDS: [(&str, Field); 7] = [
    ("client", Field::Client),
    ("user", Field::User),
    ("method", Field::Method),
    ("path", Field::Path),
    ("status", Field::Status),
    ("referer", Field::Referer),
    ("user-agent", Field::UserAgent),
];

impl Field {
    /// # Errors
    /// When there is none of this name.
    pub(super) fn named(name: &str) -> Result<Self, Failure> {
        let known = || FIELDS.map(|(name, _)| format!("`{name}`")).join(", ");
        let unknown = || Failure::Asked(format!("--key {name}: an access log has {}", known()));
        FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(unknown)
    }
}

/// Reads the lines of an access log.
#[derive(Debug)]
pub(super) struct Access {
    key: Field,
    /// None: the bytes of the answer.
    cost: Option<u64>,
    /// The time of the line before, which many lines share, as written and in us.
    last: (Vec<u8>, Micros),
}

impl Access {
    pub(super) fn new(key: Field, cost: Option<u64>) -> Self {
        Self { key, cost, last: (Vec::new(), 0) }
    }

    /// See [`super::entry::Reader::read`].
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let mut rest = line;
        let client = word(&mut rest).filter(|client| !client.is_empty()).ok_or("no client address")?;
        word(&mut rest).ok_or("nothing behind the client")?;
        // A user's name may hold blanks; the time begins behind it.
        let bracket = memchr::memchr(b'[', rest).ok_or("no time in brackets")?;
        let user = rest[..bracket].trim_ascii();
        rest = &rest[bracket + 1..];
        let bracket = memchr::memchr(b']', rest).ok_or("no time in brackets")?;
        let time = self.time(&rest[..bracket])?;
        rest = rest[bracket + 1..].trim_ascii_start();
        let request = quoted(&mut rest).ok_or("no request in quotes")?;
        let status = word(&mut rest).filter(|status| status.len() == 3).ok_or("no status of three digits")?;
        let bytes = word(&mut rest).ok_or("no number of bytes")?;
        let cost = match self.cost {
            Some(cost) => cost,
            None if bytes == b"-" => 0,
            None => text(bytes)?.parse().map_err(|_| "no number of bytes")?,
        };
        let mut words = request.split(|byte| *byte == b' ');
        let key = match self.key {
            Field::Client => client,
            Field::User => user,
            Field::Method => words.next().unwrap_or_default(),
            Field::Path => words.nth(1).and_then(|path| path.split(|byte| *byte == b'?').next()).unwrap_or_default(),
            Field::Status => status,
            Field::Referer => quoted(&mut rest).unwrap_or_default(),
            Field::UserAgent => quoted(&mut rest).and_then(|_| quoted(&mut rest)).unwrap_or_default(),
        };
        // A dash stands for what is not known.
        let key = Some(key).filter(|key| *key != b"-").map(text).transpose()?.map(Cow::Borrowed);
        Ok(Entry { time, key, cost })
    }

    fn time(&mut self, written: &[u8]) -> Result<Micros, Cow<'static, str>> {
        if self.last.0 != written {
            let instant = instant::common_log(written).ok_or("the time is not like `10/Oct/2000:13:55:36 -0700`")?;
            self.last = (written.to_vec(), instant);
        }
        Ok(self.last.1)
    }
}

/// Up to the next blank.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.strip_prefix(b" ").unwrap_or(after);
    Some(word).filter(|word| !word.is_empty())
}

/// Between quotes, of which those behind a backslash are part of the text.
fn quoted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let inside = rest.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let end = from + memchr::memchr2(b'"', b'\\', inside.get(from..)?)?;
        if inside[end] == b'"' {
            *rest = inside[end + 1..].trim_ascii_start();
            return Some(&inside[..end]);
        }
        from = end + 2;
    }
}

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|_| "the key is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"2001:db8::1 - ann lee [10/Oct/2000:13:55:36 -0700] "GET /a?b=\"c\" HTTP/1.1" 200 2326 "http://x/" "a \"b\" c""#;

    #[test]
    fn each_field_is_found() {
        let cases = [
            ("client", "2001:db8::1"),
            ("user", "ann lee"),
            ("method", "GET"),
            ("path", "/a"),
            ("status", "200"),
            ("referer", "http://x/"),
            ("user-agent", r#"a \"b\" c"#),
        ];
        for (name, expected) in cases {
            let mut access = Access::new(Field::named(name).unwrap(), None);
            let entry = access.read(LINE.as_bytes()).unwrap();
            assert_eq!(entry, Entry { time: 971_211_336_000_000, key: Some(expected.into()), cost: 2326 });
        }
        assert!(Field::named("address").is_err());
    }

    #[test]
    fn whatever_is_cut_off_is_refused_and_never_a_panic() {
        let mut access = Access::new(Field::Client, Some(1));
        let whole = LINE.rfind(r#" "http"#).unwrap();
        for end in 0..LINE.len() {
            let read = access.read(&LINE.as_bytes()[..end]).is_ok();
            assert!(!read || end >= whole - 3, "{}", &LINE[..end]);
        }
        for line in ["", "\"", "[", "]", "a b c [] \"", "a b [10/Oct/2000:13:55:36 -0700] \"\\"] {
            assert!(access.read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
