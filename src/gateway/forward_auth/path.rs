//! The path of a request in the form that rules match.

use percent_encoding::percent_decode;

/// Decodes the path of a target once, and then removes dot segments, repeated slashes and a
/// trailing one. None for a target that has no path, or one that backends read in other ways.
///
/// The order is the one by which a client would hide a segment: `/%2e%2e/` is a dot segment, and
/// `%2f` separates. A second decoding would make two paths equal that the backend keeps apart.
pub(super) fn normalise(target: &str) -> Option<Vec<u8>> {
    let path = without_authority(target);
    let path = path.split('?').next().unwrap_or_default();
    // A target has neither of these (RFC 9112, 3.2). A backend may end the path there, or not.
    if path.contains(['#', '\\']) {
        return None;
    }
    match path {
        "" => return Some(b"/".to_vec()),
        // RFC 9112, 3.2.4.
        "*" => return Some(b"*".to_vec()),
        _ if !path.starts_with('/') => return None,
        _ => {}
    }
    let decoded: Vec<u8> = percent_decode(path.as_bytes()).collect();
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => _ = kept.pop(),
            // Servlets drop parameters of a segment before they remove dot segments.
            _ if segment.starts_with(b"..;") || segment.starts_with(b".;") => return None,
            segment => kept.push(segment),
        }
    }
    let mut normal = Vec::with_capacity(decoded.len());
    for segment in kept {
        normal.push(b'/');
        normal.extend_from_slice(segment);
    }
    Some(if normal.is_empty() { b"/".to_vec() } else { normal })
}

/// A target may have the form `http://host/path` (RFC 9112, 3.2.2). The path may begin with `//`.
fn without_authority(target: &str) -> &str {
    let rest = target.split_once("://").filter(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    match rest {
        Some((_, rest)) => rest.find(['/', '?', '#']).map_or("", |start| &rest[start..]),
        None => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_form() {
        for (target, path) in [
            ("/login", "/login"),
            ("/login/", "/login"),
            ("/login?next=/admin", "/login"),
            ("/login?next=#top", "/login"),
            ("/login%23/../top", "/top"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/a/b/../../login/.", "/login"),
            ("/login/..", "/"),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("/a/%2e%2E/login", "/login"),
            ("/a/.%2e/login", "/login"),
            ("/a%2f..%2Flogin", "/login"),
            ("/%2flogin", "/login"),
            ("/login%2f", "/login"),
            ("/%3flogin", "/?login"),
            ("/%256cogin", "/%6cogin"),
            ("/%252e%252e/login", "/%2e%2e/login"),
            ("/%zzlogin", "/%zzlogin"),
            ("/login%", "/login%"),
            ("/Login", "/Login"),
            ("/login;v=1", "/login;v=1"),
            ("/...", "/..."),
            ("http://other/login", "/login"),
            ("HTTPS://other:8443/login?x", "/login"),
            ("http://other", "/"),
            ("http://other?x=/login", "/"),
            ("/http://other/login", "/http:/other/login"),
            ("/a?u=http://other/login", "/a"),
            ("", "/"),
            ("?x", "/"),
            ("/", "/"),
            ("*", "*"),
        ] {
            assert_eq!(
                normalise(target).map(|path| String::from_utf8(path).unwrap()).as_deref(),
                Some(path),
                "{target}"
            );
        }
        for target in ["login", "../login", ":80/login", "%2flogin", "\\login", "**", "other:443"] {
            assert_eq!(normalise(target), None, "{target}");
        }
        for target in ["/login#top", "/health#/../login", "http://other#/login", "/health\\..\\login"] {
            assert_eq!(normalise(target), None, "{target}");
        }
        for target in ["/health/..;/login", "/health/..;v=1/login", "/health/%2e%2e;/login", "/.;/login"] {
            assert_eq!(normalise(target), None, "{target}");
        }
        assert_eq!(normalise("/%ff%00").as_deref(), Some(&b"/\xff\0"[..]));
    }
}
