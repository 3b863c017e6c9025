//! The questions to one sentinel.

use std::time::Duration;

use redis::Value;

use super::attempt::Attempt;
use super::connection::Connection;
use super::questions::bounded;
use super::subscription::Subscription;
use crate::config::Credentials;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::sentinel::Named;

/// How long a sentinel may take to connect, and to answer.
const TIMEOUT: Duration = Duration::from_millis(750);

/// The channel on which a sentinel announces another primary.
const CHANNEL: &str = "+switch-master";

/// One sentinel and the connections to it.
#[derive(Debug)]
pub struct Sentinel {
    pub address: Address,
    connections: Option<(Connection, Subscription)>,
}

impl Sentinel {
    pub fn new(address: Address) -> Self {
        Self { address, connections: None }
    }

    /// Returns the primary that the sentinel names. Calls `wake` whenever it may name another one
    /// from then on.
    ///
    /// # Errors
    /// When it does not answer, or does not watch this master.
    pub async fn primary(
        &mut self,
        master: &str,
        credentials: &Credentials,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Named, Failure> {
        let (mut connection, subscription) = match self.connections.take() {
            Some(open) if !open.1.has_ended() => open,
            _ => self.open(credentials, wake).await?,
        };
        // If the sentinel learns of a failover between the two, the new address has the old epoch.
        // The other order would give the old address the new epoch.
        let mut questions = redis::pipe();
        questions.cmd("SENTINEL").arg("MASTER").arg(master);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let mut replies = bounded(TIMEOUT, connection.send_all(&questions)).await?;
        self.connections = Some((connection, subscription));
        let (address, master) = (replies.pop().unwrap_or(Value::Nil), replies.pop().unwrap_or(Value::Nil));
        Named::read(master, address)
    }

    /// Subscribes before the first question, so that no switch is missed.
    async fn open(
        &self,
        credentials: &Credentials,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Connection, Subscription), Failure> {
        let attempt = Attempt::default();
        let opening = async {
            let subscription = Subscription::open(&self.address, credentials, CHANNEL, &attempt, wake).await?;
            Ok((Connection::open(&self.address, credentials, &attempt).await?, subscription))
        };
        attempt.within(TIMEOUT, opening).await
    }
}
