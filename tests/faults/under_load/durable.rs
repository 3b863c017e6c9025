//! `durability: replica`: charges of allowed checks survive the primary.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;
use tempfile::NamedTempFile;

use super::{TIMEOUT, a_while, attempts, tell};
use crate::support::chaos::{self, CLIENTS, DURABLE, Row, Service, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::tries::passes_within;
use crate::support::{Node, TOLLGATE, config_on, http, unique, wait_until};

/// The replica loses its link shortly before the primary dies. Without `durability: replica`, the
/// loss is at most the checks allowed meanwhile.
#[test]
fn failover_loses_only_unreplicated_charges() {
    let ([durable, usual], lag) = kill_behind_a_lagging_replica(CUT_OFF);
    durable.holds().forgets_nothing();
    usual.holds();
    println!(
        "ROW-LAG | {CUT_OFF} | lag {} ms | allowed meanwhile {} | forgotten {} |",
        lag.ms, lag.allowed, usual.forgotten
    );
    // Answers to earlier charges may still have been in flight.
    let most = lag.allowed + u64::try_from(CLIENTS).unwrap();
    assert!((1..=most).contains(&usual.forgotten), "forgotten {}, and at most {most} could be", usual.forgotten);
}

const CUT_OFF: &str = "kill -9, the replica cut off 300 ms before";

/// A primary that restarts before a failover keeps its data in an append-only file.
#[test]
fn primary_that_returns_at_once_loses_nothing() {
    for row in kill_and_start_at_once("kill -9, back at once") {
        row.holds().forgets_nothing();
    }
}

/// At least 10,000 allowed checks over ten kills.
#[test]
#[ignore = "takes minutes; scripts/faults runs it"]
fn ten_kills_lose_no_acknowledged_charge() {
    let (mut forgotten, mut answers) = (0, 0);
    for kill in 0..10 {
        let [row, _] = match kill % 2 {
            0 => kill_behind_a_lagging_replica(CUT_OFF).0,
            _ => kill_and_start_at_once("kill -9, back at once"),
        };
        row.holds();
        (forgotten, answers) = (forgotten + row.forgotten, answers + row.allowed);
    }
    println!("durability: replica: {forgotten} forgotten of {answers} allowed over ten kills");
    assert!(forgotten == 0 && answers >= 10_000, "{forgotten} of {answers}");
}

struct Lag {
    ms: u64,
    /// Checks of the shard that the store allowed meanwhile, under the policy without `durability:
    /// replica`.
    allowed: u64,
}

fn kill_behind_a_lagging_replica(what: &str) -> ([Row; 2], Lag) {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let replica = cluster.replica_of(victim);
    let mut connection = cluster.connection(victim);
    let mut service = Service::start_in(&cluster.seeds(), TIMEOUT, DURABLE);
    let mut lag = Lag { ms: 0, allowed: 0 };
    let rows = service.under_watch(what, Some(0), |watch| {
        sleep(a_while());
        // A password that the primary does not expect prevents a reconnect.
        tell(&cluster, replica, "CONFIG SET masterauth wrong");
        let (cut, before) = (now_ms(), watch.allowed(0)[1]);
        // A replica that stalled briefly gets all charges up to now.
        let key = format!("{{ratelimit:{}:}}probe", chaos::key_in(0));
        redis::cmd("SET").arg(&key).arg(1).arg("EX").arg(1).exec(&mut connection).unwrap();
        let has_it = redis::cmd("WAIT").arg(1).arg(10_000).query::<u64>(&mut connection).unwrap();
        assert_eq!(has_it, 1, "the replica acknowledges");
        assert_eq!(redis::cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).query::<u64>(&mut connection).unwrap(), 1);
        let known = watch.allowed(0)[1] + u64::try_from(CLIENTS).unwrap() / 2;
        sleep(Duration::from_millis(300));
        // More than the checks in flight: half of the clients use this mode.
        wait_until("some are allowed of which no replica knows", || watch.allowed(0)[1] > known);
        cluster.run(&["kill", &victim.to_string()]);
        lag = Lag { ms: now_ms() - cut, allowed: watch.allowed(0)[1] - before };
        wait_until("the replica has taken over", || cluster.is_primary(replica));
        tell(&cluster, replica, "CONFIG SET masterauth ''");
        // Until it has its own replica, WAIT gets no acknowledgement.
        cluster.run(&["start", &victim.to_string()]);
        let mut promoted = cluster.connection(replica);
        wait_until("the new primary has a replica", || {
            let info: String = redis::cmd("INFO").arg("replication").query(&mut promoted).unwrap();
            info.contains("state=online")
        });
        let back = now_ms();
        sleep(a_while());
        Some(back)
    });
    (rows, lag)
}

