//! The fields of an access log that can be the key: one name in every format.

use super::Failure;

/// A field that can be the key.
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

    /// The field of this name, or the client without one, if the format has it.
    ///
    /// # Errors
    /// When no field of the format has this name.
    pub(super) fn of(name: Option<&str>, format: &str, has: impl Fn(Self) -> bool) -> Result<Self, Failure> {
        let Some(name) = name else { return Ok(Self::Client) };
        Self::named(name).filter(|field| has(*field)).ok_or_else(|| {
            let known = FIELDS.iter().filter(|(_, field)| has(*field)).map(|(name, _)| format!("`{name}`"));
            Failure::Usage(format!("--key {name}: {format} has {}", known.collect::<Vec<_>>().join(", ")))
        })
    }
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
