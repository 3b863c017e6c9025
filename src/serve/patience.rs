//! A connection whose client may not dawdle.
//!
//! From the first byte of a request to the answer, and from the accept to the first request, only so many ticks
//! pass; a client that trickles its request, or says nothing at all, is then cut off. Between requests another
//! number holds. HTTP/2 sends without being asked and has limits of its own, so its connections are left alone once
//! they have said what they are.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Interval, interval};

/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const HTTP2: &[u8] = b"PRI * HTTP/2";

pub(super) struct Patient<S> {
    stream: S,
    /// Of half of a client's time, so that one slow timer serves for all requests of a connection.
    ticks: Interval,
    /// How many may pass during a request, and between two.
    most: [u32; 2],
    waiting: Waiting,
    /// Since it began to wait so.
    passed: u32,
}

/// Who has to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The client has not said a word.
    First,
    /// A request has begun and is not answered.
    Answer,
    /// It may say something, and need not.
    Idle,
    /// It is HTTP/2.
    Exempt,
}

impl Waiting {
    fn read(self, bytes: &[u8]) -> Self {
        match self {
            Self::First if bytes.starts_with(HTTP2) => Self::Exempt,
            Self::First | Self::Idle => Self::Answer,
            Self::Answer | Self::Exempt => self,
        }
    }

    fn written(self) -> Self {
        if self == Self::Exempt { self } else { Self::Idle }
    }
}

impl<S> Patient<S> {
    /// Gives the client `patience` for a request, and `idle` until the next one; up to half of the shorter less.
    pub(super) fn new(stream: S, patience: Duration, idle: Duration) -> Self {
        let tick = patience.min(idle) / 2;
        let ticks_in =
            |span: Duration| u32::try_from(span.as_nanos().div_ceil(tick.as_nanos().max(1))).unwrap_or(u32::MAX);
        let mut ticks = interval(tick);
        ticks.reset();
        Self { stream, ticks, most: [patience, idle].map(ticks_in), waiting: Waiting::First, passed: 0 }
    }

    fn wait_for(&mut self, waiting: Waiting) {
        if self.waiting != waiting {
            (self.waiting, self.passed) = (waiting, 0);
        }
    }

    /// Ready when the patience is at its end.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.ticks.poll_tick(cx));
            if self.tick() {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Whether that is too long.
    fn tick(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        match self.waiting {
            Waiting::First | Waiting::Answer => self.passed >= self.most[0],
            Waiting::Idle => self.passed >= self.most[1],
            Waiting::Exempt => false,
        }
    }

    /// A client that does not take its answer runs out of time as well.
    fn after_write(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.wait_for(self.waiting.written());
            return written;
        }
        self.wait_for(self.waiting.read(&[]));
        self.poll_patience(cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            let waiting = self.waiting.read(&buffer.filled()[before..]);
            self.wait_for(waiting);
            return Poll::Ready(read);
        }
        self.poll_patience(cx).map(Err)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.poll_patience(cx).map(Err),
            flushed => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Pending => self.poll_patience(cx).map(Err),
            shut => shut,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.after_write(written, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_runs_out_of_the_time_that_it_has() {
        let second = Duration::from_secs(1);
        let mut patient = Patient::new((), 2 * second, 10 * second);
        let mut ticks = |waiting| {
            patient.wait_for(waiting);
            (1..30).find(|_| patient.tick())
        };
        let in_time = [Waiting::First, Waiting::Answer, Waiting::Idle, Waiting::Exempt].map(&mut ticks);
        assert_eq!(in_time, [Some(2), Some(2), Some(10), None]);
        assert_eq!(Waiting::First.read(b"PRI * HTTP/2.0\r\n"), Waiting::Exempt);
        assert_eq!(Waiting::Exempt.written().read(b"ping"), Waiting::Exempt);
        assert_eq!(Waiting::First.read(b"POST /").written().read(b"P"), Waiting::Answer);
    }
}
