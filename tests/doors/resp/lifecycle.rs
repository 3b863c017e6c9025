//! Limits on the connections of Redis clients, and the end of a node.

use std::io::{Read, Write};

use super::{Door, POLICY, door, encoded, read_all, read_until};
use crate::support::tls::Authority;
use crate::support::{Node, http, wait_until};

#[test]
fn idle_clients_and_trickled_commands_are_cut_off() {
    let door = door(&format!("limits: {{idle_timeout: 1s, request_timeout: 1s}}\n{POLICY}"));
    for begun in ["", "*2\r\n$4\r\nECHO\r\n$100\r\nabc"] {
        let mut stream = door.stream();
        stream.write_all(begun.as_bytes()).unwrap();
        assert_eq!(read_all(&mut stream), "", "{begun:?}");
    }
}

#[test]
fn clients_that_read_nothing_are_cut_off() {
    let door = door(&format!("limits: {{idle_timeout: 1s, request_timeout: 1s}}\n{POLICY}"));
    let mut stream = door.stream();
    let echo = encoded(&["ECHO", &"x".repeat(60_000)]);
    // The buffers of both sockets hold some MB.
    let is_cut_off = (0..10_000).any(|_| stream.write_all(echo.as_bytes()).is_err());
    assert!(is_cut_off, "the node takes commands without end");
    assert_eq!(door.exchange(encoded(&["PING"])), "+PONG\r\n");
}

#[test]
fn connections_over_the_limit_are_refused_and_counted() {
    let door = door(&format!("limits: {{max_connections: 2}}\n{POLICY}"));
    let kept: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = door.stream();
            stream.write_all(&encoded(&["PING"]).into_bytes()).unwrap();
            read_until(&mut stream, "+PONG\r\n");
            stream
        })
        .collect();
    let closed = door.stream().read(&mut [0]);
    assert!(matches!(closed, Ok(0)) || closed.is_err(), "{closed:?}");
    assert!(door.node.metrics().contains("tollgate_connections_refused_total 1"), "{}", door.node.metrics());
    drop(kept);
    wait_until("a place is free", || {
        let mut stream = door.stream();
        stream.write_all(b"PING\r\n").is_ok() && stream.read(&mut [0]).is_ok_and(|read| read == 1)
    });
}

#[test]
fn an_ending_node_answers_what_has_arrived_and_closes() {
    let mut door = door(&format!("shutdown: {{delay: 500ms}}\n{POLICY}"));
    let (mut idle, mut busy) = (door.stream(), door.stream());
    idle.write_all(b"PING\r\n").unwrap();
    read_until(&mut idle, "+PONG\r\n");
    // A command whose end comes later.
    busy.write_all(b"PING\r\n*2\r\n$4\r\nECHO\r\n$5\r\nhel").unwrap();
    read_until(&mut busy, "+PONG\r\n");
    door.node.terminate();
    wait_until("the node drains", || http::get(&door.node.address, "/health/ready").status == 503);
    assert_eq!(door.exchange(encoded(&["PING"])), "+PONG\r\n", "during the delay it serves on");
    assert_eq!(read_all(&mut idle), "");
    // More commands than one turn has.
    busy.write_all(format!("lo\r\n{}", "PING\r\n".repeat(600)).as_bytes()).unwrap();
    assert_eq!(read_all(&mut busy), format!("$5\r\nhello\r\n{}", "+PONG\r\n".repeat(600)));
    drop((idle, busy));
    assert!(door.node.ended().success());
}

#[test]
fn a_reload_without_the_door_keeps_it_until_the_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("my.yaml"), format!("resp: {{listen: 127.0.0.1:0}}\n{POLICY}\n"));
    std::fs::write(&file, text).unwrap();
    let door = Door::of(Node::with_config(&file));
    std::fs::write(&file, format!("{POLICY}\n")).unwrap();
    let reload = http::call(&door.node.address, "POST", "/v1/reload", None, "");
    assert_eq!((reload.status, reload.json()["restart_needed"].to_string()), (200, r#"["resp"]"#.to_owned()));
    assert!(door.exchange("CL.THROTTLE k 0 1 60\r\n").starts_with("*5\r\n:0\r\n"));
}

#[test]
fn the_door_has_the_tls_of_the_node() {
    let authority = Authority::new();
    authority.sign("node");
    let file = authority.path("my.yaml");
    let text = format!("resp: {{listen: 127.0.0.1:0}}\ntls: {{cert_file: node.pem, key_file: node.key}}\n{POLICY}\n");
    std::fs::write(&file, text).unwrap();
    let door = Door::of(Node::with_config(&file));
    let port = door.address.rsplit_once(':').unwrap().1;
    let output = std::process::Command::new("redis-cli")
        .args(["-p", port, "--tls", "--cacert", &authority.text("ca.pem"), "CL.THROTTLE", "k", "15", "30", "60"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0\n16\n15\n-1\n2\n");
    let mut plain = door.stream();
    plain.write_all(b"PING\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+PONG"), "{answer:?}");
}
