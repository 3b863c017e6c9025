//! Access logs of web servers: the common log format, and combined, which adds two fields.
//!
//! `client ident user [10/Oct/2000:13:55:36 -0700] "GET /path HTTP/1.1" 200 2326 "referer"
//! "user-agent"`
//!
//! A log of several servers has the server's name in front: Apache's `vhost_combined`.

use std::net::IpAddr;

use super::client;
use super::field::{Fields, method_and_path};
use super::instant::{self, LastInstant};

/// Reads a line. `last` has the time of the line before.
///
/// # Errors
/// When it is no line of an access log.
pub(super) fn read<'a>(line: &'a [u8], last: &mut LastInstant) -> Result<Fields<'a>, &'static str> {
    let mut rest = line;
    let head = Head::read(&mut rest)?;
    let bracket = memchr::memchr(b'[', rest).ok_or("no time in brackets")?;
    let user = rest[..bracket].trim_ascii();
    head.check(user)?;
    rest = &rest[bracket + 1..];
    let bracket = memchr::memchr(b']', rest).ok_or("no time in brackets")?;
    let wrong = "the time is not like `10/Oct/2000:13:55:36 -0700`";
    let time = last.get(&rest[..bracket], instant::common_log, wrong)?;
    rest = rest[bracket + 1..].trim_ascii_start();
    let request = quoted(&mut rest).ok_or("no request in quotes")?;
    let is_status = |status: &&[u8]| status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    let status = word(&mut rest).filter(is_status).ok_or("no status of three digits")?;
    let sent = word(&mut rest).ok_or("no number of bytes")?;
    let sent = if sent == b"-" { 0 } else { number(sent).ok_or("no number of bytes")? };
    let [method, path] = method_and_path(request);
    let [referer, agent, forwarded] = [(); 3].map(|()| quoted(&mut rest));
    let [referer, agent] = [referer, agent].map(Option::unwrap_or_default);
    let forwarded = forwarded.unwrap_or(head.forwarded);
    let values = [head.client, user, method, path, status, referer, agent, forwarded];
    let client = if head.is_certain { Ok(head.client) } else { Err(TWO_ADDRESSES) };
    Ok(Fields { time, values, client, sent: Ok(sent) })
}

const TWO_ADDRESSES: &str = "two addresses before the time: `--key forwarded` counts the first, as X-Forwarded-For, and \
                             `--key client` the second, behind that of a server";

/// The words before the user.
struct Head<'a> {
    client: &'a [u8],
    /// Whether no other word may be the client.
    is_certain: bool,
    /// The first address of X-Forwarded-For, a dash without one, or empty if there is no such word.
    forwarded: &'a [u8],
    ident: &'a [u8],
}

impl<'a> Head<'a> {
    /// Reads `[server] client ident`, where the client may be X-Forwarded-For, before or behind the
    /// address that connected.
    fn read(rest: &mut &'a [u8]) -> Result<Self, &'static str> {
        const BEHIND: &str = "nothing behind the client";
        let mut first = Host::read(rest).ok_or("no client address")?;
        let mut second = Host::read(rest).ok_or(BEHIND)?;
        if !first.is_address() && names_address(first.text) {
            return Err(NO_HOST);
        }
        if first.is_server(&second) {
            first = std::mem::replace(&mut second, Host::read(rest).ok_or(BEHIND)?);
        }
        first.is_forwarded |= first.text == b"unknown";
        if !second.is_address() {
            let forwarded = if first.is_forwarded { first.text } else { b"" };
            return Ok(Self { client: first.text, is_certain: true, forwarded, ident: second.text });
        }
        let ident = word(rest).ok_or(BEHIND)?;
        Ok(match (first, second) {
            (Host { text, is_forwarded: true }, peer) | (peer, Host { text, is_forwarded: true }) => {
                let client = if text == b"-" { peer.text } else { text };
                Self { client, is_certain: true, forwarded: text, ident }
            }
            (first, second) if first.text == b"-" || first.is_address() => {
                Self { client: second.text, is_certain: first.text == b"-", forwarded: first.text, ident }
            }
            _ => return Err(OTHER_WORDS),
        })
    }

    /// Rejects words of another shape before the time, such as a prefix of a log shipper, whose
    /// first word is no client. Only a user's name may hold blanks, behind a client that is
    /// certain.
    fn check(&self, user: &[u8]) -> Result<(), &'static str> {
        if !client::is_possible(self.client) {
            return Err(NO_HOST);
        }
        let words = user.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        if words.count() != 1 && self.ident != b"-" && client::of_bytes(self.client).is_none() {
            return Err(OTHER_WORDS);
        }
        if names_address(self.ident) || names_address(user) {
            return Err("an address in the place of the user before the time");
        }
        Ok(())
    }
}

const NO_HOST: &str = "the first word is neither an address nor a host";
const OTHER_WORDS: &str = "not `client ident user` before the time";

/// Whether an address is in this text, which is not read as a client.
fn names_address(text: &[u8]) -> bool {
    text.split(|byte| b" ,;|\"'()<>{}=".contains(byte)).any(|word| client::of_bytes(word).is_some())
}

