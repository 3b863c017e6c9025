//! A subscription to a channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::attempt::Attempt;
use super::auth;
use super::connection::open_stream;
use super::questions;
use super::stream::Stream;
use crate::clock::Clock;
use crate::config::Credentials;
use crate::limit::time::MICROS_PER_SECOND;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;

/// The most bytes that a server may send in a second. A sentinel announces a failover of each of
/// its masters in about 100.
const BYTES: usize = 1 << 20;

/// How many bytes a read counts as at least. Many short messages cost more than a long one.
const READ: usize = 1 << 10;

/// A connection that waits for messages. A drop ends it.
#[derive(Debug)]
pub struct Subscription {
    task: JoinHandle<()>,
    has_flooded: Arc<AtomicBool>,
}

impl Subscription {
    /// Subscribes to `channel`. Calls `wake` with all bytes as they arrive, and with none when the
    /// connection ends. They begin with the replies to the login, the name and the subscription. The
    /// connection ends if the server sends too much.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn open(
        address: &Address,
        credentials: &Credentials,
        channel: &str,
        attempt: &Attempt,
        clock: Clock,
        mut wake: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Self, Failure> {
        let login = auth::login(credentials).await?;
        let mut commands = login.map(|login| login.get_packed_command()).unwrap_or_default();
        commands.extend(questions::name().get_packed_command());
        commands.extend(redis::cmd("SUBSCRIBE").arg(channel).get_packed_command());
        let stream = open_stream(address, credentials, attempt).await?;
        let has_flooded = Arc::new(AtomicBool::new(false));
        let flooded = has_flooded.clone();
        let task = tokio::spawn(async move {
            if read(stream, commands, &clock, &mut wake).await {
                flooded.store(true, Ordering::Relaxed);
            }
            wake(&[]);
        });
        Ok(Self { task, has_flooded })
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Whether it has ended because the server sends too much.
    pub fn has_flooded(&self) -> bool {
        self.has_flooded.load(Ordering::Relaxed)
    }
}

/// Reads until the connection ends. Returns whether that is because the server sends too much.
async fn read(mut stream: Stream, commands: Vec<u8>, clock: &Clock, wake: &mut (impl FnMut(&[u8]) + Send)) -> bool {
    if stream.write_all(&commands).await.is_err() || stream.flush().await.is_err() {
        return false;
    }
    let (mut bytes, mut since, mut read) = ([0; 4096], clock.now(), 0);
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        let now = clock.now();
        if now >= since + MICROS_PER_SECOND {
            (since, read) = (now, 0);
        }
        read += count.max(READ);
        if read > BYTES {
            return true;
        }
        wake(&bytes[..count]);
    }
    false
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}
