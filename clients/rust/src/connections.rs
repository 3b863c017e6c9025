//! The connections to one node.
//!
//! A connection has no task of its own: the caller drives it during the exchange. So a response
//! wakes one task and not two. A caller that leaves closes its connection.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::clock;
use crate::options::Address;
use crate::patience::{Patience, within};
use crate::rounds::Rounds;
use crate::tls::Tls;

/// The most connections to one node, also while it is silent.
const MAX_CONNECTIONS: usize = 64;

/// Shorter than the node's own, so that the node rarely closes a connection in use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds the memory of one response, in bytes.
const MAX_ANSWER: usize = 8 << 20;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// An HTTP request to whichever node answers.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub method: Method,
    /// Path and query.
    pub target: &'a str,
    pub body: Option<Bytes>,
    /// The body of a repetition, if it differs.
    pub again: Option<Bytes>,
    /// A valid trace context of the caller.
    pub traceparent: Option<&'a str>,
    /// Whether it may be sent twice.
    pub is_repeatable: bool,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub body: Bytes,
}

/// A call without a response.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The node certainly received nothing.
    NotSent(Cause),
    /// The connection broke. The node may have received the call.
    Broken(Cause),
    Deadline,
}

type Cause = Box<dyn StdError + Send + Sync>;

pub(crate) struct Connections {
    address: Address,
    /// The fields of each call.
    headers: HeaderMap,
    tls: Option<Tls>,
    /// Has a permit for each further connection.
    places: Semaphore,
    /// The one in use last is at the end.
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>,
    /// Ends a call at its deadline.
    deadline: Patience,
    rounds: Rounds,
    since: Instant,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connections {
    pub fn new(address: Address, authorization: Option<HeaderValue>, tls: Option<Tls>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, address.authority.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static("tollgate-rust"));
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        let tls = tls.filter(|_| address.secure);
        Self { address, headers, tls, places: Semaphore::new(MAX_CONNECTIONS), idle: Mutex::default() }
    }

    /// Sends the call. `again` says that a node may have received it before.
    pub async fn exchange(&self, until: Instant, call: &Call<'_>, again: bool) -> Result<Reply, Failure> {
        let request = self.request(call, again).map_err(|cause| Failure::NotSent(cause.into()))?;
        let _place = match self.places.try_acquire() {
            Ok(place) => Some(place),
            // The semaphore is never closed.
            Err(_) => timeout_at(until.into(), self.places.acquire()).await.map_err(|_| Failure::Deadline)?.ok(),
        };
        let mut connection = match self.take(call).await {
            Some(connection) => connection,
            None => within(until, self.connect()).await.ok_or(Failure::Deadline)?.map_err(Failure::NotSent)?,
        };
        let reply = connection.send(request, until).await?;
        if connection.is_open() {
            self.put(connection);
        }
        Ok(reply)
    }

    fn request(&self, call: &Call<'_>, again: bool) -> http::Result<Request<Full<Bytes>>> {
        let target = match self.address.path.as_str() {
            "" => Uri::try_from(call.target)?,
            path => Uri::try_from(format!("{path}{}", call.target))?,
        };
        let body = call.again.as_ref().filter(|_| again).or(call.body.as_ref());
        let mut request = Request::new(Full::new(body.cloned().unwrap_or_default()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = self.headers.clone();
        if call.body.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(traceparent) = call.traceparent {
            request.headers_mut().insert(TRACEPARENT, HeaderValue::from_str(traceparent)?);
        }
        Ok(request)
    }

    /// Returns the connection that was in use last and is still open.
    async fn take(&self, call: &Call<'_>) -> Option<Connection> {
        if !call.is_repeatable {
            // The runtime then polls for events. So it knows of connections that nodes have closed.
            tokio::task::yield_now().await;
        }
        loop {
            let mut connection = self.idle().pop()?;
            if clock::now() - connection.since < IDLE_TIMEOUT && connection.is_open() {
                return Some(connection);
            }
        }
    }

    /// Also closes the oldest connection, if it was idle for too long.
    fn put(&self, mut connection: Connection) {
        connection.since = clock::now();
        let mut idle = self.idle();
        if idle.first().is_some_and(|oldest| connection.since - oldest.since > IDLE_TIMEOUT) {
            idle.remove(0);
        }
        idle.push(connection);
    }

    /// Makes the next calls connect anew.
    pub fn close_idle(&self) {
        let closed = std::mem::take(&mut *self.idle());
        drop(closed);
    }

    async fn connect(&self) -> Result<Connection, Cause> {
        let Address { host, port, .. } = &self.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.connect(ServerName::try_from(host.clone())?, stream).await?),
            None => Box::new(stream),
        };
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        let since = clock::now();
        Ok(Connection { sender, driver, deadline: Patience::new(since), rounds: Rounds::new(), since })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn send(&mut self, request: Request<Full<Bytes>>, until: Instant) -> Result<Reply, Failure> {
        let Self { sender, driver, deadline, rounds, .. } = self;
        deadline.reset(until);
        let mut exchange = pin!(async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok(Reply { status: head.status, body })
        });
        let mut is_over = false;
        let mut round = |context: &mut Context<'_>| {
            is_over = is_over || Pin::new(&mut *driver).poll(context).is_ready();
            match exchange.as_mut().poll(context) {
                Poll::Ready(reply) => Poll::Ready(reply.map_err(Failure::Broken)),
                Poll::Pending if is_over => {
                    Poll::Ready(Err(Failure::Broken(io::Error::from(io::ErrorKind::UnexpectedEof).into())))
                }
                Poll::Pending => deadline.poll_end(context).map(|()| Err(Failure::Deadline)),
            }
        };
        poll_fn(|context| rounds.poll(context, &mut round)).await
    }

    /// Whether the connection is open for another call, as far as the runtime knows.
    fn is_open(&mut self) -> bool {
        // Nothing waits for this connection now.
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.driver).poll(&mut context).is_pending() && self.sender.is_ready()
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(cause) => write!(f, "the connection failed: {cause}"),
            Self::Broken(cause) => write!(f, "the connection broke: {cause}"),
            Self::Deadline => f.write_str("the deadline passed"),
        }
    }
}

impl StdError for Failure {}
