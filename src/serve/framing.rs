//! Rejects HTTP/1 requests that a proxy in front may read in another way than hyper. These have
//! both `Content-Length` and `Transfer-Encoding`, or a target with `#`.
//!
//! A proxy that obeys the other field finds a second request in the first one's body (RFC 9112,
//! 6.3, 11.2). The library hyper obeys the codings and drops the length. No target has a `#`
//! (3.2), but hyper drops the rest of the target from there on. No caller of hyper sees either.
//!
//! So this guard looks at the bytes before hyper does. It reads heads line by line, and skips
//! bodies. If one head has both fields, the guard overwrites the colon of the second. No name and
//! no target may contain the new byte. Then hyper answers 400 and closes, as for any head that it
//! cannot read.
//!
//! Over HTTP/2 only the target is ambiguous, and `fragments.rs` guards it.
//!
//! The guard can only reject. If it misreads a malformed request, hyper rejects that request too.

use super::fragments::FragmentGuard;

/// The beginning of every HTTP/2 connection, up to a length that no HTTP/1 request shares.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0";

/// The bytes from there to the first frame, without the end of the line (RFC 9113, 3.4).
const REST_OF_PREFACE: u64 = "\r\nSM\r\n\r\n".len() as u64;

const LENGTH: &[u8] = b"content-length";
const CODINGS: &[u8] = b"transfer-encoding";

/// The position in the requests of a connection.
#[derive(Debug, Default)]
pub(super) struct FramingGuard {
    part: RequestPart,
    /// The beginning of the line, and its length so far.
    start: [u8; CODINGS.len() + 1],
    length: usize,
    /// The fields of this head so far.
    content_length: Option<u64>,
    has_codings: bool,
    /// Whether the first line of the connection has ended.
    has_begun: bool,
    frames: FragmentGuard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RequestPart {
    /// The request line, or blank lines before it.
    #[default]
    Request,
    /// A field of the head.
    Field,
    /// The digits of a content length.
    Digits,
    /// A body with this many bytes left.
    Body(u64),
    /// The size line before a chunk.
    Size,
    /// A chunk with this many bytes left.
    Chunk(u64),
    /// The end of the line after a chunk.
    ChunkEnd,
    /// A line after the last chunk.
    Trailer,
    /// The rest of HTTP/2's preface.
    Preface(u64),
    /// The frames of HTTP/2.
    Frames,
    /// The rest stays unread: it is malformed.
    Unread,
}

impl FramingGuard {
    /// Reads the next bytes of the connection, and overwrites one of them to reject a request.
    /// Returns how many of them are of heads. Over HTTP/1 these are all or none: a head has begun
    /// and not ended, or not.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let (mut at, mut of_heads) = (0, 0);
        while at < bytes.len() && self.part != RequestPart::Unread {
            at += match self.part {
                RequestPart::Preface(left) => {
                    self.skip(left, bytes.len() - at, RequestPart::Preface, RequestPart::Frames)
                }
                RequestPart::Frames => {
                    of_heads = self.frames.read(&mut bytes[at..]);
                    bytes.len() - at
                }
                RequestPart::Body(left) => self.skip(left, bytes.len() - at, RequestPart::Body, RequestPart::Request),
                RequestPart::Chunk(left) => {
                    self.skip(left, bytes.len() - at, RequestPart::Chunk, RequestPart::ChunkEnd)
                }
                _ => self.line(&mut bytes[at..]),
            };
        }
        match self.part {
            RequestPart::Field | RequestPart::Digits => bytes.len(),
            RequestPart::Request if self.length > 0 => bytes.len(),
            _ => of_heads,
        }
    }

    /// Skips the available part of the rest of a body or chunk.
    fn skip(&mut self, left: u64, there: usize, rest: fn(u64) -> RequestPart, next: RequestPart) -> usize {
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        let left = left - passed as u64;
        self.part = if left == 0 { next } else { rest(left) };
        passed
    }

    /// Reads to the end of a line, or of the available bytes.
    fn line(&mut self, bytes: &mut [u8]) -> usize {
        let end = memchr::memchr(b'\n', bytes);
        let upto = end.unwrap_or(bytes.len());
        match self.part {
            RequestPart::Field | RequestPart::Digits => self.field(&mut bytes[..upto]),
            RequestPart::Request if let Some(mark) = memchr::memchr(b'#', &bytes[..upto]) => {
                bytes[mark] = 0;
                self.part = RequestPart::Unread;
            }
            _ => self.keep(&bytes[..upto]),
        }
        match end {
            None => upto,
            Some(end) => {
                self.end_line();
                end + 1
            }
        }
    }

    /// Keeps the beginning of a line.
    fn keep(&mut self, bytes: &[u8]) {
        let room = self.start.len() - self.length;
        let kept = &bytes[..room.min(bytes.len())];
        self.start[self.length..self.length + kept.len()].copy_from_slice(kept);
        self.length += kept.len();
    }

