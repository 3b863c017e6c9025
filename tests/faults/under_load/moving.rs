//! Slots that migrate under load, and one that stays half-migrated: no error, no fallback, never
//! over the limit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{a_while, attempts, during, lasts, needs_no_fallback, patient, tell};
use crate::support::chaos::{self, Service, key_in, slot_in};
use crate::support::cluster::Cluster;
use crate::support::http::{self, Connection};
use crate::support::slots::{begin, id, migrate, move_slot, set_slot, settle};
use crate::support::tries::passes_within;
use crate::support::{Node, config_on, wait_until};

fn slots_moved() -> usize {
    if chaos::strict() { 1500 } else { 150 }
}

#[test]
fn slots_moved_there_and_back_need_no_fallback() {
    let cluster = chaos::arena_without_failovers();
    needs_no_fallback(|| {
        cluster.heal();
        let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
        let mut service = Service::start(&cluster.seeds(), patient());
        let what = format!("reshard of {} slots", slots_moved());
        service.under(&what, Some(0), || {
            during(|| {
                let slots = slots_with_keys(&cluster, from);
                slots.iter().for_each(|slot| move_slot(&cluster, *slot, from, to));
                slots.iter().for_each(|slot| move_slot(&cluster, *slot, to, from));
            });
            None
        })
    });
}

/// Moved slots leave many ranges. A new node still opens one connection for each primary's checks.
#[test]
fn primary_with_many_slot_ranges_gets_one_connection() {
    let cluster = chaos::arena_without_failovers();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let every_other: Vec<u16> = (1..=20).map(|number| slot_in(0) + 2 * number).collect();
    every_other.iter().for_each(|slot| move_slot(&cluster, *slot, from, to));
    let mut connection = cluster.connection(from);
    let mut connections = || -> u64 {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let told = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        told.trim().parse().unwrap()
    };
    let before = connections();
    let file = config_on(&cluster.seeds(), "policies: {p: {quotas: [100 per 1h]}}");
    let node = Node::with_config(&file);
    let key = key_in(0);
    wait_until("the store decides", || check(&node.address, "p", &key).as_deref() == Some("store"));
    let more = connections() - before;
    every_other.iter().for_each(|slot| move_slot(&cluster, *slot, to, from));
    // One for checks, one for the topology, those of the cluster itself, and those that a stall
    // breaks. The node opens no connection for each of 20 ranges.
    assert!(more <= 12, "{more} connections");
}

/// After a slot moves there and back quickly, each of two nodes may consider the other the owner.
#[test]
fn unclaimed_slot_goes_to_majority_owner() {
    let cluster = chaos::arena_without_failovers();
    let slot = slot_in(0) + 50;
    let (owner, other) = (cluster.owner(slot), cluster.owner(slot_in(1)));
    redis::cmd("FLUSHALL").exec(&mut cluster.connection(owner)).unwrap();
    set_slot(&cluster, owner, slot, "NODE", &id(&cluster, other));
    cluster.heal();
    assert_eq!([cluster.owner(slot), cluster.owner(slot_in(1))], [owner, other]);
}

/// An operator ends a move whose target failed over midway. Until then one node keeps redirecting
/// the slot's new keys.
#[test]
fn interrupted_slot_move_is_repaired() {
    let cluster = chaos::arena();
    let slot = slot_in(0) + 52;
    let (owner, other) = (cluster.owner(slot), cluster.owner(slot_in(1)));
    begin(&cluster, slot, owner, other);
    cluster.fail_over(cluster.replica_of(other));
    cluster.heal();
    let mut connection = cluster.connection(owner);
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut connection).unwrap();
    assert!(!nodes.contains('['), "{nodes}");
}

