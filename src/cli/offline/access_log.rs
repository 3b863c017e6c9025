//! Access logs of web servers: the common log format, and combined, which adds two fields.
//!
//! `client ident user [10/Oct/2000:13:55:36 -0700] "GET /path HTTP/1.1" 200 2326 "referer"
//! "user-agent"`
//!
//! A log of several servers has the server's name in front: Apache's `vhost_combined`.

use super::client;
use super::field::{Fields, method_and_path};
use super::instant::{self, LastInstant};

/// Reads a line. `last` has the time of the line before.
///
/// # Errors
/// When it is no line of an access log.
pub(super) fn read<'a>(line: &'a [u8], last: &mut LastInstant) -> Result<Fields<'a>, &'static str> {
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
    let wrong = "the time is not like `10/Oct/2000:13:55:36 -0700`";
    let time = last.get(&rest[..bracket], instant::common_log, wrong)?;
    rest = rest[bracket + 1..].trim_ascii_start();
    let request = quoted(&mut rest).ok_or("no request in quotes")?;
    let is_status = |status: &&[u8]| status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    let status = word(&mut rest).filter(is_status).ok_or("no status of three digits")?;
    let sent = word(&mut rest).ok_or("no number of bytes")?;
    let sent = if sent == b"-" { 0 } else { number(sent).ok_or("no number of bytes")? };
    let [method, path] = method_and_path(request);
    let [referer, agent, forwarded] = [(); 3].map(|()| quoted(&mut rest).unwrap_or_default());
    let values = [client, user, method, path, status, referer, agent, forwarded];
    Ok(Fields { time, values, sent: Ok(sent) })
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
        Wanted { key, cost }.entry(&read(line, &mut LastInstant::default())?, &Filters::default())
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
