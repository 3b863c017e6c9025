//! Tokens with names as passwords of Redis clients.

use std::io::Write;

use tempfile::TempDir;
use tollgate::access::TokenHash;
use tollgate::clock::unix_micros;

use super::{Door, encoded, read_until};
use crate::support::{Node, wait_until};

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";

/// A door with these tokens. The secret of each is its name.
fn door(tokens: &[(&str, &str)]) -> (Door, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let entry = |(name, rest): &(&str, &str)| {
        std::fs::write(folder.path().join(name), TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {name}, {rest}}}\n")
    };
    let tokens: String = tokens.iter().map(entry).collect();
    let policies =
        "policies: {p: {quotas: [100 per 1h]}, q: {quotas: [100 per 1h]}, h: {hold: {ttl: 9s, in_flight: 3}}}";
    let file = folder.path().join("my.yaml");
    std::fs::write(&file, format!("resp: {{listen: 127.0.0.1:0}}\ntokens:\n{tokens}{policies}\n")).unwrap();
    (Door::of(Node::with_config(file)), folder)
}

/// The answer to a command, after that to `AUTH`.
fn answer(door: &Door, token: &str, words: &[&str]) -> String {
    let answers = door.exchange(encoded(&["AUTH", token]) + &encoded(words));
    answers.strip_prefix("+OK\r\n").unwrap_or_else(|| panic!("{token}: {answers}")).to_owned()
}

#[test]
fn each_command_takes_the_tokens_of_its_scopes() {
    let scopes = ["check", "read", "metrics", "operate", "admin"];
    let scoped = scopes.map(|scope| format!("scopes: [{scope}]"));
    let tokens: Vec<_> = scopes.iter().zip(&scoped).map(|(name, rest)| (*name, rest.as_str())).collect();
    let (door, _folder) = door(&tokens);
    for (words, permitting) in [
        (&["CL.THROTTLE", "k", "9", "1", "1"][..], &["check"][..]),
        (&["TG.CHECK", "p", "k"], &["check"]),
        (&["TG.SETTLE", "h", "k", "job"], &["check", "operate"]),
        (&["TG.RENEW", "h", "k", "job"], &["check"]),
        (&["EXISTS", "k"], &["read"]),
        (&["TTL", "k"], &["read"]),
        (&["DEL", "k"], &["operate"]),
        (&["UNLINK", "k"], &["operate"]),
        (&["PING"], &scopes),
        (&["INFO"], &scopes),
        (&["COMMAND", "COUNT"], &scopes),
        (&["CLUSTER", "INFO"], &scopes),
    ] {
        for scope in scopes {
            let answer = answer(&door, scope, words);
            if scope == "admin" || permitting.contains(&scope) {
                assert!(!answer.starts_with('-'), "{words:?} by {scope}: {answer}");
            } else {
                let command = words[0].to_lowercase();
                let denied = format!("-NOPERM User {scope} has no permissions to run the '{command}' command\r\n");
                assert_eq!(answer, denied);
            }
        }
        assert_eq!(door.exchange(encoded(words)), NO_AUTH);
    }
}

#[test]
fn token_of_a_policy_or_of_another_door_is_rejected() {
    let (door, _folder) = door(&[
        ("shop", "scopes: [check, read, operate], policies: [p]"),
        ("cell", "scopes: [check, read, operate], policies: [cl.throttle]"),
        ("edge", "scopes: [check], doors: [gate]"),
    ]);
    let of_cell = [&["CL.THROTTLE", "k", "9", "1", "1"][..], &["EXISTS", "k"], &["TTL", "k"], &["DEL", "k"]];
    for words in of_cell {
        assert_eq!(answer(&door, "shop", words), "-NOPERM the token `shop` is not for the policy \"cl.throttle\"\r\n");
        assert!(!answer(&door, "cell", words).starts_with('-'));
    }
    assert!(answer(&door, "shop", &["TG.CHECK", "p", "k"]).starts_with("*6\r\n"));
    let other = answer(&door, "shop", &["TG.CHECK", "q", "k"]);
    assert_eq!(other, "-NOPERM the token `shop` is not for the policy \"q\"\r\n");
    let transaction = ["MULTI", "DEL k", "EXEC"].map(|words| encoded(&words.split(' ').collect::<Vec<_>>())).concat();
    let by_edge = door.exchange(encoded(&["AUTH", "edge"]) + &transaction);
    assert!(by_edge.starts_with("-NOPERM the token `edge` is not for the door `resp`\r\n"), "{by_edge}");
    assert!(door.node.metrics().contains(r#"tollgate_refused_calls_total{reason="needs_door"} 1"#));
}

#[test]
fn command_without_its_scope_breaks_a_transaction() {
    let (door, _folder) = door(&[("app", "scopes: [check]"), ("ops", "scopes: [operate]")]);
    let words = [&["AUTH", "app"][..], &["MULTI"], &["DEL", "k"], &["EXEC"]];
    let answers = door.exchange(words.map(encoded).concat());
    let expected = "+OK\r\n+OK\r\n-NOPERM User app has no permissions to run the 'del' command\r\n-EXECABORT";
    assert!(answers.starts_with(expected), "{answers}");
}

/// An open connection loses its rights at the end of its token.
#[test]
fn token_ends_on_open_connections() {
    let end = jiff::Timestamp::from_microsecond((unix_micros() + 3_000_000).cast_signed()).unwrap();
    let (door, _folder) = door(&[("brief", &format!("scopes: [check], expires: {end}"))]);
    let mut stream = door.stream();
    stream.write_all((encoded(&["AUTH", "brief"]) + &encoded(&["PING"])).as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, "PONG\r\n"), "+OK\r\n+PONG\r\n");
    wait_until("the token ends", || {
        stream.write_all(encoded(&["PING"]).as_bytes()).unwrap();
        read_until(&mut stream, "\r\n") == NO_AUTH
    });
}
