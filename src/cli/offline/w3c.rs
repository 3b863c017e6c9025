//! W3C extended logs, as IIS and CloudFront write them: a line `#Fields:` names the columns.

use std::borrow::Cow;

use super::client;
use super::entry::{Cost, Entry};
use super::field::{Field, path};
use super::filters::{Filters, RequestParts};
use super::instant::{self, LastInstant};

/// The columns of the fields of an access log.
const COLUMNS: [(&str, &[&str]); 9] = [
    ("client", &["c-ip"]),
    ("user", &["cs-username"]),
    ("method", &["cs-method"]),
    ("path", &["cs-uri-stem", "cs-uri"]),
    ("status", &["sc-status"]),
    ("referer", &["cs(Referer)"]),
    ("user-agent", &["cs(User-Agent)"]),
    ("forwarded", &["x-forwarded-for", "cs(X-Forwarded-For)"]),
    ("bytes", &["sc-bytes"]),
];

/// Reads the lines of a W3C log.
#[derive(Debug)]
pub(super) struct W3c {
    /// A field of access logs, or the name of a column.
    key: String,
    cost: Cost,
    /// The columns by the last `#Fields`.
    columns: Result<Columns, String>,
    /// The names of these columns.
    pub(super) names: Vec<String>,
    last: LastInstant,
}

/// The places of the columns in use.
#[derive(Debug)]
struct Columns {
    count: usize,
    time: Time,
    key: usize,
    /// Whether the key is the address of a client.
    is_host: bool,
    cost: Option<usize>,
    /// The columns of the method, the path and the status, if there are some.
    request: [Option<usize>; 3],
}

#[derive(Debug)]
enum Time {
    DateAndTime(usize, usize),
    /// Since 1970.
    Timestamp(usize),
}

impl W3c {
    pub(super) fn new(key: Option<String>, cost: Cost) -> Self {
        let columns = Err("no line `#Fields:` above, which names the columns".to_owned());
        let key = key.unwrap_or_else(|| "client".to_owned());
        Self { key, cost, columns, names: Vec::new(), last: LastInstant::default() }
    }

    /// Whether a log with this line is a W3C log.
    pub(super) fn is_line(line: &[u8]) -> bool {
        ["#Fields:", "#Version:", "#Software:", "#Date:", "#Start-Date:", "#Remark:"]
            .iter()
            .any(|directive| line.starts_with(directive.as_bytes()))
    }

