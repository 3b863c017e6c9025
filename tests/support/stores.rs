//! One test on several stores.

use serde_json::Value;

use super::redis::shared;
use super::{Node, cluster, file_with, node_with};

pub(crate) fn on_memory_and_redis(policies: &str, test: impl Fn(&Node)) {
    let redis = format!("store: {{timeout: 5s, redis: [{}]}}", shared().url());
    for store in ["", &redis] {
        test(&node_with(&format!("{store}\n{policies}")));
    }
}

pub(crate) fn on_memory_redis_and_cluster(policies: &str, test: impl Fn(&Node)) {
    let one = format!("store: {{timeout: 2s, redis: [{}]}}", shared().url());
    let cluster = format!("store: {{timeout: 2s, redis: [{}]}}", cluster::shared().seeds().join(", "));
    for store in ["", &one, &cluster] {
        let file = file_with(&format!("{store}\n{policies}\n"));
        test(&Node::with_config(&file));
    }
}

pub(crate) fn ask(node: &Node, check: &Value) -> Value {
    node.post("/v1/check", check).json()
}
