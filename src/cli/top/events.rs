//! Server-sent events: the data of each event, from bytes that arrive in pieces.

use std::fmt;

/// The most bytes of an event for each second that it may have. A node with the most rows, of
/// policies with the longest names, sends two thirds.
const SECOND: usize = 64 * 1024;

/// The most bytes of an event besides its seconds, and the most of any event.
const REST: usize = 1024 * 1024;
const MOST: usize = 8 * 1024 * 1024;

/// The bytes of events that have not ended.
#[derive(Debug)]
pub(super) struct Events {
    /// The begin of a line.
    line: Vec<u8>,
    /// The data of the lines before.
    data: String,
    /// The most bytes of the next event.
    most: usize,
}

/// Why no event can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooLong(usize),
    NotUtf8,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(most) => write!(f, "an event is longer than {most} bytes: the next call asks for no history"),
            Self::NotUtf8 => f.write_str("the node sends no UTF-8"),
        }
    }
}

impl Events {
    /// The first event may have this many `seconds`, each of the others a few.
    pub(super) fn new(seconds: u64) -> Self {
        let most = usize::try_from(seconds).unwrap_or(MOST).saturating_mul(SECOND).saturating_add(REST).min(MOST);
        Self { line: Vec::new(), data: String::new(), most }
    }

    /// Reads the next bytes, and calls `event` with the data of each event that they end.
    ///
    /// # Errors
    /// When an event is too long, or not UTF-8.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut event: impl FnMut(String)) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let end = memchr::memchr(b'\n', bytes);
            let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + self.data.len() + part.len() > self.most {
                return Err(Fault::TooLong(self.most));
            }
            self.line.extend_from_slice(part);
            if end.is_none() {
                break;
            }
            bytes = &rest[1..];
            let line = std::mem::take(&mut self.line);
            let line = std::str::from_utf8(&line).map_err(|_| Fault::NotUtf8)?.trim_end_matches('\r');
            match line.strip_prefix("data:") {
                Some(data) => self.data.push_str(data.strip_prefix(' ').unwrap_or(data)),
                None if line.is_empty() && !self.data.is_empty() => {
                    event(std::mem::take(&mut self.data));
                    self.most = REST;
                }
                // A comment, or another field.
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_any_pieces_are_the_same() {
        let text =
            "event: snapshot\nid: 7\ndata: {\"a\": \"ü\"}\n\n: heartbeat\n\nevent: snapshot\r\ndata:{}\r\n\r\ndata: 1";
        for size in 1..text.len() {
            let (mut events, mut found) = (Events::new(1), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                events.push(piece, |data| found.push(data)).unwrap();
            }
            assert_eq!(found, ["{\"a\": \"ü\"}", "{}"], "{size}");
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        assert_eq!(Events::new(1).push(b"data: \xff\n", |_| {}), Err(Fault::NotUtf8));
    }

    #[test]
    fn event_that_is_too_long_ends_the_stream() {
        assert_eq!([1, 60, 900].map(|seconds| Events::new(seconds).most), [REST + SECOND, REST + 60 * SECOND, MOST]);
        for piece in [b"x".repeat(1000), [b"data: ".to_vec(), b"x".repeat(1000), b"\n".to_vec()].concat()] {
            let mut events = Events::new(1);
            let pushed = (0..2000).map(|_| events.push(&piece, |_| {})).position(|pushed| pushed.is_err());
            assert!(pushed.is_some_and(|pieces| pieces * 1000 <= events.most), "{pushed:?}");
        }
        // A later event has few seconds.
        let mut events = Events::new(900);
        let event = |length: usize| [b"data: ".to_vec(), b"x".repeat(length), b"\n\n".to_vec()].concat();
        assert_eq!(events.push(&event(4 * REST), |_| {}), Ok(()));
        assert_eq!(events.push(&event(2 * REST), |_| {}), Err(Fault::TooLong(REST)));
    }
}
