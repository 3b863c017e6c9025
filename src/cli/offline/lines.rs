//! The lines of a log in sequence, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line, in bytes; the reader skips longer ones.
const LONGEST: usize = 256 * 1024;

/// Bytes of one read.
const CHUNK: usize = 1024 * 1024;

/// A reader of lines as bytes.
pub(super) struct Lines {
    input: BufReader<Box<dyn Read>>,
    line: Vec<u8>,
    /// Bytes read so far.
    pub(super) bytes: u64,
}

impl Lines {
    pub(super) fn new(input: Box<dyn Read>) -> Self {
        Self { input: BufReader::with_capacity(CHUNK, input), line: Vec::new(), bytes: 0 }
    }

    /// Why the log as a whole is unreadable, by its first bytes; call it before the first line.
    pub(super) fn fault(&mut self) -> io::Result<Option<&'static str>> {
        Ok(match self.input.fill_buf()? {
            [0x1f, 0x8b, ..] => Some("is compressed: `zcat` it to `--log -`"),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("is in UTF-16: save it in UTF-8"),
            _ => None,
        })
    }

    /// The next line without its end, none at the end of the log. The inner `Err` is a line that is
    /// too long.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<&[u8], String>>> {
        self.line.clear();
        let is_first = self.bytes == 0;
        let (mut length, mut ended) = (0, false);
        while !ended {
            let chunk = match self.input.fill_buf() {
                Ok([]) => break,
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = memchr::memchr(b'\n', chunk);
            ended = end.is_some();
            let part = &chunk[..end.unwrap_or(chunk.len())];
            length += part.len();
            if length <= LONGEST {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(ended);
            self.bytes += used as u64;
            self.input.consume(used);
        }
        if length == 0 && !ended {
            return Ok(None);
        }
        if length > LONGEST {
            return Ok(Some(Err(format!("{length} bytes, the most is {LONGEST}"))));
        }
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        // Some editors write a byte order mark at the start of a file.
        Ok(Some(Ok(line.strip_prefix(b"\xef\xbb\xbf").filter(|_| is_first).unwrap_or(line))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<Result<Vec<u8>, String>> {
        let mut lines = Lines::new(Box::new(io::Cursor::new(text.to_vec())));
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(line.map(<[u8]>::to_vec));
        }
        assert_eq!(lines.bytes, text.len() as u64);
        all
    }

    #[test]
    fn a_line_ends_at_its_end_or_that_of_the_log() {
        let text = |text: &str| Ok(text.as_bytes().to_vec());
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\n"), [text("")]);
        assert_eq!(all(b"a\r\n\nb"), [text("a"), text(""), text("b")]);
    }

    #[test]
    fn byte_order_mark_is_no_part_of_a_line() {
        assert_eq!(all("\u{feff}a\n\u{feff}b".as_bytes()), [Ok(b"a".to_vec()), Ok("\u{feff}b".as_bytes().to_vec())]);
    }

    #[test]
    fn too_long_lines_are_skipped() {
        let found = all(&[&vec![b'x'; 3 * CHUNK][..], b"\nshort\n"].concat());
        assert!(found[0].is_err());
        assert_eq!(found[1..], [Ok(b"short".to_vec())]);
    }
}
