//! One story on the embedded store and on Redis.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::redis::shared;
use super::{Node, http};

/// Tells the story to a node with these policies on the embedded store, and to one on Redis.
pub(crate) fn on_each_store(policies: &str, story: impl Fn(&Node)) {
    let redis = format!("store: {{timeout: 5s, redis: [{}]}}", shared().url());
    for store in ["", &redis] {
        story(&node_with(&format!("{store}\n{policies}")));
    }
}

/// A node with this configuration.
pub(crate) fn node_with(configuration: &str) -> Node {
    let file = file_with(configuration);
    Node::start_with(&["--config", file.path().to_str().unwrap()])
}

pub(crate) fn file_with(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The decision on a check.
pub(crate) fn ask(node: &Node, check: &Value) -> Value {
    http::post(&node.address, "/v1/check", check.to_string()).json()
}
