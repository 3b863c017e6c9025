//! Nodes rediscover a cluster's topology, whatever happens to the known addresses.

use std::fs::File;
use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use crate::support::chaos::{key_in, now_ms, slot_in, slot_of};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::redis::{Server, bus_port};
use crate::support::tries::passes_within;
use crate::support::{Node, TOLLGATE, config_on, free_port, unique, wait_until};

const POLICIES: &str = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny}}";

/// The same with more time for a stall. It is at most a second, so that a store that is down gets
/// one call.
const PATIENT: &str = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny, timeout: 1s}}";

fn is_decided(node: &Node, key: &str) -> bool {
    node.check("p", key, 1)["source"] == "store"
}

fn left_by_the_store(node: &Node) -> u64 {
    let mut left = None;
    wait_until("the store decides", || {
        let answer = node.check("p", "key", 1);
        left = answer["remaining"].as_u64().filter(|_| answer["source"] == "store");
        left.is_some()
    });
    left.unwrap()
}

fn metric(node: &Node, name: &str) -> Option<f64> {
    let text = node.metrics();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// The whole cluster is deployed anew. The old addresses are dead, and the configured name leads to
/// the new nodes. Here seed and primaries are an even number, and discovery alternates between
/// them.
#[test]
fn replaced_cluster_is_found_by_its_seed() {
    let mut cluster = whole();
    let proxy = Proxy::start(cluster.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    for round in 0..4 {
        wait_until(&format!("the store decides in round {round}"), || is_decided(&node, "key"));
        let new = whole();
        proxy.lead_to(new.port);
        std::mem::replace(&mut cluster, new).end();
        proxy.cut();
    }
    wait_until("the store decides in the end", || is_decided(&node, "key"));
}

/// Two nodes remain: one rejects topology queries, and the other knows the new owner.
#[test]
fn silent_node_does_not_block_discovery() {
    let cluster = Cluster::start();
    let [mute, victim] = [0, 2].map(|shard| cluster.owner(slot_in(shard)));
    let file = config_on(&cluster.seeds(), POLICIES);
    let node = Node::with_config(&file);
    let keys = [0, 1, 2].map(key_in);
    wait_until("the store decides", || keys.iter().all(|key| is_decided(&node, key)));
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", "-cluster"])
        .exec(&mut cluster.connection(mute))
        .unwrap();
    let replica = cluster.replica_of(victim);
    cluster.run(&["kill", &victim.to_string()]);
    wait_until("the replica has taken over", || cluster.is_primary(replica));
    wait_until("the store decides again", || keys.iter().all(|key| is_decided(&node, key)));
}

/// A redirection or an INFO reveals the reverse case. Here no node of the cluster remains to report
/// the change.
#[test]
fn single_server_in_place_of_cluster_is_noticed() {
    let cluster = whole();
    let proxy = Proxy::start(cluster.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    wait_until("the cluster decides", || is_decided(&node, "key"));
    let server = Server::start();
    proxy.lead_to(server.port);
    cluster.end();
    proxy.cut();
    wait_until("the server decides", || is_decided(&node, "key"));
    assert_eq!(node.health()["store"]["kind"], "redis");
}

/// Nothing else reveals it: connections stay open, and the store decides checks, until the next
/// failover.
#[test]
fn stale_topology_is_logged_and_measured() {
    let (cluster, folder) = (whole(), tempfile::tempdir().unwrap());
    let file = config_on(&[cluster.url()], PATIENT);
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(File::create(folder.path().join("log")).unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    wait_until("the store decides", || is_decided(&node, "key"));
    let mut connection = cluster.connection().unwrap();
    let mut allow = |rule: &str| redis::cmd("ACL").arg(&["SETUSER", "default", rule]).exec(&mut connection).unwrap();
    let told = |what: &str| {
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        log.lines().filter(|line| what.split('|').all(|part| line.contains(part))).count()
    };
    let age = || metric(&node, "tollgate_topology_age_seconds").unwrap();
    let again = || told("a node tells again which primary owns which slots");
    allow("-cluster");
    wait_until("the log tells why", || told("no node tells which primary owns which slots|NOPERM") > 0);
    wait_until("its age grows", || age() > 3.0);
    assert!(is_decided(&node, "key"), "by what was known");
    let before = again();
    allow("+cluster");
    wait_until("the log tells of the end", || again() > before);
    wait_until("it is young again", || age() < 3.0);
}

#[test]
fn unowned_slots_are_reported() {
    let cluster = whole();
    let mut connection = cluster.connection().unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "cluster-require-full-coverage", "no"])
        .exec(&mut connection)
        .unwrap();
    let file = config_on(&[cluster.url()], POLICIES);
    let node = Node::with_config(&file);
    wait_until("all is well", || node.health()["status"] == "ok");
    assert_eq!(node.health()["store"].get("slots_without_owner"), None);
    assert_eq!(metric(&node, "tollgate_slots_without_owner"), Some(0.0));
    redis::cmd("CLUSTER")
        .arg("DELSLOTS")
        .arg((0..100).collect::<Vec<u16>>())
        .exec(&mut connection)
        .unwrap();
    wait_until("health tells", || node.health()["store"]["slots_without_owner"] == 100);
    assert_eq!(node.health()["status"], "degraded");
    assert_eq!(metric(&node, "tollgate_slots_without_owner"), Some(100.0));
}

/// Its connections stay open, and it executes nothing. Repeated calls would cost each check its
/// time and multiply the server's calls.
#[test]
fn cluster_down_is_reported_with_one_call_per_check() {
    let cluster = whole();
    let mut connection = cluster.connection().unwrap();
    let file = config_on(&[cluster.url()], PATIENT);
    let node = Node::with_config(&file);
    wait_until("the store decides", || is_decided(&node, "key"));
    let mut tell = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut connection).unwrap()
    };
    tell("CLUSTER DELSLOTS 0");
    // The age of the overrides may degrade the node before its shard is down.
    wait_until("health reports the shard", || {
        assert!(!is_decided(&node, "key"));
        node.health()["store"]["shards"][0]["up"] == false
    });
    assert_eq!(node.health()["status"], "degraded");
    let mut refused = || {
        let redis::Value::BulkString(info) = tell("INFO commandstats") else { panic!("no INFO") };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        let count = line.and_then(|line| line.split("rejected_calls=").nth(1)?.split(',').next());
        count.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    };
    let before = refused();
    let causes: Vec<_> = (0..50).map(|_| node.check("p", "key", 1)["fallback"]["cause"].clone()).collect();
    // A stall may delay one.
    assert!(causes.iter().filter(|cause| *cause == "refused").count() >= 48, "{causes:?}");
    let calls = refused() - before;
    // Servers before 6.2 do not count them.
    assert!(calls <= 60, "{calls} calls for 50 checks");
    tell("CLUSTER ADDSLOTS 0");
    wait_until("health tells of the end", || node.health()["status"] == "ok");
    wait_until("the store decides again", || is_decided(&node, "key"));
}

