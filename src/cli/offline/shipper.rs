//! Removes what a log shipper adds to the line of a server.
//!
//! Container runtimes, syslog, journald and terminals put times, hosts and names before a line, or
//! wrap it in JSON. Any other prefix stays, and the strict readers then refuse the line. A word of
//! a prefix must never count as a client.

use serde::Deserialize;
use std::borrow::Cow;

use super::client;

/// Docker splits longer lines.
const DOCKER_PART: usize = 16 * 1024;

/// Longest line of several parts, in bytes. The rest is dropped.
const LONGEST: usize = 256 * 1024;

/// Most prefixes of one line.
const PREFIXES: usize = 5;

/// The two streams of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stream {
    #[default]
    Stdout,
    Stderr,
}

/// Removes prefixes, and joins lines that a container runtime has split.
#[derive(Debug, Default)]
pub(super) struct Shipper {
    /// The parts of unfinished lines, of each stream.
    parts: [Vec<u8>; 2],
    line: Vec<u8>,
}

/// A line of Docker's driver `json-file`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Docker<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    stream: Stream,
    #[serde(rename = "time")]
    _time: serde::de::IgnoredAny,
    #[serde(rename = "attrs", default)]
    _attrs: Option<serde::de::IgnoredAny>,
}

/// The rest of a line, and the stream if its end is in the next line.
type Unwrapped<'a> = (&'a [u8], Stream, bool);

impl Shipper {
    /// The line of the server; none while only a part of it has arrived.
    pub(super) fn unwrap<'a>(&'a mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        let docker = docker(line);
        let inner = docker.as_ref().map_or(line, |docker| docker.log.trim_end_matches(['\n', '\r']).as_bytes());
        let plain = uncoloured(inner);
        let (rest, mut stream, mut is_part) = unprefixed(&plain);
        if let Some(docker) = &docker {
            (stream, is_part) = (docker.stream, !docker.log.ends_with('\n') && docker.log.len() >= DOCKER_PART);
        }
        let parts = &mut self.parts[stream as usize];
        if is_part {
            parts.extend_from_slice(&rest[..rest.len().min(LONGEST - parts.len())]);
            return None;
        }
        if parts.is_empty() && docker.is_none() && matches!(plain, Cow::Borrowed(_)) {
            return Some(&line[line.len() - rest.len()..]);
        }
        self.line.clear();
        self.line.append(parts);
        self.line.extend_from_slice(rest);
        Some(&self.line)
    }
}

/// Docker writes `log` first.
fn docker(line: &[u8]) -> Option<Docker<'_>> {
    line.strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"log\"")?;
    serde_json::from_slice(line).ok()
}

/// The line without the sequences that colour a terminal.
fn uncoloured(line: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPE: u8 = 0x1b;
    if memchr::memchr(ESCAPE, line).is_none() {
        return line.into();
    }
    let (mut plain, mut rest) = (Vec::with_capacity(line.len()), line);
    while let Some(at) = memchr::memchr(ESCAPE, rest) {
        plain.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match after.strip_prefix(b"[") {
            Some(sequence) => {
                let end = sequence.iter().position(|byte| (b'@'..=b'~').contains(byte));
                end.map_or(&[][..], |end| &sequence[end + 1..])
            }
            None => after,
        };
    }
    plain.extend_from_slice(rest);
    plain.into()
}

fn unprefixed(line: &[u8]) -> Unwrapped<'_> {
    let mut rest = line;
    for _ in 0..PREFIXES {
        // Most lines of JSON have no prefix, and no word either.
        if rest.starts_with(b"{") {
            break;
        }
        let stamped = syslog_5424(rest).or_else(|| pod(rest)).or_else(|| service(rest));
        if let Some(after) = stamped {
            rest = after;
        } else if let Some(after) = instant(without_priority(rest)) {
            if let Some(container) = container(after) {
                return container;
            }
            rest = tagged(after);
        } else {
            break;
        }
    }
    (rest, Stream::default(), false)
}

/// `stdout F `, as the container runtimes of Kubernetes write behind the time. `P` is a part.
fn container(rest: &[u8]) -> Option<Unwrapped<'_>> {
    let (name, rest) = word(rest)?;
    let stream = match name {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let (tags, rest) = word(rest)?;
    match tags.split(|byte| *byte == b':').next()? {
        b"F" => Some((rest, stream, false)),
        b"P" => Some((rest, stream, true)),
        _ => None,
    }
}

/// Skips the name of a program, `nginx[7]: `, and the host before it. Fluentd separates its tag by
/// tabs.
fn tagged(rest: &[u8]) -> &[u8] {
    let is_tag = |word: &[u8]| word.len() > 1 && word.ends_with(b":") && client::of_bytes(word).is_none();
    let Some((first, after)) = word(rest) else { return rest };
    if is_tag(first) || rest.get(first.len()) == Some(&b'\t') {
        return after;
    }
    word(after).filter(|(second, _)| is_tag(second)).map_or(rest, |(_, after)| after)
}

