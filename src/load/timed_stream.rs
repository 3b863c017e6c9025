//! Cuts off connections whose client is slow, silent or idle.
//!
//! Timeouts are numbers of ticks. One number covers the time from the accept to the first request.
//! It also covers a request from its first byte to the last byte of its answer. So a client that
//! trickles its request, reads its answer slowly or sends nothing is cut off. Another number holds
//! between requests.
//!
//! HTTP/2 sends pings and detects dead clients. So this file ignores the bytes of HTTP/2 clients
//! after the preface. They must still read their answers, also each of them, and a connection
//! without requests ends. `backlog.rs` counts both.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::backlog::{Backlog, LOOKS};
use super::{Budget, ClientTime, Counted};

/// The beginning of every HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of an unfinished head that do not count.
const SHORT_HEAD: usize = 8 * 1024;

/// Bytes of HTTP/2 with header fields that a connection reads in a turn. So many may be hundreds of
/// requests, or thousands of fields, while others wait.
const TURN_BYTES: usize = 2 * 1024;

/// A stream with limits on the time of its client, and on the bytes of a head.
pub(crate) struct TimedStream<S, G> {
    stream: S,
    /// Reads the bytes before anyone else, and returns how many are of heads. Over HTTP/1 these are
    /// all or none: a head has begun and not ended, or not.
    guard: G,
    time: ClientTime,
    state: State,
    /// Ticks in the current state.
    passed: u32,
    /// Ticks since the last look at the answers that wait for a client of HTTP/2.
    unlooked: u32,
    /// Ticks since a client of HTTP/2 had something open.
    quiet: u32,
    backlog: Arc<Backlog>,
    /// Bytes of the head that has begun. Long ones count.
    head: usize,
    counted: Counted,
    /// The last bytes of HTTP/2 had no header fields.
    is_bulk: bool,
    /// A byte that was read to see whether the caller has left.
    ahead: Option<u8>,
}

/// The side that must act next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The client has sent only this many bytes of the HTTP/2 preface.
    Preface(usize),
    /// A request has begun and has no answer yet.
    Response,
    /// The client may send a request.
    Idle,
    /// The connection is HTTP/2, and the client has read everything.
    Http2,
    /// The connection is HTTP/2, and the client must read.
    Http2Blocked,
}

impl State {
    fn read(self, bytes: &[u8]) -> Self {
        match self {
            Self::Preface(sent) => {
                let rest = &PREFACE[sent..];
                if bytes.starts_with(rest) {
                    Self::Http2
                } else if rest.starts_with(bytes) {
                    Self::Preface(sent + bytes.len())
                } else {
                    Self::Response
                }
            }
            Self::Idle => Self::Response,
            Self::Response | Self::Http2 | Self::Http2Blocked => self,
        }
    }

    /// The state after the socket accepted `all` bytes, or some of them.
    fn written(self, all: bool) -> Self {
        match self {
            Self::Http2 | Self::Http2Blocked => Self::Http2,
            // On a listener for HTTP/2 alone, the node sends its settings before the preface comes.
            Self::Preface(_) => self,
            Self::Response | Self::Idle if all => Self::Idle,
            Self::Response | Self::Idle => Self::Response,
        }
    }

    /// The state after the socket accepted no bytes.
    fn blocked(self) -> Self {
        match self {
            Self::Http2 | Self::Http2Blocked => Self::Http2Blocked,
            Self::Preface(_) => self,
            Self::Response | Self::Idle => Self::Response,
        }
    }
}

impl<S, G: FnMut(&mut [u8]) -> usize> TimedStream<S, G> {
    /// Gives the client the time `request` for each request, and `idle` until the next one. A
    /// request may get less time, by up to half of the shorter of the two. The idle time may be
    /// longer by up to the shorter one. So clients that keep connections for less than `idle` never
    /// find one closed.
    pub(crate) fn new(stream: S, guard: G, request: Duration, idle: Duration, backlog: Arc<Backlog>) -> Self {
        let counted = Counted::new(backlog.holdings(), Budget::Bodies);
        Self {
            stream,
            guard,
            time: ClientTime::new(request, idle),
            state: State::Preface(0),
            passed: 0,
            unlooked: 0,
            quiet: 0,
            backlog,
            head: 0,
            counted,
            is_bulk: false,
            ahead: None,
        }
    }

