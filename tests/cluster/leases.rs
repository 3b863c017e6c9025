//! Nodes with leases on a cluster: exact in the end, and never over.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::NamedTempFile;

use crate::support::chaos::now_ms;
use crate::support::http::{self, Connection};
use crate::support::{Node, cluster, config_on, unique, wait_until};

const LIMIT: u64 = 4_000;

/// No charge leaves its window during a test. The token bucket gives up what it refills in a span.
const POLICIES: &str = "
policies:
  sliding-window: {quotas: [4000 per 1h, 5000 per 1d], timeout: 2s, lease: {span: 200ms, nodes: 2, callers: 4}}
  fixed-window: {algorithm: fixed-window, anchor: first-hit, quotas: [4000 per 1h], timeout: 2s, lease: {span: 200ms, nodes: 2, callers: 4}}
  token-bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 4001}], timeout: 2s, lease: {span: 200ms, nodes: 2, callers: 4}}
  sliding-log: {algorithm: sliding-log, quotas: [4000 per 1h], timeout: 2s, lease: {span: 200ms, nodes: 2, callers: 4}}
  sliding-counter: {algorithm: sliding-counter, tick: 1m, quotas: [4000 per 1h], timeout: 2s, lease: {span: 200ms, nodes: 2, callers: 4}}
";

/// Longer than the span, in ms. A lease that opens before ends within it.
const AFTER: u64 = 500;

fn config() -> NamedTempFile {
    config_on(&cluster::shared().seeds(), POLICIES)
}

fn node(config: &NamedTempFile) -> Node {
    Node::with_config(config)
}

#[derive(Debug, Default)]
struct Tally {
    allowed: AtomicU64,
    by_lease: AtomicU64,
    by_fallback: AtomicU64,
    denied: AtomicU64,
}

impl Tally {
    fn add(&self, decision: &Value) {
        let counter = if decision["allowed"] == true { &self.allowed } else { &self.denied };
        counter.fetch_add(1, Ordering::SeqCst);
        match decision["source"].as_str() {
            Some("lease") => _ = self.by_lease.fetch_add(1, Ordering::SeqCst),
            Some("fallback") => _ = self.by_fallback.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
    }

    fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::SeqCst)
    }

    fn by_lease(&self) -> u64 {
        self.by_lease.load(Ordering::SeqCst)
    }
}

/// Clients that ask for one key without a pause until `meanwhile` returns. A client whose node dies
/// ends.
fn under_load(nodes: &[&Node], clients: usize, (policy, key): (&str, &str), meanwhile: impl FnOnce(&Tally)) -> Tally {
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (tally, is_over, address) = (&tally, &is_over, &nodes[client % nodes.len()].address);
            scope.spawn(move || {
                let body = json!({"policy": policy, "key": key}).to_string();
                let request = http::json_request("/v1/check", body.as_bytes());
                let Ok(mut connection) = Connection::open(address) else { return };
                while !is_over.load(Ordering::SeqCst) {
                    let answer = connection.send(&request).and_then(|()| connection.receive(true));
                    let Ok(answer) = answer else { return };
                    tally.add(&answer.json());
                }
            });
        }
        // Also ends the clients if it panics.
        let _over = scopeguard::guard((), |()| is_over.store(true, Ordering::SeqCst));
        meanwhile(&tally);
    });
    assert_eq!(tally.by_fallback.load(Ordering::SeqCst), 0);
    tally
}

/// Waits until nothing was allowed for longer than a lease lasts.
fn until_exhausted(tally: &Tally) {
    let (mut seen, mut since) = (tally.allowed(), now_ms());
    wait_until("all units are spent", || {
        let allowed = tally.allowed();
        if allowed != seen {
            (seen, since) = (allowed, now_ms());
        }
        tally.denied.load(Ordering::SeqCst) > 0 && now_ms() - since > AFTER
    });
}

#[test]
fn saturated_key_gets_exactly_its_limit_from_two_nodes() {
    let file = config();
    let nodes = [node(&file), node(&file)];
    for policy in ["sliding-window", "fixed-window", "token-bucket", "sliding-log", "sliding-counter"] {
        let tally = under_load(&nodes.each_ref(), 64, (policy, &unique("saturated")), until_exhausted);
        assert_eq!(tally.allowed(), LIMIT, "{policy}");
        assert!(tally.by_lease() > LIMIT / 2, "{policy}: {tally:?}");
    }
}

#[test]
fn units_of_killed_node_are_all_that_is_lost() {
    let file = config();
    let (mut dying, other) = (node(&file), node(&file));
    let key = unique("killed");
    let address = dying.address.clone();
    let before = under_load(&[&dying], 16, ("sliding-window", &key), |tally| {
        wait_until("a lease is in hand", || tally.by_lease() > 50);
    });
    // After the load the node still holds its last units.
    let killed = std::process::Command::new("kill").args(["-9", &dying.pid().to_string()]).status().unwrap();
    assert!(killed.success() && !dying.ended().success(), "{address}");
    let after = under_load(&[&other], 16, ("sliding-window", &key), until_exhausted);
    let allowed = before.allowed() + after.allowed();
    // A lease is at most an eighth of what remains, since two nodes buy. Answers that the end of
    // the load cut off are allowed without a witness.
    assert!((LIMIT - LIMIT / 8 - 16..=LIMIT).contains(&allowed), "{allowed}");
}