/// `[pod/name/container] `, as `kubectl logs --prefix` writes.
fn pod(line: &[u8]) -> Option<&[u8]> {
    let (name, rest) = word(line.strip_prefix(b"[")?)?;
    let name = name.strip_suffix(b"]")?;
    name.contains(&b'/').then_some(rest)
}

/// `web-1  | `, as Compose writes.
fn service(line: &[u8]) -> Option<&[u8]> {
    let (_, rest) = word(line)?;
    blank(rest.trim_ascii_start().strip_prefix(b"|")?)
}

/// `<13>` before a time, as syslog sends it.
fn without_priority(line: &[u8]) -> &[u8] {
    priority(line).unwrap_or(line)
}

fn priority(line: &[u8]) -> Option<&[u8]> {
    let inside = line.strip_prefix(b"<")?;
    let digits = inside.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=3).contains(&digits).then_some(&inside[digits..])?.strip_prefix(b">")
}

/// `<13>1 time host program process message [data] `.
fn syslog_5424(line: &[u8]) -> Option<&[u8]> {
    let mut rest = priority(line)?.strip_prefix(b"1 ")?;
    for _ in 0..5 {
        (_, rest) = word(rest)?;
    }
    rest = match rest.strip_prefix(b"-") {
        Some(rest) => rest,
        None => data(rest)?,
    };
    let rest = blank(rest)?;
    Some(rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest))
}

/// Skips elements in brackets, whose values in quotes may have brackets.
fn data(mut rest: &[u8]) -> Option<&[u8]> {
    if !rest.starts_with(b"[") {
        return None;
    }
    while rest.starts_with(b"[") {
        let (mut is_quoted, mut at) = (false, 1);
        loop {
            match (*rest.get(at)?, is_quoted) {
                (b'\\', true) => at += 1,
                (b'"', _) => is_quoted = !is_quoted,
                (b']', false) => break,
                _ => {}
            }
            at += 1;
        }
        rest = rest.get(at + 1..)?;
    }
    Some(rest)
}

/// The rest behind a time and its blank.
fn instant(line: &[u8]) -> Option<&[u8]> {
    if let Some(inside) = line.strip_prefix(b"[") {
        // Also the seconds since the start of a machine.
        let rest = time(inside).or_else(|| seconds(inside.trim_ascii_start()))?;
        return blank(rest.strip_prefix(b"]")?);
    }
    blank(time(line)?)
}

/// The rest behind a time as syslog, journald, container runtimes and `ts` write it.
fn time(line: &[u8]) -> Option<&[u8]> {
    let day = shaped(line, "aaa ").unwrap_or(line);
    if let Some(rest) = shaped(day, "0000-00-00") {
        let rest = rest.strip_prefix(b"T").or_else(|| rest.strip_prefix(b" "))?;
        return Some(zone(fraction(shaped(rest, "00:00:00")?)));
    }
    if let Some(rest) = shaped(line, "aaa 00 ").or_else(|| shaped(line, "aaa  0 ")) {
        let rest = shaped(rest, "0000 ").unwrap_or(rest);
        return shaped(rest, "00:00:00").map(fraction);
    }
    shaped(line, "00:00:00").map(fraction).or_else(|| shaped(line, "0000000000").map(fraction))
}

/// The rest behind seconds with a fraction.
fn seconds(text: &[u8]) -> Option<&[u8]> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = &text[digits..];
    (digits > 0 && rest.starts_with(b".")).then(|| fraction(rest))
}

fn fraction(rest: &[u8]) -> &[u8] {
    let Some(digits) = rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) else { return rest };
    &digits[digits.iter().take_while(|byte| byte.is_ascii_digit()).count()..]
}

fn zone(rest: &[u8]) -> &[u8] {
    let forms = ["Z", "+00:00", "-00:00", "+0000", "-0000", " +00:00", " -00:00", " +0000", " -0000", "+00", "-00"];
    let named = || [" UTC", " GMT"].iter().find_map(|name| rest.strip_prefix(name.as_bytes()));
    forms.iter().find_map(|form| shaped(rest, form)).or_else(named).unwrap_or(rest)
}

/// The rest behind a text of this shape: `0` is any digit, `a` any letter.
fn shaped<'a>(text: &'a [u8], shape: &str) -> Option<&'a [u8]> {
    let (head, rest) = text.split_at_checked(shape.len())?;
    let fits = |(byte, shape): (&u8, u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'a' => byte.is_ascii_alphabetic(),
        _ => *byte == shape,
    };
    head.iter().zip(shape.bytes()).all(fits).then_some(rest)
}