/// An empty tick counts as missing while the slot moves. Half of the timeout is for retries.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn counter_of_a_moving_slot_falls_back_in_time() {
    let cluster = chaos::arena_without_failovers();
    cluster.heal();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let counter = "{algorithm: sliding-counter, quotas: [1000 per 1m], on_store_failure: deny, timeout: 10s}";
    let file = config_on(&cluster.seeds(), &format!("policies: {{counter: {counter}}}"));
    let (node, key) = (Node::with_config(&file), key_in(0));
    let is_by_store = || node.check("counter", &key, 1)["source"] == "store";
    wait_until("the store decides", is_by_store);
    let slot = chaos::slot_of(&key);
    begin(&cluster, slot, from, to);
    let started = Instant::now();
    let answer = node.check("counter", &key, 1);
    let took = started.elapsed();
    [from, to]
        .iter()
        .for_each(|number| tell(&cluster, *number, &format!("CLUSTER SETSLOT {slot} STABLE")));
    assert_eq!(answer["fallback"]["cause"], "refused", "{answer}");
    assert!(took < Duration::from_secs(9), "{took:?}");
    wait_until("the store decides again", is_by_store);
}

/// Half of the slots to move: all with keys, and others that the node owns. Tests leave some
/// elsewhere.
fn slots_with_keys(cluster: &Cluster, number: u16) -> BTreeSet<u16> {
    let mut connection = cluster.connection(number);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let slot = |key: &String| redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u16>(&mut connection).unwrap();
    let held: BTreeSet<u16> = keys.iter().map(slot).collect();
    assert!(held.len() > 20, "the load has keys on this shard");
    let owned = cluster.ranges().into_iter().filter(|(.., owner)| *owner == number);
    let others = owned.flat_map(|(first, last, _)| first..=last).filter(|slot| !held.contains(slot));
    held.iter().copied().chain(others).take(slots_moved() / 2).collect()
}

/// Policies of each algorithm, of one quota and of several.
const POLICIES: [(&str, &str, u64); 6] = [
    ("sliding", "quotas: [400 per 1h]", 400),
    ("sliding-trio", "quotas: [400 per 1h, 500 per 2h, 300 per 3h]", 300),
    ("fixed", "algorithm: fixed-window, anchor: first-hit, quotas: [400 per 1h, 300 per 2h]", 300),
    // Few months there are as long as 30 days of 24 hours.
    (
        "calendar",
        "algorithm: fixed-window, timezone: America/New_York, quotas: [{name: month, limit: 400, per: 1mo}, {name: year, limit: 300, per: 1y}]",
        300,
    ),
    (
        "bucket",
        "algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 400}, {rate: 1 per 2h, burst: 300}]",
        300,
    ),
    // The callers of its charges are a second key.
    ("log", "algorithm: sliding-log, quotas: [300 per 1h]", 300),
];

/// For 10 s a slot's keys are split between both sides. The store still decides checks exactly.
#[test]
fn half_migrated_slot_decides_correctly() {
    let cluster = chaos::arena_without_failovers();
    let decided = || is_decided_half_way(&cluster).then_some(()).ok_or("the store did not decide each check".into());
    passes_within(attempts(), decided);
}

