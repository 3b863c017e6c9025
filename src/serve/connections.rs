//! Accepts a limited number of connections, serves HTTP/1.1 and HTTP/2 with or without TLS, and
//! ends them.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Version};
use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::framing::FramingGuard;
use super::listen::ACCEPT_QUEUE;
use super::protocol::{self, StreamExecutor};
use super::service::{HttpService, Service, has_passed};
use crate::clock::Clock;
use crate::config::{Limits, ServerTls};
use crate::gateway::resp;
use crate::http::{refuse_answer, suppress_spurious_wakes};
use crate::load::{Backlog, TimedStream, is_long, metered};
use crate::node::{Arrival, Caller, Holdings, Load, Node, Present, Refusals, Unfit};
use crate::reload::Reloader;
use crate::telemetry::limiter::Limiter;
use crate::timeouts;
use crate::workers::{TaskKind, Workers};

/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections of one listener.
pub(super) struct Connections {
    listener: TcpListener,
    service: Service,
    protocol: Arc<Builder<StreamExecutor>>,
    open: OpenConnections,
    reloader: Arc<Reloader>,
    /// One permit per connection that may still be opened.
    free: Arc<Semaphore>,
    /// Counts refused connections, and what the others hold.
    load: Load,
    /// Counts failed handshakes.
    refused: Refusals,
    /// Limits the log lines about refused connections. `failures` does so for failed accepts.
    refusals: Limiter,
    failures: Limiter,
    clock: Clock,
    workers: Workers,
    limits: Limits,
}

impl Connections {
    pub(super) fn new(listener: TcpListener, service: Service, node: &Node, workers: Workers, limits: Limits) -> Self {
        let protocol = protocol::http(&service, &workers);
        let free = usize::try_from(limits.max_connections).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            listener,
            service,
            protocol: Arc::new(protocol),
            open: OpenConnections(watch::channel(()).0),
            reloader: node.reloader.clone(),
            free: Arc::new(Semaphore::new(free)),
            load: node.load.clone(),
            refused: node.refusals.clone(),
            refusals: Limiter::default(),
            failures: Limiter::default(),
            clock: Clock::system(),
            workers,
            limits,
        }
    }

    /// Accepts without end.
    pub(super) async fn accept(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => self.serve(stream),
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    if let Some(suppressed) = self.failures.pass(self.clock.now()) {
                        tracing::warn!(%error, suppressed, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts the queued connections, which closing the listener would reset, and closes it. Open
    /// connections continue.
    pub(super) fn close(self) -> OpenConnections {
        for _ in 0..ACCEPT_QUEUE {
            // Outside tokio's budget: after much work in a task, tokio reports that nothing waits.
            let Some(Ok((stream, _))) = unconstrained(self.listener.accept()).now_or_never() else { break };
            self.serve(stream);
        }
        self.open
    }

    /// A connection over the limit is closed at once. Its client can use another node, and open
    /// connections continue.
    fn serve(&self, stream: TcpStream) {
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            self.load.refuse_connection();
            if let Some(suppressed) = self.refusals.pass(self.clock.now()) {
                tracing::warn!(
                    max_connections = self.limits.max_connections,
                    suppressed,
                    "connections are refused: too many are open"
                );
            }
            return;
        };
        // An answer is one small write, which must not wait for the previous acknowledgement.
        let _ = stream.set_nodelay(true);
        let tls = self.service.tls(&self.reloader);
        // On a listener for both IP versions, an IPv4 caller has an IPv6 address.
        let address = stream.peer_addr().ok().map(|address| address.ip().to_canonical());
        let caller = Caller { address, encrypted: tls.is_some(), local: stream.local_addr().ok() };
        let holdings = Holdings::new(&self.load, address);
        let connection = Connection {
            service: self.service.with_caller(caller, holdings.clone()),
            protocol: self.protocol.clone(),
            holdings,
            end: self.open.0.subscribe(),
            limits: self.limits,
        };
        // The worker's runtime must watch the socket, so it leaves this one.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return log_end(Err(error.into())),
        };
        let (refused, load) = (self.refused.clone(), self.load.clone());
        self.workers.spawn(TaskKind::Connection, async move {
            let _open = load.enter(Present::Connections);
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => return log_end(Err(error.into())),
            };
            match tls {
                None => connection.serve(stream).await,
                // The box keeps tasks without TLS small: 2.5 KB instead of 10.
                Some(tls) => Box::pin(connection.serve_tls(&tls, stream, caller, &refused)).await,
            }
            drop(permit);
        });
    }
}

/// The accepted connections that are still open. Each of them has a receiver.
pub(super) struct OpenConnections(watch::Sender<()>);

impl OpenConnections {
    /// Asks the connections to end, and waits until they have.
    pub(super) async fn end(self) {
        // There may be no connection.
        let _ = self.0.send(());
        self.0.closed().await;
    }
}

