//! One round trip to a primary that shows which of its parts have changed.
//!
//! One command reads the states of all parts of a server outside a cluster. A cluster takes one
//! command for each part, since their slots differ. Registries without records have no states, and
//! a node then asks only for those of one part of each primary.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use redis::Value;

use super::{PARTS, RecordState, Registry, STATE, TIMEOUT, reply};
use crate::store::StoreError;
use crate::store::redis::connect::questions::bounded;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::info::time_of;
use crate::store::redis::protocol::reply::{executes_nothing, unsigned};
use crate::store::redis::topology::Layout;

/// The state of a primary's parts, read at once.
#[derive(Debug, Default)]
pub struct Glance {
    /// us by the clock of the server.
    pub now: u64,
    /// The states of parts.
    pub states: Vec<(usize, Option<RecordState>)>,
    /// Parts that must be asked, whatever their state says.
    pub suspects: Vec<usize>,
}

impl Registry {
    /// The parts by the primary that has them. Parts without a primary are not among them.
    pub fn by_primary(&self) -> BTreeMap<String, (Address, Vec<usize>)> {
        let mut found: BTreeMap<String, (Address, Vec<usize>)> = BTreeMap::new();
        for part in 0..PARTS {
            let Some(lane) = self.topology.owner(self.tags[part].slot()) else { continue };
            let address = lane.address();
            found.entry(address.to_string()).or_insert_with(|| (address.clone(), Vec::new())).1.push(part);
        }
        found
    }

    /// Looks at `parts` of a primary, of which one is looked through, from its version on. `is_used`
    /// says whether the registry has had records.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn glance(
        &self,
        address: &Address,
        parts: &[usize],
        whole: Option<(usize, u64)>,
        is_used: bool,
        kept: (usize, u64),
    ) -> Result<Glance, StoreError> {
        let is_single = self.topology.kind() == Layout::Single && !self.asks_singly.load(Ordering::Relaxed);
        let parts = if is_used || is_single { parts } else { &parts[..parts.len().min(1)] };
        let mut questions = redis::pipe();
        questions.cmd("TIME");
        if is_single {
            questions.cmd("MGET").arg(parts.iter().map(|part| self.key(*part, "state")).collect::<Vec<_>>());
            if is_used {
                questions.cmd("EXISTS").arg(parts.iter().map(|part| self.key(*part, "records")).collect::<Vec<_>>());
            }
        } else {
            parts.iter().for_each(|part| _ = questions.cmd("HGET").arg(self.key(*part, "records")).arg(STATE));
        }
        if let Some((part, since)) = whole {
            questions.add_command(self.changes_call(part, Some(since), kept));
        }
        let failed = |failure| StoreError::Unreachable(format!("{address}: {failure}"));
        let mut connection = self.connection(address).await.map_err(failed)?;
        let replies = match bounded(TIMEOUT, connection.send_all(&questions)).await {
            Ok(replies) => replies,
            Err(failure) => {
                self.forget(address);
                return Err(StoreError::Unknown(format!("{address}: {failure}")));
            }
        };
        Ok(match is_single {
            true => self.read_single(replies, parts, whole, is_used),
            false => read(replies, parts, whole),
        })
    }

    fn read_single(
        &self,
        mut replies: Vec<Value>,
        parts: &[usize],
        whole: Option<(usize, u64)>,
        is_used: bool,
    ) -> Glance {
        let existing = (is_used && replies.len() > 2).then(|| replies.remove(2));
        // The user lacks a right, or a proxy takes no command for keys of several slots.
        let is_refused = |reply: &Value| matches!(reply, Value::ServerError(error) if !executes_nothing(error));
        if replies.get(1).into_iter().chain(&existing).any(is_refused) {
            self.asks_singly.store(true, Ordering::Relaxed);
        }
        let states = match replies.get(1) {
            Some(Value::Array(states)) => states.clone(),
            _ => Vec::new(),
        };
        replies.splice(1..2.min(replies.len()), states);
        let mut glance = read(replies, parts, whole);
        if existing.is_some_and(|existing| unsigned(&existing) != Some(parts.len() as u64)) {
            glance.suspects.extend(parts);
        }
        glance
    }
}

/// Reads TIME, the state of each part, and the changes of one part if it was looked through.
fn read(mut replies: Vec<Value>, parts: &[usize], whole: Option<(usize, u64)>) -> Glance {
    let mut glance = Glance::default();
    if let Some((part, since)) = whole {
        match replies.pop().as_ref().and_then(reply::changes) {
            // Something has happened to the server, and so perhaps to all parts.
            Some(looked) if looked.is_damaged => glance.suspects.extend(parts),
            Some(looked) if looked.newest == since => {}
            _ => glance.suspects.push(part),
        }
    }
    let (time, states) = replies.split_first().map_or((Value::Nil, &[][..]), |(time, states)| (time.clone(), states));
    glance.now = time_of(time).unwrap_or_default();
    if states.len() != parts.len() {
        glance.suspects.extend(parts);
        return glance;
    }
    for (part, state) in parts.iter().zip(states) {
        match state {
            // The slot has moved, or the user lacks a right. A question to the part finds out.
            Value::ServerError(_) => glance.suspects.push(*part),
            _ => glance.states.push((*part, reply::state_of(state))),
        }
    }
    glance
}
