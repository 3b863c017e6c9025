//! The problems of requests that the engine does not get.

use axum::http::{Method, Uri};

use super::document::Problem;
use super::kind::Kind;
use super::suggest::did_you_mean;
use super::violations::Violations;
use crate::access::Refused;

impl Problem {
    /// 400, and the connection closes: the request is malformed HTTP.
    pub(in crate::http) fn malformed_http(detail: &'static str) -> Self {
        Self::new(Kind::BadRequest, detail)
    }

    /// 400: `detail` says where the JSON is malformed.
    pub(in crate::http) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Kind::MalformedJson, detail)
    }

    /// 401 or 403.
    pub(in crate::http) fn refused(refused: Refused) -> Self {
        let kind = match refused {
            Refused::NoToken | Refused::UnknownToken => Kind::Unauthorized,
            Refused::NeedsAdmin | Refused::NoAdminTokens | Refused::Page => Kind::Forbidden,
        };
        Self::new(kind, sentence(refused))
    }

    /// 404: no call has this path. `known` are the paths that a wrong one may mean.
    pub(in crate::http) fn not_found(uri: &Uri, known: impl Iterator<Item = &'static str>) -> Self {
        let path: String = uri.path().chars().take(200).collect();
        let parts = path.split('/').filter(|part| !part.is_empty());
        let meant: String = parts.flat_map(|part| ["/", part]).collect();
        Self::new(Kind::NotFound, format!("no call has the path {path}{}", did_you_mean(&meant, known)))
    }

    /// 408: the body was incomplete when its time was over.
    pub(in crate::http) fn slow_body() -> Self {
        Self::new(Kind::RequestTimeout, "send the whole body within 10 seconds")
    }

    /// 413: the body, or its declared length, exceeds `limit` bytes.
    pub(in crate::http) fn too_large(limit: usize) -> Self {
        Self::new(Kind::TooLarge, format!("the body of this call may have up to {limit} bytes"))
    }

    /// 415: `detail` says what to send.
    pub(in crate::http) fn unsupported_media_type(detail: impl Into<String>) -> Self {
        Self::new(Kind::UnsupportedMediaType, detail)
    }

    /// 503: the node is overloaded and decided nothing.
    pub(in crate::http) fn overloaded() -> Self {
        Self::new(Kind::Overloaded, "this node has as many calls in flight as it takes; ask again in a second")
    }

    /// 503: clients do not read their answers. The node has not decided the call, or has no room
    /// for its long answer.
    pub(in crate::http) fn unread() -> Self {
        Self::new(
            Kind::Overloaded,
            "the clients of this node leave too many answers unread: read those of this connection first",
        )
    }
}

/// The sentence for a person.
fn sentence(refused: Refused) -> &'static str {
    match refused {
        Refused::NoToken => "send a token: Authorization: Bearer ...",
        Refused::UnknownToken => "the token is not known",
        Refused::NeedsAdmin => "this call needs an admin token, and this one is for checks",
        Refused::NoAdminTokens => {
            "this call needs an admin token, and none is configured: name auth.admin_token_files, or listen for \
             operators on loopback (admin_listen) without tokens"
        }
        Refused::Page => {
            "a page in a browser may not make this call without a token: make it without Origin and Sec-Fetch-Site, or name \
             auth.admin_token_files and send a token"
        }
    }
}

/// The router adds `Allow`.
pub(in crate::http) async fn method_not_allowed(method: Method) -> Problem {
    Problem::new(Kind::MethodNotAllowed, format!("{method} is not one of the methods in the Allow field"))
}

/// Both parts of a request, or the faults of both.
pub(in crate::http) fn both<A, B>(body: Result<A, Problem>, query: Result<B, Violations>) -> Result<(A, B), Problem> {
    match (body, query) {
        (Ok(body), Ok(query)) => Ok((body, query)),
        (Ok(_), Err(violations)) => Err(Problem::invalid(violations)),
        (Err(problem), Ok(_)) => Err(problem),
        (Err(problem), Err(more)) => {
            let mut violations = problem.into_violations()?;
            violations.extend(more);
            Err(Problem::invalid(violations))
        }
    }
}