/// Whether the store decided each check; the charge of an undecided one is unknown. The limit holds
/// in any case.
fn is_decided_half_way(cluster: &Cluster) -> bool {
    cluster.heal();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let policies: String = POLICIES
        .iter()
        .map(|(name, quotas, _)| format!("  {name}: {{{quotas}, on_store_failure: error, timeout: {}ms}}\n", timeout()))
        .collect();
    let file = config_on(&cluster.seeds(), &format!("policies:\n{policies}"));
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    let key = key_in(0);
    let slot = chaos::slot_of(&key);
    for node in &nodes {
        wait_until("the store decides", || node.check("sliding", &key, 0)["source"] == "store");
    }
    let asked = Asked { key: key.clone(), undecided: AtomicU64::new(0), allowed: POLICIES.map(|_| AtomicU64::new(0)) };
    let mut connection = Connection::open(&nodes[0].address).unwrap();
    for policy in (0..POLICIES.len()).flat_map(|policy| [policy; 10]) {
        asked.ask(&mut connection, policy, 1);
    }
    begin(cluster, slot, from, to);
    // Some keys have moved, some have not, and new ones may appear.
    assert_eq!(migrate(cluster, slot, from, to, 3), 3);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (asked, nodes) = (&asked, &nodes);
            scope.spawn(move || hammer(client, &nodes[client % 2].address, asked));
        }
    });
    let told = asked.told();
    println!(
        "ROW-MOVING | a slot MIGRATING for {} s: allowed | {} |",
        lasts(10_000).as_secs(),
        told.iter()
            .zip(POLICIES)
            .map(|((name, allowed), (_, _, limit))| format!("{name} {allowed} of {limit}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let all_decided = asked.undecided.load(Ordering::Relaxed) == 0;
    for ((name, allowed), (_, _, limit)) in told.iter().zip(POLICIES) {
        assert!(*allowed <= limit, "{name}: {allowed} of {limit}");
        if all_decided {
            assert_eq!(*allowed, limit, "{name}: {allowed} of {limit}");
        }
    }

    while migrate(cluster, slot, from, to, 100) > 0 {}
    settle(cluster, slot, [to, from]);
    sleep(a_while());
    // After the move the policies allow nothing more.
    let mut connection = Connection::open(&nodes[1].address).unwrap();
    for (policy, (.., limit)) in POLICIES.iter().enumerate() {
        (0..*limit).for_each(|_| asked.ask(&mut connection, policy, 1));
    }
    let undecided = asked.undecided.load(Ordering::Relaxed);
    for ((name, before), ((_, all), (.., limit))) in told.into_iter().zip(asked.told().into_iter().zip(POLICIES)) {
        assert!(all <= limit, "{name}: {before} and then {all} of {limit}");
        assert!(undecided > 0 || all == limit, "{name}: {before} and then {all} of {limit}");
    }
    if undecided > 0 {
        println!("{undecided} checks were not decided");
        return false;
    }
    for name in ["fixed", "calendar"] {
        let usage = http::get(&nodes[1].address, &format!("/v1/usage?policy={name}&key={key}")).json();
        assert_eq!(usage["quotas"][0]["remaining"], 100, "of the quota that did not deny, too: {usage}");
    }
    true
}

struct Asked {
    key: String,
    /// Not decided by the store.
    undecided: AtomicU64,
    allowed: [AtomicU64; POLICIES.len()],
}

impl Asked {
    fn ask(&self, connection: &mut Connection, policy: usize, cost: u64) {
        let body = json!({"policy": POLICIES[policy].0, "key": self.key, "cost": cost, "meta": "who"}).to_string();
        connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
        let answer = connection.receive(true).unwrap();
        let decision = answer.json();
        match answer.status {
            200 => assert_ne!(decision["source"], "fallback", "{decision}"),
            503 => _ = self.undecided.fetch_add(1, Ordering::Relaxed),
            _ => panic!("{answer:?}"),
        }
        if decision["allowed"] == true {
            self.allowed[policy].fetch_add(cost, Ordering::Relaxed);
        }
    }

    fn told(&self) -> Vec<(&str, u64)> {
        let names = POLICIES.into_iter().map(|(name, ..)| name);
        names.zip(&self.allowed).map(|(name, allowed)| (name, allowed.load(Ordering::Relaxed))).collect()
    }
}

/// A denial charges no quota, neither the one that denies nor those before it. A drain charges each
/// as much as fits.
#[test]
fn half_migrated_slot_denial_reports_remaining() {
    let cluster = chaos::arena_without_failovers();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let names = ["window", "fixed", "bucket"];
    let policies = format!(
        "
policies:
  window: {{quotas: [100 per 1h, 5 per 2h], on_store_failure: error, timeout: {0}ms}}
  fixed: {{algorithm: fixed-window, quotas: [100 per 1h, 5 per 2h], on_store_failure: error, timeout: {0}ms}}
  bucket: {{algorithm: token-bucket, quotas: [{{rate: 1 per 1d, burst: 100}}, {{rate: 1 per 2d, burst: 5}}], on_store_failure: error, timeout: {0}ms}}
",
        timeout()
    );
    let file = config_on(&cluster.seeds(), &policies);
    let node = Node::with_config(&file);
    let key = key_in(0);
    let slot = chaos::slot_of(&key);
    let ask = |policy: &str| node.check(policy, &key, 3);
    wait_until("the store decides", || node.check("window", &key, 0)["source"] == "store");
    names.iter().for_each(|name| assert_eq!(ask(name)["allowed"], true));
    begin(&cluster, slot, from, to);
    assert_eq!(migrate(&cluster, slot, from, to, 3), 3);
    let answers = names.map(ask);
    let drain = |policy: &str| {
        let check = json!({"policy": policy, "key": key, "cost": 3, "over": "drain"});
        let answer = node.post("/v1/check", &check).json();
        [0, 1].map(|quota| answer["quotas"][quota]["charged"].as_u64())
    };
    assert_eq!(names.map(drain), [[Some(3), Some(2)], [Some(3), Some(2)], [Some(3), Some(3)]]);
    while migrate(&cluster, slot, from, to, 100) > 0 {}
    settle(&cluster, slot, [to, from]);
    for answer in answers {
        let told = (&answer["allowed"], &answer["source"], &answer["quotas"][0]["remaining"]);
        assert_eq!(told, (&json!(false), &json!("store"), &json!(97)), "{answer}");
    }
}

/// A refund needs two keys, so it fails while the slot migrates. The store makes no reservation
/// that it could not refund.
#[test]
fn half_migrated_slot_all_or_none_leaves_no_charge() {
    let cluster = chaos::arena_without_failovers();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let policies = "
policies:
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 30d, burst: 50}], timeout: 500ms, on_store_failure: deny}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [50 per 1d], timeout: 500ms, on_store_failure: deny}
  window: {quotas: [500 per 1d], timeout: 500ms, on_store_failure: deny}
