//! A subscription to a channel of which only the instants of the messages matter.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::attempt::Attempt;
use super::auth;
use super::connection::open_stream;
use super::stream::Stream;
use crate::config::Credentials;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;

/// A connection that waits for messages. A drop ends it.
#[derive(Debug)]
pub struct Subscription(JoinHandle<()>);

impl Subscription {
    /// Subscribes to `channel`. Calls `wake` for each message, and when the connection ends. The
    /// reply to the login and the subscription count as messages. So no bytes are parsed or kept.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn open(
        address: &Address,
        credentials: &Credentials,
        channel: &str,
        attempt: &Attempt,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, Failure> {
        let login = auth::login(credentials).await?;
        let mut commands = login.map(|login| login.get_packed_command()).unwrap_or_default();
        commands.extend(redis::cmd("SUBSCRIBE").arg(channel).get_packed_command());
        let stream = open_stream(address, credentials, attempt).await?;
        Ok(Self(tokio::spawn(read(stream, commands, wake))))
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

async fn read(mut stream: Stream, commands: Vec<u8>, wake: impl Fn()) {
    let mut bytes = [0; 4096];
    let mut is_open = stream.write_all(&commands).await.is_ok() && stream.flush().await.is_ok();
    while is_open {
        is_open = matches!(stream.read(&mut bytes).await, Ok(1..));
        wake();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}
