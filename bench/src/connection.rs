//! One connection, with one request at a time: HTTP/1.1 keep-alive, each answer with a
//! Content-Length, or pipelines of RESP.

use std::io;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use tollgate::cli::target::Target;

use super::resp;
use super::verdicts::Failure;

pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest head of an answer, bytes.
const MAX_HEAD: usize = 64 * 1024;

pub(super) const MAX_ANSWER: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
    /// Whether the connection accepts another request.
    pub(super) kept: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body: (usize, usize),
    kept: bool,
}

impl Connection {
    pub(super) async fn open(target: &Target) -> io::Result<Self> {
        Ok(Self { stream: connect(target).await?, buffer: vec![0; 4096] })
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// When there is no valid answer; the connection is then unusable.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>, Failure> {
        self.stream.write_all(request).await?;
        let (mut filled, mut head) = (0, None);
        loop {
            filled += self.read(filled).await?;
            if head.is_none() {
                head = self::head(&self.buffer[..filled])?;
            }
            let Some(Head { status, body: (start, end), kept }) = head else { continue };
            if filled > end {
                return Err(Failure::Malformed);
            }
            if filled == end {
                return Ok(Answer { status, body: &self.buffer[start..end], kept });
            }
        }
    }

    /// Sends a pipeline and reads its answers, as one with status 200.
    ///
    /// # Errors
    /// When there are fewer or more answers; the connection is then unusable.
    pub(super) async fn exchange_pipeline(
        &mut self,
        request: &[u8],
        answers: u64,
        form: &resp::Form,
    ) -> Result<Answer<'_>, Failure> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        loop {
            filled += self.read(filled).await?;
            match resp::length(&self.buffer[..filled], answers, form) {
                Some(length) if length < filled => return Err(Failure::Malformed),
                Some(length) => return Ok(Answer { status: 200, body: &self.buffer[..length], kept: true }),
                None => {}
            }
        }
    }

    /// Reads behind the filled part of the buffer, and returns the number of bytes.
    async fn read(&mut self, filled: usize) -> Result<usize, Failure> {
        if filled == self.buffer.len() {
            self.grow()?;
        }
        match self.stream.read(&mut self.buffer[filled..]).await? {
            0 => Err(Failure::Closed),
            read => Ok(read),
        }
    }

    fn grow(&mut self) -> Result<(), Failure> {
        let length = self.buffer.len() * 2;
        if length > MAX_ANSWER {
            return Err(Failure::Malformed);
        }
        self.buffer.resize(length, 0);
        Ok(())
    }
}

/// Opens a connection that sends each write at once.
pub(super) async fn connect(target: &Target) -> io::Result<TcpStream> {
    let connecting = TcpStream::connect((target.host.as_str(), target.port));
    let too_late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection within 5 seconds");
    let stream = tokio::time::timeout(TIMEOUT, connecting).await.map_err(too_late)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Parses the head of an answer; none while it is incomplete.
fn head(bytes: &[u8]) -> Result<Option<Head>, Failure> {
    let Some(length) = memmem::find(bytes, b"\r\n\r\n") else {
        return if bytes.len() < MAX_HEAD { Ok(None) } else { Err(Failure::Malformed) };
    };
    let start = length + 4;
    let mut lines = bytes[..length].split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let (status, mut kept) = status_line(lines.next().unwrap_or_default()).ok_or(Failure::Malformed)?;
    let mut body = if status == 204 || status == 304 { Some(0) } else { None };
    for line in lines {
        // Only the relevant fields begin with these letters.
        if !matches!(line.first(), Some(b'c' | b'C' | b't' | b'T')) {
            continue;
        }
        let Some(colon) = memchr::memchr(b':', line) else { return Err(Failure::Malformed) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            body = Some(decimal(value).ok_or(Failure::Malformed)?);
        } else if name.eq_ignore_ascii_case(b"connection") {
            kept = !value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(Failure::Malformed);
        }
    }
    let body = body.filter(|body| *body <= MAX_ANSWER).ok_or(Failure::Malformed)?;
    Ok(Some(Head { status, body: (start, start + body), kept }))
}

fn status_line(line: &[u8]) -> Option<(u16, bool)> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let status = decimal(rest.get(2..5)?).filter(|status| (200..=599).contains(status))?;
    Some((u16::try_from(status).ok()?, rest.first() == Some(&b'1')))
}

fn decimal(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_whole() {
        let text = b"HTTP/1.1 200 OK\r\ncache: x\r\nContent-Length: 5\r\nRateLimit: \"a\"\r\n\r\nhello";
        assert_eq!(head(text), Ok(Some(Head { status: 200, body: (text.len() - 5, text.len()), kept: true })));
        assert_eq!(head(&text[..40]), Ok(None));
        let close = b"HTTP/1.1 503 \r\ncontent-length:0\r\nconnection: Close\r\n\r\n";
        assert_eq!(head(close), Ok(Some(Head { status: 503, body: (close.len(), close.len()), kept: false })));
    }

    #[test]
    fn what_is_not_understood_is_a_failure() {
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        ] {
            assert_eq!(head(text.as_bytes()), Err(Failure::Malformed), "{text}");
        }
    }
}
