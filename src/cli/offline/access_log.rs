//! AccessLog logs of web servers: the common log format, and combined, which adds two fields.
//!
//! `client ident user [10/Oct/2000:13:55:36 -0700] "GET /path HTTP/1.1" 200 2326 "referer"
//! "user-agent"`
//!
//! A log of several servers has the server's name in front: Apache's `vhost_combined`.

use std::borrow::Cow;

use super::Failure;
use super::client;
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
    /// When no field has this name.
    pub(super) fn named(name: &str) -> Result<Self, Failure> {
        let known = || FIELDS.map(|(name, _)| format!("`{name}`")).join(", ");
        let unknown = || Failure::Usage(format!("--key {name}: an access log has {}", known()));
        FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(unknown)
    }
}

/// Reads the lines of an access log.
#[derive(Debug)]
pub(super) struct AccessLog {
    key: Field,
    /// None: the size of the answer in bytes.
    cost: Option<u64>,
    /// The previous line's time, as written and in us; many lines share it.
    last: (Vec<u8>, Micros),
}

impl AccessLog {
    pub(super) fn new(key: Field, cost: Option<u64>) -> Self {
        Self { key, cost, last: (Vec::new(), 0) }
    }

    /// See [`super::reader::Reader::read`].
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let mut rest = line;
        let mut client = host(&mut rest).ok_or("no client address")?;
        let second = host(&mut rest).ok_or("nothing behind the client")?;
        if is_server(client, second) {
            client = second;
            word(&mut rest).ok_or("nothing behind the client")?;
        }
        // A user's name may hold blanks; the time follows it.
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
        // A dash marks an unknown value.
        let key = Some(key).filter(|key| *key != b"-").map(text).transpose()?;
        let key = if self.key == Field::Client { key.and_then(client::host) } else { key.map(Cow::Borrowed) };
        Ok(Entry { time, key, cost })
    }

    fn time(&mut self, written: &[u8]) -> Result<Micros, Cow<'static, str>> {
        if self.last.0 != written {
            let instant = instant::common_log(written).ok_or("the time is not like `10/Oct/2000:13:55:36 -0700`")?;
            let instant = Micros::try_from(instant).map_err(|_| "the time is before 1970")?;
            self.last = (written.to_vec(), instant);
        }
        Ok(self.last.1)
    }
}

/// Whether `first` is the server and the client is second; otherwise the second word is usually a
/// dash. An address with a port may be either, and is the server only before another address.
fn is_server(first: &[u8], second: &[u8]) -> bool {
    let is_address = |word| client::address(std::str::from_utf8(word).unwrap_or_default()).is_some();
    let has_port = || {
        let colon = memchr::memrchr(b':', first);
        colon.is_some_and(|colon| matches!(&first[colon + 1..], port @ [_, ..] if port.iter().all(u8::is_ascii_digit)))
    };
    is_address(second) || second != b"-" && !is_address(first) && has_port()
}

/// A word, or the first word of a list with commas, as in `X-Forwarded-For`. The first is the
/// client, the others are proxies.
fn host<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let first = word(rest)?;
    let mut last = first;
    while last.ends_with(b",") {
        last = word(rest)?;
    }
    first.split(|byte| *byte == b',').next()
}

/// The text up to the next blank.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.strip_prefix(b" ").unwrap_or(after);
    Some(word).filter(|word| !word.is_empty())
}

/// The text between quotes; a quote after a backslash is part of the text.
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
            let mut log = AccessLog::new(Field::named(name).unwrap(), None);
            let entry = log.read(LINE.as_bytes()).unwrap();
            assert_eq!(entry, Entry { time: 971_211_336_000_000, key: Some(expected.into()), cost: 2326 });
        }
        assert!(Field::named("address").is_err());
    }

    /// Apache's `vhost_combined`.
    #[test]
    fn server_column_before_the_client_is_no_key() {
        for server in ["shop.example:443", "127.0.0.1:80", "[::1]:443", "localhost:65535"] {
            for (name, expected) in [("client", "2001:db8::1"), ("user", "ann lee"), ("path", "/a")] {
                let mut log = AccessLog::new(Field::named(name).unwrap(), Some(1));
                let line = format!("{server} {LINE}");
                assert_eq!(log.read(line.as_bytes()).unwrap().key, Some(expected.into()), "{line}");
            }
        }
        for server in ["10.0.0.1", "shop.example", "10.0.0.1:80", "[::1]:443"] {
            for (client, key) in [
                ("203.0.113.1", "203.0.113.1"),
                ("2001:db8::1", "2001:db8::1"),
                ("203.0.113.1:5001", "203.0.113.1"),
                ("[2001:db8::1]", "2001:db8::1"),
            ] {
                let line = format!(r#"{server} {client} - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#);
                let mut log = AccessLog::new(Field::Client, Some(1));
                assert_eq!(log.read(line.as_bytes()).unwrap().key, Some(key.into()), "{line}");
            }
        }
        for (client, key) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:5001", "192.0.2.1"),
            ("[2001:db8::1]:5001", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::1", "::1"),
            ("::1:443", "::1:443"),
            ("2001:db8:0:0:0:0:0:443", "2001:db8::443"),
            ("client.example", "client.example"),
        ] {
            for user in ["- -", "- ann", "ident ann lee", "- - ann"] {
                let line = format!(r#"{client} {user} [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#);
                let mut log = AccessLog::new(Field::Client, Some(1));
                assert_eq!(log.read(line.as_bytes()).unwrap().key, Some(key.into()), "{line}");
            }
        }
    }

    /// Each proxy appends the address of its client.
    #[test]
    fn first_forwarded_address_is_the_client() {
        for forwarded in
            ["203.0.113.1, 10.0.0.9", "203.0.113.1, 10.0.0.9, 10.0.0.8", "shop.example:443 203.0.113.1, 10.0.0.9"]
        {
            for user in ["- ann lee", "ident ann lee"] {
                for (name, expected) in [("client", "203.0.113.1"), ("user", "ann lee")] {
                    let line = format!(r#"{forwarded} {user} [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#);
                    let mut log = AccessLog::new(Field::named(name).unwrap(), Some(1));
                    assert_eq!(log.read(line.as_bytes()).unwrap().key, Some(expected.into()), "{line}");
                }
            }
        }
    }

    #[test]
    fn truncated_values_are_rejected_without_panic() {
        let mut log = AccessLog::new(Field::Client, Some(1));
        let whole = LINE.rfind(r#" "http"#).unwrap();
        for end in 0..LINE.len() {
            let read = log.read(&LINE.as_bytes()[..end]).is_ok();
            assert!(!read || end >= whole - 3, "{}", &LINE[..end]);
        }
        for line in ["", "\"", "[", "]", "a b c [] \"", "a b [10/Oct/2000:13:55:36 -0700] \"\\"] {
            assert!(log.read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
