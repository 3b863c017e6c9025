//! The content of a reply, the values in it, and the meaning of an error reply.

use redis::{ServerError, ServerErrorKind, Value};

use super::address::Address;
use super::failure::{Failure, Kind};
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
    NoVerdict(NoVerdict),
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
        Self::NoVerdict(StoreError::Refused(why.into()).into())
    }

    /// The script makes no reply of this form, so its call may have charged.
    pub fn malformed() -> Self {
        Self::NoVerdict(StoreError::Unknown(MALFORMED.into()).into())
    }
}

/// The reason to reject a reply that is neither an error nor a script's.
const MALFORMED: &str = "the server's answer to a script is not one that the script makes";

/// The failure behind a reply that is no error and holds no decision.
pub fn not_an_answer(reason: &NoVerdict) -> Failure {
    match reason {
        NoVerdict::Failed(StoreError::Refused(why)) if why == CORRUPT_STATE => Failure::new(Kind::Key, CORRUPT_STATE),
        NoVerdict::Failed(StoreError::Refused(why)) if why == CORRUPT_RECORD => Failure::new(Kind::Key, CORRUPT_RECORD),
        _ => Failure::new(Kind::Answer, MALFORMED),
    }
}

/// Why a lane has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoVerdict {
    /// Not executed: this node owns the slot.
    Moved(Address),
    /// Not executed: the slot is moving to this node, which expects one request behind ASKING.
    Ask(Address),
    /// Not executed: the slot is moving, and not all keys are on one side.
    TryAgain,
    /// Not executed: the server cannot execute it now, for the reason in its error code.
    NotNow(String),
    Failed(StoreError),
}

impl From<StoreError> for NoVerdict {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// Interprets an error reply. The script decides before it writes, and raises nothing after its
/// first write. An error thus means that nothing was charged. A redirection without a host refers
/// to the server that sent it. A redirection to a node without a name leads nowhere until discovery
/// finds the node.
pub fn refused(error: &ServerError, from: &Address) -> NoVerdict {
    let details = error.details().unwrap_or_default();
    let redirected = |to: fn(Address) -> NoVerdict| {
        let named = details.split_ascii_whitespace().nth(1).and_then(Address::parse)?;
        Some(match &*named.host {
            "?" => NoVerdict::NotNow("the server redirects to a node without a name".into()),
            "" => to(Address { host: from.host.clone(), ..named }),
            _ => to(named),
        })
    };
    let refusal = match error.kind() {
        Some(ServerErrorKind::Moved) => redirected(NoVerdict::Moved),
        Some(ServerErrorKind::Ask) => redirected(NoVerdict::Ask),
        Some(ServerErrorKind::TryAgain) => Some(NoVerdict::TryAgain),
        _ if executes_nothing(error) || is_read_only(error) => {
            Some(NoVerdict::NotNow(Failure::of_reply(error).to_string()))
        }
        _ => None,
    };
    refusal.unwrap_or_else(|| StoreError::Refused(Failure::of_reply(error).to_string()).into())
}

/// Whether the server executes no calls at the moment.
pub fn executes_nothing(error: &ServerError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown};
    matches!(error.kind(), Some(BusyLoading | ClusterDown | MasterDown))
}

/// Whether the error comes from a replica. Before Redis 7.0, the error of a script is nested in
/// another error.
pub fn is_read_only(error: &ServerError) -> bool {
    let is_within = || error.details().is_some_and(|details| details.contains(" -READONLY "));
    error.kind() == Some(ServerErrorKind::ReadOnly) || is_within()
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
