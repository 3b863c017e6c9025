//! A connection to a server. It opens step by step, so a failure names its step. It limits the size
//! of answers.
//!
//! The limits apply to the bytes and lines from one write to the next. Each element of an answer
//! ends a line, so the lines limit the elements. An element occupies far more room in memory than
//! on the wire.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::{auth, dns};
use crate::config::Credentials;
use crate::store::redis::connect::server::Address;
use crate::store::redis::protocol::failure::{Failure, unless_error};

/// The most bytes from one write to the next. The longest answer is CLUSTER SLOTS with a range for
/// each slot, about 6 MB.
const BYTES: usize = 16 << 20;

/// The most lines from one write to the next. CLUSTER SLOTS with a range and three nodes for each
/// slot has 600,000.
const LINES: usize = 1 << 20;

/// The most bytes of the first answer that are kept.
const FIRST: usize = 256;

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

/// The first answer of a connection, and whether one was too long.
#[derive(Debug, Default)]
struct Seen {
    first: OnceLock<Box<[u8]>>,
    too_long: AtomicBool,
}

impl Seen {
    /// Why the connection broke.
    fn failure(&self, error: &RedisError) -> Failure {
        match self.too_long.load(Ordering::Relaxed) {
            true => Failure::too_long(),
            false => Failure::of_driver(error, self.first.get().map(AsRef::as_ref)),
        }
    }

    fn note(&self, bytes: &[u8]) {
        if !bytes.is_empty() && self.first.get().is_none() {
            let _ = self.first.set(bytes[..bytes.len().min(FIRST)].into());
        }
    }
}

/// How far an attempt to connect has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Name,
    Dial,
    Tls,
    Ask,
}

/// The step that an attempt to connect has reached, named when it takes too long.
#[derive(Debug, Default)]
pub struct Attempt(AtomicU8);

impl Attempt {
    fn reach(&self, step: Step) {
        self.0.store(step as u8, Ordering::Relaxed);
    }

    /// Why it takes too long.
    fn late(&self) -> Failure {
        let step = self.0.load(Ordering::Relaxed);
        match [Step::Name, Step::Dial, Step::Tls].into_iter().find(|known| *known as u8 == step) {
            Some(Step::Name) => Failure::connection("the name server does not answer in time"),
            Some(Step::Dial) => Failure::connection("the server does not accept the connection in time"),
            Some(Step::Tls) => Failure::connection(
                "the server does not answer the TLS handshake in time: its port may not speak TLS (redis://)",
            ),
            _ => Failure::late(),
        }
    }

    /// Bounds the attempt by `timeout`.
    ///
    /// # Errors
    /// When it fails or takes longer.
    pub async fn within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(self.late()))
    }
}

impl Connection {
    /// Opens one and logs in. `attempt` notes how far it has come.
    ///
    /// # Errors
    /// When the server cannot be reached, or does not let this node in.
    pub async fn open(address: &Address, credentials: &Credentials, attempt: &Attempt) -> Result<Self, Failure> {
        let login = auth::login(credentials).await?;
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
        let mut connection = Self::over(stream).await?;
        if let Some(login) = login {
            connection.ask(&login).await?;
        }
        Ok(connection)
    }

    async fn over(stream: Stream) -> Result<Self, Failure> {
        let seen = Arc::new(Seen::default());
        let stream = Bounded { stream, seen: seen.clone(), bytes: 0, lines: 0 };
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
        self.explained(reply)
    }

    /// Returns the answers to several questions, in order.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send_all(&mut self, questions: &Pipeline) -> Result<Vec<Value>, Failure> {
        let replies = self.driver.send_packed_commands(questions, 0, questions.len()).await;
        self.explained(replies)
    }

    fn explained<T>(&self, reply: RedisResult<T>) -> Result<T, Failure> {
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

async fn dial(at: SocketAddr, tls: Option<&TlsConnector>, host: &str, attempt: &Attempt) -> Result<Stream, Failure> {
    let stream = TcpStream::connect(at).await.map_err(|error| not_connected(&error))?;
    // A socket without this option works all the same.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Stream::Plain(stream)) };
    attempt.reach(Step::Tls);
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| Failure::connection("the host is no name that a certificate could be for"))?;
    match tls.connect(name, stream).await {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
        Err(error) => Err(not_encrypted(&error)),
    }
}

fn not_connected(error: &io::Error) -> Failure {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match error.kind() {
        ConnectionRefused => Failure::connection("connection refused: no server listens at this address"),
        HostUnreachable | NetworkUnreachable => Failure::connection("no route leads to this address"),
        TimedOut => Failure::connection("the server does not accept the connection in time"),
        other => Failure::connection(format!("the connection cannot be opened: {other}")),
    }
}

fn not_encrypted(error: &io::Error) -> Failure {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let sentence = match tls {
        Some(InvalidMessage(_)) => "the port does not speak TLS: begin the URL with redis://, or name the TLS port",
        Some(InvalidCertificate(fault)) => return Failure::connection(untrusted(fault)),
        Some(AlertReceived(_)) => {
            "the server breaks off the TLS handshake: it may ask for a certificate (`store.tls.cert_file`)"
        }
        Some(_) => "the server and this node agree on no version or cipher of TLS",
        None => "the server closed the connection in the TLS handshake: its port may not speak TLS (redis://)",
    };
    Failure::connection(sentence)
}

fn untrusted(fault: &rustls::CertificateError) -> &'static str {
    use rustls::CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
        UnknownIssuer,
    };
    match fault {
        Expired | ExpiredContext { .. } => "the server's certificate has expired",
        NotValidYet | NotValidYetContext { .. } => "the server's certificate is not valid yet",
        NotValidForName | NotValidForNameContext { .. } => "the server's certificate is for another host",
        UnknownIssuer => "the server's certificate is of an authority that `store.tls.ca_file` does not name",
        _ => "the server's certificate cannot be trusted",
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A stream that fails when an answer exceeds the limits.
struct Bounded<S> {
    stream: S,
    seen: Arc<Seen>,
    /// The bytes read since the last write.
    bytes: usize,
    lines: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let new = &buf.filled()[before..];
        self.seen.note(new);
        let ends = new.iter().filter(|byte| **byte == b'\n').count();
        self.bytes += new.len();
        self.lines += ends;
        if self.bytes > BYTES || self.lines > LINES {
            self.seen.too_long.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        match &written {
            Ok(_) => (self.bytes, self.lines) = (0, 0),
            // A server with too many clients reports so and closes before it receives a question.
            Err(_) => {
                let mut room = [0; FIRST];
                let mut buf = ReadBuf::new(&mut room);
                let _ = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
                self.seen.note(buf.filled());
            }
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