    /// Counts the bytes of a head that has not ended, and returns whether they fit.
    fn has_room(&mut self, bytes: &mut [u8]) -> bool {
        let of_heads = (self.guard)(bytes);
        if self.is_http2() {
            self.is_bulk = of_heads == 0;
            self.backlog.note_fields(of_heads);
            return true;
        }
        self.head = if of_heads > 0 { self.head + of_heads } else { 0 };
        let is_long = self.head > SHORT_HEAD;
        if is_long {
            return self.counted.set(self.head);
        }
        self.counted.shrink(0);
        true
    }

    fn is_http2(&self) -> bool {
        matches!(self.state, State::Http2 | State::Http2Blocked)
    }

    fn set_state(&mut self, state: State) {
        let continues = matches!((self.state, state), (State::Preface(_), State::Preface(_)));
        if self.state != state && !continues {
            self.passed = 0;
        }
        self.state = state;
    }

    /// Ready when the client's time is over.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.time.ticks.poll_tick(cx));
            if self.tick() {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Counts a tick and returns whether the client's time is over.
    fn tick(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        match self.state {
            State::Preface(_) | State::Response => self.passed >= self.time.request,
            State::Idle => self.passed >= self.time.idle,
            State::Http2 => self.tick_http2(),
            State::Http2Blocked => self.tick_http2() || self.passed >= self.time.request,
        }
    }

    /// Counts a tick of HTTP/2, and returns whether a piece of an answer is unread for the client's
    /// time. It may be up to half of it more.
    fn tick_http2(&mut self) -> bool {
        self.quiet = if self.backlog.was_idle() { self.quiet.saturating_add(1) } else { 0 };
        // The tick that had activity is over, too.
        if self.quiet.saturating_add(1) >= self.time.idle {
            self.backlog.end();
        }
        self.unlooked += 1;
        if self.unlooked < self.time.request.div_ceil(LOOKS) {
            return false;
        }
        self.unlooked = 0;
        self.backlog.is_overdue()
    }

    /// Limits the time of a client that does not read its answer of `length` bytes.
    fn after_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        length: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(count)) => {
                self.set_state(self.state.written(*count >= length));
                // The client of a stream sends nothing, but it reads.
                if self.state == State::Idle {
                    self.passed = 0;
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.set_state(self.state.blocked());
                return self.poll_timeout(cx).map(Err);
            }
        }
        written
    }

    /// Limits the time of earlier writes. While the node owes an answer hyper reads nothing, so
    /// this call checks the time instead.
    fn after_flush(&mut self, flushed: Poll<io::Result<()>>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if flushed.is_pending() {
            self.set_state(self.state.blocked());
        } else if self.state != State::Response {
            return flushed;
        }
        match self.poll_timeout(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => flushed,
        }
    }
}

