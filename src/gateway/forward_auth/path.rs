//! The path of a request in the form that rules match.

use percent_encoding::percent_decode;

use super::readings;
use crate::config::{PathMatch, PathPattern};

/// A path as rules match it, and as backends may read it instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Decoded, without dot segments, repeated slashes and a trailing one.
    pub own: String,
    pub others: Vec<String>,
}

/// Decodes the path of a target once, and then removes dot segments, repeated slashes and a
/// trailing one. None for a target that has no path, or one whose bytes backends read in other
/// ways.
///
/// The order is the one by which a client would hide a segment: `/%2e%2e/` is a dot segment, and
/// `%2f` separates. A second decoding would make two paths equal that the backend keeps apart.
pub(super) fn read(target: &str) -> Option<Paths> {
    let own = |own: &str| Some(Paths { own: own.to_owned(), others: Vec::new() });
    let path = without_authority(target);
    let path = path.split('?').next().unwrap_or_default();
    // A target has neither of these (RFC 9112, 3.2). A backend may end the path there, or not.
    if path.contains(['#', ' ']) || !has_whole_escapes(path.as_bytes()) {
        return None;
    }
    match path {
        "" => return own("/"),
        // RFC 9112, 3.2.4.
        "*" => return own("*"),
        _ if !path.starts_with('/') => return None,
        _ => {}
    }
    // Backends replace, drop or reject bytes that are not UTF-8, such as overlong forms of `/`.
    let decoded = percent_decode(path.as_bytes()).decode_utf8().ok()?;
    // A backend may read a backslash as a slash, and end the path at a control character.
    if decoded.contains(|letter: char| letter == '\\' || letter.is_control()) || is_encoded_twice(decoded.as_bytes()) {
        return None;
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => _ = kept.pop(),
            // Servlets drop parameters of a segment before they remove dot segments.
            _ if segment.starts_with("..;") || segment.starts_with(".;") => return None,
            segment => kept.push(segment),
        }
    }
    let own = joined(kept.into_iter());
    let has_encoded_slash = decoded.matches('/').count() > path.matches('/').count();
    let is_ambiguous = has_encoded_slash || decoded.contains("/.") || path.starts_with("//");
    let others = if is_ambiguous { readings::others(path, &own)? } else { Vec::new() };
    Some(Paths { own, others })
}

pub(super) fn joined<'a>(segments: impl Iterator<Item = &'a str>) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.push_str(segment);
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Whether two hexadecimal digits follow each `%`. Backends reject, keep or guess other escapes,
/// such as `%u006c`.
fn has_whole_escapes(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'%');
    parts.next();
    parts.all(|part| part.len() >= 2 && part[..2].iter().all(u8::is_ascii_hexdigit))
}

/// Whether a second decoding would reveal a letter, a digit, a dot or a separator. Clients encode
/// none of the former (RFC 3986, 2.3), so only a request that hides its path has them.
fn is_encoded_twice(decoded: &[u8]) -> bool {
    let escapes = decoded.windows(3).filter(|escape| escape[0] == b'%' && has_whole_escapes(escape));
    escapes
        .flat_map(percent_decode)
        .any(|byte| byte.is_ascii_alphanumeric() || byte.is_ascii_control() || b"-._~/\\;".contains(&byte))
}

/// Whether one of the patterns has the normalised path.
pub(super) fn is_one_of(paths: &PathMatch, path: &str) -> bool {
    let stripped = paths.strip_parameters.then(|| without_parameters(path));
    let path = stripped.as_deref().unwrap_or(path);
    let folded = paths.ignore_case.then(|| PathMatch::fold(path));
    let path = folded.as_deref().unwrap_or(path);
    paths.patterns.iter().any(|pattern| is_at(pattern, path))
}

/// The path without the parameters of its segments, as servlets read it.
fn without_parameters(path: &str) -> String {
    joined(
        path.split('/')
            .map(|segment| segment.split(';').next().unwrap_or_default())
            .filter(|name| !name.is_empty()),
    )
}

