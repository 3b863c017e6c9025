//! Connections to receivers, which may answer without end.
//!
//! A receiver can send interim responses (`100 Continue`) as fast as the node parses them. So an
//! answer has a bound of bytes, and the connection ends beyond it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower_service::Service;

/// The most bytes of an answer. Its status is all that counts.
const MOST: usize = 64 * 1024;

/// Bytes of one read.
const CHUNK: usize = 4 * 1024;

/// Opens the connections of `C`, with a bound.
#[derive(Debug, Clone)]
pub(super) struct Bounded<C>(pub(super) C);

impl<C> Service<Uri> for Bounded<C>
where
    C: Service<Uri, Future: Send + 'static>,
{
    type Response = BoundedStream<C::Response>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Response, C::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let opening = self.0.call(uri);
        Box::pin(async move { Ok(BoundedStream { stream: opening.await?, received: 0 }) })
    }
}

/// A connection that ends when an answer is too long.
#[derive(Debug)]
pub(super) struct BoundedStream<S> {
    stream: S,
    /// Bytes since the last request.
    received: usize,
}

impl<S: Read + Unpin> Read for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut chunk = [0; CHUNK];
        let room = buffer.remaining().min(CHUNK);
        let mut read = ReadBuf::new(&mut chunk[..room]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, read.unfilled()))?;
        self.received += read.filled().len();
        if self.received > MOST {
            return Poll::Ready(Err(io::Error::other("the answer is too long")));
        }
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.received = 0;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Connection> Connection for BoundedStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}