    /// Reads a part of a field.
    fn field(&mut self, bytes: &mut [u8]) {
        if self.part == RequestPart::Digits {
            return self.digits(bytes);
        }
        let known = self.length;
        // Other fields begin with other letters.
        if known == 0 && !matches!(bytes.first(), None | Some(b'c' | b'C' | b't' | b'T' | b'\r')) {
            self.start[0] = b'x';
            self.length = self.start.len();
            return;
        }
        if known == self.start.len() {
            return;
        }
        self.keep(bytes);
        let line = &self.start[..self.length];
        let is = |name: &[u8]| line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name);
        let (is_length, is_codings) = (is(LENGTH), is(CODINGS));
        if !is_length && !is_codings {
            return;
        }
        let colon = if is_length { LENGTH.len() } else { CODINGS.len() } - known;
        if is_length && self.has_codings || is_codings && self.content_length.is_some() {
            bytes[colon] = 0;
            self.part = RequestPart::Unread;
        } else if is_codings {
            self.has_codings = true;
            self.length = self.start.len();
        } else {
            self.content_length = Some(0);
            self.part = RequestPart::Digits;
            self.digits(&bytes[colon + 1..]);
        }
    }

    fn digits(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().filter(|byte| byte.is_ascii_digit()) {
            let length = self.content_length.unwrap_or(0);
            self.content_length = Some(length.saturating_mul(10).saturating_add(u64::from(byte - b'0')));
        }
    }

    fn end_line(&mut self) {
        let line = self.start[..self.length].trim_ascii_end();
        let is_blank = line.is_empty();
        self.part = match self.part {
            RequestPart::Request if is_blank => RequestPart::Request,
            RequestPart::Request if !self.has_begun && line.starts_with(HTTP_2) => {
                RequestPart::Preface(REST_OF_PREFACE)
            }
            RequestPart::Request => RequestPart::Field,
            RequestPart::Field if is_blank => {
                let (length, codings) = (self.content_length.take(), std::mem::take(&mut self.has_codings));
                match length.filter(|length| *length > 0) {
                    _ if codings => RequestPart::Size,
                    Some(length) => RequestPart::Body(length),
                    None => RequestPart::Request,
                }
            }
            RequestPart::Field | RequestPart::Digits => RequestPart::Field,
            RequestPart::Size => chunk(line),
            RequestPart::ChunkEnd => RequestPart::Size,
            RequestPart::Trailer if is_blank => RequestPart::Request,
            RequestPart::Trailer => RequestPart::Trailer,
            part @ (RequestPart::Body(_)
            | RequestPart::Chunk(_)
            | RequestPart::Preface(_)
            | RequestPart::Frames
            | RequestPart::Unread) => part,
        };
        self.has_begun = true;
        self.length = 0;
    }
}

/// The part that follows a chunk's size line.
fn chunk(line: &[u8]) -> RequestPart {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let size = std::str::from_utf8(&line[..digits]).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match size {
        // hyper stops reading here as well.
        None => RequestPart::Unread,
        Some(0) => RequestPart::Trailer,
        Some(size) => RequestPart::Chunk(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that hyper gets from `text`, read in pieces of `piece` bytes.
    fn passed(text: &str, piece: usize) -> String {
        let mut guard = FramingGuard::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(piece).for_each(|piece| _ = guard.read(piece));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn targets_with_fragment_are_made_unreadable() {
        for piece in [1, 3, 1000] {
            let passed = |text| passed(text, piece);
            assert_eq!(passed("GET /a#b HTTP/1.1\r\nX: #\r\n\r\n"), "GET /a\0b HTTP/1.1\r\nX: #\r\n\r\n");
            let plain = "GET /a HTTP/1.1\r\nX: #\r\nContent-Length: 2\r\n\r\n##";
            assert_eq!(passed(plain), plain);
            assert!(passed(&format!("{plain}GET /# HTTP/1.1\r\n")).ends_with("GET /\0 HTTP/1.1\r\n"));
        }
    }

    #[test]
    fn only_ambiguous_lengths_are_made_unreadable() {
        let long = "x".repeat(40);
        let plain = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 40\r\n\r\n{long}");
        let chunked = "POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n\
             1a;x=y\r\nTransfer-Encoding: chunked\r\n0\r\nContent-Length: 3\r\n\r\n";
        let body = "\r\nTransfer-Encoding: x\r\n\r\n";
        let hidden = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for piece in [1, 2, 3, 7, 16, 17, 18, 19, 1000] {
            for text in [
                plain.clone(),
                format!("\r\n\n{plain}{plain}{chunked}{plain}"),
                format!("{hidden}{chunked}{hidden}{plain}"),
                format!("GET / HTTP/1.1\nHost: t\n\n{chunked}{chunked}{hidden}"),
                "POST / HTTP/1.1\r\ncontent-lengths: 1\r\ntransfer-encoding-x: 1\r\ntransfer-encoding: a\r\n\r\n0\r\n\r\n"
                    .to_owned(),
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nPOST /\r\nContent-Length: 1\r\nTransfer-Encoding: x\r\n\r\n".to_owned(),
            ] {
                assert_eq!(passed(&text, piece), text, "{piece}");
            }
            for fields in [
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
                "CONTENT-LENGTH:5\nHost: t\ntRANSFER-eNCODING:x\n",
                "Content-Length: 0\r\nTransfer-Encoding:\r\n",
            ] {
                for before in ["", plain.as_str(), chunked, hidden.as_str()] {
                    let text = format!("{before}POST / HTTP/1.1\r\n{fields}\r\n");
                    let passed = passed(&text, piece);
                    assert!(passed.starts_with(before) && passed.matches('\0').count() == 1, "{piece} {passed:?}");
                }
            }
        }
    }
}
