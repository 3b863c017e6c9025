//! The id of a request, for its answer and the logs: the caller's own, or a new one.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken from a caller, bytes.
const MAX_BYTES: usize = 128;

/// The id of the request with these fields.
pub(super) fn of(headers: &HeaderMap) -> HeaderValue {
    taken(headers).unwrap_or_else(made)
}

/// The caller's id, if it can be repeated and logged safely.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(NAME)?;
    let visible = (1..=MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    visible.then(|| id.clone())
}

/// 128 bits under a random key of this process: unique among nodes without asking anyone.
fn made() -> HeaderValue {
    static RANDOM: LazyLock<(RandomState, RandomState)> = LazyLock::new(Default::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let bits = u128::from(RANDOM.0.hash_one(number)) << 64 | u128::from(RANDOM.1.hash_one(number));
    let digit = |place: usize| b"0123456789abcdef"[(bits >> (124 - 4 * place)) as usize & 0xf];
    let id: [u8; 32] = std::array::from_fn(digit);
    // Hexadecimal digits are always a valid field value.
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("0"))
}
