//! A node without a responding Redis still decides, reports it, and reconnects when Redis returns.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::chaos::now_ms;
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::tries::passes_within;
use crate::support::{Node, TOLLGATE, config_on, free_port, http, unique, wait_until};

const POLICIES: &str = "
fallback: {expected_nodes: 2}
policies:
  local: {quotas: [10 per 1m]}
  deny: {quotas: [10 per 1m], on_store_failure: deny}
  error: {quotas: [10 per 1m], on_store_failure: error}
";

fn ask(node: &Node, policy: &str, key: &str) -> http::Answer {
    node.post("/v1/check", &json!({"policy": policy, "key": key}))
}

#[test]
fn redis_absent_at_start_is_used_once_it_starts() {
    let port = free_port();
    let file = config_on(&[format!("redis://127.0.0.1:{port}")], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("absent");
    let local = ask(&node, "local", &key).json();
    assert_eq!(
        (&local["allowed"], &local["limit"], &local["charged"]),
        (&json!(true), &json!(5), &json!(0)),
        "{local}"
    );
    assert_eq!(local["fallback"], json!({"mode": "local", "cause": "breaker_open"}));
    let denied = ask(&node, "deny", &key).json();
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("store_unavailable")), "{denied}");
    assert_eq!(ask(&node, "error", &key).status, 503);
    let reason = "connection refused: no server listens at this address";
    let mut told = node.health();
    // It lacks its overrides, so it is not ready.
    assert_eq!(http::get(&node.address, "/health/ready").status, 503);
    let overrides = told.as_object_mut().unwrap().remove("overrides").unwrap();
    assert!(overrides["reason"].as_str().unwrap().starts_with("the overrides are not loaded yet"), "{overrides}");
    let expected = json!({"status": "starting", "timeout_ms": 100, "store": {"kind": "redis",
        "shards": [{"address": format!("127.0.0.1:{port}"), "up": false, "reason": reason}]}});
    assert_eq!(told, expected);

    let _server = Server::start_on(port, &[]);
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    wait_until("it has its overrides", || node.health()["status"] == "ok");
}

#[test]
fn frozen_redis_delays_no_response_and_recovers() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("frozen");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    server.freeze();
    for _ in 0..20 {
        let answer = ask(&node, "deny", &key).json();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(false), &json!("fallback")), "{answer}");
    }
    wait_until("health tells the truth", || node.health()["status"] == "degraded");
    server.thaw();
    wait_until("the store decides again", || ask(&node, "deny", &key).json()["source"] == "store");
    wait_until("health tells the truth again", || node.health()["status"] == "ok");
}

/// The server replies to TIME throughout, and executes no script.
#[test]
fn blocked_scripts_keep_shard_down_until_one_runs() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let file = config_on(&[server.url()], POLICIES);
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(File::create(folder.path().join("log")).unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let key = unique("held");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    let mut connection = server.connection().unwrap();
    let opened = || std::fs::read_to_string(folder.path().join("log")).unwrap().matches("breaker opened").count();
    let before = opened();
    redis::cmd("CLIENT").arg(&["PAUSE", "120000", "WRITE"]).exec(&mut connection).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&node, "deny", &key).json()["source"], "fallback");
        // Long enough for the lane to probe the server.
        std::thread::sleep(Duration::from_millis(1300));
        wait_until("health tells", || node.health()["status"] == "degraded");
    }
    assert_eq!(opened(), before + 1, "it is told once");
    redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut connection).unwrap();
    wait_until("health tells of the end", || node.health()["status"] == "ok");
    wait_until("the store decides again", || ask(&node, "deny", &key).json()["source"] == "store");
}

/// The same under load: once the lane knows that scripts block, no check waits for one.
#[test]
fn checks_do_not_wait_for_server_with_blocked_scripts() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("waits");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    let mut connection = server.connection().unwrap();
    redis::cmd("CLIENT").arg(&["PAUSE", "120000", "WRITE"]).exec(&mut connection).unwrap();
    let cause = || ask(&node, "deny", &key).json()["fallback"]["cause"].clone();
    wait_until("it is known", || cause() == "breaker_open");
    let (begin, mut causes) = (now_ms(), Vec::new());
    while now_ms() < begin + 3000 {
        causes.push(cause());
        std::thread::sleep(Duration::from_millis(2));
    }
    let waited = causes.iter().filter(|cause| *cause != "breaker_open").count();
    assert_eq!(waited, 0, "of {}", causes.len());
    redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut connection).unwrap();
    wait_until("the store decides again", || ask(&node, "deny", &key).json()["source"] == "store");
}

