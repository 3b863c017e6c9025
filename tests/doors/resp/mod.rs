//! Redis clients ask a node.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use redis::{Connection, RedisResult, Value};

use crate::support::{Node, node_with};

mod access;
mod clients;
mod debt;
mod fallback;
mod keys;
mod lifecycle;
mod malformed;
mod numbers;
mod protocol;
mod scopes;
mod traces;
mod transactions;

/// A node with a door for Redis clients.
struct Door {
    node: Node,
    /// `127.0.0.1:port`.
    address: String,
}

const POLICY: &str = "policies: {p: {quotas: [5 per 1h]}, by-ip: {key: {type: ip}, quotas: [5 per 1h]}}";

fn door(configuration: &str) -> Door {
    Door::of(node_with(&format!("resp: {{listen: 127.0.0.1:0}}\n{configuration}\n")))
}

impl Door {
    fn of(node: Node) -> Self {
        let url = node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).expect("it greets");
        let address = url.trim().split_once("://").unwrap().1.to_owned();
        Self { node, address }
    }

    fn connect(&self) -> Connection {
        redis::Client::open(format!("redis://{}", self.address)).unwrap().get_connection().unwrap()
    }

    /// All answers to these bytes, until the node closes the connection.
    fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.stream();
        stream.write_all(bytes.as_ref()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_all(&mut stream)
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

fn read_all(stream: &mut TcpStream) -> String {
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    String::from_utf8(answers).unwrap()
}

/// Reads until the answers end with `end`.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut answers, mut byte) = (Vec::new(), [0]);
    while !answers.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "closed after {:?}", String::from_utf8_lossy(&answers));
        answers.push(byte[0]);
    }
    String::from_utf8(answers).unwrap()
}

fn command(connection: &mut Connection, words: &str) -> RedisResult<Value> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = command.arg(word));
    command.query(connection)
}

fn numbers(connection: &mut Connection, words: &str) -> Vec<i64> {
    redis::from_redis_value(command(connection, words).unwrap()).unwrap()
}

/// A command as clients send it.
fn encoded(words: &[&str]) -> String {
    let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
}
