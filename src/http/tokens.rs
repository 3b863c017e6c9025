//! Checks the caller's token. Paths without a call are for operators only.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::access::{Access, Need, Reach, Refused};

/// The challenge of a 401.
pub(super) const CHALLENGE: HeaderValue = HeaderValue::from_static(r#"Bearer realm="tollgate""#);

/// The reason for a rejected call.
pub(super) enum Denied {
    /// 401 without a known token. 403 for a token without the right, or for a page without a token.
    Refused(Refused),
    /// 404: only operators learn that a path has no call.
    NotFound,
}

/// Checks whether the caller may make a call with this need; `None` is a path without a call.
///
/// # Errors
/// The reason for the rejection.
pub(super) fn permit(access: &Access, reach: Reach, need: Option<Need>, headers: &HeaderMap) -> Result<(), Denied> {
    let permit = |need| access.permit(need, reach, || bearer(headers));
    let need = match need {
        // Pages do not get the policies that every caller on this machine may read.
        Some(Need::Policies) if access.check.is_empty() && is_of_a_page(headers) => Some(Need::Admin),
        need => need,
    };
    match need {
        Some(Need::Admin) if access.admin.is_empty() && is_of_a_page(headers) => {
            permit(Need::Admin).and(Err(Refused::Page)).map_err(Denied::Refused)
        }
        Some(need) => permit(need).map_err(Denied::Refused),
        None if permit(Need::Admin).is_ok() => Ok(()),
        None => permit(Need::Check).map_err(Denied::Refused).and(Err(Denied::NotFound)),
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