/// The server closes an idle connection. The lane reconnects, and the log reports no unresponsive
/// server.
#[test]
fn broken_idle_connection_is_reopened_at_once() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let file = config_on(&[server.url()], "policies: {patient: {quotas: [1000 per 1h], timeout: 5s}}");
    let mut program = Command::new(TOLLGATE);
    program.stderr(File::create(folder.path().join("log")).unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let key = unique("idle");
    let mut connection = server.connection().unwrap();
    let told = |what: &str| std::fs::read_to_string(folder.path().join("log")).unwrap().matches(what).count();
    let round = || {
        wait_until("the store decides", || ask(&node, "patient", &key).json()["source"] == "store");
        let (lost, opened) = (told("connection lost"), told("breaker opened"));
        hang_up(&mut connection);
        wait_until("it is noticed", || told("connection lost") > lost || told("breaker opened") > opened);
        let decided = ask(&node, "patient", &key).json();
        let is_reopened = decided["source"] == "store" && told("breaker opened") == opened;
        if is_reopened { Ok(()) } else { Err(decided.to_string()) }
    };
    // A connect that takes longer than 250 ms is a failure.
    passes_within(5, round);
}

/// Redis closes connections on a restart, and a proxy closes idle ones. A check that could not be
/// sent waits for the next connection.
#[test]
fn first_check_after_closed_connection_uses_store() {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {patient: {quotas: [1000 per 1h], timeout: 5s}}");
    let node = Node::with_config(&file);
    let mut connection = server.connection().unwrap();
    let key = unique("closed");
    wait_until("the store decides", || ask(&node, "patient", &key).json()["source"] == "store");
    let mut round = || {
        hang_up(&mut connection);
        wait_until("the node has let go of what was closed", || !has_closed_connections(server.port));
        ask(&node, "patient", &key).json()["source"] == "store"
    };
    let decided = (0..6).filter(|_| round()).count();
    // A connect that takes longer than 250 ms is a failure.
    assert!(decided >= 3, "{decided} of 6");
}

fn hang_up(connection: &mut redis::Connection) {
    let arguments = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
    redis::cmd("CLIENT").arg(&arguments).exec(connection).unwrap();
}

/// A node that reports its address is connected, even if the first connect timed out and was
/// repeated.
#[test]
fn first_check_after_start_uses_store() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    // Two round trips exceed the 250 ms of a first connect.
    proxy.delay(130);
    let file = config_on(&[proxy.url()], "policies: {patient: {quotas: [1000 per 1h], timeout: 5s}}");
    let is_decided = || {
        let decided = ask(&Node::with_config(&file), "patient", &unique("first")).json();
        if decided["source"] == "store" { Ok(()) } else { Err(decided.to_string()) }
    };
    // The start waits for 2 s, which may be too short on a busy machine.
    passes_within(3, is_decided);
}

/// While a node waits for its store, clients and load balancers may use another one.
#[test]
fn listener_opens_after_waiting_for_store() {
    let (away, own) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let file = config_on(&[format!("redis://127.0.0.1:{away}")], POLICIES);
    let mut program = Command::new(TOLLGATE);
    program.env("TOLLGATE_CONFIG", file.path()).env("RUST_LOG", "error").stdout(Stdio::null());
    let begin = now_ms();
    let node = Node::start_unread(program, own);
    wait_until("it is connected to", || TcpStream::connect(&node.address).is_ok());
    let after = now_ms() - begin;
    assert!(after >= 1500, "after {after} ms");
    assert_eq!(node.health()["status"], "starting");
}

