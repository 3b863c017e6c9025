//! Limits the size of answers.
//!
//! The limits apply to the bytes and lines from one write to the next. Each element of an answer
//! ends a line, so the lines limit the elements. An element occupies far more room in memory than
//! on the wire.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::broken;
use crate::store::redis::protocol::failure::Failure;

/// The most that a server may send from one write to the next.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    bytes: usize,
    lines: usize,
}

impl Most {
    /// The longest answer is CLUSTER SLOTS with a range for each slot, about 6 MB. With three nodes
    /// for each range it has 600,000 lines.
    pub const OF_SERVER: Self = Self { bytes: 16 << 20, lines: 1 << 20 };

    /// The longest answer is SENTINEL MASTER, about 2 KB.
    pub const OF_SENTINEL: Self = Self { bytes: 64 << 10, lines: 4096 };
}

/// The most bytes of the first answer that are kept.
const FIRST: usize = 256;

/// The first answer of a connection, and whether one was too long.
#[derive(Debug, Default)]
pub struct Seen {
    first: OnceLock<Box<[u8]>>,
    /// Whether a question had an answer. Then a broken connection has another cause than the first
    /// bytes.
    has_answered: AtomicBool,
    too_long: AtomicBool,
}

impl Seen {
    /// Why the connection broke.
    pub fn failure(&self, error: &RedisError) -> Failure {
        match self.too_long.load(Ordering::Relaxed) {
            true => Failure::too_long(),
            false if self.has_answered.load(Ordering::Relaxed) => broken::later(error),
            false => broken::of_driver(error, self.first.get().map(AsRef::as_ref)),
        }
    }

    /// Notes that a question had an answer.
    pub fn answered(&self) {
        if !self.has_answered.load(Ordering::Relaxed) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    fn note(&self, bytes: &[u8]) {
        if !bytes.is_empty() && self.first.get().is_none() {
            let _ = self.first.set(bytes[..bytes.len().min(FIRST)].into());
        }
    }
}

/// A stream that fails when an answer exceeds the limits.
pub struct Bounded<S> {
    stream: S,
    most: Most,
    seen: Arc<Seen>,
    /// The bytes read since the last write.
    bytes: usize,
    lines: usize,
}

impl<S> Bounded<S> {
    pub fn new(stream: S, most: Most, seen: Arc<Seen>) -> Self {
        Self { stream, most, seen, bytes: 0, lines: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let new = &buf.filled()[before..];
        self.seen.note(new);
        let ends = new.iter().filter(|byte| **byte == b'\n').count();
        self.bytes += new.len();
        self.lines += ends;
        if self.bytes > self.most.bytes || self.lines > self.most.lines {
            self.seen.too_long.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        match &written {
            Ok(_) => (self.bytes, self.lines) = (0, 0),
            // A server with too many clients reports so and closes before it receives a question.
            Err(_) => {
                let mut room = [0; FIRST];
                let mut buf = ReadBuf::new(&mut room);
                let _ = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
                self.seen.note(buf.filled());
            }
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