fn is_at(pattern: &PathPattern, path: &str) -> bool {
    match pattern {
        PathPattern::Only(only) => path == only,
        PathPattern::Below(root) => {
            let rest = path.strip_prefix(root.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    }
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
            ("/a/../b%2Flogin", "/b/login"),
            ("/%2e%2e/v1%2flogin", "/v1/login"),
            ("/a%2flogin", "/a/login"),
            ("/%2flogin", "/login"),
            ("/login%2f", "/login"),
            ("/%3flogin", "/?login"),
            ("/login%20", "/login "),
            ("/100%25", "/100%"),
            ("/a%2520b", "/a%20b"),
            ("/caf%C3%A9", "/caf\u{e9}"),
            ("/caf\u{e9}", "/caf\u{e9}"),
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
            assert_eq!(read(target).map(|paths| paths.own).as_deref(), Some(path), "{target}");
        }
        for target in ["login", "../login", ":80/login", "%2flogin", "\\login", "**", "other:443"] {
            assert_eq!(read(target), None, "{target}");
        }
        for target in ["/login#top", "/health#/../login", "http://other#/login", "/health\\..\\login"] {
            assert_eq!(read(target), None, "{target}");
        }
        for target in
            ["/health/..;/login", "/health/..;v=1/login", "/health/%2e%2e;/login", "/.;/login", "/..%3b/login"]
        {
            assert_eq!(read(target), None, "{target}");
        }
    }

    #[test]
    fn paths_that_backends_read_in_several_ways_are_malformed() {
        for target in [
            "/health%5c..%5Clogin",
            "/login%00",
            "/login%00.png",
            "/login%09",
            "/login%0a",
            "/login\t",
            "/login%7f",
            "/login%c2%85",
            "/login /x",
            "/login%",
            "/login%6",
            "/%zzlogin",
            "/%u006cogin",
            "/%6\u{663}ogin",
            "/login%ff",
            "/health/%c0%ae%c0%ae/login",
            "/x%c0%aflogin",
            "/%e0%80%af",
            "/%ed%a0%80",
            "/%256cogin",
            "/%25%36%63ogin",
            "/health/%252e%252e/login",
            "/health%252f..%252flogin",
            "/health/..%255clogin",
            "/login%2500",
            "/login%253bx",
        ] {
            assert_eq!(read(target), None, "{target}");
        }
    }

    #[test]
    fn paths_whose_dot_segments_depend_on_an_encoded_slash_are_malformed() {
        for target in [
            "/account/..%2fhealth",
            "/account/..%2Fhealth",
            "/account/%2e%2e%2fhealth",
            "/account/%2E.%2Fhealth",
            "/account%2f../health",
            "/account%2F%2e%2e%2Fhealth",
            "/account%2f..",
            "/account/7%2f/../../health",
            "/account/%2f../health",
            "/account/..%2f..",
            "/account/..%2f",
            "/account/.%2f7",
            "/account/7%2f.",
            "/a%2fb/../c",
            "http://other/account/..%2fhealth",
        ] {
            assert_eq!(read(target), None, "{target}");
        }
    }

    #[test]
    fn backends_may_read_other_paths() {
        for (target, others) in [
            ("/login", &[][..]),
            ("/a/.well-known/x", &[]),
            ("/login%2f", &["/login%2F"]),
            ("/account%2f7", &["/account%2F7"]),
            ("/account/../health", &["/account/../health"]),
            ("/a/../account/%2e%2e/health", &["/a/../account/../health", "/account/../health"]),
            ("//x/login", &["/login"]),
            ("///x/login", &["/login"]),
            ("//login", &["/"]),
            ("/account//../health", &["/account/../health", "/account/health"]),
            ("/x/;/../account", &["/account", "/x/../account", "/x/;/../account"]),
        ] {
            assert_eq!(read(target).unwrap().others, others, "{target}");
        }
    }

    #[test]
    fn a_rule_may_ignore_case_and_parameters() {
        let patterns = || vec![PathPattern::Only("/login".into()), PathPattern::Below("/v1".into())];
        let fits = |ignore_case, strip_parameters, path| {
            is_one_of(&PathMatch { patterns: patterns(), ignore_case, strip_parameters }, path)
        };
        for (path, plain, case, parameters, both) in [
            ("/login", true, true, true, true),
            ("/Login", false, true, false, true),
            ("/LOGIN", false, true, false, true),
            ("/V1/a", false, true, false, true),
            ("/V10", false, false, false, false),
            ("/login;x=1", false, false, true, true),
            ("/login;", false, false, true, true),
            ("/;x/login", false, false, true, true),
            ("/v1;x/a;y", false, false, true, true),
            ("/logIn;X", false, false, false, true),
            ("/lo\u{131}gin", false, false, false, false),
            ("/log\u{131}n", false, true, false, true),
            ("/login/;x", false, false, true, true),
            ("/login;x/y", false, false, false, false),
        ] {
            let found = [(false, false), (true, false), (false, true), (true, true)]
                .map(|(case, parameters)| fits(case, parameters, path));
            assert_eq!(found, [plain, case, parameters, both], "{path}");
        }
    }
}
