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

/// A new id: 64 random bits of this process, then a 64-bit counter with a random start, disguised.
/// Nodes need no coordination for unique ids. The disguise is the finaliser of SplitMix64 (Steele
/// et al. 2014). It is a bijection, so ids of one process never repeat.
fn made() -> HeaderValue {
    static RANDOM: LazyLock<([u8; 16], AtomicU64)> = LazyLock::new(|| {
        let random = || RandomState::new().hash_one(0);
        (digits(random()), random().into())
    });
    let (process, next) = &*RANDOM;
    let mut id = [0; 32];
    id[..16].copy_from_slice(process);
    id[16..].copy_from_slice(&digits(disguised(next.fetch_add(1, Ordering::Relaxed))));
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

fn disguised(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
