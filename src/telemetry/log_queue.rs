//! The queue of the log: callers append lines, and one thread writes them.
//!
//! So a log reader that stalls or ends delays no check. Lines without room are dropped and counted.
//! The log reports their number at that place once it is read again.
//!
//! `tracing-appender` bounds the lines of its queue but not their bytes, does not count failed
//! writes, and tears lines where standard error is non-blocking.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most bytes that wait. The thread may have as many more.
const ROOM: usize = 1 << 20;

/// The pause of the thread while a write would block.
const FULL: Duration = Duration::from_millis(10);

/// The log of this process.
pub static LOG: LogQueue = LogQueue::new();

/// Text between the callers and the thread that writes it. The queue only holds whole lines.
#[derive(Debug)]
pub struct LogQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    text: Vec<u8>,
    /// The number of lines without room, or whose write failed.
    dropped: u64,
    /// Whether the thread has unwritten text.
    is_writing: bool,
}

impl LogQueue {
    const fn new() -> Self {
        let waiting = Waiting { text: Vec::new(), dropped: 0, is_writing: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    /// Starts the thread, which writes to `out` as long as the process runs.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(&'static self, mut out: impl Write + Send + 'static) -> io::Result<()> {
        let write = move || {
            let (mut text, mut told) = (Vec::new(), 0);
            loop {
                let dropped = self.take(&mut text);
                if dropped > told {
                    // This line follows the dequeued text, at the place of the dropped lines.
                    tracing::warn!(lines = dropped - told, "lines of the log were dropped: nobody read it in time");
                    told = dropped;
                }
                let lost = write_all(&mut out, &text);
                if lost > 0 {
                    // The report of these lines would fail as well.
                    told += lost;
                    self.lock().dropped += lost;
                }
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write).map(drop)
    }

    /// Waits until all is written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let is_unwritten = |waiting: &mut Waiting| waiting.is_writing || !waiting.text.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), limit, is_unwritten));
    }

    /// The number of lines without room, or whose write failed.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Waits for text, moves all of it to `text`, and returns the number of dropped lines so far.
    fn take(&self, text: &mut Vec<u8>) -> u64 {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        let mut waiting = self
            .changed
            .wait_while(waiting, |waiting| waiting.text.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        text.clear();
        std::mem::swap(text, &mut waiting.text);
        waiting.is_writing = true;
        waiting.dropped
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts one or more whole lines, and never waits.
impl Write for &LogQueue {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut waiting = self.lock();
        // An empty queue accepts even a line longer than `ROOM`.
        if waiting.text.is_empty() || waiting.text.len() + lines.len() <= ROOM {
            waiting.text.extend_from_slice(lines);
            self.changed.notify_all();
        } else {
            waiting.dropped += 1;
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all lines of `text` and returns the number of failed ones. It retries where another user
/// of `out` has made it non-blocking.
fn write_all(out: &mut impl Write, mut text: &[u8]) -> u64 {
    while !text.is_empty() {
        match out.write(text) {
            Ok(written @ 1..) => text = &text[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(FULL),
            Ok(0) | Err(_) => return memchr::memchr_iter(b'\n', text).count() as u64,
        }
    }
    0
}
