//! How the calls of the registry reach the primary of a part: by connections of their own.

use std::sync::PoisonError;

use redis::{Cmd, Value};

use super::{AGAIN, Link, PAUSE, REDIRECTIONS, Registry, TIMEOUT};
use crate::store::StoreError;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::questions::bounded;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::reply::{NoVerdict, refused};

impl Registry {
    /// Sends a question to the primary of a part. The node asks again soon, so only redirections are
    /// followed.
    pub(super) async fn ask(&self, part: usize, question: &Cmd) -> Result<Value, StoreError> {
        self.send(part, question, REDIRECTIONS).await
    }

    /// Sends a call to the primary of a part, up to `tries` times. Sends it again only if no server
    /// executed it.
    pub(super) async fn send(&self, part: usize, call: &Cmd, tries: usize) -> Result<Value, StoreError> {
        let slot = self.tags[part].slot();
        let mut last = StoreError::Unreachable(self.topology.nobody(slot));
        for _ in 0..tries {
            let Some(lane) = self.topology.owner(slot) else {
                self.topology.shared.request_refresh();
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let address = lane.address();
            let mut connection = match self.connection(address).await {
                Ok(connection) => connection,
                Err(failure) => return Err(StoreError::Unreachable(format!("{address}: {failure}"))),
            };
            let reply = match bounded(TIMEOUT, connection.send(call)).await {
                Ok(reply) => reply,
                Err(failure) => {
                    self.forget(address);
                    return Err(StoreError::Unknown(format!("{address}: {failure}")));
                }
            };
            let Value::ServerError(error) = &reply else { return Ok(reply) };
            last = match refused(error, address) {
                NoVerdict::Moved(owner) => {
                    self.topology.moved(slot, &owner);
                    StoreError::Unreachable(format!("{address}: the slot has moved"))
                }
                NoVerdict::Failed(error) => return Err(error),
                NoVerdict::NotNow(why) => StoreError::Unreachable(format!("{address}: {why}")),
                NoVerdict::Ask(_) | NoVerdict::TryAgain => {
                    StoreError::Unreachable(format!("{address}: the slot is moving"))
                }
            };
            self.topology.shared.request_refresh();
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }

    /// The connection to a server. The calls of all parts wait for one attempt to open it, and share
    /// its failure for a while.
    pub(super) async fn connection(&self, address: &Address) -> Result<Connection, Failure> {
        let link = {
            let primaries = self.topology.primaries();
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.retain(|known, _| known == address || primaries.contains(known));
            links.entry(address.clone()).or_default().clone()
        };
        let mut link = link.lock().await;
        let (shared, now) = (&self.topology.shared, self.topology.shared.clock.now());
        if let Link::Open(connection) = &mut *link
            && !connection.has_ended()
        {
            return Ok(connection.clone());
        }
        if let Link::Failed(failure, at) = &*link
            && now < *at + AGAIN
        {
            return Err(failure.clone());
        }
        let opened = shared.open_for_questions(address, TIMEOUT).await;
        *link = match &opened {
            Ok(connection) => Link::Open(connection.clone()),
            Err(failure) => Link::Failed(failure.clone(), shared.clock.now()),
        };
        opened
    }

    /// Gives up a connection whose answer is late or broken.
    pub(super) fn forget(&self, address: &Address) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}
