//! The URL of one Redis node. A fault never repeats the URL: it may hold a password.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

use super::login::{Login, Password};

const DEFAULT_PORT: u16 = 6379;

const SCHEMES: [&str; 2] = ["redis", "rediss"];

const EXAMPLE: &str = "write `redis://host:port`, such as `redis://127.0.0.1:7001`";

/// The parts of a node's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seed {
    /// `redis://host:port`, or `rediss://`: without a user or password.
    pub url: String,
    pub tls: bool,
    pub login: Option<Login>,
}

/// The reason why a text is no URL of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UrlFault {
    /// It names several nodes: the correction depends on its place.
    Several,
    /// A sentence with the correction.
    Other(String),
}

impl From<String> for UrlFault {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// Parses a URL, or returns the correction.
pub(super) fn seed(text: &str) -> Result<Seed, UrlFault> {
    one(text).map_err(|reason| if names_several_servers(text) { UrlFault::Several } else { UrlFault::Other(reason) })
}

/// Whether an invalid text looks like the URLs, or the servers, of several nodes.
fn names_several_servers(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let separates = |letter: char| letter == ',' || letter == ';' || letter == '|' || letter.is_whitespace();
    let servers = rest.rsplit_once('@').map_or(rest, |(_, servers)| servers);
    let is_known = SCHEMES.contains(&scheme.trim_start());
    is_known && (rest.contains("://") || servers.contains(separates))
}

fn one(text: &str) -> Result<Seed, String> {
    let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("not the URL of a Redis: {EXAMPLE}"))?;
    if !SCHEMES.contains(&scheme) {
        return Err(format!("not the URL of a Redis: {EXAMPLE}"));
    }
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let login = user.map(login).transpose()?;
    if rest.contains(['?', '#']) {
        return Err(format!("parameters in the URL are not supported: {EXAMPLE}"));
    }
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_database(database)?;
    let (host, port) =
        host_and_port(authority, DEFAULT_PORT).ok_or_else(|| format!("no host and port in the URL: {EXAMPLE}"))?;
    Ok(Seed { url: format!("{scheme}://{host}:{port}"), tls: scheme == "rediss", login })
}

/// `user:password` or `:password`, each percent-encoded. Other programs may end an unencoded one at
/// another character (RFC 3986, 3.2.1), and so read another host.
fn login(text: &str) -> Result<Login, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%".contains(&byte);
    if !text.bytes().all(is_allowed) {
        let right = "must be percent-encoded: `@` as `%40`, `/` as `%2F`, a blank as `%20`";
        return Err(format!("the user and password in the URL {right}"));
    }
    let wrong = || "the user and password in the URL must be written `user:password@` or `:password@`, percent-encoded";
    let (user, password) = text.split_once(':').ok_or_else(wrong)?;
    let decoded = |part| percent_decode_str(part).decode_utf8().map(String::from).map_err(|_| wrong());
    let (user, password) = (decoded(user)?, decoded(password)?);
    if password.is_empty() {
        return Err(wrong().to_owned());
    }
    Ok(Login { username: Some(user).filter(|user| !user.is_empty()), password: Password::Text(password) })
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

/// Parses `host:port`, or a host alone.
pub(super) fn host_and_port(authority: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = split_port(authority)?;
    let port = match port {
        Some(digits) => digits.parse().ok().filter(|port| *port > 0)?,
        None => default_port,
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
            assert_eq!(seed(written).map(|seed| seed.url).as_deref(), Ok(read));
        }
    }

    #[test]
    fn a_user_and_password_are_taken_out_of_the_url() {
        let login = |username: Option<&str>, password: &str| {
            Some(Login { username: username.map(str::to_owned), password: Password::Text(password.to_owned()) })
        };
        let cases = [
            ("rediss://cache", "rediss://cache:6379", None),
            ("redis://me:secret@cache:1", "redis://cache:1", login(Some("me"), "secret")),
            ("rediss://:p%40ss@[::1]:1", "rediss://[::1]:1", login(None, "p@ss")),
            ("redis://me:a:b%40c@cache", "redis://cache:6379", login(Some("me"), "a:b@c")),
            ("redis://me:a,b;c@cache", "redis://cache:6379", login(Some("me"), "a,b;c")),
        ];
        for (written, url, login) in cases {
            let read = seed(written).unwrap();
            assert_eq!((read.url.as_str(), read.tls, &read.login), (url, url.starts_with("rediss"), &login));
            assert!(!format!("{read:?}").contains("secret"), "{read:?}");
        }
    }

    #[test]
    fn rejected_urls_name_the_reason_without_secrets() {
        let refused = one("redis://c/3").unwrap_err();
        assert!(refused.contains("not yet supported"), "{refused}");
        for text in
            ["redis://secret@cache", "redis://u:secret@cache:0", "redis://u:secret%FF@cache", "http://u:secret@c"]
        {
            let refused = one(text).unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn several_servers_in_one_url_are_refused_as_that() {
        for text in [
            "redis://u:pw@h1:1,redis://u:pw@h2:2",
            "redis://h1:1,redis://h2:2",
            "redis://h1:1,h2:2",
            "redis://u:pw@h1:1,h2:2",
            "redis://h1:1;redis://h2:2",
            "redis://u:pw@h1;h2",
            "redis://h1 redis://h2",
            "redis://h1:1\nredis://h2:2",
            "rediss://u:pw@h1:1 ",
            " redis://h1,redis://h2",
            "redis://u:pw@h1:1/0,redis://u:pw@h2:2/0",
        ] {
            assert_eq!(seed(text), Err(UrlFault::Several), "{text:?}");
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
            "redis://me@cache",
            "redis://me:@cache",
            "redis://me:a@b@cache",
            "redis://me:a/b@cache",
            "redis://me:a?b@cache",
            "redis://me:a#b@cache",
            "redis://me:a b@cache",
            "redis://me:p\u{e4}ss@cache",
            "redis://me:pw@other@cache:1",
            "redis://cache\t:1",
        ];
        for text in cases {
            assert!(seed(text).is_err(), "{text}");
        }
    }
}
