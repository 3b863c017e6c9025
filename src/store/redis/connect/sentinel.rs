//! The questions to one sentinel.

use std::time::Duration;

use redis::Value;

use super::attempt::Attempt;
use super::bounded::Most;
use super::connection::Connection;
use super::questions::bounded;
use super::subscription::Subscription;
use crate::clock::Clock;
use crate::config::Credentials;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::sentinel::Named;

/// How long a sentinel may take to connect, and to answer.
const TIMEOUT: Duration = Duration::from_millis(750);

/// The channel on which a sentinel announces another primary.
const CHANNEL: &str = "+switch-master";

/// How long a server that sends too much is not asked again, us.
const LEFT_ALONE: Micros = 10 * MICROS_PER_SECOND;

/// One sentinel and the connections to it.
#[derive(Debug)]
pub struct Sentinel {
    pub address: Address,
    clock: Clock,
    connections: Option<(Connection, Subscription)>,
    /// Until when it is not asked, us.
    left_alone_until: Micros,
}

impl Sentinel {
    pub fn new(address: Address, clock: Clock) -> Self {
        Self { address, clock, connections: None, left_alone_until: 0 }
    }

    /// Returns the primary that the sentinel names. Calls `wake` whenever it may name another one
    /// from then on.
    ///
    /// # Errors
    /// When it does not answer, or does not watch this master. Also for a while after it has sent
    /// more than any sentinel does.
    pub async fn primary(
        &mut self,
        master: &str,
        credentials: &Credentials,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Named, Failure> {
        if self.clock.now() < self.left_alone_until {
            return Err(flood());
        }
        let named = self.ask(master, credentials, wake).await;
        if named.as_ref().is_err_and(Failure::is_too_long) {
            self.left_alone_until = self.clock.now() + LEFT_ALONE;
            return Err(flood());
        }
        named
    }

    async fn ask(
        &mut self,
        master: &str,
        credentials: &Credentials,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Named, Failure> {
        let (mut connection, subscription) = match self.connections.take() {
            Some((_, subscription)) if subscription.has_flooded() => return Err(Failure::too_long()),
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
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Connection, Subscription), Failure> {
        let attempt = Attempt::default();
        let opening = async {
            let (address, clock) = (&self.address, self.clock.clone());
            let subscription =
                Subscription::open(address, credentials, CHANNEL, &attempt, clock, move |_| wake()).await?;
            let connection = Connection::open_with(address, credentials, &attempt, Most::OF_SENTINEL).await?;
            Ok((connection, subscription))
        };
        attempt.within(TIMEOUT, opening).await
    }
}

fn flood() -> Failure {
    Failure::new(Kind::NotRedis, "the server sends more than any sentinel does: the node leaves it alone for 10 s")
}