/// A word, or a list.
struct Host<'a> {
    /// The first of a list. In X-Forwarded-For it is the client, and the others are proxies.
    text: &'a [u8],
    /// Whether it is X-Forwarded-For for certain: a list with commas, or an address, a dash or
    /// `unknown` in quotes or parentheses.
    is_forwarded: bool,
}

impl<'a> Host<'a> {
    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        let enclosed = quoted(rest).or_else(|| {
            let (inside, after) = rest.strip_prefix(b"(")?.split_at(memchr::memchr(b')', rest)? - 1);
            *rest = after[1..].trim_ascii_start();
            Some(inside)
        });
        let first = match enclosed {
            Some(inside) => inside,
            None => word(rest)?,
        };
        let (mut last, mut is_list) = (first, first.contains(&b','));
        while enclosed.is_none() && (last.ends_with(b",") || rest.starts_with(b",")) {
            (last, is_list) = (word(rest)?, true);
        }
        let text = first.split(|byte| *byte == b',').next()?.trim_ascii();
        let is_named = || matches!(text, b"-" | b"unknown") || client::of_bytes(text).is_some();
        Some(Self { text, is_forwarded: is_list || enclosed.is_some() && is_named() })
    }

    fn is_address(&self) -> bool {
        self.is_forwarded || client::of_bytes(self.text).is_some()
    }

    /// Whether this is the server and `next` the client; usually the second word is a dash. A name
    /// with a port is a server's, and so is an address with a port that no client has.
    fn is_server(&self, next: &Self) -> bool {
        let text = std::str::from_utf8(self.text).unwrap_or_default();
        if self.is_forwarded || ["", "-", "unknown"].contains(&text) || next.text == b"-" && !next.is_forwarded {
            return false;
        }
        // In an IPv6 address without brackets the last part may be no port.
        let port = client::host_and_port(text).filter(|_| text.parse::<IpAddr>().is_err()).map(|(_, port)| port);
        match self.is_address() {
            true => port.is_some_and(|port| port < PRIVILEGED || port < FIRST_OF_CLIENTS && next.is_address()),
            false => port.is_some_and(|port| port > 9) || next.is_address() && next.text != b"-",
        }
    }
}

/// Programs without privileges connect from no port below this.
const PRIVILEGED: u16 = 1024;

/// The first port from which programs usually connect (`ip_local_port_range` of Linux).
const FIRST_OF_CLIENTS: u16 = 32_768;

/// The text up to the next blank.
pub(super) fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.strip_prefix(b" ").unwrap_or(after);
    Some(word).filter(|word| !word.is_empty())
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
    use std::borrow::Cow;

    use super::super::entry::Entry;
    use super::super::field::{Field, Wanted};
    use super::super::filters::Filters;
    use super::*;

    const LINE: &str = r#"2001:db8::1 - ann lee [10/Oct/2000:13:55:36 -0700] "GET /a?b=\"c\" HTTP/1.1" 200 2326 "http://x/" "a \"b\" c""#;

    fn entry<'a>(line: &'a [u8], key: Field, cost: Option<u64>) -> Result<Entry<'a>, Cow<'static, str>> {
        Wanted { key: Some(key), cost }.entry(&read(line, &mut LastInstant::default())?, &Filters::default())
    }

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
            assert_eq!(
                entry(LINE.as_bytes(), Field::named(name).unwrap(), None).unwrap(),
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
                let line = format!("{server} {LINE}");
                let read = entry(line.as_bytes(), Field::named(name).unwrap(), Some(1));
                assert_eq!(read.unwrap().key, Some(expected.into()), "{line}");
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
                assert_eq!(entry(line.as_bytes(), Field::Client, Some(1)).unwrap().key, Some(key.into()), "{line}");
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
                assert_eq!(entry(line.as_bytes(), Field::Client, Some(1)).unwrap().key, Some(key.into()), "{line}");
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
                    let read = entry(line.as_bytes(), Field::named(name).unwrap(), Some(1));
                    assert_eq!(read.unwrap().key, Some(expected.into()), "{line}");
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
                assert!(entry(line.as_bytes(), key, Some(1)).is_err(), "{line}");
            }
        }
        for line in ["200x", "20 1", "abc 1", "200 1k", "200 -1"] {
            let line = format!(r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" {line}"#);
            assert!(entry(line.as_bytes(), Field::Client, Some(1)).is_err(), "{line}");
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
            let line = format!("{LINE} {forwarded}");
            let read = entry(line.trim_end().as_bytes(), Field::Forwarded, Some(1))
                .map(|entry| entry.key.map(Cow::into_owned).filter(|key| !key.is_empty()));
            assert_eq!(read.map_err(drop), key.map(|key| key.map(str::to_owned)), "{line}");
        }
    }

    #[test]
    fn truncated_values_are_rejected_without_panic() {
        let mut last = LastInstant::default();
        let whole = LINE.rfind(r#" "http"#).unwrap();
        for end in 0..LINE.len() {
            let read = read(&LINE.as_bytes()[..end], &mut last).is_ok();
            assert!(!read || end >= whole - 3, "{}", &LINE[..end]);
        }
        for line in ["", "\"", "[", "]", "a b c [] \"", "a b [10/Oct/2000:13:55:36 -0700] \"\\"] {
            assert!(read(line.as_bytes(), &mut last).is_err(), "{line}");
        }
    }
}
