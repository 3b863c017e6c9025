//! JSON lines: the reader uses three members of each object and skips the others.
//!
//! A path such as `request.client_ip` names a member of a member. A name with dots may also be one
//! member's own.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::client;
use super::entry::{Cost, Entry};
use super::field::path;
use super::filters::{Filters, RequestParts};
use super::instant;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// The member with the time, if a log has it. Some servers write a duration there.
const TIME: &str = "time";

/// Members with a time in logs of servers, the most exact first.
const TIMES: &str = "\
    ts msec @timestamp timestamp time_iso8601 time_local start_time startTime StartUTC \
    EdgeStartTimestamp started_at requestTimeEpoch requestTime reqTimeSec datetime date \
    eventTime timeMillis timeUnixNano time_unix _time __REALTIME_TIMESTAMP asctime logged_at";

/// Members with the parts of a request in logs of servers.
const METHODS: &str = "method request.method request_method httpMethod ClientRequestMethod RequestMethod";
const PATHS: &str = "\
    path uri url request.uri request.path request_uri ClientRequestURI RequestPath requestPath";
const STATUSES: &str = "\
    status status_code response_code EdgeResponseStatus DownstreamStatus statusCode \
    response.status";

/// The first us of the year 2000.
const FIRST: Micros = 946_684_800 * MICROS_PER_SECOND;

/// Two forms of one instant differ by less: us.
const CLOSE: Micros = 2 * MICROS_PER_SECOND;

/// Most characters of a value in an error.
const SHOWN: usize = 40;

/// Most names that an error lists, and the deepest of them.
const NAMES: usize = 30;
const DEPTH: usize = 4;

/// The members of an object, with values that are not parsed yet.
type Object<'a> = BTreeMap<Name<'a>, &'a RawValue>;

/// The name of a member, which allocates only if it has escapes.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads JSON lines.
#[derive(Debug)]
pub(super) struct Members {
    /// None until a line has a known one.
    time: Option<String>,
    key: String,
    cost: Cost,
}

impl Members {
    /// Without a `time` the first line selects it.
    pub(super) fn new(time: Option<String>, key: String, cost: Cost) -> Self {
        Self { time, key, cost }
    }

    /// See [`super::reader::LogReader::read`].
    pub(super) fn read(&mut self, line: &[u8], filters: &Filters) -> Result<Entry<'static>, Cow<'static, str>> {
        let object: Object<'_> = serde_json::from_slice(line).map_err(reason)?;
        let name = match &mut self.time {
            Some(time) => time,
            unknown => unknown.insert(time_of_line(&object)?),
        };
        let time = find(&object, name).ok_or_else(|| format!("no member `{name}`"))?;
        let time = time_of(&time).map_err(|wrong| no_time(name, &time, wrong))?;
        let cost = match &self.cost {
            Cost::Always(cost) => *cost,
            Cost::Field(name) => find(&object, name).map_or(Ok(None), |cost| cost_of(&cost))?.unwrap_or(1),
        };
        let key = find(&object, &self.key).map_or(Ok(None), key_of)?;
        Ok(Entry { time, key: key.map(Cow::Owned), cost, passes: filters.is_empty() || passes(&object, filters) })
    }
}

/// Whether the request of an object passes the filters, by the usual names of its parts.
fn passes(object: &Object<'_>, filters: &Filters) -> bool {
    let text = |names: &str| match names.split(' ').find_map(|name| find(object, name))? {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    // Nginx writes the first line of the request as one text.
    let line = text("request").unwrap_or_default();
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next(), words.next());
    let method = text(METHODS).or(method).unwrap_or_default();
    let target = text(PATHS).or(target).unwrap_or_default();
    let status = text(STATUSES).unwrap_or_default();
    let (method, path, status) = (method.as_bytes(), path(target.as_bytes()), status.as_bytes());
    filters.pass(RequestParts { method, path, status })
}

/// The line of the log precedes the reason, and within it there is only one.
fn reason(error: serde_json::Error) -> Cow<'static, str> {
    error.to_string().replace(" at line 1 column ", " at column ").into()
}

/// The value at a path.
fn find(object: &Object<'_>, path: &str) -> Option<Value> {
    object.iter().find_map(|(Name(name), raw)| match path.strip_prefix(&**name)? {
        "" => serde_json::from_str(first(raw)?).ok(),
        below => find(&serde_json::from_str(first(raw)?).ok()?, below.strip_prefix('.')?),
    })
}

/// A value as written. An array counts as its first entry, as the values of a header field do.
fn first(raw: &RawValue) -> Option<&str> {
    match raw.get().as_bytes() {
        [b'[', ..] => {
            let entries: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
            Some(entries.first().map_or("null", |entry| entry.get()))
        }
        _ => Some(raw.get()),
    }
}

