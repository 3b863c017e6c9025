//! Checks the head of a request: its id, its framing, and the rights of its caller.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::http::header::GetAll;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use crate::access::{Access, Door, Need, Reach, Refused, Rejected, Token};

/// The field with the id of a request, for its answer and the logs.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that a caller may send, bytes.
const MAX_ID_BYTES: usize = 128;

/// The id of the request with these fields: the caller's own, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    taken(headers).unwrap_or_else(made)
}

/// The caller's id, if it is safe to repeat and log.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(REQUEST_ID)?;
    let visible = (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    visible.then(|| id.clone())
}

/// A new id: 128 bits of a keyed hash of a counter. Nodes need no coordination for unique ids, and
/// an id does not reveal how many came before.
pub(super) fn made() -> HeaderValue {
    static HASHES: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut id = [0; 32];
    for (half, hash) in id.chunks_exact_mut(16).zip(HASHES.iter()) {
        half.copy_from_slice(&digits(hash.hash_one(number)));
    }
    // Hexadecimal digits are always a valid field value.
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("0"))
}

/// The number in hexadecimal.
fn digits(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair.copy_from_slice(&[byte >> 4, byte & 15]);
    }
    digits.map(|digit| digit + if digit < 10 { b'0' } else { b'a' - 10 })
}

/// The reason to reject a request whose length or target a proxy may understand differently. Almost
/// no request has one.
///
/// Behind such a proxy one request can hide in another (RFC 9112, 11.2), and hyper serves these
/// requests. It drops a `Content-Length` beside a `Transfer-Encoding`, so `serve/framing.rs`
/// rejects that case. The problem has the type `about:blank`, since its status says all (RFC 9457,
/// 4.2.1).
pub(super) fn framing_fault(head: &Parts) -> Option<&'static str> {
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
    let is_mark = |byte: &u8| matches!(byte, b'!' | b'$'..=b'.' | b';' | b'=' | b'_' | b'~');
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || is_mark(byte);
    let is_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
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

/// The challenge of a 401.
pub(super) const CHALLENGE: HeaderValue = HeaderValue::from_static(r#"Bearer realm="tollgate""#);

/// The reason for a rejected call.
pub(super) enum Denied {
    /// 401 without a known token. 403 for a token without the right, or for a page without a token.
    Refused(Rejected),
    /// 404: only operators learn that a path has no call.
    NotFound,
}

/// Checks whether the caller may make a call with this need; `None` is a path without a call, which
/// is for operators only. Returns its token if the call needs one.
///
/// # Errors
/// The reason for the rejection.
pub(super) fn permit<'a>(
    access: &'a Access,
    from: (Door, Reach),
    need: Option<Need>,
    headers: &HeaderMap,
) -> Result<Option<&'a Arc<Token>>, Denied> {
    let permit = |need| access.permit(need, from, || access.find(bearer(headers))).map_err(Denied::Refused);
    // Pages do not get what every caller on this machine may read or do.
    let is_closed = |need| matches!(need, Need::Settle | Need::Read | Need::Operate | Need::Admin);
    let is_open = |need| is_closed(need) && access.is_open(need, from.1);
    match need {
        Some(need) if is_open(need) && is_of_a_page(headers) => match access.has_operators() {
            true => permit(Need::Operate),
            false => Err(Denied::Refused(Refused::Page.into())),
        },
        Some(need) => permit(need),
        None if permit(Need::Admin).is_ok() => Ok(None),
        None => permit(Need::Known).and(Err(Denied::NotFound)),
    }
}

/// Whether a page in a browser makes the call, and not a person who typed the address. A browser
/// sends the page's origin with each call except plain GET and HEAD. For calls to this machine it
/// also reports that another site makes them.
pub(super) fn is_of_a_page(headers: &HeaderMap) -> bool {
    let sites = headers.get_all("sec-fetch-site").iter();
    headers.contains_key(header::ORIGIN) || sites.into_iter().any(|site| site != "none" && site != "same-origin")
}

/// The token of `Authorization: Bearer`. A repeated field is ambiguous, so it counts as no token.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers.get_all(header::AUTHORIZATION))?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The only line of a field. Repeated lines are ambiguous, so none counts.
pub(super) fn only(lines: GetAll<'_, HeaderValue>) -> Option<&str> {
    let mut lines = lines.iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    line.to_str().ok()
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

    #[test]
    fn a_bearer_token_is_read_in_any_spelling_of_the_scheme() {
        let headers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            headers
        };
        for (values, token) in [
            (&["Bearer abc"][..], Some("abc")),
            (&["bearer  abc "], Some("abc")),
            (&["Basic abc"], None),
            (&["Bearer"], None),
            (&["Bearer abc", "Bearer abc"], None),
            (&[], None),
        ] {
            assert_eq!(bearer(&headers(values)), token, "{values:?}");
        }
    }
}
