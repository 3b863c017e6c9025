//! Why the server did not execute a call, by its error reply.

use redis::{ServerError, ServerErrorKind};

use super::address::Address;
use super::failure::Failure;
use crate::store::StoreError;

/// Why a lane has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotExecuted {
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

impl From<StoreError> for NotExecuted {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// Interprets an error reply. The script decides before it writes, and raises nothing after its
/// first write. An error thus means that nothing was charged. A redirection without a host refers
/// to the server that sent it. A redirection to a node without a name leads nowhere until discovery
/// finds the node.
pub fn refused(error: &ServerError, from: &Address) -> NotExecuted {
    let details = error.details().unwrap_or_default();
    let redirected = |to: fn(Address) -> NotExecuted| {
        let named = details.split_ascii_whitespace().nth(1).and_then(Address::parse)?;
        Some(match &*named.host {
            "?" => NotExecuted::NotNow("the server redirects to a node without a name".into()),
            "" => to(Address { host: from.host.clone(), ..named }),
            _ => to(named),
        })
    };
    let refusal = match error.kind() {
        Some(ServerErrorKind::Moved) => redirected(NotExecuted::Moved),
        Some(ServerErrorKind::Ask) => redirected(NotExecuted::Ask),
        Some(ServerErrorKind::TryAgain) => Some(NotExecuted::TryAgain),
        _ if executes_nothing(error) || is_read_only(error) => {
            Some(NotExecuted::NotNow(Failure::of_reply(error).to_string()))
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

/// Whether the script itself failed: the server then adds the place. A server or a proxy that
/// rejects calls for several keys does so before it runs them.
pub fn is_from_inside(error: &ServerError) -> bool {
    error.details().is_some_and(|details| details.contains("user_script"))
}
