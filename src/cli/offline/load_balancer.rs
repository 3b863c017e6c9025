//! Access logs of the load balancers of AWS: Application Load Balancers, and classic ones, whose
//! lines lack the first word.
//!
//! `type time balancer client:port target:port seconds seconds seconds status status received sent
//! "request" "user-agent" ...`

use std::net::IpAddr;

use super::access_log::{quoted, word};
use super::field::{Field, Fields, method_and_path};
use super::{client, instant};

/// The first word of a line.
const TYPES: [&[u8]; 6] = [b"http", b"https", b"h2", b"grpcs", b"ws", b"wss"];

/// The fields from the time on that have a use.
const TIME: usize = 0;
const CLIENT: usize = 2;
const STATUS: usize = 7;
const SENT: usize = 10;
const REQUEST: usize = 11;
const AGENT: usize = 12;

/// Whether its logs have a field.
pub(super) fn has(field: Field) -> bool {
    !matches!(field, Field::User | Field::Referer | Field::Forwarded)
}

/// Reads a line.
///
/// # Errors
/// When it is no line of a load balancer.
pub(super) fn read(line: &[u8]) -> Result<Fields<'_>, &'static str> {
    let mut words = values(line).peekable();
    words.next_if(|first| TYPES.contains(first));
    // A classic load balancer writes neither a user agent for TCP, nor one before 2014.
    let fields: Vec<&[u8]> = words.take(AGENT + 1).collect();
    let field = |place: usize| fields.get(place).copied().unwrap_or_default();
    let text = |place| std::str::from_utf8(field(place)).map_err(|_| "the line is not UTF-8");
    if fields.len() <= REQUEST {
        return Err("not a line of a load balancer");
    }
    let time = instant::text_in_log(text(TIME)?).and_then(Result::ok).ok_or("the second word is no time")?;
    let client = without_port(text(CLIENT)?).ok_or("the client is no `address:port`")?;
    let sent = text(SENT)?.parse().map_err(|_| "no number of sent bytes");
    let [method, path] = method_and_path(field(REQUEST));
    let client = client.as_bytes();
    let values = [client, b"", method, path, field(STATUS), b"", field(AGENT), b""];
    Ok(Fields { time, values, client: Ok(client), sent })
}

/// The address of a client, which has no brackets even in IPv6, so that only the last colon is
/// certain.
fn without_port(client: &str) -> Option<&str> {
    let address = if client.contains(':') { client::host_and_port(client)?.0 } else { client };
    let address = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    (address == "-" || address.parse::<IpAddr>().is_ok()).then_some(address)
}

/// The values of a line, between blanks; those in quotes may have blanks.
fn values(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        quoted(&mut rest).or_else(|| word(&mut rest))
    })
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::super::field::Wanted;
    use super::super::filters::Filters;
    use super::*;

    const APPLICATION: &str = r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl \"7\" x" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x "Root=1" "www.example.com" "arn" 0 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-""#;

    #[test]
    fn fields_of_both_kinds_are_found() {
        let classic = APPLICATION.strip_prefix("https ").unwrap();
        for line in [APPLICATION, classic] {
            for (name, expected) in [
                ("client", "192.168.131.39"),
                ("method", "GET"),
                ("path", "/a"),
                ("status", "200"),
                ("user-agent", r#"curl \"7\" x"#),
            ] {
                let wanted = Wanted { key: Field::named(name), cost: None };
                let expected =
                    Entry { time: 1_530_570_180_186_641, key: Some(expected.into()), cost: 57, passes: true };
                let fields = read(line.as_bytes()).unwrap();
                assert_eq!(wanted.entry(&fields, &Filters::default()), Ok(expected), "{name}");
            }
        }
    }

    #[test]
    fn other_lines_are_no_lines_of_a_load_balancer() {
        for line in [
            "",
            "http",
            "https 2018-07-02T22:23:00.186641Z app 192.168.131.39:2817",
            r#"https noon app 192.168.131.39:2817 - -1 -1 -1 400 - 0 57 "- - -" "-""#,
            r#"https 2018-07-02T22:23:00Z app web - -1 -1 -1 400 - 0 57 "- - -" "-""#,
            r#"203.0.113.7 - - [21/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#,
        ] {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
        for end in 0..APPLICATION.len() {
            let _ = read(&APPLICATION.as_bytes()[..end]);
        }
    }
}
