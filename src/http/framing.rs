//! Rejects requests whose length or target a proxy may understand differently.
//!
//! Behind such a proxy one request can hide in another (RFC 9112, 11.2), and hyper serves these
//! requests. It drops a `Content-Length` beside a `Transfer-Encoding`, so `serve/framing.rs`
//! rejects that case.
//!
//! The problem has the type `about:blank`, since its status says all (RFC 9457, 4.2.1).

use axum::http::request::Parts;
use axum::http::{Version, header};

/// The reason to reject the request, which almost no request has.
pub(super) fn fault(head: &Parts) -> Option<&'static str> {
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    // RFC 9112, 6.1: servers reject unknown codings, and a repeated `chunked`.
    if codings.next().is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        || codings.next().is_some()
    {
        return Some("a Transfer-Encoding other than one `chunked` is not understood");
    }
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Some("send Host once");
    }
    match (head.version, host, head.uri.authority()) {
        // RFC 9112, 3.2.
        (Version::HTTP_11, None, _) => Some("send Host"),
        (_, Some(host), _) if !is_host(host.as_bytes()) => Some("Host must be a name or address, and may have a port"),
        // RFC 9113, 8.3.1. Over HTTP/1.1 the target overrides the field (RFC 9112, 3.2.2).
        (Version::HTTP_2, Some(host), Some(authority))
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            Some("Host and :authority differ")
        }
        _ => None,
    }
}

/// Whether `text` is `uri-host [":" port]` (RFC 9110, 7.2), which may be empty.
fn is_host(text: &[u8]) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
    let is_address = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
    let (is_right, port) = match text.strip_prefix(b"[") {
        None => {
            let end = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
            (text[..end].iter().all(is_name), &text[end..])
        }
        Some(rest) => match rest.iter().position(|byte| *byte == b']') {
            None => return false,
            Some(end) => (end > 1 && rest[..end].iter().all(is_address), &rest[end + 1..]),
        },
    };
    is_right && port.strip_prefix(b":").map_or(port.is_empty(), |port| port.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_address_with_or_without_a_port() {
        for right in
            ["", "t", "node.example", "node.example:7070", "127.0.0.1:7070", "[::1]", "[::1]:7070", "a%20b", "t:"]
        {
            assert!(is_host(right.as_bytes()), "{right}");
        }
        for wrong in
            ["a b", "a, b", "a/b", "me@a", "a:b", "a:1:2", "[::1", "[]", "[::1]x", "[x]", "::1", "a?b", "a#", "\u{e4}"]
        {
            assert!(!is_host(wrong.as_bytes()), "{wrong}");
        }
    }
}
