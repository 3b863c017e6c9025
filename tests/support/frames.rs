//! HTTP/2 by hand, for clients that break its manners.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

/// The preface of HTTP/2.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"anybody?")
}

/// The opening of a connection that grants no window for answers.
pub(crate) fn opening() -> Vec<u8> {
    let no_window = [0, 4, 0, 0, 0, 0];
    [PREFACE, &frame(SETTINGS, 0, 0, &no_window), &frame(SETTINGS, ACK, 0, b"")].concat()
}

/// So many requests with the same fields, on the first streams of a connection.
pub(crate) fn requests(count: u32, fields: &[u8], is_whole: bool) -> Vec<u8> {
    let flags = if is_whole { END_HEADERS | END_STREAM } else { END_HEADERS };
    (0..count).flat_map(|number| frame(HEADERS, flags, 2 * number + 1, fields)).collect()
}

/// Header fields as literals (RFC 7541, 6.2.2), each shorter than 127 bytes.
pub(crate) fn fields(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "t")];
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let field = |(name, value): &(&str, &str)| [vec![0], literal(name), literal(value)].concat();
    pseudo.iter().chain(more).flat_map(field).collect()
}

/// So many fields `x: y`: one that the decoder keeps, and references of one byte to it.
pub(crate) fn references(count: usize) -> Vec<u8> {
    [b"\x40\x01x\x01y", &*vec![0xbe; count - 1]].concat()
}

/// The next frame's kind, flags and payload; none at the end, which comes within the read timeout
/// of the stream.
pub(crate) fn next_frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    if let Err(error) = stream.read_exact(&mut head) {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "nothing was heard");
        return None;
    }
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], head[4], payload))
}

/// Whether the frame is a ping that waits for its answer.
pub(crate) fn is_ping(kind: u8, flags: u8) -> bool {
    (kind, flags) == (PING, 0)
}

/// Whether the frame answers a ping.
pub(crate) fn is_pong(kind: u8, flags: u8) -> bool {
    (kind, flags) == (PING, ACK)
}

/// The answer to a ping.
pub(crate) fn pong(payload: &[u8]) -> Vec<u8> {
    frame(PING, ACK, 0, payload)
}

/// Waits until the node has read all that was sent before.
pub(crate) fn settle(stream: &mut TcpStream) {
    std::io::Write::write_all(stream, &ping()).unwrap();
    while let Some((kind, flags, payload)) = next_frame(stream) {
        if is_pong(kind, flags) && payload == b"anybody?" {
            return;
        }
    }
    panic!("the node has closed the connection");
}
