//! The log on its way out: what is logged is put down here, and a thread of its own writes it.
//!
//! So a reader of the log that stands still, or has gone, holds up no check. What finds no room is dropped and counted,
//! and the log itself says so, at that place, once it is read again.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that wait at most; as many more may be with the thread.
const ROOM: usize = 1 << 20;

/// How long the thread waits where a write would have to.
const FULL: Duration = Duration::from_millis(10);

/// The log of this process.
pub static LOG: LogQueue = LogQueue::new();

/// Text between those who log and the thread that writes it. Its lines are put down whole.
#[derive(Debug)]
pub struct LogQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    text: Vec<u8>,
    /// Lines in all that found no room, or could not be written.
    dropped: u64,
    /// Whether the thread has text that is not written yet.
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
    /// When the system gives no thread.
    pub fn start(&'static self, mut out: impl Write + Send + 'static) -> io::Result<()> {
        let write = move || {
            let (mut text, mut told) = (Vec::new(), 0);
            loop {
                let dropped = self.take(&mut text);
                if dropped > told {
                    // It comes behind what was taken, where the dropped ones would have been.
                    tracing::warn!(lines = dropped - told, "lines of the log were dropped: nobody read it in time");
                    told = dropped;
                }
                let lost = write_all(&mut out, &text);
                if lost > 0 {
                    // Nobody would read about these either.
                    told += lost;
                    self.lock().dropped += lost;
                }
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write).map(drop)
    }

    /// Waits until all is written, or for `limit`.
    pub fn flush(&self, limit: Duration) {
        let is_unwritten = |waiting: &mut Waiting| waiting.is_writing || !waiting.text.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), limit, is_unwritten));
    }

    /// Lines in all that found no room, or could not be written.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Waits for text and takes all there is, in place of what is in `text`; how many lines were dropped so far.
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

/// Takes one or more whole lines, and never waits.
impl Write for &LogQueue {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut waiting = self.lock();
        // One that is longer than that is told as well.
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

/// Writes all lines of `text`, also where whoever shares `out` has told it not to wait; how many could not be written.
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
