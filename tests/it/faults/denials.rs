//! What a node believes of denials is not believed for long after the store has forgotten them.

use std::time::Duration;

use serde_json::json;

use crate::harness::redis::Server;
use crate::harness::{Node, config_on, http, unique, wait_until};

#[test]
fn after_flushall_a_known_denial_ends_with_max_denial() {
    let server = Server::start();
    let policies = "
prefilter: {max_denial: 2s}
policies:
  hourly: {quotas: [5 per 1h], timeout: 5s}
";
    let file = config_on(&[server.url()], policies);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let body = json!({"policy": "hourly", "key": unique("flushed")}).to_string();
    let check = || http::post(&node.address, "/v1/check", &body).json();
    wait_until("the key is used up, and the node knows", || check()["source"] == "prefilter");
    redis::cmd("FLUSHALL").exec(&mut server.connection().unwrap()).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(check()["allowed"], true);
}