";
    let file = config_on(&cluster.seeds(), policies);
    let node = Node::with_config(&file);
    let (key, other) = (key_in(0), key_in(1));
    let slot = chaos::slot_of(&key);
    wait_until("the store decides", || check(&node.address, "window", &other).as_deref() == Some("store"));
    begin(&cluster, slot, from, to);
    for policy in ["bucket", "fixed"] {
        for _ in 0..3 {
            let checks = json!([
                {"policy": policy, "key": key, "cost": 5}, {"policy": "window", "key": other, "cost": 501}
            ]);
            let answer = node.post("/v1/check/all", &json!({"checks": checks})).json();
            assert_eq!(answer["allowed"], false, "{answer}");
        }
    }
    while migrate(&cluster, slot, from, to, 100) > 0 {}
    settle(&cluster, slot, [to, from]);
    for policy in ["bucket", "fixed"] {
        let usage = || http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}")).json();
        wait_until("the store tells", || usage()["source"] == "store");
        assert_eq!(usage()["remaining"], 50, "{}", usage());
    }
}

/// The lane repeats a check of a migrating slot in a separate call. The call's other checks are not
/// charged again.
#[test]
fn migrated_key_leaves_others_of_its_call_unaffected() {
    let cluster = chaos::arena_without_failovers();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let policies = "policies:
  sliding: {quotas: [100 per 1h, 200 per 2h], on_store_failure: error, timeout: 5s}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 100}, {rate: 1 per 2h, burst: 200}], on_store_failure: error, timeout: 5s}";
    let file = config_on(&cluster.seeds(), policies);
    let node = Node::with_config(&file);
    let keys: Vec<String> = (0..20).map(|_| key_in(0)).collect();
    let slot = chaos::slot_of(&keys[7]);
    let all = |policy| keys.iter().map(move |key| json!({"policy": policy, "key": key}));
    let checks: Vec<_> = all("sliding").chain(all("bucket")).collect();
    wait_until("the store decides", || node.check("sliding", &keys[0], 0)["source"] == "store");
    let left = || -> Vec<u64> {
        let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
        let results = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
        results
            .iter()
            .map(|each| if each["source"] == "store" { each["remaining"].as_u64().unwrap() } else { 0 })
            .collect()
    };
    assert_eq!(left(), [99; 40]);
    begin(&cluster, slot, from, to);
    assert!(migrate(&cluster, slot, from, to, 1) > 0);
    assert_eq!(left(), [98; 40], "one of its keys is here, one there");
    while migrate(&cluster, slot, from, to, 100) > 0 {}
    assert_eq!(left(), [97; 40], "all of its keys are there");
    settle(&cluster, slot, [to, from]);
    wait_until("the node has noticed", || left()[7] > 0);
    let metrics = node.metrics();
    let alone = metrics
        .lines()
        .filter(|line| line.starts_with("tollgate_store_retries_total{") && line.contains(r#"kind="alone""#));
    let alone: u64 = alone.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(alone > 0, "{metrics}");
    let told = left();
    assert!(told.iter().all(|left| *left == told[0]), "{told:?}");
}

const CLIENTS: usize = 64;

fn timeout() -> u128 {
    if chaos::strict() { 100 } else { patient().as_millis() }
}

/// The source of the decision, if it allowed the check.
fn check(address: &str, policy: &str, key: &str) -> Option<String> {
    let answer = http::post(address, "/v1/check", json!({"policy": policy, "key": key}).to_string());
    let decision = answer.json();
    assert_eq!(answer.status, 200, "{decision}");
    (decision["allowed"] == true).then(|| decision["source"].as_str().unwrap_or_default().to_owned())
}

/// Each client cycles through all policies with different costs, as long as the slot stays
/// half-migrated.
fn hammer(client: usize, address: &str, asked: &Asked) {
    let mut connection = Connection::open(address).unwrap();
    let end = chaos::now_ms() + u64::try_from(lasts(10_000).as_millis()).unwrap();
    while chaos::now_ms() < end {
        (0..POLICIES.len()).for_each(|policy| asked.ask(&mut connection, policy, 1 + client as u64 % 3));
        sleep(Duration::from_millis(20));
    }
}

/// Operations on several keys fail while the slot stays half-migrated. A check with an id and a
/// reservation get the policy's fallback for a rejecting store, and charge nothing.
#[test]
fn half_migrated_slot_charges_no_id_and_no_reservation() {
    let cluster = chaos::arena_without_failovers();
    let owners = [cluster.owner(slot_in(0)), cluster.owner(slot_in(1))];
    let policies = "policies:
  sliding: {quotas: [400 per 1h], on_store_failure: deny, timeout: 500ms}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [400 per 1h, 500 per 2h], on_store_failure: deny, timeout: 500ms}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 30d, burst: 400}], on_store_failure: deny, timeout: 500ms}
  log: {algorithm: sliding-log, quotas: [400 per 1h, 500 per 2h], on_store_failure: deny, timeout: 500ms}