/// Whether the other end of a connection to `port` has closed and this end has not (CLOSE_WAIT,
/// proc(5)).
fn has_closed_connections(port: u16) -> bool {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (remote, close_wait) = (format!(":{port:04X}"), "08");
    connections.lines().any(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        columns[2].ends_with(&remote) && columns[3] == close_wait
    })
}

/// With a server and its replica as seeds, in either order, the server keeps the counts.
#[test]
fn replica_among_seeds_receives_no_charges() {
    let primary = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    let file = config_on(&[replica.url(), primary.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("replica");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{}", primary.port));
}

/// A maintenance failover, by an operator or a Sentinel: the two swap roles and both continue.
#[test]
fn new_primary_counts_after_role_swap() {
    let (one, other) = (Server::start(), Server::start());
    make_replica(&other, &one);
    let file = config_on(&[one.url(), other.url()], POLICIES);
    let node = Node::with_config(&file);
    for (from, to) in [(&one, &other), (&other, &one)] {
        let key = unique("places");
        wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
        assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{}", from.port));
        change_places(from, to);
        wait_until("the new primary decides", || ask(&node, "deny", &key).json()["source"] == "store");
        assert_eq!(node.health()["store"]["shards"][0]["address"], format!("127.0.0.1:{}", to.port));
    }
}

/// The same behind one address, which leads to the new primary from then on.
#[test]
fn address_moved_to_new_primary_is_reconnected() {
    let (one, other) = (Server::start(), Server::start());
    make_replica(&other, &one);
    let proxy = Proxy::start(one.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("moves");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    proxy.lead_to(other.port);
    change_places(&one, &other);
    wait_until("the new primary decides", || ask(&node, "deny", &key).json()["source"] == "store");
    let charged: usize = redis::cmd("DBSIZE").query(&mut other.connection().unwrap()).unwrap();
    assert!(charged > 0, "the new primary counts");
}

/// A batch takes one timeout, even if its checks of one key need several calls in sequence.
#[test]
fn unanswered_batch_waits_one_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let file = config_on(&[proxy.url()], "policies: {p: {quotas: [1000 per 1h], timeout: 100ms, inline: true}}");
    let node = Node::with_config(&file);
    let answers = |checks: Vec<Value>| {
        let began = now_ms();
        let answer = node.post("/v1/check/batch", &json!({"checks": checks}));
        (now_ms() - began, answer.json()["results"].as_array().unwrap().clone())
    };
    let is_store = |answer: &Value| answer["source"] == "store";
    wait_until("the store decides", || answers(vec![json!({"policy": "p", "key": "k"})]).1.iter().all(is_store));
    proxy.delay(250);
    let (spelled, with_ids) = (unique("spelled"), unique("ids"));
    let of = |number: usize| {
        let name = ["a", "b"][number % 2];
        let one = json!({"policy": "p", "key": spelled, "quotas": [{"name": name, "limit": 9, "per": "1h"}]});
        let other = match number % 2 {
            0 => json!({"policy": "p", "key": with_ids}),
            _ => json!({"policy": "p", "key": with_ids, "id": format!("id-{number}")}),
        };
        [one, other]
    };
    let (took, results) = answers((0..100).flat_map(of).collect());
    assert_eq!(results.len(), 200);
    for answer in &results {
        assert_eq!((&answer["fallback"]["cause"], &answer["charged"]), (&json!("timeout"), &json!(0)), "{answer}");
    }
    // In sequence they would wait for 10 s.
    assert!(took < 7000, "{took} ms");
}

fn make_replica(replica: &Server, primary: &Server) {
    let port = primary.port.to_string();
    redis::cmd("REPLICAOF").arg(&["127.0.0.1", &port]).exec(&mut replica.connection().unwrap()).unwrap();
    wait_until("the replica follows", || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut replica.connection().unwrap()).unwrap();
        info.contains("master_link_status:up")
    });
}

fn change_places(primary: &Server, replica: &Server) {
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec(&mut replica.connection().unwrap()).unwrap();
    make_replica(primary, replica);
}

