//! Broken commands: the node answers or closes each, stays alive, and keeps no memory.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{Door, door, encoded};
use crate::support::dice::Dice;
use crate::support::mutation::mutant;
use crate::support::resident_kib;

/// The maximum growth of a node, MiB: buffers, and the counters of keys.
const GROWTH: u64 = 64;

const POLICIES: &str = "policies: {p: {quotas: [1000000 per 1h]}}";

fn corpus() -> Vec<Vec<u8>> {
    let commands = [
        encoded(&["CL.THROTTLE", "k", "15", "30", "60", "1"]),
        encoded(&["HELLO", "3", "AUTH", "default", "secret", "SETNAME", "shop"]),
        encoded(&["CLIENT", "SETINFO", "LIB-NAME", "test"]) + &encoded(&["PING"]).repeat(20),
        encoded(&["TG.CHECK", "p", "k", "2"]) + &encoded(&["QUIT"]),
        "CL.THROTTLE \"a \\x41\\\"\" 15 30 60\r\nECHO 'it\\'s'\r\nINFO\r\nCOMMAND\r\n".to_owned(),
        "*3\r\n$-1\r\n*1\r\n$5\r\n".to_owned(),
        format!("*1024\r\n{}", "$1\r\na\r\n".repeat(1024)),
        "*1\r\n$65530\r\n".to_owned() + &"x".repeat(65_530) + "\r\n",
        "%1\r\n+a\r\n:1\r\n~1\r\n#t\r\n,1.5\r\n(1\r\n_\r\n|1\r\n>1\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ];
    commands.map(String::into_bytes).into()
}

/// Sends bytes, and reads whatever comes back. The node may close before it has all of them.
fn attempt(door: &Door, bytes: &[u8]) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(&door.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers)
}

fn survives(count: u64) {
    let mut door = door(POLICIES);
    let corpus = corpus();
    let send = |seed: u64| {
        let bytes = mutant(&corpus, &mut Dice::new(seed));
        if let Err(error) = attempt(&door, &bytes) {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "seed {seed}: no answer and no end");
        }
    };
    (0..count / 10).for_each(send);
    let before = resident_kib(door.node.pid());
    (count / 10..count).for_each(send);
    let after = resident_kib(door.node.pid());
    println!("{count} connections: {before} KiB after a tenth, {after} KiB after all");
    assert!(after < before + GROWTH * 1024, "{before} KiB, then {after} KiB");
    assert!(door.node.is_alive());
    assert_eq!(door.exchange(encoded(&["PING"])), "+PONG\r\n");
}

#[test]
fn mutated_commands_leave_a_node_alive_without_memory_growth() {
    survives(3000);
}

#[test]
#[ignore = "minutes: cargo test --test doors malformed -- --ignored"]
fn a_hundred_thousand_mutated_commands_leave_a_node_alive() {
    survives(100_000);
}

#[test]
fn broken_framing_is_answered_and_ends_the_connection() {
    let door = door(POLICIES);
    for (bytes, error) in [
        ("*1\r\n+PING\r\n", "expected '$', got '+'"),
        ("*1025\r\n", "invalid multibulk length"),
        ("*1\r\n$70000\r\n", "invalid bulk length"),
        ("ECHO \"open\r\n", "unbalanced quotes in request"),
        ("POST / HTTP/1.1\r\n", "HTTP is served on another port"),
        ("\r\nHost: localhost\r\n", "HTTP is served on another port"),
    ] {
        let answers = door.exchange(encoded(&["PING"]) + bytes + &encoded(&["PING"]));
        assert_eq!(answers, format!("+PONG\r\n-ERR Protocol error: {error}\r\n"));
    }
}
