//! The URL of one Redis node. A fault never repeats the URL: it may hold a password.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

use super::credentials::{Login, Password};

const DEFAULT_PORT: u16 = 6379;

/// The schemes of servers, and the one that a [`Seed`] has for each.
const SCHEMES: [(&str, &str); 4] =
    [("redis", "redis"), ("rediss", "rediss"), ("valkey", "redis"), ("valkeys", "rediss")];

const EXAMPLE: &str = "write `redis://host:port`, such as `redis://127.0.0.1:7001`";

const TLS_EXAMPLE: &str = "write `rediss://host:port`, such as `rediss://127.0.0.1:7001`";

const SOCKET: &str = "write `unix:///path`, such as `unix:///run/redis.sock`";

const DATABASE: &str = "leave it out, and name a `store.key_prefix` to keep the counts of several stores apart";

/// The most bytes of a socket's path (`sockaddr_un`, without the final zero).
const MAX_PATH: usize = 107;

/// The parts of a node's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seed {
    /// `redis://host:port`, `rediss://` or `unix:///path`: without a user or password.
    pub url: String,
    pub tls: bool,
    pub login: Option<Login>,
}

impl Seed {
    pub(super) fn is_socket(&self) -> bool {
        self.url.starts_with("unix:")
    }
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
    let scheme = scheme.trim_start().to_ascii_lowercase();
    let is_known = SCHEMES.iter().any(|(known, _)| *known == scheme);
    is_known && (rest.contains("://") || servers.contains(separates))
}

fn one(text: &str) -> Result<Seed, String> {
    let (scheme, rest) = text.split_once("://").ok_or_else(|| without_slashes(text))?;
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "unix" {
        return socket(rest);
    }
    let (_, scheme) = SCHEMES.iter().find(|(known, _)| *known == scheme).ok_or_else(|| other_scheme(&scheme))?;
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let login = user.map(login).transpose()?;
    refuse_parameters(rest, scheme)?;
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_database(database, example(scheme))?;
    let missing = || format!("no host and port in the URL: {}", example(scheme));
    let (host, port) = host_and_port(authority, DEFAULT_PORT).ok_or_else(missing)?;
    Ok(Seed { url: format!("{scheme}://{host}:{port}"), tls: *scheme == "rediss", login })
}

fn without_slashes(text: &str) -> String {
    match text.starts_with("unix:") {
        true => format!("not the path of a Unix socket: {SOCKET}"),
        false => format!("not the URL of a Redis: {EXAMPLE}"),
    }
}

/// Names the form that a URL of another program has here.
fn other_scheme(scheme: &str) -> String {
    let has = |parts: &[&str]| parts.iter().any(|part| scheme.contains(part));
    let is_known = has(&["redis", "valkey"]);
    if has(&["sentinel"]) {
        "a Sentinel goes into `store.sentinel`: write `{master: mymaster, nodes: [\"host:26379\"]}`".to_owned()
    } else if is_known && has(&["cluster"]) {
        "a node detects a cluster by itself: write `redis://host:port` for some of its nodes, or `rediss://` with TLS"
            .to_owned()
    } else if has(&["unix", "socket"]) {
        format!("not the path of a Unix socket: {SOCKET}")
    } else if is_known && has(&["ssl", "tls"]) || matches!(scheme, "tls" | "ssl") {
        "write `rediss://host:port` for a Redis with TLS".to_owned()
    } else {
        format!("not the URL of a Redis: {EXAMPLE}")
    }
}

/// `/path`, or `user:password@/path`.
fn socket(rest: &str) -> Result<Seed, String> {
    let (user, path) = match rest.split_once("@/") {
        Some((user, _)) if !rest.starts_with('/') => (Some(user), &rest[user.len() + 1..]),
        _ => (None, rest),
    };
    let login = user.map(login).transpose()?;
    refuse_parameters(path, "unix")?;
    let wrong = || format!("not the path of a Unix socket: {SOCKET}");
    let path = percent_decode_str(path).decode_utf8().map_err(|_| wrong())?;
    if !path.starts_with('/') || path.ends_with('/') || path.contains(char::is_control) {
        return Err(wrong());
    }
    if path.len() > MAX_PATH {
        return Err(format!("the path of a Unix socket has at most {MAX_PATH} bytes"));
    }
    Ok(Seed { url: format!("unix://{path}"), tls: false, login })
}