/// The rest behind blanks, of which there is one at least.
fn blank(rest: &[u8]) -> Option<&[u8]> {
    rest.first().filter(|byte| matches!(byte, b' ' | b'\t'))?;
    Some(rest.trim_ascii_start())
}

/// The first word, and the rest behind its blank.
fn word(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\t')).filter(|end| *end > 0)?;
    Some((&rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"203.0.113.7 - - [21/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 1"#;

    #[test]
    fn prefixes_of_shippers_are_removed() {
        for prefix in [
            "",
            "2026-11-21T10:00:01.1Z stdout F ",
            "2026-11-21T10:00:01.123456789+01:00 stderr F ",
            "2026-11-21T10:00:01.1Z ",
            "2026-11-21 10:00:01 ",
            "2026-11-21 10:00:01,123 ",
            "2026-11-21T10:00:01+0000 web1 nginx[12]: ",
            "2026-11-21T10:00:01.123456+00:00 app[web.1]: ",
            "Sat 2026-11-21 10:00:01 UTC web1 nginx[12]: ",
            "Nov 21 10:00:01 web1 nginx: ",
            "Nov  1 10:00:01 web1 nginx: ",
            "Nov 21 10:00:01 10.0.0.9 nginx: ",
            "Nov 21 2026 10:00:01 web1 nginx: ",
            "Nov 21 10:00:01.123456 web1 nginx[12]: ",
            "Nov 21 10:00:01 ",
            "<30>Nov 21 10:00:01 web1 nginx: ",
            "<165>1 2026-11-21T10:00:01.003Z web1 nginx 12 access - ",
            "<165>1 - - nginx - - [a@1 x=\"]\\\"\"][b y=\"\"] \u{feff}",
            "1795255201.123456 web1 nginx[12]: ",
            "[  123.456789] web1 nginx[12]: ",
            "[2026-11-21 10:00:01] ",
            "10:00:01 web.1  | ",
            "web-1  | ",
            "web_1    | 2026-11-21T10:00:01.1Z ",
            "[pod/web-7d9f/nginx] ",
            "[pod/web-7d9f/nginx] 2026-11-21T10:00:01.1Z ",
            "\u{1b}[36mweb-1  |\u{1b}[0m ",
        ] {
            let line = format!("{prefix}{LINE}");
            assert_eq!(Shipper::default().unwrap(line.as_bytes()), Some(LINE.as_bytes()), "{prefix}");
        }
    }

    #[test]
    fn other_beginnings_stay() {
        for line in ["shop.example:443 10.0.0.1 - - [", "2001:db8:: - - [", "unix: - - [", "May - - [", "", "<13>", "["]
        {
            assert_eq!(Shipper::default().unwrap(line.as_bytes()), Some(line.as_bytes()));
        }
    }

    #[test]
    fn docker_wrapping_is_removed() {
        for (log, line) in [("a b\\n", "a b"), ("\\u001b[1ma\\r\\n", "a"), ("a", "a")] {
            let wrapped = format!("{{\"log\": \"{log}\", \"stream\":\"stdout\",\"time\":\"2026-11-21T10:00:01.1Z\"}}");
            assert_eq!(Shipper::default().unwrap(wrapped.as_bytes()), Some(line.as_bytes()));
        }
        for other in [r#"{"log":"a","time":1,"key":"k"}"#, r#"{"log":"a","stream":"x","time":1}"#] {
            assert_eq!(Shipper::default().unwrap(other.as_bytes()), Some(other.as_bytes()));
        }
    }

    #[test]
    fn parts_of_a_line_are_joined() {
        let mut shipper = Shipper::default();
        let time = "2026-11-21T10:00:01.1Z";
        let mut next = |text: &str| {
            shipper
                .unwrap(format!("{time} {text}").as_bytes())
                .map(|line| String::from_utf8(line.to_vec()).unwrap())
        };
        assert_eq!(next("stdout P one "), None);
        assert_eq!(next("stderr F other"), Some("other".to_owned()));
        assert_eq!(next("stdout P two "), None);
        assert_eq!(next("stdout F three"), Some("one two three".to_owned()));
        assert_eq!(next("stdout F four"), Some("four".to_owned()));
        let part = "x".repeat(DOCKER_PART);
        let docker = |log: &str| format!("{{\"log\":\"{log}\",\"stream\":\"stdout\",\"time\":\"{time}\"}}");
        assert_eq!(shipper.unwrap(docker(&part).as_bytes()), None);
        assert_eq!(shipper.unwrap(docker("y\\n").as_bytes()).map(<[u8]>::len), Some(DOCKER_PART + 1));
        for _ in 0..40 {
            assert_eq!(shipper.unwrap(format!("{time} stdout P {part}").as_bytes()), None);
        }
        assert_eq!(shipper.unwrap(format!("{time} stdout F ").as_bytes()).map(<[u8]>::len), Some(LONGEST));
    }
}