#[test]
fn ending_node_returns_its_units() {
    let file = config();
    let (mut ending, other) = (node(&file), node(&file));
    let key = unique("ending");
    let before = under_load(&[&ending], 16, ("sliding-window", &key), |tally| {
        wait_until("a lease is in hand", || tally.by_lease() > 50);
    });
    ending.terminate();
    assert!(ending.ended().success());
    let after = under_load(&[&other], 16, ("sliding-window", &key), until_exhausted);
    assert_eq!(before.allowed() + after.allowed(), LIMIT);
}

#[test]
fn reset_ends_the_lease_of_its_node() {
    let file = config();
    let node = node(&file);
    let key = unique("reset");
    under_load(&[&node], 16, ("sliding-window", &key), |tally| {
        wait_until("a lease is in hand", || tally.by_lease() > 50);
    });
    let path = format!("/v1/usage?policy=sliding-window&key={key}");
    assert_eq!(http::call(&node.address, "DELETE", &path, None, "").status, 200);
    let after = under_load(&[&node], 16, ("sliding-window", &key), until_exhausted);
    assert_eq!(after.allowed(), LIMIT);
}

#[test]
fn lease_survives_what_the_store_decides() {
    let file = config();
    let node = node(&file);
    let key = unique("beside");
    let check = |members: Value| {
        let mut body = json!({"policy": "sliding-window", "key": key});
        body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        node.post("/v1/check", &body).json()
    };
    under_load(&[&node], 16, ("sliding-window", &key), |tally| {
        wait_until("a lease is in hand", || tally.by_lease() > 50);
        for members in [json!({"id": "one"}), json!({"cost": 0}), json!({"over": "drain"}), json!({"cost": 3000})] {
            assert_ne!(check(members.clone())["source"], "lease", "{members}");
        }
        let leased = tally.by_lease();
        wait_until("leases go on", || tally.by_lease() > leased + 50);
    });
    let decision = check(json!({}));
    assert_eq!(decision["allowed"], true, "{decision}");
}

/// Buys, spends a part, and settles at another node, until nothing is sold any more. Some answers are
/// lost, so the purchase is repeated at the other node. Returns the units that were spent.
fn spend_as_caller(caller: usize, nodes: &[Node; 2], (policy, key): (&str, &str)) -> u64 {
    let (mut spent, mut denied) = (0, 0);
    let post = |node: usize, path: &str, body: Value| {
        let answer = nodes[node % 2].post(path, &body);
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        answer.json()
    };
    for number in 0.. {
        let id = format!("{caller}-{number}");
        let buy = |node| post(node, "/v1/lease", json!({"policy": policy, "key": key, "id": id, "want": 60}));
        let bought = buy(number);
        let units = bought["granted"].as_u64().unwrap();
        if units == 0 {
            denied += 1;
            if denied > 20 {
                break;
            }
            continue;
        }
        if number % 3 == 0 {
            let again = buy(number + 1);
            assert_eq!((again["granted"].as_u64(), &again["replayed"]), (Some(units), &json!(true)), "{policy}");
        }
        let cost = units * (number as u64 % 5) / 4;
        let cost = cost.min(units);
        let settle = |node| post(node, "/v1/settle", json!({"policy": policy, "key": key, "id": id, "cost": cost}));
        let settled = settle(number + 1);
        assert_eq!(
            (&settled["settled"], settled["charged"].as_u64()),
            (&json!(true), Some(cost)),
            "{policy}: {settled}"
        );
        assert_eq!(settled["refunded"].as_u64(), Some(units - cost), "{policy}: {settled}");
        if number % 4 == 0 {
            assert_eq!(settle(number)["replayed"], true, "{policy}");
        }
        spent += cost;
    }
    spent
}

#[test]
fn callers_nodes_and_checks_share_exactly_one_limit() {
    let file = config();
    let nodes = [node(&file), node(&file)];
    for policy in ["sliding-window", "fixed-window", "token-bucket", "sliding-log", "sliding-counter"] {
        let key = unique("callers");
        let spent = AtomicU64::new(0);
        let tally = under_load(&nodes.each_ref(), 8, (policy, &key), |tally| {
            std::thread::scope(|scope| {
                for caller in 0..4 {
                    let (spent, nodes, key) = (&spent, &nodes, &key);
                    scope.spawn(move || {
                        spent.fetch_add(spend_as_caller(caller, nodes, (policy, key)), Ordering::SeqCst);
                    });
                }
            });
            until_exhausted(tally);
        });
        let spent = spent.load(Ordering::SeqCst);
        assert_eq!(tally.allowed() + spent, LIMIT, "{policy}: callers spent {spent}");
        assert!(spent > 100, "{policy}: callers spent {spent} of {tally:?}");
    }
}