fn kill_and_start_at_once(what: &str) -> [Row; 2] {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0)).to_string();
    let mut service = Service::start_in(&cluster.seeds(), TIMEOUT, DURABLE);
    service.under(what, Some(0), || {
        sleep(a_while());
        cluster.run(&["kill", &victim]);
        cluster.run(&["start", &victim]);
        writable(&cluster);
        sleep(a_while());
        None
    })
}

fn writable(cluster: &Cluster) {
    let key = format!("{{ratelimit:{}:}}probe", chaos::key_in(0));
    wait_until("some node takes a write", || {
        let write = |mut connection| redis::cmd("SET").arg(&key).arg(1).arg("EX").arg(1).exec(&mut connection);
        (1..=6).any(|number| cluster.try_connection(number).and_then(write).is_ok())
    });
}

const POLICIES: &str = "
policies:
  kept: {quotas: [10 per 1h], durability: replica, timeout: 3s}
  usual: {quotas: [10 per 1h], timeout: 5s}
";

/// The charge stays in the store; only its answer lacks the acknowledgement. Checks without
/// `durability: replica` do not wait.
#[test]
fn without_replica_checks_are_denied_and_charges_stay() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let (mut key, mut answer) = (String::new(), json!(null));
    // A stall may delay one.
    wait_until("one is told in time that nobody has acknowledged it", || {
        key = unique("kept");
        answer = node.check("kept", &key, 1);
        answer["fallback"]["cause"] == "no_replica_ack"
    });
    assert_eq!(
        (&answer["allowed"], &answer["charged"], &answer["source"], &answer["fallback"]),
        (&json!(false), &json!(0), &json!("fallback"), &json!({"mode": "deny", "cause": "no_replica_ack"})),
        "{answer}"
    );
    let left = || http::get(&node.address, &format!("/v1/usage?policy=kept&key={key}")).json()["remaining"].clone();
    assert_eq!(left(), 9);
    let drain = json!({"policy": "kept", "key": key, "cost": 20, "over": "drain"});
    wait_until("a drain is told so in time", || {
        answer = node.post("/v1/check", &drain).json();
        answer["fallback"]["cause"] == "no_replica_ack"
    });
    assert_eq!((&answer["charged"], &answer["owed"]), (&json!(0), &json!(20)), "{answer}");
    assert_eq!(left(), 0);
    assert_eq!(node.check("usual", &key, 1)["source"], "store");
}

/// A user without WAIT gets a charge and an immediate denial, and the log gives the reason.
#[test]
fn log_quotes_server_that_rejects_wait() {
    let server = Server::start();
    let user = ["SETUSER", "tollgate", "on", ">pass", "~*", "+@all", "-wait"];
    redis::cmd("ACL").arg(&user).exec(&mut server.connection().unwrap()).unwrap();
    let file = config_on(&[format!("redis://tollgate:pass@127.0.0.1:{}", server.port)], POLICIES);
    let log = NamedTempFile::new().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let check = || node.check("kept", &unique("refused"), 1);
    wait_until("the connection for it is there", || check()["fallback"]["cause"] == "no_replica_ack");
    for _ in 0..5 {
        let answer = check();
        assert_eq!(answer["fallback"]["cause"], "no_replica_ack", "{answer}");
    }
    let told = || std::fs::read_to_string(log.path()).unwrap();
    wait_until("the log says why", || told().contains("NOPERM"));
    assert_eq!(told().matches("NOPERM").count(), 1, "{}", told());
}

/// A server ends WAIT only at its next timer tick, and the lane does not wait for that. Calls that
/// charge nothing need no replica.
#[test]
fn replica_wait_does_not_last_until_next_server_tick() {
    let server = Server::start_with(&["--hz", "1", "--dynamic-hz", "no"]);
    let file =
        config_on(&[server.url()], "policies: {kept: {quotas: [100 per 1h], durability: replica, timeout: 500ms}}");
    let node = Node::with_config(&file);
    let key = unique("late");
    let look = json!({"policy": "kept", "key": key, "cost": 0}).to_string();
    let look = || http::post(&node.address, "/v1/check", look.clone()).json();
    wait_until("a look is answered by the store", || look()["source"] == "store");
    let is_told_in_time = || {
        let causes: Vec<_> = (0..10).map(|_| node.check("kept", &key, 1)["fallback"]["cause"].clone()).collect();
        let told = causes.iter().filter(|cause| *cause == "no_replica_ack").count();
        if told >= 7 { Ok(()) } else { Err(format!("{causes:?}")) }
    };
    passes_within(attempts(), is_told_in_time);
    wait_until("a look is answered by the store behind it", || look()["source"] == "store");
}