/// A server accepts the connection and then stays silent. The node still reconnects.
#[test]
fn server_silent_during_connect_is_abandoned() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let file = config_on(&[format!("redis://127.0.0.1:{port}")], POLICIES);
    let silent = std::thread::spawn(move || {
        let mut held = Vec::new();
        wait_until("a connection asks for what is not answered", || {
            if let Ok((mut stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                held.push(std::thread::spawn(move || greet(&mut stream)));
            }
            held.iter().any(std::thread::JoinHandle::is_finished)
        });
    });
    let node = Node::with_config(&file);
    silent.join().unwrap();
    let _server = Server::start_on(port, &[]);
    let key = unique("silent");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
}

/// A proxy may accept connections and close them at each script call. The node pauses between
/// connects, and uses the proxy once it lets scripts pass.
#[test]
fn server_that_breaks_each_call_gets_few_connects() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("breaks");
    wait_until("the store decides", || ask(&node, "deny", &key).json()["source"] == "store");
    proxy.hang_up_on_scripts(true);
    let (before, begin) = (proxy.accepted(), now_ms());
    for asked in 0.. {
        if now_ms() >= begin + 3000 {
            break;
        }
        let answer = ask(&node, "deny", &key).json();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(false), &json!("fallback")), "{answer}");
        // The first of them found the connection open.
        if asked > 10 {
            assert_eq!(node.health()["status"], "degraded", "a connection alone is no shard that is up");
        }
    }
    let (opened, most) = (proxy.accepted() - before, usize::try_from((now_ms() - begin) / 50).unwrap() + 10);
    assert!(opened <= most, "{opened} connections, where {most} were enough");
    proxy.hang_up_on_scripts(false);
    wait_until("the store decides again", || ask(&node, "deny", &key).json()["source"] == "store");
    wait_until("health tells of the end", || node.health()["status"] == "ok");
}

/// Answers the first commands of a client, and INFO. At SCRIPT it stays silent and keeps the
/// connection open for a while.
fn greet(stream: &mut std::net::TcpStream) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if text.contains("SCRIPT") {
            let stream = stream.try_clone();
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_secs(60));
                drop(stream);
            });
            return;
        }
        let info = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\n";
        let answer = match text.contains("INFO\r\n") && !text.contains("SETINFO") {
            true => format!("${}\r\n{info}\r\n", info.len()),
            false => "+OK\r\n".repeat(text.matches('*').count()),
        };
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// A share of a rate may have no divisor in common with its span. The count is exact nevertheless.
#[test]
fn fallback_share_of_large_bucket_is_complete() {
    let policies = "
fallback: {expected_nodes: 3}
policies:
  large: {algorithm: token-bucket, quotas: [{rate: 10000000000 per 1d, burst: 5000000000}]}
";
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], policies);
    let node = Node::with_config(&file);
    let answer = node.post("/v1/check", &json!({"policy": "large", "key": "k", "cost": 700_000_000}));
    let decision = answer.json();
    assert_eq!((&decision["source"], &decision["limit"]), (&json!("fallback"), &json!(1_666_666_666)), "{decision}");
    assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(966_666_666)), "{decision}");
}

/// A cost beyond this node's share waits for the store; one beyond the limit never fits.
#[test]
fn cost_beyond_share_waits_for_its_own_window() {
    let policies = "
fallback: {expected_nodes: 2}
policies:
  two: {quotas: [10 per 1s, 10000 per 1d]}
  both: {quotas: [8 per 1s, 10 per 1d]}
";
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], policies);
    let node = Node::with_config(&file);
    // The result names the share with the longest wait for that cost.
    let beyond_both = node.check("both", "k", 6);
    assert_eq!(
        (&beyond_both["quota"], &beyond_both["limit"], &beyond_both["retry_after_ms"]),
        (&json!("1d"), &json!(5), &json!(86_400_000)),
        "{beyond_both}"
    );
    let ask = |cost: u64| node.check("two", "k", cost);
    let beyond_share = ask(6);
    assert_eq!(
        (&beyond_share["quota"], &beyond_share["retry_after_ms"]),
        (&json!("1s"), &json!(1000)),
        "{beyond_share}"
    );
    let beyond_limit = ask(11);
    assert_eq!((&beyond_limit["reason"], &beyond_limit["retry_after_ms"]), (&json!("over_limit"), &Value::Null));
}