/// Refuses `?name=value` and `#name`, and names the setting that has its meaning.
fn refuse_parameters(rest: &str, scheme: &str) -> Result<(), String> {
    let Some((_, parameters)) = rest.split_once(['?', '#']) else { return Ok(()) };
    let parameters = parameters.to_ascii_lowercase();
    let names = || parameters.split(['&', '?', '#', ';']).map(|one| one.split('=').next().unwrap_or_default());
    let has = |known: &[&str]| names().any(|name| known.iter().any(|known| name.contains(known)));
    let instead = if names().any(|name| matches!(name, "db" | "database")) {
        DATABASE
    } else if has(&["timeout"]) {
        "`store.timeout` bounds the wait"
    } else if has(&["ssl", "tls", "insecure", "cert", "verify"]) {
        match scheme {
            "unix" => "leave them out, since a Unix socket is without TLS",
            "rediss" => {
                "leave them out, and name the files in `store.tls`; the node always checks the server's certificate"
            }
            _ => "begin the URL with `rediss://`, and name the files in `store.tls`",
        }
    } else if has(&["pass", "user", "auth"]) {
        "name `store.username` and `store.password_file`"
    } else {
        example(scheme)
    };
    Err(format!("parameters in the URL are not supported: {instead}"))
}

/// The form of URLs with this scheme.
fn example(scheme: &str) -> &'static str {
    match scheme {
        "unix" => SOCKET,
        "rediss" => TLS_EXAMPLE,
        _ => EXAMPLE,
    }
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

fn refuse_database(database: &str, example: &str) -> Result<(), String> {
    match database {
        "" | "0" => Ok(()),
        _ if database.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("a database number in the URL is not supported: {DATABASE}"))
        }
        _ => Err(format!("a path in the URL: {example}")),
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

/// `host:port` in lower case, where the port is not left out; an IPv6 host has brackets.
pub(super) fn address(text: &str) -> Option<String> {
    let (_, Some(_)) = split_port(text)? else { return None };
    host_and_port(text, DEFAULT_PORT).map(|(host, port)| format!("{host}:{port}"))
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
            ("valkey://cache", "redis://cache:6379"),
            ("valkeys://cache:7001", "rediss://cache:7001"),
            ("REDIS://cache:7001", "redis://cache:7001"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("unix:///run/my%20redis@home.sock", "unix:///run/my redis@home.sock"),
            ("unix://me:secret@/run/redis.sock", "unix:///run/redis.sock"),
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
        let rows = [
            ("redis://u:secret@c/3", "`store.key_prefix`"),
            ("redis://u:secret@c?db=3", "`store.key_prefix`"),
            ("unix:///run/redis.sock?db=3", "`store.key_prefix`"),
            ("redis://c?socket_timeout=secret", "`store.timeout`"),
            ("rediss://c?ssl_cert_reqs=secret", "`store.tls`"),
            ("rediss://c/#insecure", "leave them out, and name the files in `store.tls`"),
            ("rediss://c?tls_verify=secret", "leave them out, and name the files in `store.tls`"),
            ("redis://c/#insecure", "begin the URL with `rediss://`"),
            ("unix:///run/redis.sock?ssl=secret", "a Unix socket is without TLS"),
            ("rediss://c?x=y", "not supported: write `rediss://host:port`"),
            ("valkeys://c?x=y", "not supported: write `rediss://host:port`"),
            ("rediss://:7001", "write `rediss://host:port`"),
            ("rediss://c/secret", "write `rediss://host:port`"),
            ("unix:///run/redis.sock?x=y", "not supported: write `unix:///path`"),
            ("redis://c?password=secret", "`store.password_file`"),
            ("redis://c?protocol=secret", "`redis://host:port`"),
            ("redis-cluster://u:secret@c:1", "detects a cluster"),
            ("rediss+cluster://u:secret@c:1", "detects a cluster"),
            ("redis-sentinel://u:secret@c:1/mymaster", "`store.sentinel`"),
            ("redis+sentinel://c:1", "`store.sentinel`"),
            ("redis+unix:///run/secret", "`unix:///path`"),
            ("redis-socket:///run/secret", "`unix:///path`"),
            ("unix:/run/secret", "`unix:///path`"),
            ("unix://run/secret", "`unix:///path`"),
            ("redis+tls://u:secret@c:1", "`rediss://host:port`"),
            ("tcp://secret:1", "`redis://host:port`"),
            ("memcached://secret:1", "`redis://host:port`"),
        ];
        for (text, right) in rows {
            let refused = one(text).unwrap_err();
            assert!(refused.contains(right) && !refused.contains("secret"), "{text}: {refused}");
        }
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
            "valkey://h1:1,h2:2",
        ] {
            assert_eq!(seed(text), Err(UrlFault::Several), "{text:?}");
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let rows = [
            ("10.0.0.5:6379", Some("10.0.0.5:6379")),
            ("Redis-1.example:7001", Some("redis-1.example:7001")),
            ("[::1]:7001", Some("[::1]:7001")),
            ("10.0.0.5", None),
            ("10.0.0.5:0", None),
            (":6379", None),
            ("::1:7001", None),
            ("redis://10.0.0.5:6379", None),
            ("u:pw@h:1", None),
        ];
        for (text, read) in rows {
            assert_eq!(address(text).as_deref(), read, "{text}");
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
            "unix://",
            "unix:///",
            "unix:///run/",
            "unix:///run/\u{1b}",
            "unix://me@/run/redis.sock",
        ];
        for text in cases {
            assert!(seed(text).is_err(), "{text}");
        }
    }
}
