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
        Ok(whole_fault(self.input.fill_buf()?))
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

fn whole_fault(first: &[u8]) -> Option<&'static str> {
    match first {
        [0x1f, 0x8b, ..] => return Some("is compressed: `zcat` it to `--log -`"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Some("is compressed: `zstdcat` it to `--log -`"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Some("is compressed: `xzcat` it to `--log -`"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, ..] => return Some("is compressed: `bzcat` it to `--log -`"),
        [b'P', b'K', 3, 4, ..] => return Some("is an archive: `unzip -p` it to `--log -`"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Some("is in UTF-16: save it in UTF-8"),
        _ => {}
    }
    let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii_start();
    // A line in brackets with a time or a name begins otherwise.
    if matches!(text.strip_prefix(b"[").map(<[u8]>::trim_ascii_start), Some([] | [b'{' | b'[' | b']', ..])) {
        return Some("is a JSON array: `jq -c '.[]'` makes a line of each entry, for `--log -`");
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_split = line.trim_ascii() == b"{" && line.len() < text.len();
    is_split.then_some("has JSON objects over several lines: `jq -c .` makes a line of each, for `--log -`")
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
    fn file_of_another_kind_has_its_advice() {
        for (first, advice) in [
            (&b"\x1f\x8b\x08"[..], Some("`zcat`")),
            (b"\x28\xb5\x2f\xfd\x00", Some("`zstdcat`")),
            (b"\xfd7zXZ\x00", Some("`xzcat`")),
            (b"BZh91AY&SY", Some("`bzcat`")),
            (b"PK\x03\x04", Some("`unzip -p`")),
            (b"\xff\xfe{\x00", Some("UTF-8")),
            (b"[{\"time\":1}]", Some("`jq -c '.[]'`")),
            (b"\xef\xbb\xbf\n[\n  {", Some("`jq -c '.[]'`")),
            (b"[]", Some("`jq -c '.[]'`")),
            (b"{\n  \"time\": 1", Some("`jq -c .`")),
            (b"[pod/web/nginx] ", None),
            (b"[2026-11-21 10:00:00] ", None),
            (b"{\"time\":1}\n", None),
            (b"{", None),
            (b"", None),
        ] {
            let fault = whole_fault(first);
            assert!(
                fault.is_some() == advice.is_some() && fault.unwrap_or("").contains(advice.unwrap_or("")),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn too_long_lines_are_skipped() {
        let found = all(&[&vec![b'x'; 3 * CHUNK][..], b"\nshort\n"].concat());
        assert!(found[0].is_err());
        assert_eq!(found[1..], [Ok(b"short".to_vec())]);
    }
}
