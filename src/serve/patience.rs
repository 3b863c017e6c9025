//! A connection whose client may not dawdle.
//!
//! From the first byte of a request to the last one of the answer, and from the accept to the first request, only so
//! many ticks pass; a client that trickles its request, reads its answer in sips, or says nothing at all, is then cut
//! off. Between requests another number holds. HTTP/2 sends without being asked, and finds out by itself who is not
//! there any more. So what its clients say is left alone once they have said all of what it begins with; but they as
//! well must take what is sent. How long it may be idle is told by its streams (`backlog.rs`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Interval, interval};

use super::backlog::Backlog;

/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) struct Patient<S> {
    stream: S,
    /// Of half of a client's time, so that one slow timer serves for all requests of a connection.
    ticks: Interval,
    /// How many may pass during a request, and between two.
    most: [u32; 2],
    waiting: Waiting,
    /// Since it began to wait so.
    passed: u32,
    /// Hears when it is HTTP/2.
    backlog: Arc<Backlog>,
}

/// Who has to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The client has not said more than so many bytes of what HTTP/2 begins with.
    First(usize),
    /// A request has begun and is not answered.
    Answer,
    /// It may say something, and need not.
    Idle,
    /// It is HTTP/2, and has taken what was sent.
    Exempt,
    /// It is HTTP/2, and has to take what is sent.
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

    /// When the socket took something: `all` that there was, or some of it.
    fn written(self, all: bool) -> Self {
        match self {
            Self::Exempt | Self::Stuck => Self::Exempt,
            Self::First(_) | Self::Answer | Self::Idle if all => Self::Idle,
            Self::First(_) | Self::Answer | Self::Idle => Self::Answer,
        }
    }

    /// When the socket takes nothing.
    fn blocked(self) -> Self {
        match self {
            Self::Exempt | Self::Stuck => Self::Stuck,
            Self::First(_) | Self::Answer | Self::Idle => Self::Answer,
        }
    }
}

impl<S> Patient<S> {
    /// Gives the client `patience` for a request, or up to half of the shorter of the two less, and `idle` until the
    /// next one, or up to as much as the shorter more: who keeps connections for less must not find one closed.
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
            Waiting::First(_) | Waiting::Answer | Waiting::Stuck => self.passed >= self.most[0],
            Waiting::Idle => self.passed >= self.most[1],
            Waiting::Exempt => false,
        }
    }

    /// A client that does not take its answer, `length` bytes, runs out of time as well.
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

    /// The same of what was written before. While the node owes an answer nothing is read, so the time passes here.
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
