//! AccessLog logs of web servers: the common log format, and combined, which adds two fields.
//!
//! `client ident user [10/Oct/2000:13:55:36 -0700] "GET /path HTTP/1.1" 200 2326 "referer"
//! "user-agent"`
//!
//! A log of several servers has the server's name in front: Apache's `vhost_combined`.

use std::borrow::Cow;

use super::client;
use super::entry::Entry;
use super::field::{Field, path};
use super::filters::{Filters, Request};
use super::instant;
use crate::limit::time::Micros;

/// Reads the lines of an access log.
#[derive(Debug)]
pub(super) struct AccessLog {
    key: Field,
    /// None: the size of the answer in bytes.
    cost: Option<u64>,
    filters: Filters,
    /// The previous line's time, as written and in us; many lines share it.
    last: (Vec<u8>, Micros),
}

impl AccessLog {
    pub(super) fn new(key: Field, cost: Option<u64>) -> Self {
        Self { key, cost, filters: Filters::default(), last: (Vec::new(), 0) }
    }

    pub(super) fn filtered(self, filters: Filters) -> Self {
        Self { filters, ..self }
    }

    /// See [`super::reader::Reader::read`].
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let mut rest = line;
        let mut client = host(&mut rest).ok_or("no client address")?;
        let mut ident = host(&mut rest).ok_or("nothing behind the client")?;
        if is_server(client, ident) {
            client = ident;
            ident = word(&mut rest).ok_or("nothing behind the client")?;
        }
        let bracket = memchr::memchr(b'[', rest).ok_or("no time in brackets")?;
        let user = rest[..bracket].trim_ascii();
        check_head(client, ident, user)?;
        rest = &rest[bracket + 1..];
        let bracket = memchr::memchr(b']', rest).ok_or("no time in brackets")?;
        let time = self.time(&rest[..bracket])?;
        rest = rest[bracket + 1..].trim_ascii_start();
        let request = quoted(&mut rest).ok_or("no request in quotes")?;
        let is_status = |status: &&[u8]| status.len() == 3 && status.iter().all(u8::is_ascii_digit);
        let status = word(&mut rest).filter(is_status).ok_or("no status of three digits")?;
        let bytes = word(&mut rest).ok_or("no number of bytes")?;
        let bytes = if bytes == b"-" { 0 } else { number(bytes).ok_or("no number of bytes")? };
        let mut words = request.split(|byte| *byte == b' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().map(path).unwrap_or_default());
        let passes = self.filters.pass(Request { method, path, status });
        let key = match self.key {
            Field::Client => client,
            Field::User => user,
            Field::Method => method,
            Field::Path => path,
            Field::Status => status,
            Field::Referer => quoted(&mut rest).unwrap_or_default(),
            Field::UserAgent => nth_quoted(&mut rest, 1),
            Field::Forwarded => forwarded(nth_quoted(&mut rest, 2))?,
        };
        let key = client::key_of(key, matches!(self.key, Field::Client | Field::Forwarded))?;
        Ok(Entry { time, key, cost: self.cost.unwrap_or(bytes), passes })
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

/// Rejects words of another shape before the time, such as a prefix of a log shipper, whose first
/// word is no client. Only a user's name may hold blanks, behind a client that is certain.
fn check_head(client: &[u8], ident: &[u8], user: &[u8]) -> Result<(), &'static str> {
    if !client::is_possible(client) {
        return Err("the first word is neither an address nor a host");
    }
    let mut words = user.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let count = words.clone().count();
    if count != 1 && ident != b"-" && client::of_bytes(client).is_none() {
        return Err("not `client ident user` before the time");
    }
    let is_other = |word: &[u8]| client::of_bytes(word).is_some();
    if words.any(is_other) {
        return Err("an address in the place of the user before the time");
    }
    Ok(())
}

/// Whether `first` is the server and the client is second; otherwise the second word is usually a
/// dash. An address with a port may be either, and is the server only before another address.
fn is_server(first: &[u8], second: &[u8]) -> bool {
    let is_address = |word| client::of_bytes(word).is_some();
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
pub(super) fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.strip_prefix(b" ").unwrap_or(after);
    Some(word).filter(|word| !word.is_empty())
}

/// The text in quotes behind `skipped` others; empty without it.
fn nth_quoted<'a>(rest: &mut &'a [u8], skipped: usize) -> &'a [u8] {
    (0..=skipped).try_fold(&[][..], |_, _| quoted(rest)).unwrap_or_default()
}

/// The first of the addresses in quotes at the end of nginx's format `main`; other formats have
/// other values there.
fn forwarded(list: &[u8]) -> Result<&[u8], &'static str> {
    let first = list.split(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
    let is_named = first.is_empty() || first == b"-" || first == b"unknown" || first.starts_with(b"_");
    match is_named || client::of_bytes(first).is_some() {
        true => Ok(first),
        false => Err("the third text in quotes is no list of addresses"),
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// The text between quotes; a quote after a backslash is part of the text.
pub(super) fn quoted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
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
            assert_eq!(
                entry,
                Entry { time: 971_211_336_000_000, key: Some(expected.into()), cost: 2326, passes: true }
            );
        }
        assert_eq!(Field::named("address"), None);
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
            for user in ["- -", "- ann", "ident ann", "- - ann"] {
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

    /// A word of a prefix is no client.
    #[test]
    fn other_words_before_the_time_are_refused() {
        for head in [
            "Nov 21 10:00:00 web1 203.0.113.7 - -",
            "web-7d9f nginx 203.0.113.7 - -",
            "10.0.0.9 nginx 203.0.113.7 - -",
            "web1 - 203.0.113.7 - -",
            "stdout F 203.0.113.7",
            "17:203.0.113.7 - -",
            "access.log:203.0.113.7 - -",
            "access.log:17:203.0.113.7 - -",
            "a b c d",
            "{web} - -",
            "web1 F",
        ] {
            let line = format!(r#"{head} [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#);
            for key in [Field::Client, Field::User] {
                assert!(AccessLog::new(key, Some(1)).read(line.as_bytes()).is_err(), "{line}");
            }
        }
        for line in ["200x", "20 1", "abc 1", "200 1k", "200 -1"] {
            let line = format!(r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" {line}"#);
            assert!(AccessLog::new(Field::Client, Some(1)).read(line.as_bytes()).is_err(), "{line}");
        }
    }

    /// nginx's format `main`.
    #[test]
    fn forwarded_address_is_the_third_text_in_quotes() {
        for (forwarded, key) in [
            ("\"198.51.100.1, 10.0.0.9\"", Ok(Some("198.51.100.1"))),
            ("\"[2001:db8::1]:443\" more", Ok(Some("2001:db8::1"))),
            ("\"-\"", Ok(None)),
            ("\"unknown\"", Ok(None)),
            ("", Ok(None)),
            ("0.003", Ok(None)),
            ("\"0.003\"", Err(())),
        ] {
            let mut log = AccessLog::new(Field::Forwarded, Some(1));
            let line = format!("{LINE} {forwarded}");
            let read = log
                .read(line.trim_end().as_bytes())
                .map(|entry| entry.key.map(Cow::into_owned).filter(|key| !key.is_empty()));
            assert_eq!(read.map_err(drop), key.map(|key| key.map(str::to_owned)), "{line}");
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
