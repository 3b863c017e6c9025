//! The names in a gate: headers, methods, hosts and paths.

use std::net::Ipv6Addr;

use crate::config::gate::{PathPattern, RuleMatch, is_token};
use crate::config::node::Node;
use crate::config::scalar::excerpt;

/// Headers that clients set, or that another setting reads.
const REFUSED: &[(&str, &str)] = &[
    ("authorization", "the client's own, which nobody has verified"),
    ("proxy-authorization", "the client's own, which nobody has verified"),
    ("cookie", "the client's own, which nobody has verified"),
    ("origin", "the client's own"),
    ("x-tollgate-token", "the token of the proxy"),
    ("host", "read by `{host}` and `hosts`"),
    ("forwarded", "never read"),
    ("x-forwarded-for", "read by `client_from`: a key names it `{client_ip}`"),
    ("x-real-ip", "read by `client_from`: a key names it `{client_ip}`"),
];

/// The header names in faults.
pub(super) const HEADER: &str = "the name of a header, such as `x-user`";

/// A header that a rule or a key may use, in lower case.
///
/// # Errors
/// The fault.
pub(super) fn header(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("`{}` is no name of a header: write one such as `x-user`", excerpt(text)));
    }
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, why)) => Err(format!("the header `{name}` cannot be used here: it is {why}")),
        None if name.starts_with("sec-fetch-") => {
            Err(format!("the header `{name}` cannot be used here: it is the client's own"))
        }
        None => Ok(name),
    }
}

/// A method in upper case.
pub(super) fn method(node: &Node) -> Option<String> {
    node.parsed("a method such as `POST`", RuleMatch::method)
}

/// A host in lower case, without a port or a final dot.
pub(super) fn host(node: &Node) -> Option<String> {
    node.parsed("a host without a port, such as `api.example.com`", |text| {
        if let Some(inside) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return inside.parse::<Ipv6Addr>().ok().map(|address| format!("[{address}]"));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let plain = text.strip_suffix('.').unwrap_or(text);
        (!plain.is_empty() && plain.bytes().all(is_name)).then(|| plain.to_ascii_lowercase())
    })
}

/// A path, or one with all below it.
pub(super) fn path(node: &Node) -> Option<PathPattern> {
    let what = "a path such as `/login`, or `/v1/*` for it and all below it";
    if let Some(decoded) = decoded(node.text(what)?) {
        node.note(format!("paths are decoded before they match: write `{}`", excerpt(&decoded)));
        return None;
    }
    node.parsed(what, |text| {
        let (path, is_below) = text.strip_suffix("/*").map_or((text, false), |path| (path, true));
        let path = path.strip_suffix('/').unwrap_or(path);
        let is_dots = |part: &str| [".", ".."].contains(&part.split(';').next().unwrap_or_default());
        let is_plain = |part: &str| !part.is_empty() && !is_dots(part) && !part.contains(['*', '?', '#', '\\']);
        let parts = path.strip_prefix('/').map(|path| path.split('/'));
        let is_path = text.starts_with('/') && parts.is_none_or(|mut parts| parts.all(is_plain));
        is_path.then(|| match is_below {
            true => PathPattern::Below(path.to_owned()),
            false => PathPattern::Only(if path.is_empty() { "/" } else { path }.to_owned()),
        })
    })
}

/// The text without its escapes, if it has some.
fn decoded(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    (decoded != text).then(|| decoded.into_owned())
}
