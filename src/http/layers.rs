//! What surrounds every handler: who may call, the request id, and the end of a connection.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::lifecycle::{Lifecycle, Phase};
use super::{access, body};
use crate::access::Reach;
use crate::reload::Reloader;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken from a caller, bytes.
const MAX_ID_BYTES: usize = 128;

/// What it knows of the node and of the listener.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub lifecycle: Lifecycle,
    pub reloader: Arc<Reloader>,
    pub reach: Reach,
}

/// Lets only those in who may, gives each answer its request id, and a connection that is to end its notice.
pub(super) async fn envelope(State(envelope): State<Envelope>, request: Request, next: Next) -> Response {
    let Envelope { lifecycle, reloader, reach } = envelope;
    let id = taken(request.headers()).unwrap_or_else(made);
    let version = request.version();
    let permitted = access::permit(&reloader.access(), reach, &request);
    let request = body::lingering(request);
    let mut response = match permitted {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, access::CHALLENGE);
    }
    response.headers_mut().insert(X_REQUEST_ID, id);
    if version < Version::HTTP_2 && lifecycle.reached(Phase::Closing) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The caller's id, if it can be repeated and logged safely.
fn taken(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(X_REQUEST_ID)?;
    let visible = (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    visible.then(|| id.clone())
}

/// 128 bits under a random key of this process: unique among nodes without asking anyone.
fn made() -> HeaderValue {
    static RANDOM: LazyLock<(RandomState, RandomState)> = LazyLock::new(Default::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:016x}{:016x}", RANDOM.0.hash_one(number), RANDOM.1.hash_one(number));
    // Hexadecimal digits are always a valid field value.
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("0"))
}
