//! The kinds of failures: status, name and title.

use axum::http::StatusCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    BadRequest,
    MalformedJson,
    InvalidRequest,
    InvalidConfiguration,
    NothingToReload,
    UnknownPolicy,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    IdReused,
    RequestTimeout,
    TooLarge,
    UnsupportedMediaType,
    StoreUnavailable,
    Overloaded,
    Internal,
}

impl Kind {
    /// Status, the last part of `type`, and title. Problems without a name say no more than their
    /// status (RFC 9457, 4.2.1).
    pub(super) fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "", "Bad Request"),
            Self::MalformedJson => (StatusCode::BAD_REQUEST, "malformed-json", "The body is not JSON"),
            Self::InvalidRequest => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", "The request says something it may not say")
            }
            Self::InvalidConfiguration => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid-configuration", "The configuration has faults")
            }
            Self::NothingToReload => (StatusCode::CONFLICT, "nothing-to-reload", "There is no file to load again"),
            Self::UnknownPolicy => (StatusCode::NOT_FOUND, "unknown-policy", "There is no policy of that name"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "The caller is not known"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The caller may not make this call"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is nothing at this path"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This path does not take that method")
            }
            Self::IdReused => (StatusCode::CONFLICT, "id-reused", "The id stands for another cost"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request-timeout", "The body did not arrive in time"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The body is not application/json")
            }
            Self::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store gave no decision")
            }
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many calls are in flight"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Tollgate has a bug"),
        }
    }
}
