//! A node drops its known denials soon after the store has lost them.

use std::time::Duration;

use serde_json::json;

use crate::support::chaos::{self, key_in, slot_in};
use crate::support::cluster::Cluster;
use crate::support::redis::Server;
use crate::support::slots::move_slot;
use crate::support::{Node, config_on, unique, wait_until};

const MAX_DENIAL: Duration = Duration::from_secs(2);

#[test]
fn known_denial_after_flushall_ends_with_max_denial() {
    let server = Server::start();
    let denial = Denial::known(&[server.url()], unique("flushed"));
    redis::cmd("FLUSHALL").exec(&mut server.connection().unwrap()).unwrap();
    denial.ends();
}

#[test]
fn known_denial_after_failover_ends_with_max_denial() {
    let cluster = chaos::arena();
    let replica = cluster.replica_of(cluster.owner(slot_in(1)));
    let denial = Denial::known(&cluster.seeds(), key_in(1));
    cluster.fail_over(replica);
    forget(&cluster, replica, &denial.key);
    denial.ends();
}

#[test]
fn known_denial_after_reshard_ends_with_max_denial() {
    let cluster = chaos::arena_without_failovers();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let denial = Denial::known(&cluster.seeds(), key_in(0));
    let slot = chaos::slot_of(&denial.key);
    move_slot(&cluster, slot, from, to);
    forget(&cluster, to, &denial.key);
    denial.ends();
    move_slot(&cluster, slot, to, from);
}

struct Denial {
    node: Node,
    key: String,
    _file: tempfile::NamedTempFile,
}

impl Denial {
    fn known(seeds: &[String], key: String) -> Self {
        let policies = format!(
            "prefilter: {{max_denial: {}s}}\npolicies:\n  hourly: {{quotas: [5 per 1h], timeout: 5s}}\n",
            MAX_DENIAL.as_secs()
        );
        let file = config_on(seeds, &policies);
        let denial = Self { node: Node::with_config(&file), key, _file: file };
        wait_until("the key is used up, and the node knows", || denial.check()["source"] == "prefilter");
        denial
    }

    fn check(&self) -> serde_json::Value {
        self.node.check("hourly", &self.key, 1)
    }

    /// The store has lost its counts: the pre-filter keeps the denial for `max_denial` at most.
    fn ends(&self) {
        std::thread::sleep(MAX_DENIAL);
        let answer = self.check();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(true), &json!("store")), "{answer}");
    }
}

fn forget(cluster: &Cluster, number: u16, key: &str) {
    let mut connection = cluster.connection(number);
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("{{ratelimit:{key}:}}*")).query(&mut connection).unwrap();
    assert!(!names.is_empty(), "the counts have come along");
    redis::cmd("DEL").arg(names).exec(&mut connection).unwrap();
}
