//! Accepts connections, serves HTTP/1.1 and HTTP/2 without TLS on each, and ends them.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};

use super::patience::Patient;
use crate::http::Front;

/// How long a connection may stay idle between two requests. Clients commonly drop theirs sooner, so that
/// they rarely send a request into a connection that is just closing.
const IDLE: Duration = Duration::from_secs(120);

/// How often an HTTP/2 client must show that it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// The pause after a failed accept, which is most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Connections {
    protocol: Builder<TokioExecutor>,
    open: GracefulShutdown,
}

impl Connections {
    pub(super) fn new() -> Self {
        let mut protocol = Builder::new(TokioExecutor::new());
        protocol.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
        protocol.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY);
        Self { protocol, open: GracefulShutdown::new() }
    }

    /// Accepts without end.
    pub(super) async fn accept(&self, listener: &TcpListener, front: &Front) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream, front),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The same, or waits without end when there is no such listener.
    pub(super) async fn accept_if_any(&self, listener: Option<&TcpListener>, front: &Front) {
        match listener {
            Some(listener) => self.accept(listener, front).await,
            None => std::future::pending().await,
        }
    }

    /// Accepts what already waits: closing the listener would reset it.
    pub(super) fn accept_waiting(&self, listener: &TcpListener, front: &Front) {
        while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
            self.serve(stream, front);
        }
    }

    /// Lets each connection finish what it is answering, and closes it.
    pub(super) async fn finish(self) {
        self.open.shutdown().await;
    }

    fn serve(&self, stream: TcpStream, front: &Front) {
        // An answer is one small write, which must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let client = stream.peer_addr().ok().map(|address| address.ip());
        let io = TokioIo::new(Patient::new(stream));
        let front = front.with_client(client);
        let service = service_fn(move |request| front.clone().answer(request).map(Ok::<_, Infallible>));
        let connection = self.protocol.serve_connection(io, service).into_owned();
        let connection = self.open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection broke");
            }
        });
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
