//! A progress bar on a terminal, no output elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// Lines between two updates.
const EVERY: u64 = 8192;

#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// `bytes` of all logs; 0 if unknown.
    pub(super) fn new(bytes: u64) -> Self {
        let bar = if bytes > 0 { ProgressBar::new(bytes) } else { ProgressBar::no_length() };
        let template = match bytes {
            0 => "{spinner} {bytes} {bytes_per_sec}",
            _ => "{wide_bar} {percent}% {bytes_per_sec} {eta}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.0.position()
    }

    /// Shows progress after `bytes` and `lines` of the log that began at `before`.
    pub(super) fn show(&self, before: u64, bytes: u64, lines: u64) {
        if lines.is_multiple_of(EVERY) {
            self.0.set_position(before + bytes);
        }
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
