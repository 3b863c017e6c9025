//! The whole URL of a request, as `X-Original-URL` has it.

/// The authority and the target. None for a text that is no URL of HTTP.
pub(super) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return None;
    }
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    (!authority.is_empty()).then_some((authority, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_an_authority_and_a_target() {
        for (url, parts) in [
            ("http://app.example.com/login", Some(("app.example.com", "/login"))),
            (
                "HTTPS://app.example.com:8443/login?x=http://y/",
                Some(("app.example.com:8443", "/login?x=http://y/")),
            ),
            ("https://[2001:db8::1]:443/", Some(("[2001:db8::1]:443", "/"))),
            ("https://app.example.com", Some(("app.example.com", ""))),
            ("https://app.example.com?x", Some(("app.example.com", "?x"))),
            ("https://app.example.com#x", Some(("app.example.com", "#x"))),
            ("https:///login", None),
            ("://app/login", None),
            ("/login", None),
            ("app.example.com/login", None),
            ("ftp://app/login", None),
            ("", None),
        ] {
            assert_eq!(split(url), parts, "{url}");
        }
    }
}