/// The overrides are in slots without an owner. The shard was down when the node started.
#[test]
fn recovered_shard_decides_nothing_before_the_overrides_are_loaded() {
    let own = slot_of("key");
    let cluster = owner_of(own..own + 1, &[]);
    let mut connection = cluster.connection().unwrap();
    let file = config_on(&[cluster.url()], PATIENT);
    let node = Node::with_config(&file);
    wait_until("the shard is down", || {
        node.check("p", "key", 1);
        node.health()["store"]["shards"][0]["up"] == false
    });
    redis::cmd("CONFIG")
        .arg(&["SET", "cluster-require-full-coverage", "no"])
        .exec(&mut connection)
        .unwrap();
    wait_until("the cluster is up", || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).unwrap();
        info.contains("cluster_state:ok")
    });
    for _ in 0..20 {
        assert!(!is_decided(&node, "key"), "{}", node.health());
    }
    assert_eq!(node.health()["status"], "starting");
}

/// A different cluster now owns an old address, while the known nodes are briefly unreachable.
#[test]
fn foreign_cluster_is_not_adopted_at_once() {
    // A stall may extend the outage so long that the node switches.
    passes_within(3, || {
        let (away, is_kept) = away_for_a_moment();
        assert!(is_kept || away > 1000, "given up after {away} ms");
        if is_kept { Ok(()) } else { Err(format!("given up after {away} ms")) }
    });
}

/// How long the cluster was unreachable, ms, and whether the node continues with its counts.
fn away_for_a_moment() -> (u64, bool) {
    let (own, other) = (whole(), whole());
    let proxy = Proxy::start(own.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    let own_address = format!("127.0.0.1:{}", own.port);
    let shard = || node.health()["store"]["shards"][0].clone();
    let before = left_by_the_store(&node);
    proxy.lead_to(other.port);
    proxy.cut();
    own.freeze();
    let frozen = now_ms();
    let is_away = !is_decided(&node, "key");
    wait_until("it is away", || shard()["up"] == false || shard()["address"] != own_address);
    // Long enough to contact the old address, and too short for the node to give up its own nodes.
    std::thread::sleep(Duration::from_millis(500));
    own.thaw();
    let away = now_ms() - frozen;
    let is_by_the_same_counts = left_by_the_store(&node) < before;
    (away, is_away && is_by_the_same_counts && shard()["address"] == own_address)
}

/// The whole cluster is deployed anew. An old address now belongs to a server that requires another
/// password.
#[test]
fn foreign_server_that_rejects_login_does_not_block_discovery() {
    let (other, stranger) = (whole(), Server::start());
    let to_owner = Proxy::start(stranger.port);
    let port = to_owner.port.to_string();
    let own = whole_with(&["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", &port]);
    to_owner.lead_to(own.port);
    let to_seed = Proxy::start(own.port);
    let mut connection = stranger.connection().unwrap();
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "of-somebody-else"]).exec(&mut connection).unwrap();
    let file = config_on(&[format!("redis://127.0.0.1:{}", to_seed.port)], POLICIES);
    let node = Node::with_config(&file);
    wait_until("the store decides", || is_decided(&node, "key"));
    assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{port}"));
    to_seed.lead_to(other.port);
    to_owner.lead_to(stranger.port);
    own.end();
    to_seed.cut();
    to_owner.cut();
    wait_until("the new one decides", || is_decided(&node, "key"));
    assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{}", other.port));
}

