//! Two nodes on each kind of shared store, and one on the embedded store.

use serde_json::{Value, json};

use super::redis::shared;
use super::{Node, cluster, file_with, http, node_with};

/// Every algorithm, with a window so long that no charge expires during a test.
pub(crate) const ALGORITHMS: [&str; 6] = ["sliding", "clock", "year", "first", "bucket", "log"];

/// A policy of each algorithm with this limit, called `<algorithm>-<limit>`.
pub(crate) fn policies(limits: &[u64], options: &str) -> String {
    let of = |limit: &u64| {
        format!(
            "
  sliding-{limit}: {{quotas: [{limit} per 1h], timeout: 5s{options}}}
  clock-{limit}: {{algorithm: fixed-window, quotas: [{limit} per 8000h], timeout: 5s{options}}}
  year-{limit}: {{algorithm: fixed-window, anchor: clock, quotas: [{limit} per 1y], timeout: 5s{options}}}
  first-{limit}: {{algorithm: fixed-window, anchor: first-hit, quotas: [{limit} per 1h], timeout: 5s{options}}}
  log-{limit}: {{algorithm: sliding-log, quotas: [{limit} per 1h], timeout: 5s{options}}}
  bucket-{limit}: {{algorithm: token-bucket, quotas: [{{rate: 1 per 30d, burst: {limit}}}], timeout: 5s{options}}}"
        )
    };
    format!("policies:{}\n", limits.iter().map(of).collect::<String>())
}

/// Two nodes with this configuration on one Redis, two on the cluster, and one, twice, on the
/// embedded store.
pub(crate) fn on_pairs_of_nodes(configuration: &str, test: impl Fn([&Node; 2], &str)) {
    for (name, seeds) in [("redis", vec![shared().url()]), ("cluster", cluster::shared().seeds())] {
        let store = format!("store: {{redis: [{}]}}\n", seeds.join(", "));
        let file = file_with(&(store + configuration));
        let nodes = [(); 2].map(|()| Node::with_config(&file));
        test([&nodes[0], &nodes[1]], name);
    }
    let alone = node_with(configuration);
    test([&alone, &alone], "embedded");
}

pub(crate) fn check(node: &Node, body: &Value) -> Value {
    posted(node, "/v1/check", body)
}

pub(crate) fn posted(node: &Node, path: &str, body: &Value) -> Value {
    let answer = node.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

pub(crate) fn remaining(node: &Node, policy: &str, key: &str) -> u64 {
    check(node, &json!({"policy": policy, "key": key, "cost": 0}))["remaining"].as_u64().unwrap()
}

pub(crate) fn reset(node: &Node, policy: &str, key: &str) -> http::Answer {
    let path = format!("/v1/usage?policy={policy}&key={key}");
    http::exchange(&node.address, &http::request("DELETE", &path, &[], b""))
}
