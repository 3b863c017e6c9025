//! JSON lines: the reader uses three members of each object and skips the others.
//!
//! A path such as `request.client_ip` names a member of a member. A name with dots may also be one
//! member's own.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::{Map, Value};

use super::client;
use super::entry::{Cost, Entry};
use super::instant;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// The member with the time, if a log has it.
const TIME: &str = "time";

/// Members with a time in logs of servers, the most exact first.
const TIMES: [&str; 24] = [
    "ts",
    "msec",
    "@timestamp",
    "timestamp",
    "time_iso8601",
    "time_local",
    "start_time",
    "startTime",
    "StartUTC",
    "EdgeStartTimestamp",
    "started_at",
    "requestTimeEpoch",
    "requestTime",
    "reqTimeSec",
    "datetime",
    "date",
    "eventTime",
    "timeMillis",
    "timeUnixNano",
    "time_unix",
    "_time",
    "__REALTIME_TIMESTAMP",
    "asctime",
    "logged_at",
];

/// Two forms of one instant differ by less: us.
const CLOSE: Micros = 2 * MICROS_PER_SECOND;

/// Most names that an error lists, and the deepest of them.
const NAMES: usize = 30;
const DEPTH: usize = 4;

/// The members in use: time, key and cost.
type Paths<'p> = [Option<&'p str>; 3];

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

    /// See [`super::reader::Reader::read`].
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let time = match &mut self.time {
            Some(time) => time,
            unknown => unknown.insert(time_of_line(line)?),
        };
        let cost = match &self.cost {
            Cost::Always(_) => None,
            Cost::Field(name) => Some(name.as_str()),
        };
        let mut found = Found { time_name: time, ..Found::default() };
        let object = Object { paths: [Some(time.as_str()), Some(self.key.as_str()), cost], found: &mut found };
        let mut json = serde_json::Deserializer::from_slice(line);
        let read = json.deserialize_map(object).and_then(|()| json.end());
        read.map_err(reason)?;
        let time = found.time.ok_or_else(|| format!("no member `{time}`"))?;
        let cost = match self.cost {
            Cost::Always(cost) => cost,
            Cost::Field(_) => found.cost.unwrap_or(1),
        };
        Ok(Entry { time, key: found.key, cost })
    }
}

/// The line of the log precedes the reason, and within it there is only one.
fn reason(error: serde_json::Error) -> Cow<'static, str> {
    error.to_string().replace(" at line 1 column ", " at column ").into()
}

/// The member with the time of a line.
///
/// # Errors
/// When there is none, or there are several that differ.
fn time_of_line(line: &[u8]) -> Result<String, Cow<'static, str>> {
    let object: Map<String, Value> = serde_json::from_slice(line).map_err(reason)?;
    if object.contains_key(TIME) {
        return Ok(TIME.to_owned());
    }
    let instant = |value: &Value| match value {
        Value::String(text) => instant::text_in_log(text)?.ok(),
        Value::Number(number) => number.as_u64().map_or_else(|| instant::fraction(number.as_f64()?), instant::number),
        _ => None,
    };
    let found: Vec<_> = TIMES.iter().filter_map(|name| Some((*name, instant(object.get(*name)?)?))).collect();
    match found.as_slice() {
        [] => Err("no member `time`: name the one with the time by --time".into()),
        [(name, first), others @ ..] => match others.iter().find(|(_, other)| other.abs_diff(*first) > CLOSE) {
            None => Ok((*name).to_owned()),
            Some((other, _)) => {
                Err(format!("the time may be `{name}` or `{other}`, which differ: choose by --time").into())
            }
        },
    }
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

/// The values of one line.
#[derive(Default)]
struct Found<'n, 'de> {
    time_name: &'n str,
    time: Option<Micros>,
    key: Option<Cow<'de, str>>,
    cost: Option<u64>,
}

/// Reads the members of an object that begin or end these paths.
struct Object<'p, 'f, 'n, 'de> {
    paths: Paths<'p>,
    found: &'f mut Found<'n, 'de>,
}

impl<'de> Visitor<'de> for Object<'_, '_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Step { ends, below }) = map.next_key_seed(Name(self.paths))? {
            if ends == [false; 3] && below == [None; 3] {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Member { ends, below, found: self.found })?;
            }
        }
        Ok(())
    }
}

/// The paths that a member ends, and those that go on below it.
#[derive(Default)]
struct Step<'p> {
    ends: [bool; 3],
    below: Paths<'p>,
}

