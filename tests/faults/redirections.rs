//! The cluster changes under load. No response fails or uses the fallback, and nothing is charged
//! twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;

use crate::support::chaos;
use crate::support::cluster::Cluster;
use crate::support::http::{self, Connection};
use crate::support::redis::{Server, bus_port};
use crate::support::{Node, config_on, unique, wait_until};

const CLIENTS: usize = 192;

const LIMIT: u64 = 100_000;

#[test]
fn failovers_and_flushed_scripts_lose_and_double_nothing() {
    let cluster = Cluster::start();
    // A long timeout: the test shows that the lane retries calls, not how fast the machine is.
    let policies = format!("policies:\n  p: {{quotas: [{LIMIT} per 1h], on_store_failure: error, timeout: 3s}}\n");
    let file = config_on(&cluster.seeds(), &policies);
    let node = Node::with_config(&file);
    let keys: Vec<String> = (0..CLIENTS).map(|_| unique("failover")).collect();
    let allowed: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let (unanswered, holds) = (AtomicU64::new(0), holds_calls_after_a_failover(&cluster));
    std::thread::scope(|scope| {
        for (key, allowed) in keys.iter().zip(&allowed) {
            let (node, over, unanswered) = (&node, &over, &unanswered);
            scope.spawn(move || {
                let mut connection = Connection::open(&node.address).unwrap();
                let request =
                    http::json_request("/v1/check", json!({"policy": "p", "key": key}).to_string().as_bytes());
                while !over.load(Ordering::Relaxed) {
                    connection.send(&request).unwrap();
                    let answer = connection.receive(true).unwrap();
                    let decision = answer.json();
                    if holds && answer.status == 503 {
                        unanswered.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    assert_eq!((answer.status, &decision["source"]), (200, &json!("store")), "{decision}");
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        disturb(&cluster);
        over.store(true, Ordering::Relaxed);
    });
    let unanswered = unanswered.into_inner();
    println!("{unanswered} calls were not answered");
    assert!(
        unanswered <= 3 * CLIENTS as u64,
        "the calls that were under way at three failovers, and no more: {unanswered}"
    );
    for (key, allowed) in keys.iter().zip(&allowed) {
        let usage = http::get(&node.address, &format!("/v1/usage?policy=p&key={key}")).json();
        let charged = LIMIT - usage["remaining"].as_u64().unwrap();
        assert_eq!(charged, allowed.load(Ordering::Relaxed), "{key}: {usage}");
    }
}

/// Redis before 7.0 holds calls during a failover. The former primary answers them only after 10 s
/// (redis/redis#9618).
fn holds_calls_after_a_failover(cluster: &Cluster) -> bool {
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(&mut cluster.connection(1)).unwrap();
    info.get::<String>("redis_version").unwrap().starts_with("6.")
}

/// Each replica takes over once, and each new primary loses its scripts.
fn disturb(cluster: &Cluster) {
    for number in [4, 5, 6] {
        // Keeps the load on before each change, and after the last one.
        std::thread::sleep(std::time::Duration::from_millis(300));
        cluster.fail_over(number);
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut cluster.connection(number)).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
}

/// While its first slot migrates to it, a primary owns none. Checks of that slot reach it
/// nevertheless.
#[test]
fn primary_without_slots_gets_one_connection() {
    let servers = [(); 2].map(|()| Server::start_on(bus_port(), &["--cluster-enabled", "yes"]));
    let [mut full, mut empty] = servers.each_ref().map(|server| server.connection().unwrap());
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg((0..16384).collect::<Vec<u16>>()).exec(&mut full).unwrap();
    redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(servers[0].port).exec(&mut empty).unwrap();
    let info =
        |connection: &mut redis::Connection| -> String { redis::cmd("CLUSTER").arg("INFO").query(connection).unwrap() };
    wait_until("they are one", || {
        [&mut full, &mut empty].into_iter().all(|connection| {
            let told = info(connection);
            told.contains("cluster_state:ok") && told.contains("cluster_known_nodes:2")
        })
    });
    let key = unique("empty");
    let slot = chaos::slot_of(&key);
    let ids = [&mut full, &mut empty].map(|connection| redis::cmd("CLUSTER").arg("MYID").query::<String>(connection));
    for (here, state, there) in [(&mut empty, "IMPORTING", &ids[0]), (&mut full, "MIGRATING", &ids[1])] {
        let there = there.as_ref().unwrap();
        redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(there).exec(here).unwrap();
    }
    let file = config_on(&[servers[0].url()], "policies: {p: {quotas: [1000 per 1h], timeout: 1s}}");
    let node = Node::with_config(&file);
    let mut ask = || {
        let answer = node.check("p", &key, 1);
        let stats: String = redis::cmd("INFO").arg("stats").query(&mut empty).unwrap();
        let told = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        (answer["source"] == "store", told.trim().parse::<u64>().unwrap())
    };
    wait_until("the store decides", || ask().0);
    let (_, before) = ask();
    // The node refreshes the topology every second.
    let end = chaos::now_ms() + 5000;
    while chaos::now_ms() < end {
        let (by_store, connections) = ask();
        assert!(by_store);
        assert!(connections <= before + 1, "{connections} connections after {before}: one to ask who owns what");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The tests' own clusters leave nothing running.
#[test]
fn dropped_cluster_stops_its_servers() {
    let cluster = Cluster::start();
    let seeds = cluster.seeds();
    let answers = |seed: &String| redis::Client::open(seed.as_str()).unwrap().get_connection().is_ok();
    assert!(seeds.iter().all(answers));
    drop(cluster);
    assert!(!seeds.iter().any(answers));
}
