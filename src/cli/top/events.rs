//! Server-sent events: the data of each event, from bytes that arrive in pieces.

/// The most bytes of an event. Fifteen minutes of a node with a hundred policies take a tenth.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The bytes of events that have not ended.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The begin of a line.
    line: Vec<u8>,
    /// The data of the lines before.
    data: String,
}

impl Events {
    /// Reads the next bytes, and calls `event` with the data of each event that they end.
    ///
    /// # Errors
    /// When an event is too long, or not UTF-8.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut event: impl FnMut(String)) -> Result<(), String> {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = std::str::from_utf8(&line).map_err(|_| "the node sends no UTF-8")?.trim_end_matches('\r');
            match line.strip_prefix("data:") {
                Some(data) => self.data.push_str(data.strip_prefix(' ').unwrap_or(data)),
                None if line.is_empty() && !self.data.is_empty() => event(std::mem::take(&mut self.data)),
                // A comment, or another field.
                None => {}
            }
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > MAX_BYTES {
            return Err(format!("an event is longer than {MAX_BYTES} bytes: what answers there is no Tollgate"));
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
            let (mut events, mut found) = (Events::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                events.push(piece, |data| found.push(data)).unwrap();
            }
            assert_eq!(found, ["{\"a\": \"ü\"}", "{}"], "{size}");
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        assert!(Events::default().push(b"data: \xff\n", |_| {}).is_err());
    }
}
