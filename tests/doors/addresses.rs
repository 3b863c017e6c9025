//! One address in several spellings, at every door.

use serde_json::json;
use tollgate::gateway::envoy::messages::Code;

use crate::rls::{EnvoyNode, Settings, codes, descriptor, request};
use crate::support::http;

/// A client on the same link, as programs report it.
const SPELLINGS: [&str; 5] = ["fe80::1", "fe80::1%eth0", "FE80:0::1%25en0", "[fe80::1]:443", "[fe80::1%eth0]:49152"];

/// The answers of all doors to a check of this address: whether they allow it.
async fn ask(node: &EnvoyNode, policy: &str, address: &str) -> [bool; 4] {
    let check = node.node.check(policy, address, 1);
    let forwarded = [("X-Forwarded-For", address), ("X-Client", address)];
    let question = http::request("GET", &format!("/v1/gate/{policy}"), &forwarded, b"");
    let gate = http::exchange(&node.node.address, &question);
    let resp = node.node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).unwrap();
    let mut resp = redis::Client::open(resp.trim()).unwrap().get_connection().unwrap();
    let resp: Vec<redis::Value> = redis::cmd("TG.CHECK").arg(policy).arg(address).query(&mut resp).unwrap();
    let envoy = node.client().await.ask(request(&[descriptor(&[(policy, address)])])).await.unwrap();
    [check["allowed"] == true, gate.status == 200, resp[0] == redis::Value::Int(0), codes(&envoy).0 == Code::Ok]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_an_address_is_rejected_or_escapes_a_list() {
    let node = EnvoyNode::start(&Settings {
        policies: "  by-ip: {key: {type: ip}, quotas: [100 per 1h]}
  listed: {quotas: [100 per 1h], deny: {cidrs: ['fe80::/10']}}
",
        more: "resp: {listen: 127.0.0.1:0}
gates:
  by-ip: &gate
    client_from: x-forwarded-for
    trusted_proxies: [127.0.0.1/32]
    identity_headers: [x-client]
    rules: [{checks: [{policy: by-ip, key: '{client_ip}'}]}]
  listed: {<<: *gate, rules: [{checks: [{policy: listed, key: '{header.x-client}'}]}]}
",
        envoy: "",
        descriptors: "domain: d\ndescriptors: [{key: by-ip, policy: by-ip}, {key: listed, policy: listed}]\n",
    });
    for address in SPELLINGS {
        assert_eq!(ask(&node, "by-ip", address).await, [true; 4], "{address}");
        assert_eq!(ask(&node, "listed", address).await, [false; 4], "{address}");
    }
    assert_eq!(node.node.check("by-ip", "fe80::2", 0)["remaining"], 100 - 4 * SPELLINGS.len());
    let usage = http::get(&node.node.address, "/v1/usage?policy=by-ip&key=fe80::1%25eth0").json();
    assert_eq!(usage["remaining"], json!(100 - 4 * SPELLINGS.len()));
}