";
    let names = ["sliding", "fixed", "bucket", "log"];
    let file = config_on(&cluster.seeds(), policies);
    let node = Node::with_config(&file);
    let (key, elsewhere) = (key_in(0), key_in(2));
    let slot = chaos::slot_of(&key);
    let from = cluster.owner(slot);
    let to = if owners[0] == from { owners[1] } else { owners[0] };
    let posted = |path: &str, body: &serde_json::Value| node.post(path, body).json();
    let one = |policy: &str, key: &str| json!({"policy": policy, "key": key});
    let with_id = |policy: &str| posted("/v1/check", &json!({"policy": policy, "key": key, "id": "once"}));
    for policy in names {
        for key in [&key, &elsewhere] {
            wait_until("the store decides", || posted("/v1/check", &one(policy, key))["source"] == "store");
        }
    }
    let left = |policy: &str, key: &str| {
        let path = format!("/v1/usage?policy={policy}&key={key}");
        let mut usage = json!(null);
        wait_until("the store tells", || {
            usage = http::get(&node.address, &path).json();
            usage["source"] == "store"
        });
        usage["remaining"].as_u64().unwrap()
    };
    let before = names.map(|policy| [left(policy, &key), left(policy, &elsewhere)]);

    begin(&cluster, slot, from, to);
    assert_eq!(migrate(&cluster, slot, from, to, 3), 3);
    for policy in names {
        let refused = with_id(policy);
        assert_eq!((&refused["allowed"], &refused["source"]), (&json!(false), &json!("fallback")), "{refused}");
        // Its keys are on both sides, so the store rejects the call before any charge.
        let both = posted("/v1/check/all", &json!({"checks": [one("sliding", &key), one(policy, &elsewhere)]}));
        assert_eq!(both["allowed"], false, "{both}");
    }

    while migrate(&cluster, slot, from, to, 100) > 0 {}
    settle(&cluster, slot, [to, from]);
    let after = names.map(|policy| [left(policy, &key), left(policy, &elsewhere)]);
    assert_eq!(after, before);
    for (policy, [before, _]) in names.into_iter().zip(before) {
        let mut answer = json!(null);
        wait_until("the store decides again", || {
            answer = with_id(policy);
            answer["source"] == "store"
        });
        assert_eq!(answer["allowed"], true, "{answer}");
        assert_eq!(left(policy, &key), before - 1, "{policy}");
    }
}
