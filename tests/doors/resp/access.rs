//! Tokens are the passwords of Redis clients.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{Door, encoded, read_until};
use crate::support::{Node, TOLLGATE, http};
use std::io::Write;

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONG_PASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

/// A token and its line of a file.
fn token() -> (String, String) {
    let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (token, line) = text.trim_end().split_once('\n').unwrap();
    (token.to_owned(), line.to_owned())
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn door(line: &str) -> (Door, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tokens", line);
    let text =
        "resp: {listen: 127.0.0.1:0}\nauth: {check_token_files: [tokens]}\npolicies: {p: {quotas: [5 per 1h]}}\n";
    write(folder.path(), "my.yaml", text);
    (Door::of(Node::with_config(folder.path().join("my.yaml"))), folder)
}

#[test]
fn each_command_but_the_first_ones_needs_a_token() {
    let (token, line) = token();
    let (door, _folder) = door(&line);
    for words in [&["PING"][..], &["CL.THROTTLE", "k", "1", "1", "1"], &["INFO"], &["NOPE"]] {
        let expected = if words == ["NOPE"] { "-ERR unknown command" } else { NO_AUTH };
        assert!(door.exchange(encoded(words)).starts_with(expected), "{words:?}");
    }
    assert!(door.exchange(encoded(&["HELLO", "3"])).starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(door.exchange(encoded(&["QUIT"])), "+OK\r\n");
    let ping = encoded(&["PING"]);
    for words in [&["AUTH", &token][..], &["AUTH", "default", &token], &["AUTH", "shop", &token]] {
        assert_eq!(door.exchange(encoded(words) + &ping), "+OK\r\n+PONG\r\n");
    }
    for words in [&["AUTH", "guessed"][..], &["AUTH", "default", ""], &["HELLO", "3", "AUTH", "default", "guessed"]] {
        assert_eq!(door.exchange(encoded(words) + &ping), format!("{WRONG_PASS}{NO_AUTH}"));
    }
    let hello = door.exchange(encoded(&["HELLO", "3", "AUTH", "default", &token, "SETNAME", "shop"]) + &ping);
    assert!(hello.starts_with("%7\r\n") && hello.ends_with("+PONG\r\n"), "{hello}");
    let reset = door.exchange(encoded(&["AUTH", &token]) + &encoded(&["RESET"]) + &ping);
    assert_eq!(reset, format!("+OK\r\n+RESET\r\n{NO_AUTH}"));
}

#[test]
fn keys_are_deleted_with_the_rights_of_a_reset() {
    let ((check, check_line), (admin, admin_line)) = (token(), token());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "check", &check_line);
    write(folder.path(), "admin", &admin_line);
    let text = "resp: {listen: 127.0.0.1:0}\nauth: {check_token_files: [check], admin_token_files: [admin]}\n\
                policies: {p: {quotas: [5 per 1h]}}\n";
    write(folder.path(), "my.yaml", text);
    let door = Door::of(Node::with_config(folder.path().join("my.yaml")));
    let key = crate::support::unique("k");
    let charge = encoded(&["CL.THROTTLE", &key, "0", "1", "3600"]);
    let (del, exists) = (encoded(&["DEL", &key]), encoded(&["EXISTS", &key]));
    let denied = "-NOPERM User check has no permissions to run the 'del' command\r\n";
    let by_check = door.exchange([&*encoded(&["AUTH", &check]), &charge, &del, &exists].concat());
    assert!(by_check.ends_with(&format!("{denied}:1\r\n")), "{by_check}");
    let by_admin = door.exchange([&*encoded(&["AUTH", &admin]), &del, &exists].concat());
    assert_eq!(by_admin, "+OK\r\n:1\r\n:0\r\n");
    assert_eq!(door.exchange(del), NO_AUTH);
}

#[test]
fn a_removed_token_ends_the_right_of_open_connections() {
    let ((old, old_line), (new, new_line)) = (token(), token());
    let (door, folder) = door(&old_line);
    let mut stream = door.stream();
    stream.write_all((encoded(&["AUTH", &old]) + &encoded(&["PING"])).as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, "PONG\r\n"), "+OK\r\n+PONG\r\n");
    write(folder.path(), "tokens", &new_line);
    door.node.hang_up();
    crate::support::wait_until("the new token is in force", || {
        http::call(&door.node.address, "POST", "/v1/check", Some(&new), r#"{"policy": "p", "key": "k"}"#).status == 200
    });
    stream.write_all(encoded(&["PING"]).as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, "\r\n"), NO_AUTH);
    stream.write_all((encoded(&["AUTH", &new]) + &encoded(&["PING"])).as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, "PONG\r\n"), "+OK\r\n+PONG\r\n");
}

#[test]
fn refused_clients_are_counted() {
    let (_, line) = token();
    let (door, _folder) = door(&line);
    door.exchange(encoded(&["PING"]));
    door.exchange(encoded(&["AUTH", "guessed"]));
    door.exchange("*1\r\n+PING\r\n");
    let shown = door.node.metrics();
    for reason in ["no_token", "unknown_token", "malformed_resp"] {
        let series = format!(r#"tollgate_refused_calls_total{{reason="{reason}"}} 1"#);
        assert!(shown.contains(&series), "{series} is not in {shown}");
    }
}
