//! JSON lines: the reader uses three members of each object and skips the others.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::client;
use super::entry::{Cost, Entry};
use super::instant;
use crate::limit::time::Micros;

/// Reads JSON lines.
#[derive(Debug)]
pub(super) struct Members {
    key: String,
    cost: Cost,
}

impl Members {
    pub(super) fn new(key: String, cost: Cost) -> Self {
        Self { key, cost }
    }

    /// See [`super::reader::Reader::read`].
    pub(super) fn read<'a>(&self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let read = json.deserialize_map(Object(self)).and_then(|entry| json.end().map(|()| entry));
        // The line of the log stands before the fault. Within it there is only one.
        read.map_err(|error| error.to_string().replace(" at line 1 column ", " at column ").into())
    }
}

/// The kind of a member.
enum Member {
    Time,
    Key,
    Cost,
    Other,
}

struct Object<'m>(&'m Members);

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Entry<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry<'de>, A::Error> {
        let (mut time, mut key) = (None, None);
        let mut cost = match self.0.cost {
            Cost::Always(cost) => cost,
            Cost::Field(_) => 1,
        };
        while let Some(member) = map.next_key_seed(Name(self.0))? {
            match member {
                Member::Time => time = Some(map.next_value_seed(Scalar(time_of, PhantomData))?),
                Member::Key => key = map.next_value_seed(Scalar(key_of, PhantomData))?,
                Member::Cost => cost = map.next_value_seed(Scalar(cost_of, PhantomData))?,
                Member::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Entry { time: time.ok_or_else(|| A::Error::custom("no member `time`"))?, key, cost })
    }
}

struct Name<'m>(&'m Members);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Member, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Member, E> {
        Ok(match &self.0.cost {
            _ if name == self.0.key => Member::Key,
            _ if name == "time" => Member::Time,
            Cost::Field(cost) if name == cost => Member::Cost,
            _ => Member::Other,
        })
    }
}

/// A scalar value of a useful type.
enum Value<'de> {
    Text(Cow<'de, str>),
    Integer(u64),
    Number(f64),
    Null,
}

/// Reads a scalar and converts it with the function.
struct Scalar<T, F>(F, PhantomData<T>);

impl<'de, T, F: Fn(Value<'de>) -> Result<T, &'static str>> DeserializeSeed<'de> for Scalar<T, F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<T, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de, T, F: Fn(Value<'de>) -> Result<T, &'static str>> Visitor<'de> for Scalar<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number that is not negative")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<T, E> {
        self.0(Value::Text(Cow::Borrowed(text))).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.0(Value::Text(Cow::Owned(text.to_owned()))).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.0(Value::Integer(number)).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.0(Value::Number(number)).map_err(E::custom)
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        self.0(Value::Null).map_err(E::custom)
    }
}

fn time_of(value: Value<'_>) -> Result<Micros, &'static str> {
    let instant = match value {
        Value::Text(text) => match instant::rfc3339(&text).map(Micros::try_from) {
            Some(Err(_)) => return Err("`time` is before 1970"),
            read => read.and_then(Result::ok),
        },
        Value::Integer(number) => instant::number(number),
        Value::Number(number) => instant::fraction(number),
        Value::Null => None,
    };
    instant.ok_or("`time` is neither RFC 3339 such as `2026-11-21T10:41:53Z` nor a number since 1970")
}

fn key_of(value: Value<'_>) -> Result<Option<Cow<'_, str>>, &'static str> {
    match value {
        Value::Text(Cow::Borrowed(text)) => Ok(Some(client::key(text))),
        Value::Text(Cow::Owned(text)) => Ok(Some(client::key(&text).into_owned().into())),
        Value::Integer(number) => Ok(Some(number.to_string().into())),
        Value::Number(_) => Err("the key is neither a text nor an integer"),
        Value::Null => Ok(None),
    }
}

fn cost_of(value: Value<'_>) -> Result<u64, &'static str> {
    match value {
        Value::Integer(number) => Ok(number),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is an integer below 2^53")]
        Value::Number(number) if number.fract() == 0.0 && (0.0..9e15).contains(&number) => Ok(number as u64),
        Value::Null => Ok(1),
        Value::Text(_) | Value::Number(_) => Err("the cost is no integer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(Micros, Option<String>, u64), String> {
        let members = Members::new("key".into(), Cost::Field("cost".into()));
        let entry = members.read(line.as_bytes()).map_err(Cow::into_owned)?;
        Ok((entry.time, entry.key.map(Cow::into_owned), entry.cost))
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
            (r#"{"time":1}"#, (1_000_000, None, 1)),
        ];
        for (line, (time, key, cost)) in cases {
            assert_eq!(read(line), Ok((time, key.map(str::to_owned), cost)), "{line}");
        }
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
            r#"{"time":1,"key":["a"]}"#,
            r#"{"time":1,"key":"a","cost":1.5}"#,
            r#"{"time":1,"key":"a","cost":-1}"#,
            "{\"time\":1,\"key\":\"\u{1}\"}",
        ];
        for line in wrong {
            assert!(read(line).is_err(), "{line}");
        }
        assert!(Members::new("key".into(), Cost::Always(1)).read(b"{\"time\":1,\"key\":\"\xff\"}").is_err());
    }
}