struct Name<'p>(Paths<'p>);

impl<'de, 'p> DeserializeSeed<'de> for Name<'p> {
    type Value = Step<'p>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Step<'p>, D::Error> {
        name.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Name<'p> {
    type Value = Step<'p>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Step<'p>, E> {
        let mut step = Step::default();
        for (place, path) in self.0.into_iter().enumerate() {
            match path.and_then(|path| path.strip_prefix(name)) {
                Some("") => step.ends[place] = true,
                Some(rest) => step.below[place] = rest.strip_prefix('.'),
                None => {}
            }
        }
        Ok(step)
    }
}

/// A member in use. An array counts as its first entry, as the values of a header field do.
struct Member<'p, 'f, 'n, 'de> {
    ends: [bool; 3],
    below: Paths<'p>,
    found: &'f mut Found<'n, 'de>,
}

impl<'de> DeserializeSeed<'de> for Member<'_, '_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Member<'_, '_, '_, 'de> {
    /// A value of another type is at fault only if a path ends here.
    fn refuse<E: Error>(&self, value: Unexpected<'_>) -> Result<(), E> {
        if self.ends == [false; 3] { Ok(()) } else { Err(E::invalid_type(value, self)) }
    }

    fn note<E: Error>(self, value: Scalar<'de>) -> Result<(), E> {
        let [is_time, is_key, is_cost] = self.ends;
        if is_time {
            let instant =
                time_of(&value).map_err(|wrong| E::custom(format_args!("`{}` {wrong}", self.found.time_name)))?;
            self.found.time = Some(instant);
        }
        if is_cost {
            self.found.cost = cost_of(&value).map_err(E::custom)?;
        }
        if is_key {
            self.found.key = key_of(value).map_err(E::custom)?;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Member<'_, '_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number that is not negative")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.note(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.note(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.note(Scalar::Integer(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.note(Scalar::Number(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.refuse(Unexpected::Signed(number))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<(), E> {
        self.refuse(Unexpected::Bool(flag))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.note(Scalar::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        entries.next_element_seed(self)?;
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.refuse(Unexpected::Map)?;
        Object { paths: self.below, found: self.found }.visit_map(map)
    }
}

/// A scalar value of a useful type.
enum Scalar<'de> {
    Text(Cow<'de, str>),
    Integer(u64),
    Number(f64),
    Null,
}

fn time_of(value: &Scalar<'_>) -> Result<Micros, &'static str> {
    let instant = match value {
        Scalar::Text(text) => instant::text_in_log(text).transpose()?,
        Scalar::Integer(number) => instant::number(*number),
        Scalar::Number(number) => instant::fraction(*number),
        Scalar::Null => None,
    };
    instant.ok_or("is neither RFC 3339 such as `2026-11-21T10:41:53Z` nor a number since 1970")
}

fn key_of(value: Scalar<'_>) -> Result<Option<Cow<'_, str>>, &'static str> {
    match value {
        // Servers write a dash for an unknown value.
        Scalar::Text(text) if text == "-" => Ok(None),
        Scalar::Text(Cow::Borrowed(text)) => Ok(Some(client::key(text))),
        Scalar::Text(Cow::Owned(text)) => Ok(Some(client::key(&text).into_owned().into())),
        Scalar::Integer(number) => Ok(Some(number.to_string().into())),
        Scalar::Number(_) => Err("the key is neither a text nor an integer"),
        Scalar::Null => Ok(None),
    }
}

fn cost_of(value: &Scalar<'_>) -> Result<Option<u64>, &'static str> {
    let whole = |number: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is an integer below 2^53")]
        (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
    };
    let cost = match value {
        Scalar::Null => return Ok(None),
        Scalar::Integer(number) => Some(*number),
        Scalar::Number(number) => whole(*number),
        Scalar::Text(text) if text == "-" => Some(0),
        Scalar::Text(text) if text.is_empty() => return Ok(None),
        Scalar::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            text.parse().ok().or_else(|| whole(text.parse().ok()?))
        }
        Scalar::Text(_) => None,
    };
    cost.map(Some).ok_or("the cost is no integer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(time: Option<&str>, key: &str, line: &str) -> Result<(Micros, Option<String>, u64), String> {
        let mut members = Members::new(time.map(str::to_owned), key.into(), Cost::Field("cost".into()));
        let entry = members.read(line.as_bytes()).map_err(Cow::into_owned)?;
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
        assert!(members.read(b"{\"time\":1,\"key\":\"\xff\"}").is_err());
    }
}
