//! Checks while their slot migrates: the final counts in Redis equal the reported charges.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::support::chaos::{self, key_in, slot_in, slot_of};
use crate::support::cluster::Cluster;
use crate::support::dice::Dice;
use crate::support::http::{self, Connection};
use crate::support::slots::{begin, migrate, move_slot, settle};
use crate::support::{Node, config_on, wait_until};

fn left(node: &Node, policy: &str, key: &str) -> Option<Vec<u64>> {
    let usage = http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}")).json();
    let quotas = usage["quotas"].as_array().filter(|_| usage["source"] == "store")?;
    Some(quotas.iter().map(|quota| quota["remaining"].as_u64().unwrap()).collect())
}

/// Migrates the rest of a half-migrated slot, and then moves the whole slot back.
fn bring_back(cluster: &Cluster, slot: u16, from: u16, to: u16) {
    while migrate(cluster, slot, from, to, 100) > 0 {}
    settle(cluster, slot, [to, from]);
    move_slot(cluster, slot, to, from);
}

fn policies() -> String {
    let windows = |count: u64| (1..=count).map(|hours| format!("{} per {hours}h", 99 + hours)).collect::<Vec<_>>();
    let rates =
        |count: u64| (1..=count).map(|n| format!("{{rate: 1 per {n}d, burst: {}}}", 99 + n)).collect::<Vec<_>>();
    let rest = format!("on_store_failure: deny, timeout: {}ms", if chaos::strict() { 100 } else { 1000 });
    let sliding = [1, 3, 8].map(|count| format!("  w{count}: {{quotas: [{}], {rest}}}\n", windows(count).join(", ")));
    format!(
        "policies:\n{}  f3: {{algorithm: fixed-window, anchor: first-hit, quotas: [{}], {rest}}}
  b3: {{algorithm: token-bucket, quotas: [{}], {rest}}}\n",
        sliding.concat(),
        windows(3).join(", "),
        rates(3).join(", ")
    )
}

/// Rounds of a new key on a slot that no node knows to be migrating.
const ROUNDS: usize = 6;

/// A slot is MIGRATING, none of its keys has moved, and the first check of a key arrives. It is
/// decided in time, and only a reported charge remains.
#[test]
fn new_keys_of_moving_slots_are_charged_as_reported() {
    let cluster = chaos::arena_without_failovers();
    let owners = [cluster.owner(slot_in(0)), cluster.owner(slot_in(1))];
    let file = config_on(&cluster.seeds(), &policies());
    let node = Node::with_config(&file);
    wait_until("the store decides", || node.check("w1", &key_in(0), 0)["source"] == "store");
    let mut moving = BTreeSet::new();
    let mut asked = Vec::new();
    for (policy, quotas) in [("w1", 1), ("w3", 3), ("f3", 3), ("b3", 3), ("w8", 8)] {
        let mut allowed = 0;
        for _ in 0..ROUNDS {
            let key = std::iter::repeat_with(|| key_in(0)).find(|key| !moving.contains(&slot_of(key))).unwrap();
            begin(&cluster, slot_of(&key), owners[0], owners[1]);
            moving.insert(slot_of(&key));
            let answer = node.check(policy, &key, 16);
            allowed += usize::from(answer["source"] == "store" && answer["allowed"] == true);
            asked.push((policy, quotas, key, answer));
        }
        let least = if chaos::strict() { ROUNDS } else { ROUNDS / 2 };
        assert!(allowed >= least, "{policy}: {allowed} of {ROUNDS}: {asked:?}");
    }
    moving.iter().for_each(|slot| bring_back(&cluster, *slot, owners[0], owners[1]));
    for (policy, quotas, key, answer) in asked {
        let charged = answer["charged"].as_u64().unwrap();
        let expected: Vec<u64> = (1..=quotas).map(|n| 99 + n - charged).collect();
        let mut told = None;
        wait_until("the store tells", || {
            told = left(&node, policy, &key);
            told.is_some()
        });
        assert_eq!(told.as_ref(), Some(&expected), "{answer}");
    }
}

/// Callers that disconnect while the store denies their check leave no charge.
#[test]
fn cancelled_calls_on_moving_slots_leave_no_charge() {
    let cluster = chaos::arena_without_failovers();
    let owners = [cluster.owner(slot_in(0)), cluster.owner(slot_in(1))];
    let policies = "policies:
  window: {quotas: [1000 per 1h, 5 per 2h], on_store_failure: deny, timeout: 2s}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [1000 per 1h, 5 per 2h], on_store_failure: deny, timeout: 2s}
";
    let file = config_on(&cluster.seeds(), policies);
    let node = Node::with_config(&file);
    wait_until("the store decides", || node.check("window", &key_in(0), 0)["source"] == "store");
    let (key, mut dice) = (key_in(0), Dice::new(7));
    begin(&cluster, slot_of(&key), owners[0], owners[1]);
    for policy in ["window", "fixed"] {
        assert_eq!(node.check(policy, &key, 5)["allowed"], true);
    }
    for number in 0..300 {
        if number % 60 == 0 {
            assert_eq!(node.check("window", &key, 5)["allowed"], false);
        }
        let policy = ["window", "fixed"][number % 2];
        let body = json!({"policy": policy, "key": key, "cost": 5}).to_string();
        let mut connection = Connection::over(TcpStream::connect(&node.address).unwrap());
        connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
        sleep(Duration::from_micros(300 + dice.below(2700)));
    }
    bring_back(&cluster, slot_of(&key), owners[0], owners[1]);
    for policy in ["window", "fixed"] {
        let told = || left(&node, policy, &key);
        wait_until("the store tells", || told().is_some());
        assert_eq!(told(), Some(vec![995, 0]), "{policy}");
    }
}

/// The store charges nothing provisionally, so another node learns that nothing is left.
#[test]
fn charges_on_moving_slots_are_final() {
    let cluster = chaos::arena_without_failovers();
    let owners = [cluster.owner(slot_in(0)), cluster.owner(slot_in(1))];
    let policies = "policies:
  window: {quotas: [5 per 1h], timeout: 10s}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [5 per 1h, 9 per 2h], timeout: 10s}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 5}, {rate: 1 per 2h, burst: 9}], timeout: 10s}
";
    let file = config_on(&cluster.seeds(), policies);
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    for node in &nodes {
        wait_until("the store decides", || node.check("window", &key_in(0), 0)["source"] == "store");
    }
    let key = key_in(0);
    begin(&cluster, slot_of(&key), owners[0], owners[1]);
    for policy in ["window", "fixed", "bucket"] {
        let answer = nodes[0].check(policy, &key, 5);
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(true), &json!("store")), "{policy}: {answer}");
    }
    bring_back(&cluster, slot_of(&key), owners[0], owners[1]);
    // A node that learns late of the slot's way back forgets what it knows of its keys. So more than
    // one denial may come from the store.
    for policy in ["window", "fixed", "bucket"] {
        for source in ["store", "prefilter"] {
            wait_until("the expected part of the node denies", || {
                let answer = nodes[1].check(policy, &key, 1);
                assert_eq!(answer["allowed"], false, "{policy}: {answer}");
                answer["source"] == source
            });
        }
    }
}