/// The member with the time of a line.
///
/// # Errors
/// When there is none, or there are several that differ.
fn time_of_line(object: &Object<'_>) -> Result<String, Cow<'static, str>> {
    let value = |name| serde_json::from_str(first(object.get(&Name(Cow::Borrowed(name)))?)?).ok();
    let names = std::iter::once(TIME).chain(TIMES.split(' '));
    let mut found: Vec<_> = names.filter_map(|name| Some((name, time_of(&value(name)?).ok()?))).collect();
    // Beside a time of a request, a number that is so small is a duration.
    if found.iter().any(|(_, time)| *time >= FIRST) {
        found.retain(|(_, time)| *time >= FIRST);
    }
    let Some(((name, first), others)) = found.split_first() else {
        return Err(match value(TIME) {
            Some(time) => no_time(TIME, &time, time_of(&time).err().unwrap_or_default()).into(),
            None => "no member `time`: name the one with the time by --time".into(),
        });
    };
    match others.iter().find(|(_, other)| other.abs_diff(*first) > CLOSE) {
        None => Ok((*name).to_owned()),
        Some((other, _)) => {
            Err(format!("the time may be `{name}` or `{other}`, which differ: choose by --time").into())
        }
    }
}

/// The fault of a member that has no time.
fn no_time(name: &str, value: &Value, wrong: &str) -> String {
    let value: String = value.to_string().chars().take(SHOWN).collect();
    format!("`{name}` {wrong}: {value}; name the member with the time by --time")
}

/// The names of the members of a line, for a message: `request.client_ip` for one in another.
pub(super) fn names(line: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(object) = serde_json::from_slice(line) {
        add_names(&object, "", DEPTH, &mut names);
    }
    names
}

fn add_names(object: &Map<String, Value>, before: &str, depth: usize, names: &mut Vec<String>) {
    for (name, value) in object {
        match value {
            Value::Object(below) if depth > 1 => add_names(below, &format!("{before}{name}."), depth - 1, names),
            _ if names.len() < NAMES => names.push(format!("{before}{name}")),
            _ => return,
        }
    }
}

fn time_of(value: &Value) -> Result<Micros, &'static str> {
    let instant = match value {
        Value::String(text) => instant::text_in_log(text).transpose()?,
        Value::Number(number) => number.as_u64().map_or_else(|| instant::fraction(number.as_f64()?), instant::number),
        _ => None,
    };
    instant.ok_or("is neither RFC 3339 such as `2026-11-21T10:41:53Z` nor a number since 1970")
}

fn key_of(value: Value) -> Result<Option<String>, &'static str> {
    match value {
        // Servers write a dash for an unknown value.
        Value::String(text) if text == "-" => Ok(None),
        Value::String(text) => Ok(Some(match client::key(&text) {
            Cow::Borrowed(key) if key.len() == text.len() => text,
            key => key.into_owned(),
        })),
        Value::Number(number) if number.is_u64() => Ok(Some(number.to_string())),
        Value::Null => Ok(None),
        _ => Err("the key is neither a text nor an integer"),
    }
}

