//! Cuts off connections whose client is slow.
//!
//! Timeouts are numbers of ticks. One number covers the time from the accept to the first request.
//! It also covers a request from its first byte to the last byte of its answer. So a client that
//! trickles its request, reads its answer slowly or sends nothing is cut off. Another number holds
//! between requests.
//!
//! HTTP/2 sends pings and detects dead clients. So this file ignores the bytes of HTTP/2 clients
//! after the preface, but they must still read their answers. `backlog.rs` limits their idle time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Interval, interval};

use super::backlog::Backlog;

/// The beginning of every HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) struct Patient<S> {
    stream: S,
    /// Each tick is half of a client's time, so one slow timer serves all requests of a connection.
    ticks: Interval,
    /// Ticks that may pass during a request, and between two requests.
    most: [u32; 2],
    waiting: Waiting,
    /// Ticks in the current state.
    passed: u32,
    /// Learns that the connection speaks HTTP/2.
    backlog: Arc<Backlog>,
}

/// The side that must act next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The client has sent only this many bytes of the HTTP/2 preface.
    First(usize),
    /// A request has begun and has no answer yet.
    Answer,
    /// The client may send a request.
    Idle,
    /// The connection is HTTP/2, and the client has read everything.
    Exempt,
    /// The connection is HTTP/2, and the client must read.
    Stuck,
}

impl Waiting {
    fn read(self, bytes: &[u8]) -> Self {
        match self {
            Self::First(said) => {
                let rest = &PREFACE[said..];
                if bytes.starts_with(rest) {
                    Self::Exempt
                } else if rest.starts_with(bytes) {
                    Self::First(said + bytes.len())
                } else {
                    Self::Answer
                }
            }
            Self::Idle => Self::Answer,
            Self::Answer | Self::Exempt | Self::Stuck => self,
        }
    }

    /// The state after the socket accepted `all` bytes, or some of them.
    fn written(self, all: bool) -> Self {
        match self {
            Self::Exempt | Self::Stuck => Self::Exempt,
            Self::First(_) | Self::Answer | Self::Idle if all => Self::Idle,
            Self::First(_) | Self::Answer | Self::Idle => Self::Answer,
        }
    }

    /// The state after the socket accepted no bytes.
    fn blocked(self) -> Self {
        match self {
            Self::Exempt | Self::Stuck => Self::Stuck,
            Self::First(_) | Self::Answer | Self::Idle => Self::Answer,
        }
    }
}

impl<S> Patient<S> {
    /// Gives the client `patience` for a request, and `idle` until the next one. A request may get
    /// less time, by up to half of the shorter of the two. The idle time may be longer by up to the
    /// shorter one. So clients that keep connections for less than `idle` never find one closed.
    pub(super) fn new(stream: S, patience: Duration, idle: Duration, backlog: Arc<Backlog>) -> Self {
        let tick = patience.min(idle) / 2;
        let ticks_in =
            |span: Duration| u32::try_from(span.as_nanos().div_ceil(tick.as_nanos().max(1))).unwrap_or(u32::MAX);
        let mut ticks = interval(tick);
        ticks.reset();
        let most = [ticks_in(patience), ticks_in(idle).saturating_add(1)];
        Self { stream, ticks, most, waiting: Waiting::First(0), passed: 0, backlog }
    }

    fn wait_for(&mut self, waiting: Waiting) {
        let goes_on = matches!((self.waiting, waiting), (Waiting::First(_), Waiting::First(_)));
        if self.waiting != waiting && !goes_on {
            self.passed = 0;
        }
        self.waiting = waiting;
    }

    /// Ready when the client's time is over.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.ticks.poll_tick(cx));
            if self.tick() {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Counts a tick and returns whether the client's time is over.
    fn tick(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        match self.waiting {
            Waiting::First(_) | Waiting::Answer | Waiting::Stuck => self.passed >= self.most[0],
            Waiting::Idle => self.passed >= self.most[1],
            Waiting::Exempt => false,
        }
    }

    /// Limits the time of a client that does not read its answer of `length` bytes.
    fn after_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        length: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(count)) => self.wait_for(self.waiting.written(*count >= length)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.wait_for(self.waiting.blocked());
                return self.poll_patience(cx).map(Err);
            }
        }
        written
    }

    /// Limits the time of earlier writes. While the node owes an answer hyper reads nothing, so
    /// this call checks the time instead.
    fn after_flush(&mut self, flushed: Poll<io::Result<()>>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if flushed.is_pending() {
            self.wait_for(self.waiting.blocked());
        } else if self.waiting != Waiting::Answer {
            return flushed;
        }
        match self.poll_patience(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => flushed,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            let waiting = self.waiting.read(&buffer.filled()[before..]);
            self.wait_for(waiting);
            if waiting == Waiting::Exempt {
                self.backlog.begin_http2();
            }
            return Poll::Ready(read);
        }
        self.poll_patience(cx).map(Err)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(written, bytes.len(), cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.after_flush(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.after_flush(shut, cx)
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
        self.after_write(written, slices.iter().map(|slice| slice.len()).sum(), cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Load;

    #[tokio::test]
    async fn a_client_runs_out_of_the_time_that_it_has() {
        let second = Duration::from_secs(1);
        let mut patient = Patient::new((), 2 * second, 10 * second, Arc::new(Backlog::new(Load::default())));
        let mut ticks = |waiting| {
            patient.wait_for(waiting);
            (1..30).find(|_| patient.tick())
        };
        let in_time =
            [Waiting::First(0), Waiting::Answer, Waiting::Idle, Waiting::Exempt, Waiting::Stuck].map(&mut ticks);
        assert_eq!(in_time, [Some(2), Some(2), Some(11), None, Some(2)]);
    }

    #[tokio::test]
    async fn sips_of_a_preface_are_no_new_beginning() {
        let second = Duration::from_secs(1);
        let mut patient = Patient::new((), 2 * second, 10 * second, Arc::new(Backlog::new(Load::default())));
        let ticked = PREFACE[..5].iter().map(|byte| {
            patient.wait_for(patient.waiting.read(&[*byte]));
            patient.tick()
        });
        assert_eq!(ticked.collect::<Vec<_>>(), [false, true, true, true, true]);
    }

    #[test]
    fn what_a_client_says_tells_who_has_to_say_something() {
        let first = Waiting::First(0);
        assert_eq!(first.read(&PREFACE[..12]), Waiting::First(12));
        assert_eq!(first.read(&PREFACE[..12]).read(&PREFACE[12..]), Waiting::Exempt);
        assert_eq!(first.read(&PREFACE[..3]).read(b"NCE / HTTP/1.1"), Waiting::Answer);
        assert_eq!(first.read(&[PREFACE, b"more"].concat()), Waiting::Exempt);
        assert_eq!(Waiting::Exempt.written(false).read(b"ping"), Waiting::Exempt);
        assert_eq!(Waiting::Exempt.blocked().read(b"ping"), Waiting::Stuck);
        assert_eq!(Waiting::Exempt.blocked().written(false), Waiting::Exempt);
        assert_eq!(first.read(b"POST /").written(true).read(b"P"), Waiting::Answer);
        assert_eq!(Waiting::Answer.written(false).blocked(), Waiting::Answer);
    }
}
