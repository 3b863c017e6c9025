//! A table of the right that each call needs. Calls outside the table are for operators only.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::access::{Access, Need, Reach, Refused};

/// The challenge of a 401.
pub(super) const CHALLENGE: HeaderValue = HeaderValue::from_static(r#"Bearer realm="tollgate""#);

/// The right that a call of this path needs, or `None` for a path outside the table.
fn need(method: &Method, path: &str) -> Option<Need> {
    match path {
        "/health/live" | "/health/ready" | "/openapi.json" => Some(Need::Nothing),
        "/metrics" => Some(Need::Metrics),
        "/v1/usage" if method == Method::DELETE => Some(Need::Admin),
        "/v1/check" | "/v1/check/batch" | "/v1/check/all" | "/v1/usage" | "/v1/refund" => Some(Need::Check),
        "/v1/policies" => Some(Need::Policies),
        "/v1/reload" => Some(Need::Admin),
        _ => None,
    }
}

/// The reason for a rejected call.
pub(super) enum Stopped {
    /// 401 without a known token. 403 for a token without the right, or for a page without a token.
    Refused(Refused),
    /// 404: calls outside the table do not exist for callers other than operators.
    NotFound,
}

/// Checks whether the caller may make this call.
///
/// # Errors
/// The reason for the rejection.
pub(super) fn permit(access: &Access, reach: Reach, request: &Parts) -> Result<(), Stopped> {
    let permit = |need| access.permit(need, reach, || bearer(&request.headers));
    let need = match need(&request.method, request.uri.path()) {
        // Pages do not get the policies that every caller on this machine may read.
        Some(Need::Policies) if access.check.is_empty() && is_of_a_page(&request.headers) => Some(Need::Admin),
        need => need,
    };
    match need {
        Some(Need::Admin) if access.admin.is_empty() && is_of_a_page(&request.headers) => {
            permit(Need::Admin).and(Err(Refused::Page)).map_err(Stopped::Refused)
        }
        Some(need) => permit(need).map_err(Stopped::Refused),
        None if permit(Need::Admin).is_ok() => Ok(()),
        None => permit(Need::Check).map_err(Stopped::Refused).and(Err(Stopped::NotFound)),
    }
}

/// Whether a page in a browser makes the call, and not a person who typed the address. A browser
/// sends the page's origin with each call except plain GET and HEAD. For calls to this machine it
/// also reports that another site makes them.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let sites = headers.get_all("sec-fetch-site").iter();
    headers.contains_key(header::ORIGIN) || sites.into_iter().any(|site| site != "none" && site != "same-origin")
}

/// The token of `Authorization: Bearer`. A repeated field is ambiguous, so it counts as no token.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The sentence for a person.
pub(super) fn sentence(refused: Refused) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

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
