//! `tollgate explain` names exactly the keys that a check creates.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::redis::{Server, bus_port};
use crate::support::stores::ask;
use crate::support::{Node, TOLLGATE, file_with, http};

const POLICIES: &str = r#"policies:
  per-ip:
    key: {type: ip, ipv6_prefix: 64}
    quotas: [5 per 1h]
    overrides: [{match: {cidr: "2001:db8::/32"}, quotas: [50 per 1h, 60 per 1d]}]
  login: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 20}], shadow: true}
"#;

fn told(file: &str, policy: &str, key: &str) -> Value {
    let output = Command::new(TOLLGATE).args(["explain", file, policy, key, "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn explain_prints_redis_keys_of_a_check() {
    let server = Server::start();
    let file = file_with(&format!("store: {{timeout: 5s, redis: [{}], key_prefix: rl}}\n{POLICIES}", server.url()));
    let path = file.path().to_str().unwrap();
    let node = Node::start_with(&["--config", path]);
    let mut connection = server.connection().unwrap();
    for (policy, key) in [("per-ip", "2001:db8:1::1"), ("login", "alice")] {
        assert_eq!(ask(&node, &json!({"policy": policy, "key": key}))["charged"], 1);
        let told = told(path, policy, key);
        let names: Vec<&str> = told["redis"]["keys"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let answer = http::get(&node.address, &format!("/v1/explain?policy={policy}&key={key}")).json();
        assert_eq!((&answer["redis_keys"], &answer["slot"]), (&told["redis"]["keys"], &told["redis"]["slot"]));
        assert_eq!(answer["shard"], format!("127.0.0.1:{}", server.port));
        assert!(!names.is_empty() && names.iter().all(|name| name.starts_with("{rl:")), "{names:?}");
        let there: usize = redis::cmd("EXISTS").arg(&names).query(&mut connection).unwrap();
        assert_eq!(there, names.len(), "{policy}: what is told is not what is there");
    }
    let slot: u64 = {
        let node = Server::start_on(bus_port(), &["--cluster-enabled", "yes"]);
        redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg("{rl:alice:}x")
            .query(&mut node.connection().unwrap())
            .unwrap()
    };
    assert_eq!(told(path, "login", "alice")["redis"]["slot"], slot);
}
