//! The fields of an access log, under one name in every format, and the request of a line.

use std::borrow::Cow;

use super::entry::Entry;
use super::filters::{Filters, RequestParts};
use super::{Failure, client};
use crate::limit::time::Micros;

/// A field that can be the key, in the order of [`FIELDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Client,
    User,
    Method,
    Path,
    Status,
    Referer,
    UserAgent,
    /// The first address of X-Forwarded-For.
    Forwarded,
}

/// The fields of common and combined logs.
pub(super) const FIELDS: [(&str, Field); 8] = [
    ("client", Field::Client),
    ("user", Field::User),
    ("method", Field::Method),
    ("path", Field::Path),
    ("status", Field::Status),
    ("referer", Field::Referer),
    ("user-agent", Field::UserAgent),
    ("forwarded", Field::Forwarded),
];

impl Field {
    /// The field of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }

    /// The field of this name, if there is one, and if the format has it.
    ///
    /// # Errors
    /// When no field of the format has this name.
    pub(super) fn of(name: Option<&str>, format: &str, has: impl Fn(Self) -> bool) -> Result<Option<Self>, Failure> {
        let Some(name) = name else { return Ok(None) };
        Self::named(name).filter(|field| has(*field)).map(Some).ok_or_else(|| {
            let known = FIELDS.iter().filter(|(_, field)| has(*field)).map(|(name, _)| format!("`{name}`"));
            Failure::Usage(format!("--key {name}: {format} has {}", known.collect::<Vec<_>>().join(", ")))
        })
    }
}

/// The fields of one line, each empty where the line lacks it.
pub(super) struct Fields<'a> {
    pub(super) time: Micros,
    /// In the order of [`FIELDS`].
    pub(super) values: [&'a [u8]; FIELDS.len()],
    /// The client, if no other address may be it.
    pub(super) client: Result<&'a [u8], &'static str>,
    /// The size of the answer in bytes.
    pub(super) sent: Result<u64, &'static str>,
}

/// The fields that a log is read for.
#[derive(Debug)]
pub(super) struct Wanted {
    /// None: the client, if it is certain.
    pub(super) key: Option<Field>,
    /// None: the size of the answer in bytes.
    pub(super) cost: Option<u64>,
}

impl Wanted {
    /// # Errors
    /// When the key or the cost is wrong.
    pub(super) fn entry<'a>(&self, fields: &Fields<'a>, filters: &Filters) -> Result<Entry<'a>, Cow<'static, str>> {
        let of = |field: Field| fields.values[field as usize];
        let key = match self.key {
            None => fields.client?,
            Some(Field::Forwarded) => forwarded(of(Field::Forwarded))?,
            Some(field) => of(field),
        };
        let key = client::key_of(key, matches!(self.key, None | Some(Field::Client | Field::Forwarded)))?;
        let request = RequestParts { method: of(Field::Method), path: of(Field::Path), status: of(Field::Status) };
        let cost = self.cost.map_or(fields.sent, Ok)?;
        Ok(Entry { time: fields.time, key, cost, passes: filters.pass(request) })
    }
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

/// The method and the path of a request such as `GET /path HTTP/1.1`.
pub(super) fn method_and_path(request: &[u8]) -> [&[u8]; 2] {
    let mut words = request.split(|byte| *byte == b' ');
    [words.next().unwrap_or_default(), words.next().map(path).unwrap_or_default()]
}

/// The path of a request's target: without scheme and host, and without the query.
pub(super) fn path(target: &[u8]) -> &[u8] {
    let target = match memchr::memmem::find(target, b"://") {
        Some(scheme) if !target.starts_with(b"/") => {
            let rest = &target[scheme + 3..];
            &rest[memchr::memchr(b'/', rest).unwrap_or(rest.len())..]
        }
        _ => target,
    };
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}