/// The parts of the listener that one connection needs.
struct Connection {
    service: Service,
    protocol: Arc<Builder<StreamExecutor>>,
    /// Counts what the client holds.
    holdings: Arc<Holdings>,
    /// The end of the node waits for this receiver, also before the first request.
    end: watch::Receiver<()>,
    limits: Limits,
}

impl Connection {
    /// The same as [`Connection::serve`] over TLS. A client sends no request before the handshake,
    /// so the end of the node waits for it only for `CLOSE_HANDSHAKE`.
    async fn serve_tls(self, tls: &ServerTls, stream: TcpStream, caller: Caller, refused: &Refusals) {
        let mut end = self.end.clone();
        let is_too_late = async {
            // A dropped sender means the end as well.
            let _ = end.changed().await;
            sleep(timeouts::CLOSE_HANDSHAKE).await;
        };
        let accepting = timeout(timeouts::HANDSHAKE, TlsAcceptor::from(tls.server.clone()).accept(stream));
        tokio::select! {
            biased;
            accepted = accepting => match accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => self.serve(stream).await,
                Err(error) => refused.handshake(caller, &error),
            },
            () = is_too_late => {}
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        match self.service {
            Service::Http(ref service) => {
                let service = service.clone();
                self.serve_http(service, stream).await;
            }
            Service::Resp(service) => {
                // The box keeps the tasks of HTTP small.
                let served = Box::pin(resp::serve(service, stream, self.limits, self.end)).await;
                log_end(served.map_err(Into::into));
            }
        }
    }

    async fn serve_http(self, service: HttpService, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { protocol, holdings, mut end, limits, .. } = self;
        let backlog = Arc::new(Backlog::new(holdings));
        let mut framing = FramingGuard::default();
        let guard = move |bytes: &mut [u8]| framing.read(bytes);
        let (request, idle) = (limits.request_timeout, limits.idle_timeout);
        let io = TokioIo::new(TimedStream::new(stream, guard, request, idle, backlog.clone()));
        let shared = backlog.clone();
        let age = service.connection_age();
        let service = service_fn(move |request: Request<Incoming>| {
            let (version, service, backlog) = (request.version(), service.clone(), shared.clone());
            let open = (version == Version::HTTP_2).then(|| backlog.begin_request());
            let has_room = backlog.has_room();
            // Here, and not in a task that waits for its turn: a rejected request keeps no fields.
            let begun = Arrival::begin(backlog.holdings(), request);
            match &begun {
                Ok((Some(arrival), _)) if has_room => backlog.accept(arrival.head()),
                Ok(_) if has_room || open.is_none() => {}
                Ok(_) => backlog.reject(Unfit::Overloaded),
                Err(unfit) => backlog.reject(*unfit),
            }
            match begun {
                // The box keeps the task of a stream small: a client may open many that are refused.
                Ok((arrival, request)) => Either::Left(Box::pin(async move {
                    if open.is_none() {
                        backlog.serve_next().await;
                    }
                    let answer = service.answer(request, has_room).await;
                    // A client that sends many requests at once gets one long answer per turn.
                    if is_long(&answer) {
                        yield_now().await;
                    }
                    // A stream counts as a call in flight, and is open, until it ends.
                    Ok::<_, Infallible>(metered(&backlog, version, answer, (arrival, open), refuse_answer))
                })),
                Err(unfit) => {
                    Either::Right(ready(Ok(metered(&backlog, version, service.refuse(unfit), (), refuse_answer))))
                }
            }
        });
        let mut connection = pin!(protocol.serve_connection(io, service).into_owned());
        tokio::select! {
            biased;
            ended = in_turns(connection.as_mut(), &backlog) => return log_end(ended),
            _ = end.changed() => {
                // The runtime reports the bytes that a new socket holds only after its next turn.
                // Without that turn hyper closes a connection whose request has arrived.
                yield_now().await;
                if let Some(ended) = in_turns(connection.as_mut(), &backlog).now_or_never() {
                    return log_end(ended);
                }
            }
            () = backlog.is_over() => {}
            () = has_passed(age) => {}
        }
        // A node that reads no more never learns of an acknowledgement.
        let time = if backlog.is_vain() { timeouts::CLOSE_VAIN } else { limits.request_timeout };
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = in_turns(connection, &backlog) => log_end(ended),
            // The client may keep its streams open, or never acknowledge the shutdown.
            () = sleep(time) => log_end(Err("a client does not end its connection".into())),
        }
    }
}

/// Runs a connection, without its needless wakes. Its backlog bounds what it reads in a turn.
async fn in_turns<C: Future>(mut connection: Pin<&mut C>, backlog: &Backlog) -> C::Output {
    let turns = poll_fn(|cx| {
        backlog.begin_turn();
        connection.as_mut().poll(cx)
    });
    suppress_spurious_wakes(turns).await
}

/// Logs the end of a connection for debugging, since it is no fault of the node.
fn log_end(ended: Result<(), Box<dyn Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "a connection broke");
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