impl<S: AsyncRead + Unpin, G> TimedStream<S, G> {
    /// Ready if the caller waits in line over HTTP/1, and has closed its side.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.state != State::Response || self.ahead.is_some() || !self.backlog.holdings().waits_in_line() {
            return Poll::Pending;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
            Ok(()) => {
                self.ahead = Some(byte[0]);
                Poll::Pending
            }
            Err(error) => Poll::Ready(error),
        }
    }

    /// Reads so much that the turn stays short. If it is full, more bytes wait, and so do other
    /// connections.
    fn poll_part(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = buffer.remaining().min(TURN_BYTES);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        if read == most {
            self.backlog.end_turn();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin, G: FnMut(&mut [u8]) -> usize + Unpin> AsyncRead for TimedStream<S, G> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.backlog.is_vain() {
            return self.poll_timeout(cx).map(Err);
        }
        if self.backlog.has_read() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = if let Some(byte) = self.ahead.take() {
            buffer.put_slice(&[byte]);
            Poll::Ready(Ok(()))
        } else if self.is_http2() && !self.is_bulk {
            self.poll_part(cx, buffer)
        } else {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        };
        if let Poll::Ready(read) = polled {
            let bytes = &mut buffer.filled_mut()[before..];
            let has_room = self.has_room(bytes);
            let state = self.state.read(bytes);
            if !has_room {
                return Poll::Ready(Err(io::Error::other("the node has no room for a long head")));
            }
            self.set_state(state);
            return Poll::Ready(read);
        }
        self.poll_timeout(cx).map(Err)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, G: FnMut(&mut [u8]) -> usize + Unpin> AsyncWrite for TimedStream<S, G> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(written, bytes.len(), cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_left(cx) {
            return Poll::Ready(Err(error));
        }
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
    use crate::load::{Holdings, Load};

    fn backlog() -> Arc<Backlog> {
        Arc::new(Backlog::new(Holdings::new(&Load::default(), None)))
    }

    fn no_head(_: &mut [u8]) -> usize {
        0
    }

    #[tokio::test]
    async fn slow_clients_exhaust_their_time() {
        let second = Duration::from_secs(1);
        let mut io = TimedStream::new((), no_head, 2 * second, 10 * second, backlog());
        let mut ticks = |state| {
            io.set_state(state);
            (1..30).find(|_| io.tick())
        };
        let in_time =
            [State::Preface(0), State::Response, State::Idle, State::Http2, State::Http2Blocked].map(&mut ticks);
        assert_eq!(in_time, [Some(2), Some(2), Some(11), None, Some(2)]);
    }

    #[tokio::test]
    async fn partial_reads_of_a_preface_restart_no_timeout() {
        let second = Duration::from_secs(1);
        let mut io = TimedStream::new((), no_head, 2 * second, 10 * second, backlog());
        let ticked = PREFACE[..5].iter().map(|byte| {
            io.set_state(io.state.read(&[*byte]));
            io.tick()
        });
        assert_eq!(ticked.collect::<Vec<_>>(), [false, true, true, true, true]);
    }

    #[tokio::test]
    async fn clients_that_read_a_stream_are_not_idle() {
        let second = Duration::from_secs(1);
        let mut io = TimedStream::new((), no_head, 2 * second, 4 * second, backlog());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        io.set_state(State::Response);
        for _ in 0..20 {
            assert!(io.after_write(Poll::Ready(Ok(5)), 5, &mut cx).is_ready());
            assert!(!io.tick());
        }
        assert_eq!((0..9).find(|_| io.tick()), Some(3));
    }

    #[tokio::test]
    async fn long_heads_count_until_they_end() {
        let second = Duration::from_secs(1);
        let backlog = backlog();
        let held = || backlog.holdings().held(Budget::Bodies);
        let in_head = |bytes: &mut [u8]| if bytes.ends_with(b"\r\n\r\n") { 0 } else { bytes.len() };
        let mut io = TimedStream::new((), in_head, second, second, backlog.clone());
        let mut read = |bytes: &mut [u8]| io.has_room(bytes);
        assert!(read(&mut b"GET / HTTP/1.1\r\n".to_vec()) && held() == 0);
        assert!(read(&mut vec![b'x'; 20_000]) && held() > 20_000);
        assert!(!read(&mut vec![b'x'; 9_000_000]), "more than the half of all strangers' heads");
        assert!(read(&mut b"\r\n\r\n".to_vec()) && held() == 0);
    }

    #[test]
    fn received_bytes_decide_which_side_must_act() {
        let first = State::Preface(0);
        assert_eq!(first.read(&PREFACE[..12]), State::Preface(12));
        assert_eq!(first.read(&PREFACE[..12]).read(&PREFACE[12..]), State::Http2);
        assert_eq!(first.read(&PREFACE[..3]).read(b"NCE / HTTP/1.1"), State::Response);
        assert_eq!(first.read(&[PREFACE, b"more"].concat()), State::Http2);
        assert_eq!(first.written(true).blocked().written(false).read(PREFACE), State::Http2);
        assert_eq!(State::Http2.written(false).read(b"ping"), State::Http2);
        assert_eq!(State::Http2.blocked().read(b"ping"), State::Http2Blocked);
        assert_eq!(State::Http2.blocked().written(false), State::Http2);
        assert_eq!(first.read(b"POST /").written(true).read(b"P"), State::Response);
        assert_eq!(State::Response.written(false).blocked(), State::Response);
    }
}
