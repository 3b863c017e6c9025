//! The content of a reply, and the values in it.

use redis::Value;

use super::not_executed::NotExecuted;
use super::server_error::{CORRUPT_RECORD, CORRUPT_STATE};
use crate::limit::time::Micros;
use crate::store::{Done, StoreError};

/// The content of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done(Done),
    /// TIME was outside the bounds, us; nothing was decided.
    OutsideTimeBounds(Micros),
    /// The shared call could not decide it and charged nothing. A call of its own decides it or
    /// returns the reason.
    Undecided,
    NotExecuted(NotExecuted),
}

impl Reply {
    /// The value at the key is corrupt; nothing was charged.
    pub fn corrupt_state() -> Self {
        Self::refused(CORRUPT_STATE)
    }

    /// The record of the id is corrupt; nothing was charged.
    pub fn corrupt_record() -> Self {
        Self::refused(CORRUPT_RECORD)
    }

    fn refused(why: &str) -> Self {
        Self::NotExecuted(StoreError::Refused(why.into()).into())
    }

    /// The script makes no reply of this form, so its call may have charged.
    pub fn malformed() -> Self {
        Self::NotExecuted(StoreError::Unknown("the script's reply is not one that it makes".into()).into())
    }
}

/// Whether this value replaces counts, because the value at the key is corrupt.
pub fn is_corrupt(value: &Value) -> bool {
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
