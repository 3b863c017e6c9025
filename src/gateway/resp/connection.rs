//! One connection: reads what has arrived, decides it, and writes the answers.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use scopeguard::guard;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::Service;
use super::outcome::Refusal;
use super::session::Session;
use super::turn::Turn;
use crate::config::Limits;
use crate::node::{Budget, ClientTime, Counted, Present};
use crate::telemetry::traces::{self, Tracing};

/// Bytes that the node reads at once. It is also what an idle connection keeps at most.
const CHUNK: usize = 16 * 1024;

/// How long the node waits for the client to close a connection that it has ended. Closing earlier
/// could destroy answers on their way.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The stream of a client, and its time: to send a command or to read an answer, and between two
/// commands.
struct Client<S> {
    stream: S,
    time: ClientTime,
    /// Ticks since the last turn.
    passed: u32,
    /// The client has had an answer.
    has_begun: bool,
    /// Changes when the node ends.
    end: watch::Receiver<()>,
    is_closing: bool,
}

/// Serves a client until it leaves, breaks the protocol, or the node ends.
///
/// # Errors
/// The connection broke, or the time of the client was over.
pub async fn serve<S>(service: Service, stream: S, limits: Limits, end: watch::Receiver<()>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = Client::new(stream, limits, end);
    let (mut arrived, mut unread) =
        [Budget::Bodies, Budget::Unread].map(|budget| Counted::new(&service.holdings, budget)).into();
    let mut session = Session::new(service);
    let (mut input, mut output) = (Vec::new(), Vec::new());
    // The node ends, and the client has an answer since then.
    let mut is_over = false;
    loop {
        let (turn, decoded) = Turn::gather(&mut session, &input);
        input.drain(..decoded);
        if turn.is_empty() {
            if decoded == 0 {
                if is_over {
                    return client.close().await;
                }
                if !input.is_empty() {
                    // Doubling would take up to twice the bytes of a long command.
                    input.reserve_exact(CHUNK);
                    if !arrived.set(input.capacity()) {
                        let refusal = format!("-{}\r\n", Refusal::Overloaded);
                        client.write(refusal.as_bytes(), &mut unread).await?;
                        return client.close().await;
                    }
                }
                if !client.read(&mut input).await? {
                    return Ok(());
                }
            }
            continue;
        }
        let is_last = turn.is_last;
        answer(&session, turn, &mut output).await;
        client.write(&output, &mut unread).await?;
        client.has_begun = true;
        client.passed = 0;
        output.clear();
        if is_last {
            return client.close().await;
        }
        is_over = client.is_closing;
        shrink(&mut input);
        shrink(&mut output);
        arrived.shrink(input.capacity());
        if !input.is_empty() {
            yield_now().await;
        }
    }
}

/// Decides a turn and writes its answers.
async fn answer(session: &Session, mut turn: Turn, out: &mut Vec<u8>) {
    let service = &session.service;
    if turn.is_decided() {
        return turn.write(&[], out);
    }
    let load = service.holdings.load();
    let _in_flight = load.enter(Present::Redis);
    let (turns, is_crowded) = (|| load.checks(session.holder()), load.is_crowded());
    let traced = service.tracing.as_ref().and_then(|tracing| begin_trace(tracing, session, turn.checks.len()));
    let answers = match traced {
        None => turn.decide(&service.engine, turns, is_crowded).await,
        Some(traced) => {
            let deciding = async {
                session.token_name().into_iter().for_each(traces::called_by);
                turn.decide(&service.engine, turns, is_crowded).await
            };
            let answers = Box::pin(traced.within(deciding)).await;
            traced.end(None);
            answers
        }
    };
    turn.write(&answers, out);
}

fn begin_trace(tracing: &Arc<Tracing>, session: &Session, commands: usize) -> Option<traces::Request> {
    tracing.begin(&traces::Incoming {
        name: "RESP",
        protocol: traces::Protocol::Resp { commands },
        traceparent: None,
        tracestate: None,
        client: session.service.caller.address,
        server: session.service.caller.local,
        user_agent: None,
        request_id: &format!("resp-{}", session.id),
    })
}

fn shrink(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > CHUNK {
        *buffer = Vec::new();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    fn new(stream: S, limits: Limits, end: watch::Receiver<()>) -> Self {
        let time = ClientTime::new(limits.request_timeout, limits.idle_timeout);
        Self { stream, time, passed: 0, has_begun: false, end, is_closing: false }
    }

    /// Reads what has arrived, behind the beginning of a command in `input`. Returns false at the
    /// end: the client or the node closes the connection, between two commands.
    async fn read(&mut self, input: &mut Vec<u8>) -> io::Result<bool> {
        let is_between = input.is_empty();
        let is_idle = is_between && self.has_begun;
        if is_idle {
            self.passed = 0;
        }
        let limit = if is_idle { self.time.idle } else { self.time.request + 1 };
        input.reserve_exact(CHUNK);
        loop {
            tokio::select! {
                biased;
                read = self.stream.read_buf(input) => return Ok(read? > 0),
                _ = self.end.changed(), if !self.is_closing => {
                    self.is_closing = true;
                    // The runtime reports the bytes of a new socket only after its next turn.
                    yield_now().await;
                    if let Some(read) = self.stream.read_buf(input).now_or_never() {
                        return Ok(read? > 0);
                    }
                    if is_between {
                        return Ok(false);
                    }
                }
                _ = self.time.ticks.tick() => {
                    self.passed += 1;
                    if self.passed >= limit {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Writes answers, which the client must read in its time. They count in `unread` while they
    /// wait for the socket.
    async fn write(&mut self, output: &[u8], unread: &mut Counted) -> io::Result<()> {
        let mut passed = 0;
        let mut writing = pin!(async {
            self.stream.write_all(output).await?;
            self.stream.flush().await
        });
        if let Some(written) = writing.as_mut().now_or_never() {
            return written;
        }
        if !unread.set(output.len()) {
            return Err(io::Error::other("the clients of the node leave too many answers unread"));
        }
        let unread = guard(unread, |unread| _ = unread.set(0));
        loop {
            tokio::select! {
                biased;
                written = writing.as_mut() => {
                    drop(unread);
                    return written;
                }
                _ = self.time.ticks.tick() => {
                    passed += 1;
                    if passed > self.time.request {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Ends a connection so that the client still receives the last answers.
    async fn close(mut self) -> io::Result<()> {
        let mut rest = vec![0; 1024];
        let closing = async {
            self.stream.shutdown().await?;
            while self.stream.read(&mut rest).await? > 0 {}
            Ok(())
        };
        timeout(CLOSE_TIME, closing).await.unwrap_or(Ok(()))
    }
}