/// A foreign cluster takes the address of one of two primaries. It takes over neither the other's
/// keys nor its own. The node continues when the primary returns.
#[test]
fn foreign_cluster_at_address_of_primary_is_not_adopted() {
    let (other, to_second) = (whole(), Proxy::start(free_port()));
    let port = to_second.port.to_string();
    let first = owner_of(0..8192, &[]);
    let announced = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", &port];
    let second = owner_of(8192..16_384, &announced);
    to_second.lead_to(second.port);
    let mut meet = redis::cmd("CLUSTER");
    meet.arg("MEET").arg("127.0.0.1").arg(second.port).arg(second.port + 10_000);
    meet.exec(&mut first.connection().unwrap()).unwrap();
    let file = config_on(&[first.url()], PATIENT);
    let node = Node::with_config(&file);
    let key_of =
        |slots: Range<u16>| std::iter::repeat_with(|| unique("two")).find(|key| slots.contains(&slot_of(key))).unwrap();
    let (near, far) = (key_of(0..8192), key_of(8192..16_384));
    wait_until("both decide", || is_decided(&node, &near) && is_decided(&node, &far));
    let left = |key: &str| node.check("p", key, 0)["remaining"].as_u64();
    let before = [left(&near), left(&far)];

    to_second.lead_to(other.port);
    to_second.cut();
    wait_until("health tells", || {
        is_decided(&node, &far);
        let health = node.health();
        let shards = health["store"]["shards"].as_array().unwrap().clone();
        shards.len() == 2 && shards.iter().any(|shard| shard["up"] == false)
    });
    // Long enough to contact both many times.
    let (began, mut rounds) = (now_ms(), 0);
    while now_ms() < began + 3000 {
        assert!(is_decided(&node, &near), "the other primary goes on");
        assert!(!is_decided(&node, &far), "nobody else counts");
        rounds += 1;
    }
    assert_eq!(before[0].unwrap() - left(&near).unwrap(), rounds, "by the same counts");
    assert_eq!(other.calls(["set"]), [0], "nothing is counted there");

    to_second.lead_to(second.port);
    to_second.cut();
    wait_until("it decides again", || is_decided(&node, &far));
    assert!(left(&far) < before[1], "by the same counts");
}

/// The cluster is reachable and reports that it is down. The node must not count elsewhere.
#[test]
fn cluster_down_is_not_left_for_a_foreign_cluster() {
    let (own, other) = (whole(), whole());
    let proxy = Proxy::start(own.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    wait_until("the store decides", || is_decided(&node, "key"));
    proxy.lead_to(other.port);
    proxy.cut();
    let mut connection = own.connection().unwrap();
    redis::cmd("CLUSTER").arg(&["DELSLOTS", "0"]).exec(&mut connection).unwrap();
    wait_until("it is told", || node.health()["status"] != "ok");
    let asked = proxy.accepted();
    wait_until("the node has asked the other one, too", || proxy.accepted() > asked + 2);
    assert!(!is_decided(&node, "key"));
    redis::cmd("CLUSTER").arg(&["ADDSLOTS", "0"]).exec(&mut connection).unwrap();
    wait_until("the store decides again", || is_decided(&node, "key"));
    assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{}", own.port));
}

/// Each login costs a shared server time, with TLS a handshake.
#[test]
fn server_that_rejects_logins_gets_few_attempts() {
    let server = Server::start();
    let mut connection = server.connection().unwrap();
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "right"]).exec(&mut connection).unwrap();
    let proxy = Proxy::start(server.port);
    let file = config_on(&[format!("redis://:wrong@127.0.0.1:{}", proxy.port)], POLICIES);
    let began = now_ms();
    let _node = Node::with_config(&file);
    wait_until("it has tried often", || proxy.accepted() >= 16);
    // One login in 250 ms for detection.
    let (logins, took) = (proxy.accepted() as u64, now_ms() - began);
    assert!(logins <= took / 200, "{logins} logins in {took} ms");
}

fn whole() -> Server {
    whole_with(&[])
}

fn whole_with(options: &[&str]) -> Server {
    owner_of(0..16_384, options)
}

/// A node of a cluster that has met no other one.
fn owner_of(slots: Range<u16>, options: &[&str]) -> Server {
    let server = Server::start_on(bus_port(), &[&["--cluster-enabled", "yes"], options].concat());
    let mut connection = server.connection().unwrap();
    let slots: Vec<u16> = slots.collect();
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut connection).unwrap();
    server
}