fn cost_of(value: &Value) -> Result<Option<u64>, &'static str> {
    let whole = |number: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is an integer below 2^53")]
        (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
    };
    let cost = match value {
        Value::Null => return Ok(None),
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) if text == "-" => Some(0),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            text.parse().ok().or_else(|| whole(text.parse().ok()?))
        }
        Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        _ => None,
    };
    cost.map(Some).ok_or("the cost is no integer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(time: Option<&str>, key: &str, line: &str) -> Result<(Micros, Option<String>, u64), String> {
        let mut members = Members::new(time.map(str::to_owned), key.into(), Cost::Field("cost".into()));
        let entry = members.read(line.as_bytes(), &Filters::default()).map_err(Cow::into_owned)?;
        Ok((entry.time, entry.key.map(Cow::into_owned), entry.cost))
    }

    fn read(line: &str) -> Result<(Micros, Option<String>, u64), String> {
        by(None, "key", line)
    }

    #[test]
    fn three_members_matter() {
        let cases = [
            (r#"{"time":1,"key":"a"}"#, (1_000_000, Some("a"), 1)),
            (
                r#"{"meta":{"x":[1,{}]},"cost":0,"key":"a\"b","time":"1970-01-01T00:00:02Z"}"#,
                (2_000_000, Some("a\"b"), 0),
            ),
            (r#" {"time":0.5,"key":7,"cost":null} "#, (500_000, Some("7"), 1)),
            (r#"{"time":1,"key":null}"#, (1_000_000, None, 1)),
            (r#"{"time":1,"key":"-"}"#, (1_000_000, None, 1)),
            (r#"{"time":1,"key":["a","b"],"cost":"53"}"#, (1_000_000, Some("a"), 53)),
            (r#"{"time":1,"key":[],"cost":"-"}"#, (1_000_000, None, 0)),
            (r#"{"time":1,"cost":"2.0"}"#, (1_000_000, None, 2)),
            (r#"{"time":1,"cost":""}"#, (1_000_000, None, 1)),
            (r#"{"time":"1.5","key":"a"}"#, (1_500_000, Some("a"), 1)),
        ];
        for (line, (time, key, cost)) in cases {
            assert_eq!(read(line), Ok((time, key.map(str::to_owned), cost)), "{line}");
        }
    }

    #[test]
    fn paths_lead_to_members_of_members() {
        for line in [
            r#"{"a":{"t":1,"b":{"c":"x","d":1}},"cost":2}"#,
            r#"{"a.t":1,"a":{"b.c":"x"},"cost":2}"#,
            r#"{"a.t":1,"a.b":{"c":["x"]},"a":7,"cost":2}"#,
            r#"{"a.b.c":"x","cost":2,"a":[{"t":1}]}"#,
        ] {
            assert_eq!(by(Some("a.t"), "a.b.c", line), Ok((1_000_000, Some("x".to_owned()), 2)), "{line}");
        }
        let same = by(Some("t"), "t", r#"{"t":1}"#);
        assert_eq!(same, Ok((1_000_000, Some("1".to_owned()), 1)));
        let none = by(Some("t"), "a.b", r#"{"t":1,"a":"text","ab":"x"}"#);
        assert_eq!(none, Ok((1_000_000, None, 1)));
        assert_eq!(by(Some("t"), "a.b", r#"{"t":1,"a":true}"#), Ok((1_000_000, None, 1)));
    }

    #[test]
    fn known_times_need_no_flag() {
        let instant = 1_795_255_200_000_000;
        for member in [
            r#""ts":1795255200.0"#,
            r#""@timestamp":"2026-11-21T10:00:00Z""#,
            r#""time_iso8601":"2026-11-21T11:00:00+01:00""#,
            r#""time_local":"21/Nov/2026:10:00:00 +0000""#,
            r#""msec":"1795255200.000""#,
            r#""start_time":"2026-11-21T10:00:00.000Z""#,
            r#""EdgeStartTimestamp":1795255200000000000"#,
            r#""EdgeStartTimestamp":1795255200"#,
            r#""timestamp":1795255200000"#,
            r#""time_local":"21/Nov/2026:10:00:00 +0000","msec":"1795255200.000","time_iso8601":"2026-11-21T10:00:00Z""#,
            r#""time":1795255200,"ts":1"#,
        ] {
            assert_eq!(read(&format!("{{{member}}}")).map(|(time, ..)| time), Ok(instant), "{member}");
        }
        let differ = read(r#"{"ts":1795255200,"@timestamp":"2026-11-21T10:00:09Z"}"#).unwrap_err();
        assert_eq!(differ, "the time may be `ts` or `@timestamp`, which differ: choose by --time");
        assert!(read(r#"{"ts":"x","request_time":0.1}"#).unwrap_err().contains("--time"));
    }

    #[test]
    fn names_of_members_are_paths() {
        let line = br#"{"b":{"c":1,"d":{}},"a":[{"x":1}]}"#;
        assert_eq!(names(line), ["a", "b.c"]);
        assert_eq!(names(b"[1]"), [""; 0]);
        let many: Vec<String> = (0..100).map(|number| format!("\"{number}\":1")).collect();
        assert_eq!(names(format!("{{{}}}", many.join(",")).as_bytes()).len(), NAMES);
    }

    #[test]
    fn non_object_lines_are_rejected() {
        let wrong = [
            "",
            "[]",
            "{",
            r#"{"time":1,"key":"a"} x"#,
            r#"{"key":"a"}"#,
            r#"{"time":-1,"key":"a"}"#,
            r#"{"time":"noon","key":"a"}"#,
            r#"{"time":1,"key":{"a":1}}"#,
            r#"{"time":1,"key":true}"#,
            r#"{"time":1,"key":"a","cost":1.5}"#,
            r#"{"time":1,"key":"a","cost":"1.5"}"#,
            r#"{"time":1,"key":"a","cost":"many"}"#,
            r#"{"time":1,"key":"a","cost":-1}"#,
            "{\"time\":1,\"key\":\"\u{1}\"}",
        ];
        for line in wrong {
            assert!(read(line).is_err(), "{line}");
        }
        let mut members = Members::new(None, "key".into(), Cost::Always(1));
        assert!(members.read(b"{\"time\":1,\"key\":\"\xff\"}", &Filters::default()).is_err());
    }
}
