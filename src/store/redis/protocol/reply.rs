//! The content of a reply, and the values in it.

use redis::Value;

use crate::limit::time::Micros;
use crate::store::Done;

/// The content of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done(Done),
    /// TIME was outside the bounds; nothing was decided.
    NotCovered {
        time: Micros,
    },
    /// The shared call could not decide it and charged nothing. A call of its own decides it or
    /// returns the reason.
    Undecided,
    /// The value at the key is corrupt; nothing was charged.
    Foreign,
    /// The record of the id is corrupt; nothing was charged.
    ForeignRecord,
    /// The script makes no reply of this form.
    Malformed,
}

/// Whether this value replaces counts, because the value at the key is corrupt.
pub fn is_foreign(value: &Value) -> bool {
    matches!(value, Value::BulkString(said) if said.is_empty())
}

/// Splits a reply into TIME, which begins every decision, and the rest.
pub fn opened(value: &Value) -> Option<(Micros, &[Value])> {
    let Value::Array(values) = value else { return None };
    let (time, rest) = values.split_first()?;
    Some((unsigned(time)?, rest))
}

/// Scripts keep their numbers where doubles are exact. A larger number is none of theirs.
pub const EXACT: u64 = 1 << 53;

pub fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok().filter(|number| *number <= EXACT),
        _ => None,
    }
}

pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
