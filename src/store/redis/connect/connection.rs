//! A connection to a server. It opens step by step, so a failure names its step.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisResult, Value};
use tokio::task::JoinHandle;

use super::attempt::{Attempt, Step};
use super::bounded::{Bounded, Most, Seen};
use super::stream::{Stream, dial, dial_socket};
use super::{auth, dns};
use crate::config::Credentials;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::server_error::unless_error;

/// An open connection. Its clones share it, and it is closed with the last of them.
#[derive(Debug, Clone)]
pub struct Connection {
    driver: MultiplexedConnection,
    shared: Arc<Task>,
}

/// The task that transfers the bytes of a connection. A drop ends the task, even with answers
/// outstanding.
#[derive(Debug)]
struct Task {
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Opens one and logs in. `attempt` notes how far it has come.
    ///
    /// # Errors
    /// When the server cannot be reached, or does not let this node in.
    pub async fn open(address: &Address, credentials: &Credentials, attempt: &Attempt) -> Result<Self, Failure> {
        Self::open_with(address, credentials, attempt, Most::OF_SERVER).await
    }

    /// The same, for a server that sends at most `most` between two writes.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub async fn open_with(
        address: &Address,
        credentials: &Credentials,
        attempt: &Attempt,
        most: Most,
    ) -> Result<Self, Failure> {
        let login = auth::login(credentials).await?;
        let stream = open_stream(address, credentials, attempt).await?;
        let mut connection = Self::over(stream, most).await?;
        if let Some(login) = login {
            connection.ask(&login).await?;
        }
        Ok(connection)
    }

    async fn over(stream: Stream, most: Most) -> Result<Self, Failure> {
        let seen = Arc::new(Seen::default());
        let stream = Bounded::new(stream, most, seen.clone());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        // CLIENT SETINFO is skipped. Servers before 7.2 do not know it, and an ACL would have to
        // allow it.
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (driver, work) = made.map_err(|error| seen.failure(&error))?;
        Ok(Self { driver, shared: Arc::new(Task { seen, task: tokio::spawn(work) }) })
    }

    /// Returns the answer to one question.
    ///
    /// # Errors
    /// When the server refuses or the connection breaks.
    pub async fn ask(&mut self, question: &Cmd) -> Result<Value, Failure> {
        unless_error(self.send(question).await?)
    }

    /// Returns the answer to one question. An error of the server counts as an answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&mut self, question: &Cmd) -> Result<Value, Failure> {
        let reply = self.driver.send_packed_command(question).await;
        self.explained(reply, is_value)
    }

    /// Returns the answers to several questions, in order.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send_all(&mut self, questions: &Pipeline) -> Result<Vec<Value>, Failure> {
        let replies = self.driver.send_packed_commands(questions, 0, questions.len()).await;
        self.explained(replies, |replies| replies.iter().any(is_value))
    }

    fn explained<T>(&self, reply: RedisResult<T>, has_value: impl Fn(&T) -> bool) -> Result<T, Failure> {
        if reply.as_ref().is_ok_and(has_value) {
            self.shared.seen.answered();
        }
        reply.map_err(|error| self.shared.seen.failure(&error))
    }

    /// Whether the connection is known to have ended. The question is dropped at once, so nothing
    /// is sent. Its channel to the task is closed if the connection has ended.
    pub fn has_ended(&mut self) -> bool {
        self.driver
            .send_packed_command(&redis::cmd("TIME"))
            .now_or_never()
            .is_some_and(|handed| handed.is_err())
    }
}

/// Whether a server that lets this node in sent the reply. Others answer by an error and close the
/// connection.
fn is_value(reply: &Value) -> bool {
    !matches!(reply, Value::ServerError(_))
}

/// Opens a stream to one of a server's addresses, with TLS if the credentials say so, or to its
/// Unix socket.
///
/// # Errors
/// When the server cannot be reached.
pub async fn open_stream(address: &Address, credentials: &Credentials, attempt: &Attempt) -> Result<Stream, Failure> {
    if let Some(path) = address.socket() {
        attempt.reach(Step::Dial);
        let stream = dial_socket(path).await?;
        attempt.reach(Step::Ask);
        return Ok(stream);
    }
    let tls = match &credentials.tls {
        Some(tls) => Some(auth::connector(tls).await?),
        None => None,
    };
    attempt.reach(Step::Name);
    let addresses = dns::system().resolve(&address.host, address.port).await?;
    attempt.reach(Step::Dial);
    let dial = |at: &SocketAddr| Box::pin(dial(*at, tls.as_ref(), &address.host, attempt));
    let (stream, _) = select_ok(addresses.iter().map(dial)).await?;
    attempt.reach(Step::Ask);
    Ok(stream)
}
