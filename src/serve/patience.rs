//! A connection whose client may not dawdle.
//!
//! From the first byte of a request to the answer, and from the accept to the first request, at most two ticks
//! pass; a client that trickles its request, or says nothing at all, is then cut off. Between requests another,
//! longer limit holds (`connections.rs`). HTTP/2 sends without being asked and has limits of its own, so its
//! connections are left alone once they have said what they are.

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
    waiting: Waiting,
}

/// Who has to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The client has not said a word.
    First { ticked: bool },
    /// A request has begun and is not answered.
    Answer { ticked: bool },
    /// Nobody.
    Idle,
    /// It is HTTP/2.
    Exempt,
}

impl Waiting {
    fn read(self, bytes: &[u8]) -> Self {
        match self {
            Self::First { .. } if bytes.starts_with(HTTP2) => Self::Exempt,
            Self::First { .. } | Self::Idle => Self::Answer { ticked: false },
            Self::Answer { .. } | Self::Exempt => self,
        }
    }

    fn written(self) -> Self {
        if self == Self::Exempt { self } else { Self::Idle }
    }

    /// At a tick: how it goes on, unless the patience is at its end.
    fn tick(self) -> Option<Self> {
        match self {
            Self::First { ticked: true } | Self::Answer { ticked: true } => None,
            Self::First { .. } => Some(Self::First { ticked: true }),
            Self::Answer { .. } => Some(Self::Answer { ticked: true }),
            Self::Idle | Self::Exempt => Some(self),
        }
    }
}

impl<S> Patient<S> {
    /// Gives the client between half of `patience` and the whole.
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        let mut ticks = interval(patience / 2);
        ticks.reset();
        Self { stream, ticks, waiting: Waiting::First { ticked: false } }
    }

    /// Ready when the patience is at its end.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.ticks.poll_tick(cx));
            match self.waiting.tick() {
                Some(waiting) => self.waiting = waiting,
                None => return Poll::Ready(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// A client that does not take its answer runs out of time as well.
    fn after_write(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = self.waiting.written();
            return written;
        }
        self.waiting = self.waiting.read(&[]);
        self.poll_patience(cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            self.waiting = self.waiting.read(&buffer.filled()[before..]);
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
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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

    #[test]
    fn only_a_client_that_owes_something_runs_out_of_time() {
        let silent = Waiting::First { ticked: false };
        assert_eq!(silent.tick().and_then(Waiting::tick), None);
        let asking = silent.read(b"POST /");
        assert_eq!(asking.tick().map(|waiting| waiting.read(b"v")).and_then(Waiting::tick), None);
        let answered = asking.written();
        assert_eq!(answered.tick().and_then(Waiting::tick), Some(Waiting::Idle));
        let http2 = silent.read(b"PRI * HTTP/2.0\r\n");
        assert_eq!(http2.written().read(b"ping").tick(), Some(Waiting::Exempt));
    }
}
