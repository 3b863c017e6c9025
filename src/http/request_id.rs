//! The id of a request, for its answer and the logs: the caller's own, or a new one.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that a caller may send, bytes.
const MAX_BYTES: usize = 128;

/// The id of the request with these fields.
pub(super) fn of(headers: &HeaderMap) -> HeaderValue {
    taken(headers).unwrap_or_else(made)
}

/// The caller's id, if it is safe to repeat and log.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(NAME)?;
    let visible = (1..=MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    visible.then(|| id.clone())
}

/// A new id: 128 bits of a keyed hash of a counter. Nodes need no coordination for unique ids, and
/// an id does not reveal how many came before.
fn made() -> HeaderValue {
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
    let mut shift = 64;
    [0; 16].map(|_: u8| {
        shift -= 4;
        b"0123456789abcdef"[usize::from((number >> shift) as u8 & 15)]
    })
}
