//! Removes what a log shipper adds to the line of a server.
//!
//! Container runtimes, syslog, journald and terminals put times, hosts and names before a line, or
//! wrap it in JSON. Any other prefix stays, and the strict readers then refuse the line. A word of
//! a prefix must never count as a client.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde::Deserialize;

use super::client;

/// Docker splits longer lines.
const DOCKER_PART: usize = 16 * 1024;

/// Longest line of several parts, in bytes. The rest is dropped.
const LONGEST: usize = 256 * 1024;

/// Most prefixes of one line.
const PREFIXES: usize = 5;

/// The prefixes that need no time: `<13>1 time host program process message [data] ` of syslog,
/// `[pod/name/container] ` of `kubectl logs --prefix`, and `web-1  | ` of Compose.
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let syslog =
        r#"<[0-9]{1,3}>1 (?:[^ \t]+[ \t]){5}(?:-|(?:\[(?:"(?:\\.|[^"\\])*"|[^\]"])*\])+)[ \t]\s*(?:\xef\xbb\xbf)?"#;
    pattern(&format!(r"{syslog}|\[[^ \t]*/[^ \t]*\][ \t]|[^ \t]+[ \t]\s*\|[ \t]\s*"))
});

/// A time as syslog, journald, container runtimes and `ts` write it. It may stand in brackets, and
/// behind the `<13>` of syslog. In brackets it may be the seconds since the start of a machine.
static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let (clock, fraction) = ("[0-9]{2}:[0-9]{2}:[0-9]{2}", "(?:[.,][0-9]*)?");
    let zone = "(?:Z| UTC| GMT| ?[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2})?";
    let date = "(?:[A-Za-z]{3} )?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]";
    let day = "[A-Za-z]{3} [0-9 ][0-9] (?:[0-9]{4} )?";
    let time = format!("(?:{date}{clock}{fraction}{zone}|(?:{day})?{clock}{fraction}|[0-9]{{10}}{fraction})");
    pattern(&format!(r"(?:<[0-9]{{1,3}}>)?(?:{time}|\[(?:{time}|\s*[0-9]+\.[0-9]*)\])[ \t]\s*"))
});

/// `stdout F `, as the container runtimes of Kubernetes write behind the time. `P` is a part.
static CONTAINER: LazyLock<Option<Regex>> = LazyLock::new(|| pattern(r"std(out|err)[ \t](?:F|(P))(?::[^ \t]*)?[ \t]"));

/// The sequences that colour a terminal.
static COLOUR: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?-u)\x1b(?:\[[^@-~]*[@-~]?)?").ok());

/// A pattern of the start of a line, in bytes; none if it is wrong, which the tests would show.
fn pattern(text: &str) -> Option<Regex> {
    Regex::new(&format!("(?s-u)^(?:{text})")).ok()
}

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

/// The line of a server, its stream, and whether its end is in the next line.
type Unwrapped<'a> = (&'a [u8], Stream, bool);

impl Shipper {
    /// The line of the server; none while only a part of it has arrived.
    pub(super) fn unwrap<'a>(&'a mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        let docker = docker(line);
        let inner = docker.as_ref().map_or(line, |docker| docker.log.trim_end_matches(['\n', '\r']).as_bytes());
        let plain = COLOUR.as_ref().map_or(inner.into(), |colour| colour.replace_all(inner, &b""[..]));
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

fn unprefixed(line: &[u8]) -> Unwrapped<'_> {
    let mut rest = line;
    for _ in 0..PREFIXES {
        // Most lines of JSON have no prefix, and no word either.
        if rest.starts_with(b"{") {
            break;
        }
        if let Some(after) = behind(&NAMES, rest) {
            rest = after;
        } else if let Some(after) = behind(&TIME, rest) {
            if let Some(found) = CONTAINER.as_ref().and_then(|container| container.captures(after)) {
                let stream = if &found[1] == b"out" { Stream::Stdout } else { Stream::Stderr };
                return (&after[found[0].len()..], stream, found.get(2).is_some());
            }
            rest = tagged(after);
        } else {
            break;
        }
    }
    (rest, Stream::default(), false)
}

/// The rest of a line behind a pattern.
fn behind<'a>(pattern: &Option<Regex>, line: &'a [u8]) -> Option<&'a [u8]> {
    pattern.as_ref()?.find(line).map(|found| &line[found.end()..])
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
