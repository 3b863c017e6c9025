//! Redis clients ask a node.

use redis::{Connection, RedisResult, Value};

use crate::support::{Node, node_with, unique};

/// A node with a door for Redis clients, and the port of the door.
struct Door {
    node: Node,
    url: String,
}

fn door(configuration: &str) -> Door {
    let text = format!("resp: {{listen: 127.0.0.1:0}}\n{configuration}\n");
    of_node(node_with(&text))
}

/// The greeting of a node names the address.
fn of_node(node: Node) -> Door {
    let url = node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).unwrap().trim().to_owned();
    Door { node, url }
}

impl Door {
    fn connect(&self) -> Connection {
        redis::Client::open(self.url.as_str()).unwrap().get_connection().unwrap()
    }
}

const POLICY: &str = "policies: {p: {quotas: [5 per 1h]}}";

fn command(connection: &mut Connection, words: &str) -> RedisResult<Value> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = command.arg(word));
    command.query(connection)
}

fn numbers(connection: &mut Connection, words: &str) -> Vec<i64> {
    redis::from_redis_value(command(connection, words).unwrap()).unwrap()
}

#[test]
fn cl_throttle_returns_five_numbers_without_any_policy() {
    let door = door(POLICY);
    let mut connection = door.connect();
    assert_eq!(command(&mut connection, "PING").unwrap(), Value::SimpleString("PONG".into()));
    let key = unique("k");
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 15 30 60")), [0, 16, 15, -1, 2]);
    assert_eq!(numbers(&mut connection, &format!("cl.throttle {key} 15 30 60 15")), [0, 16, 0, -1, 32]);
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 15 30 60")), [1, 16, 0, 2, 32]);
    let shown = door.node.metrics();
    assert!(shown.contains(r#"policy="cl.throttle""#), "{shown}");
}
