//! `MULTI` and `EXEC`, which some drivers put around a pipeline.

use super::{POLICY, door, encoded};
use crate::support::unique;

fn allowed(remaining: u32) -> String {
    let reset = 3600 * (2 - remaining);
    format!("*5\r\n:0\r\n:2\r\n:{remaining}\r\n:-1\r\n:{reset}\r\n")
}

#[test]
fn transaction_runs_its_commands_together() {
    let door = door(POLICY);
    let key = unique("k");
    let throttle = encoded(&["CL.THROTTLE", &key, "1", "1", "3600"]);
    let (multi, exec) = (encoded(&["MULTI"]), encoded(&["EXEC"]));
    let wrong = encoded(&["CL.THROTTLE", &key, "1", "x", "3600"]);
    let sent = [&multi, &throttle, &encoded(&["DEL", &key]), &wrong, &throttle, &throttle, &exec, &throttle];
    let queued = "+QUEUED\r\n".repeat(5);
    let expected = format!(
        "+OK\r\n{queued}*5\r\n{}:1\r\n-Cell error: Store error: Couldn't parse as integer: x\r\n{}{}\
         *5\r\n:1\r\n:2\r\n:0\r\n:3600\r\n:7200\r\n",
        allowed(1),
        allowed(1),
        allowed(0)
    );
    assert_eq!(door.exchange(sent.map(String::as_str).concat()), expected);
}

#[test]
fn discarded_transaction_charges_nothing() {
    let door = door(POLICY);
    let key = unique("k");
    let throttle = encoded(&["CL.THROTTLE", &key, "1", "1", "3600"]);
    let [multi, exec, discard, unknown, arity] =
        [&["MULTI"][..], &["EXEC"], &["DISCARD"], &["GET", "k"], &["ECHO"]].map(encoded);
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let ended = door.exchange([&*multi, &throttle, &unknown, &throttle, &exec].concat());
    assert!(ended.starts_with("+OK\r\n+QUEUED\r\n-ERR unknown command 'GET'"), "{ended}");
    assert!(ended.ends_with(&format!("+QUEUED\r\n{abort}")), "{ended}");
    assert!(door.exchange([&*multi, &throttle, &arity, &exec].concat()).ends_with(abort));
    assert_eq!(door.exchange([&*multi, &throttle, &discard].concat()), "+OK\r\n+QUEUED\r\n+OK\r\n");
    assert_eq!(door.exchange([&*multi, &throttle, &encoded(&["RESET"])].concat()), "+OK\r\n+QUEUED\r\n+RESET\r\n");
    // The client leaves.
    assert_eq!(door.exchange([&*multi, &throttle].concat()), "+OK\r\n+QUEUED\r\n");
    let errors =
        "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n+OK\r\n-ERR MULTI calls can not be nested\r\n*0\r\n";
    assert_eq!(door.exchange([&*exec, &discard, &multi, &multi, &exec].concat()), errors);
    assert_eq!(door.exchange(throttle), allowed(1));
}

#[test]
fn long_transaction_is_refused_as_a_whole() {
    let door = door(POLICY);
    let key = unique("k");
    let throttle = encoded(&["CL.THROTTLE", &key, "1", "1", "3600"]);
    let long = encoded(&["ECHO", &"x".repeat(60_000)]);
    for commands in [throttle.repeat(257), throttle.clone() + &long] {
        let answers = door.exchange(encoded(&["MULTI"]) + &commands + &encoded(&["EXEC"]));
        assert!(
            answers.contains("-ERR a transaction may have at most 256 commands and 32768 bytes\r\n"),
            "{answers}"
        );
        assert!(answers.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"), "{answers}");
    }
    assert_eq!(door.exchange(throttle), allowed(1));
}
