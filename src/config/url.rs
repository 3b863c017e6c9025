//! The URL of one Redis node. A fault never repeats the URL: it may hold a password.

use std::net::Ipv6Addr;

const DEFAULT_PORT: u16 = 6379;

const EXAMPLE: &str = "write `redis://host:port`, such as `redis://127.0.0.1:7001`";

/// The URL as `redis://host:port`, or what would be right.
pub(super) fn seed(text: &str) -> Result<String, String> {
    let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("not the URL of a Redis: {EXAMPLE}"))?;
    match scheme {
        "redis" => {}
        "rediss" => return Err(format!("TLS (`rediss://`) is not yet supported: {EXAMPLE}")),
        _ => return Err(format!("not the URL of a Redis: {EXAMPLE}")),
    }
    if rest.contains('@') {
        return Err(format!("a user or password in the URL is not yet supported: {EXAMPLE}"));
    }
    if rest.contains(['?', '#']) {
        return Err(format!("parameters in the URL are not supported: {EXAMPLE}"));
    }
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_database(database)?;
    let (host, port) = host_and_port(authority).ok_or_else(|| format!("no host and port in the URL: {EXAMPLE}"))?;
    Ok(format!("redis://{host}:{port}"))
}

fn refuse_database(database: &str) -> Result<(), String> {
    match database {
        "" | "0" => Ok(()),
        _ if database.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("a database other than 0 is not yet supported: a cluster has only that one".to_owned())
        }
        _ => Err(format!("a path in the URL: {EXAMPLE}")),
    }
}

fn host_and_port(authority: &str) -> Option<(String, u16)> {
    let (host, port) = split_port(authority)?;
    let port = match port {
        Some(digits) => digits.parse().ok().filter(|port| *port > 0)?,
        None => DEFAULT_PORT,
    };
    Some((host.to_ascii_lowercase(), port))
}

/// `host:port`, `host`, `[ipv6]:port` or `[ipv6]`; the brackets stay with the host.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, after) = authority.split_at(authority.find(']')? + 1);
        host.trim_matches(['[', ']']).parse::<Ipv6Addr>().ok()?;
        return if after.is_empty() { Some((host, None)) } else { Some((host, Some(after.strip_prefix(':')?))) };
    }
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    let letters = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    (letters && !host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_brought_to_host_and_port() {
        let cases = [
            ("redis://127.0.0.1:7001", "redis://127.0.0.1:7001"),
            ("redis://Cache-1.example", "redis://cache-1.example:6379"),
            ("redis://cache:7001/", "redis://cache:7001"),
            ("redis://cache:7001/0", "redis://cache:7001"),
            ("redis://[::1]:7001", "redis://[::1]:7001"),
            ("redis://[::1]", "redis://[::1]:6379"),
        ];
        for (written, read) in cases {
            assert_eq!(seed(written).as_deref(), Ok(read));
        }
    }

    #[test]
    fn what_is_not_built_is_named() {
        for text in ["rediss://cache:7001", "redis://user:secret@cache:7001", "redis://:secret@cache", "redis://c/3"] {
            let refused = seed(text).unwrap_err();
            assert!(refused.contains("not yet supported"), "{refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let cases = [
            "",
            "cache:7001",
            "http://cache",
            "redis://",
            "redis://:7001",
            "redis://cache:0",
            "redis://cache:70000",
            "redis://cache:",
            "redis://[::1",
            "redis://[x]:1",
            "redis://[::1]7001",
            "redis://a b",
            "redis://cache/x",
            "redis://cache?protocol=resp3",
        ];
        for text in cases {
            assert!(seed(text).is_err(), "{text}");
        }
    }
}
