//! The host of a request in the form that rules match.

use std::net::Ipv6Addr;

/// A host in lower case, without port and final dot. None for a text that is no host.
pub(super) fn host(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        check_port(port)?;
        // The zone is no part of the address, and IPv4 has no brackets (RFC 3986, 3.2.2).
        let address = inside.split('%').next()?.parse::<Ipv6Addr>().ok()?;
        return Some(format!("[{address}]"));
    }
    let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    check_port(port)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    // A backend may decode an escape, or ignore a dot.
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_name);
    name.split('.').all(is_label).then(|| name.to_ascii_lowercase())
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_~!$&'()*+;=".contains(&byte)
}

/// `port` is empty, or begins with a colon.
fn check_port(port: &str) -> Option<()> {
    let is_right = port
        .strip_prefix(':')
        .map_or(port.is_empty(), |port| port.bytes().all(|byte| byte.is_ascii_digit()));
    is_right.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_form() {
        for (text, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM", "api.example.com"),
            ("api.example.com:443", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com.:443", "api.example.com"),
            ("api.example.com:", "api.example.com"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[2001:db8:0::0:1]", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("[fe80::1%25eth0]:80", "[fe80::1]"),
            ("[fe80::1%eth0]", "[fe80::1]"),
        ] {
            assert_eq!(host(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            ".",
            ":80",
            "a b",
            "a, b",
            "a/b",
            "a:b",
            "a:1:2",
            "me@a",
            "[::1",
            "[x]",
            "::1",
            "[::1]x",
            "a\u{e4}",
            "a..",
            "..",
            "a..b",
            ".a",
            "a%2eb",
            "a%00",
            "a\tb",
            "a#b",
            "a\\b",
            "[1.2.3.4]",
            "a,b",
            "@a",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }
}