/// A primary, its replica, and the link between them, which delays bytes.
fn behind_a_slow_link(ms: u64) -> (Server, Proxy, Server) {
    let primary = Server::start();
    let link = Proxy::start(primary.port);
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &link.port.to_string()]);
    let mut connection = primary.connection().unwrap();
    wait_until("the replica is there", || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut connection).unwrap();
        info.contains("state=online")
    });
    link.delay(ms);
    (primary, link, replica)
}

/// A check with less time than the replica needs ends at its own timeout. It does not shorten the
/// wait of others.
#[test]
fn short_timeout_does_not_shorten_wait_of_others() {
    let (primary, _link, _replica) = behind_a_slow_link(200);
    let policies = "
policies:
  patient: {quotas: [100 per 1h], durability: replica, timeout: 20s}
  hasty: {quotas: [100 per 1h], durability: replica, timeout: 100ms}
";
    let file = config_on(&[primary.url()], policies);
    let node = Node::with_config(&file);
    wait_until("the replica acknowledges", || node.check("patient", &unique("linked"), 1)["source"] == "store");
    let (patient, hasty) =
        (json!({"policy": "patient", "key": unique("p")}), json!({"policy": "hasty", "key": unique("h")}));
    for checks in [[&patient, &hasty], [&hasty, &patient]] {
        let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
        for (place, check) in checks.into_iter().enumerate() {
            let result = &answer["results"][place];
            assert_eq!(result["allowed"], check["policy"] == "patient", "{answer}");
        }
    }
}

/// The node answers each within the policy's timeout, however many there are.
#[test]
fn many_ids_of_one_key_share_one_wait() {
    let (primary, _link, _replica) = behind_a_slow_link(200);
    let policies = "policies: {hasty: {quotas: [100 per 1h], durability: replica, timeout: 100ms}}";
    let file = config_on(&[primary.url()], policies);
    let node = Node::with_config(&file);
    let checks: Vec<_> = (0..90).map(|id| json!({"policy": "hasty", "key": "k", "id": format!("i{id}")})).collect();
    let started = now_ms();
    let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
    let took = now_ms() - started;
    let sources: Vec<_> = answer["results"].as_array().unwrap().iter().map(|result| &result["source"]).collect();
    assert_eq!(sources, [&json!("fallback"); 90], "{answer}");
    // In sequence they would take 9 s.
    assert!(took < 7_000, "{took} ms");
}

/// The next WAIT begins when the previous one ends. Early checks then have little time left, and
/// later ones enough.
#[test]
fn old_check_does_not_shorten_wait_of_others() {
    let (primary, _link, _replica) = behind_a_slow_link(400);
    let file =
        config_on(&[primary.url()], "policies: {kept: {quotas: [1000 per 1h], durability: replica, timeout: 2s}}");
    let node = Node::with_config(&file);
    wait_until("the replica acknowledges", || node.check("kept", &unique("linked"), 1)["source"] == "store");
    let are_enough = || {
        let allowed = std::thread::scope(|scope| {
            let ask = |_| {
                sleep(Duration::from_millis(100));
                scope.spawn(|| node.check("kept", &unique("steady"), 1)["allowed"] == true)
            };
            let asked: Vec<_> = (0..60).map(ask).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).filter(|allowed| *allowed).count()
        });
        if allowed >= 25 { Ok(()) } else { Err(format!("{allowed} of 60 allowed, fewer than 25")) }
    };
    passes_within(attempts(), are_enough);
}