    /// See [`super::reader::LogReader::read`]. None for a line about the log itself.
    pub(super) fn read<'a>(
        &mut self,
        line: &'a [u8],
        filters: &Filters,
    ) -> Result<Option<Entry<'a>>, Cow<'static, str>> {
        let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8")?;
        if line.starts_with('#') {
            if let Some(names) = line.strip_prefix("#Fields:") {
                self.names = names.split_ascii_whitespace().map(str::to_owned).collect();
                self.columns = self.columns();
            }
            return Ok(None);
        }
        let columns = self.columns.as_ref().map_err(Clone::clone)?;
        let separator = if line.contains('\t') { '\t' } else { ' ' };
        let values: Vec<&str> = line.split(separator).collect();
        if values.len() != columns.count {
            return Err(format!("{} values, but `#Fields:` names {}", values.len(), columns.count).into());
        }
        let time = match columns.time {
            Time::Timestamp(place) => instant::text_in_log(values[place])
                .ok_or("`timestamp` is no time")?
                .map_err(|_| "the time is before 1970")?,
            Time::DateAndTime(date, time) => {
                let written = format!("{}T{}Z", values[date], values[time]);
                let parse = |text: &[u8]| instant::rfc3339(std::str::from_utf8(text).ok()?);
                self.last.get(written.as_bytes(), parse, "`date` and `time` are no time")?
            }
        };
        let [method, target, status] =
            columns.request.map(|place| place.map_or(&b""[..], |place| values[place].as_bytes()));
        let passes = filters.pass(RequestParts { method, path: path(target), status });
        let key = client::key_of(values[columns.key].as_bytes(), columns.is_host)?;
        let cost = match (&self.cost, columns.cost.map(|place| values[place])) {
            (Cost::Always(cost), _) => *cost,
            (_, None | Some("-")) => 0,
            (_, Some(cost)) => cost.parse().map_err(|_| "the cost is no integer")?,
        };
        Ok(Some(Entry { time, key, cost, passes }))
    }

    /// # Errors
    /// The reason why a column is missing.
    fn columns(&self) -> Result<Columns, String> {
        let find = |name: &str| self.names.iter().position(|known| known.eq_ignore_ascii_case(name));
        let known = |name: &str| {
            let columns = COLUMNS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, columns)| columns);
            columns.iter().find_map(|column| find(column)).or_else(|| find(name))
        };
        let missing = |flag: &str, name: &str| {
            let names = self.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            format!("`#Fields:` has no column for {flag}{name}: it has {names}")
        };
        let stamp = || find("timestamp(ms)").or_else(|| find("timestamp")).map(Time::Timestamp);
        let time = find("date").zip(find("time")).map(|(date, time)| Time::DateAndTime(date, time)).or_else(stamp);
        let cost = match &self.cost {
            Cost::Always(_) => None,
            Cost::Field(name) => Some(known(name).ok_or_else(|| missing("--cost ", name))?),
        };
        let key = known(&self.key).ok_or_else(|| missing("--key ", &self.key))?;
        let is_host = matches!(Field::named(&self.key), Some(Field::Client | Field::Forwarded))
            || ["c-ip", "x-forwarded-for"].iter().any(|name| find(name) == Some(key));
        let time = time.ok_or_else(|| missing("the time, ", "`date` and `time`"))?;
        let request = ["method", "path", "status"].map(known);
        Ok(Columns { count: self.names.len(), time, key, is_host, cost, request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::time::Micros;

    fn read(text: &str, key: Option<&str>, cost: Cost) -> Result<Vec<(Micros, Option<String>, u64)>, String> {
        let mut log = W3c::new(key.map(str::to_owned), cost);
        let mut entries = Vec::new();
        for line in text.lines() {
            if let Some(entry) = log.read(line.as_bytes(), &Filters::default()).map_err(Cow::into_owned)? {
                entries.push((entry.time, entry.key.map(Cow::into_owned), entry.cost));
            }
        }
        Ok(entries)
    }

    #[test]
    fn columns_are_those_of_the_last_fields_line() {
        let text = "#Software: Microsoft Internet Information Services 10.0
#Fields: date time c-ip cs-username sc-bytes
2026-11-21 10:00:00 203.0.113.7 - 10
#Fields: time date sc-bytes cs-username c-ip
10:00:01 2026-11-21 20 ann 2001:db8::1";
        let second = 1_795_255_200_000_000;
        let all = Cost::Field("bytes".to_owned());
        let expected =
            [(second, Some("203.0.113.7".to_owned()), 10), (second + 1_000_000, Some("2001:db8::1".to_owned()), 20)];
        assert_eq!(read(text, None, all), Ok(expected.to_vec()));
        let users = read(text, Some("user"), Cost::Always(1)).unwrap();
        assert_eq!([&users[0].1, &users[1].1], [&None, &Some("ann".to_owned())]);
        let columns = read(text, Some("CS-Username"), Cost::Field("sc-bytes".to_owned())).unwrap();
        assert_eq!((columns[1].1.as_deref(), columns[1].2), (Some("ann"), 20));
    }

    #[test]
    fn tabs_separate_values_of_cloudfront() {
        let text = "#Version: 1.0
#Fields: date time c-ip cs(User-Agent) x-forwarded-for timestamp
2026-11-21\t10:00:00\t203.0.113.7\ta b\t198.51.100.1,%2010.0.0.9\t1795255200";
        assert_eq!(read(text, Some("forwarded"), Cost::Always(1)).unwrap()[0].1.as_deref(), Some("198.51.100.1"));
        assert_eq!(read(text, Some("user-agent"), Cost::Always(1)).unwrap()[0].1.as_deref(), Some("a b"));
        let text = text.replace("date time", "day hour");
        assert_eq!(read(&text, None, Cost::Always(1)).unwrap()[0].0, 1_795_255_200_000_000);
    }

    #[test]
    fn lines_without_their_columns_are_refused() {
        for (text, key, reason) in [
            ("2026-11-21 10:00:00 203.0.113.7", None, "no line `#Fields:`"),
            ("#Fields: date time c-ip\n2026-11-21 10:00:00", None, "2 values, but `#Fields:` names 3"),
            ("#Fields: date time s-ip\n2026-11-21 10:00:00 x", None, "no column for --key client: it has `date`"),
            ("#Fields: time c-ip\n10:00:00 x", None, "no column for the time"),
            ("#Fields: date time c-ip\n2026-11-21 10:61:00 x", None, "no time"),
            ("#Fields: date time c-ip\n2026-11-21 10:00:00 x", Some("user"), "--key user"),
        ] {
            let error = read(text, key, Cost::Always(1)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