/// A check with a long timeout waits for a replica. If the server stalls meanwhile, the lane gives
/// it up no later than for other checks.
#[test]
fn silent_server_ends_replica_wait() {
    let server = Server::start();
    let policies = "
policies:
  patient: {quotas: [100 per 1h], durability: replica, timeout: 20s}
  quick: {quotas: [100 per 1h], durability: replica, timeout: 200ms}
";
    let file = config_on(&[server.url()], policies);
    let node = Node::with_config(&file);
    wait_until("nobody acknowledges", || {
        node.check("quick", &unique("q"), 1)["fallback"]["cause"] == "no_replica_ack"
    });
    wait_until("that is over", || server.blocked_clients() == 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let answer = node.check("patient", &unique("p"), 1);
            (answer, now_ms())
        });
        wait_until("a replica is waited for", || server.blocked_clients() == 1);
        server.freeze();
        wait_until("it is given up", || node.check("quick", &unique("q"), 1)["fallback"]["cause"] == "breaker_open");
        let given_up = now_ms();
        server.thaw();
        let (answer, told) = waiting.join().unwrap();
        assert_eq!(answer["fallback"]["cause"], "no_replica_ack", "{answer}");
        // Otherwise it would have waited for 18 s, and all other checks too.
        assert!(told <= given_up + 3000, "{} ms later", told - given_up);
    });
}

#[test]
fn frozen_replica_denies_until_it_thaws() {
    let server = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("kept");
    wait_until("the replica acknowledges", || node.check("kept", &unique("linked"), 1)["source"] == "store");
    let answer = node.check("kept", &key, 1);
    assert_eq!((&answer["allowed"], &answer["charged"]), (&json!(true), &json!(1)), "{answer}");
    replica.freeze();
    for _ in 0..3 {
        let answer = node.check("kept", &key, 1);
        assert_eq!(answer["fallback"]["cause"], "no_replica_ack", "{answer}");
        assert_eq!(node.check("usual", &key, 1)["source"], "store");
    }
    replica.thaw();
    wait_until("the replica acknowledges again", || node.check("kept", &key, 1)["source"] == "store");
    let health = node.health();
    assert_eq!(health["status"], "ok", "a replica that is away is no shard that is down");
}

/// Peeks and refunds charge nothing, so they need no acknowledgement, however long other checks
/// wait for theirs.
#[test]
fn peek_does_not_queue_behind_replica_wait() {
    let server = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let policies = "
policies:
  patient: {quotas: [100 per 1h], durability: replica, timeout: 8s}
  quick: {quotas: [100 per 1h], durability: replica, timeout: 2s}
";
    let file = config_on(&[server.url()], policies);
    let node = Node::with_config(&file);
    let key = unique("beside");
    wait_until("the replica acknowledges", || node.check("quick", &key, 1)["source"] == "store");
    replica.freeze();
    let mut connection = server.connection().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| node.check("patient", &key, 1));
        wait_until("the patient one is charged", || {
            !redis::cmd("KEYS").arg("*:}patient:*").query::<Vec<String>>(&mut connection).unwrap().is_empty()
        });
        let usage = http::get(&node.address, &format!("/v1/usage?policy=quick&key={key}")).json();
        assert_eq!(usage["source"], "store", "{usage}");
        let refund = json!({"policy": "quick", "key": key, "cost": 1}).to_string();
        let refunded = http::post(&node.address, "/v1/refund", refund);
        assert_eq!(refunded.status, 200, "{refunded:?}");
        let reset = http::call(&node.address, "DELETE", &format!("/v1/usage?policy=quick&key={key}"), None, "");
        assert!((200..300).contains(&reset.status), "{reset:?}");
    });
    replica.thaw();
}

/// Until a replica has them, neither the charge of an id nor its record counts as durable, for any
/// retry.
#[test]
fn id_is_answered_after_replica_acknowledges() {
    let server = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let file = config_on(&[server.url()], POLICIES);
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    let key = unique("kept");
    let once = |node: &Node| node.post("/v1/check", &json!({"policy": "kept", "key": key, "id": "once"})).json();
    for node in &nodes {
        wait_until("the replica acknowledges", || node.check("kept", &unique("linked"), 1)["source"] == "store");
    }
    replica.freeze();
    for node in [0, 1, 0, 1] {
        let answer = once(&nodes[node]);
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(false), &json!("fallback")), "{answer}");
    }
    replica.thaw();
    let mut answer = json!(null);
    wait_until("the replica acknowledges again", || {
        answer = once(&nodes[1]);
        answer["source"] == "store"
    });
    assert_eq!((&answer["allowed"], &answer["charged"]), (&json!(true), &json!(1)), "{answer}");
    assert_eq!(once(&nodes[0])["replayed"], true);
    let usage = http::get(&nodes[0].address, &format!("/v1/usage?policy=kept&key={key}")).json();
    assert_eq!(usage["remaining"], 9, "{usage}");
}
