//! Servers that are not quite as expected: users with few rights, addresses that the node cannot
//! reach, Unix sockets, other protocols, two primaries.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;

use crate::health::{Watched, parrot, say, tells};
use crate::hostile_servers::{Hostile, Sent, usual};
use crate::support::chaos::{key_in, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::redis::{Server, bus_port};
use crate::support::{Node, free_port, node_with, slots, unique, wait_until};

/// One of each algorithm, which all fail where the store rejects a call.
const POLICIES: &str = "policies:
  window: {quotas: [1000 per 1m, 5000 per 1h], on_store_failure: error}
  plain: {quotas: [1000 per 1m], on_store_failure: error}
  fixed: {algorithm: fixed-window, quotas: [1000 per 1m], on_store_failure: error}
  bucket: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1000}], on_store_failure: error}
  log: {algorithm: sliding-log, quotas: [1000 per 1h], on_store_failure: error}
";

fn at(port: u16) -> String {
    format!("{{redis: ['redis://127.0.0.1:{port}']}}")
}

/// Every operation under every policy.
fn uses_every_script(node: &Node) {
    for policy in ["window", "plain", "fixed", "bucket", "log"] {
        let key = unique("servers");
        let check = json!({"policy": policy, "key": key});
        let calls = [
            ("/v1/check", check.clone()),
            ("/v1/check", json!({"policy": policy, "key": key, "id": "i"})),
            ("/v1/check/batch", json!({"checks": [check, {"policy": policy, "key": unique("servers")}]})),
            ("/v1/check/all", json!({"checks": [check, {"policy": policy, "key": unique("servers")}]})),
            ("/v1/refund", json!({"policy": policy, "key": key, "id": "i"})),
        ];
        for (path, body) in calls {
            let answer = node.post(path, &body);
            let told = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, 200, "{policy} {path}: {told}");
            assert!(!told.contains("fallback") && !told.contains("problem:"), "{policy} {path}: {told}");
        }
        let usage = crate::support::http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}"));
        assert_eq!((usage.status, usage.json()["source"].as_str() == Some("fallback")), (200, false), "{usage:?}");
    }
}

/// A server that runs scripts in at least one way serves every call.
#[test]
fn few_rights_to_scripts_are_enough() {
    let server = Server::start();
    let rules = [
        "+@all -script",
        "+@all -script|load",
        "+@all -evalsha",
        "+@all -evalsha -script",
        "+@all -eval",
        "+@all -client",
    ];
    for (number, rules) in rules.iter().enumerate() {
        say(&server, "SCRIPT FLUSH");
        let user = format!("SETUSER user{number} on >pass ~{{ratelimit:* {rules}");
        let user: Vec<&str> = user.split(' ').collect();
        if redis::cmd("ACL").arg(&user).exec(&mut server.connection().unwrap()).is_err() {
            println!("this server has no {rules}: Redis has rules of subcommands from 7.0 on");
            continue;
        }
        let url = format!("redis://user{number}:pass@127.0.0.1:{}", server.port);
        let node = node_with(&format!("store: {{redis: ['{url}'], timeout: 5s}}\n{POLICIES}"));
        wait_until(&format!("the store decides with {rules}"), || node.check("plain", "key", 1)["source"] == "store");
        uses_every_script(&node);
        assert_eq!(node.health()["status"], "ok", "{rules}");
    }
}

#[test]
fn renamed_script_commands_are_not_needed() {
    for commands in [&["EVALSHA"][..], &["EVAL"], &["SCRIPT"], &["EVALSHA", "SCRIPT"], &["CLIENT"]] {
        let options: Vec<&str> = commands.iter().flat_map(|command| ["--rename-command", command, ""]).collect();
        let server = Server::start_with(&options);
        let node = node_with(&format!("store: {{redis: ['{}'], timeout: 5s}}\n{POLICIES}", server.url()));
        wait_until(&format!("the store decides without {commands:?}"), || {
            node.check("plain", "key", 1)["source"] == "store"
        });
        uses_every_script(&node);
        assert_eq!(node.health()["status"], "ok", "{commands:?}");
    }
}

#[test]
fn server_without_any_way_to_run_scripts_is_one_sentence() {
    let server = Server::start();
    let rows = [
        ("a", "+@all -eval -evalsha", "may not call eval;"),
        ("b", "+@all -@scripting", "may not call eval;"),
        ("c", "+@all -evalsha -eval -script", "may not call eval;"),
        ("d", "+@all -info", "may not call info;"),
        ("e", "+@all -time", "may not call time;"),
        ("f", "+@all -@all +ping", "NOPERM: the user of this node may not call"),
    ];
    for (user, rules, cause) in rows {
        say(&server, &format!("ACL SETUSER {user} on >pass ~{{ratelimit:* {rules}"));
        let store = format!("{{redis: ['redis://{user}:pass@127.0.0.1:{}']}}", server.port);
        tells(rules, &store, cause);
    }
}

/// Sends bytes before any question, as other protocols do, and reads nothing.
fn greeter(greeting: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(greeting);
            // Without a greeting the connection closes.
            open.extend(Some(stream).filter(|_| !greeting.is_empty()));
        }
    });
    port
}

#[test]
fn server_of_another_kind_is_named() {
    let no_redis = "does not speak the protocol of Redis";
    let (tollgate, lone) = (Node::start(), Server::start());
    say(&lone, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    let tollgate_port: u16 = tollgate.address.rsplit(':').next().unwrap().parse().unwrap();
    let answers = |question: &'static str, text: &'static str, cluster: bool| {
        Hostile::start(move |command| match command.starts_with(question) {
            true => Sent::text(text),
            false => usual(command, cluster),
        })
    };
    let rows = [
        ("a memcached", at(parrot("ERROR\r\nERROR\r\n")), no_redis),
        ("an SSH server", at(greeter(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")), no_redis),
        ("a MySQL", at(greeter(b"\x5b\0\0\0\x0a8.0.36\0")), no_redis),
        ("an SMTP server", at(greeter(b"220 mail.example ESMTP\r\n")), no_redis),
        ("an HTTP/2 server", at(greeter(b"\0\0\x12\x04\0\0\0\0\0")), no_redis),
        ("a Postgres", at(greeter(b"")), "or be no Redis"),
        ("a full server", at(parrot("-ERR max number of clients reached\r\n")), "maxclients"),
        ("a guarded server", at(parrot("-DENIED Redis is running in protected mode because\r\n")), "DENIED"),
        ("a node of Tollgate", at(tollgate_port), "an HTTP server answers"),
        ("a replica alone", at(lone.port), "is a replica"),
    ];
    let hostile = [
        (answers("", "-DENIED Redis is running in protected mode because ...\r\n", false), "DENIED"),
        (answers("", "-LOADING Redis is loading the dataset in memory\r\n", false), "LOADING"),
        (answers("EVAL", "-LOADING Redis is loading the dataset in memory\r\n", false), "LOADING"),
        (answers("", "-ERR max number of clients + cluster connections reached\r\n", false), "maxclients"),
        (
            answers(
                "EVAL",
                "-ERR This Redis command is not allowed from script script: 5f, on @user_script:1.\r\n",
                false,
            ),
            "such as TIME",
        ),
        (
            answers("EVAL", "-ERR Unknown Redis command called from script script: 5f, on @user_script:1.\r\n", false),
            "such as TIME",
        ),
        (answers("CLUSTER", "-ERR unknown command 'CLUSTER'\r\n", true), "does not know the command CLUSTER"),
        (
            answers("CLUSTER SLOTS", "-NOPERM User a has no permissions to run the 'cluster|slots' command\r\n", true),
            "may not call cluster|slots",
        ),
        (answers("INFO", "-ERR command is not allowed\r\n", false), "INFO: "),
    ];
    let mut all: Vec<_> = rows.to_vec();
    all.extend(hostile.iter().map(|(hostile, cause)| (*cause, at(hostile.port), *cause)));
    std::thread::scope(|scope| {
        for part in all.chunks(3) {
            scope.spawn(move || part.iter().for_each(|(what, store, cause)| tells(what, store, cause)));
        }
    });
}

#[test]
fn unix_socket_leads_to_a_lone_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let path = path.to_str().unwrap();
    tells("no socket", &format!("{{redis: ['unix://{path}']}}"), "no socket is at this path");
    let server = Server::start_with(&["--unixsocket", path]);
    let node = node_with(&format!("store: {{redis: ['unix://{path}'], timeout: 5s}}\n{POLICIES}"));
    wait_until("the store decides", || node.check("plain", "key", 1)["source"] == "store");
    uses_every_script(&node);
    let health = node.health();
    assert_eq!(health["store"]["shards"], json!([{"address": path, "up": true}]), "{health}");
    assert!(node.metrics().contains(&format!("shard=\"{path}\"")));
    say(&server, "CONFIG SET requirepass secret");
    let by_password = node_with(&format!("store: {{redis: ['unix://:secret@{path}'], timeout: 5s}}\n{POLICIES}"));
    wait_until("the store decides", || by_password.check("plain", "key", 1)["source"] == "store");
    let clustered = folder.path().join("cluster.sock");
    let clustered = clustered.to_str().unwrap();
    let _cluster = Server::start_on(bus_port(), &["--unixsocket", clustered, "--cluster-enabled", "yes"]);
    tells("a cluster", &format!("{{redis: ['unix://{clustered}']}}"), "is part of a cluster");
}

#[test]
fn valkey_urls_work() {
    let server = Server::start();
    let watched = Watched::start(&format!("{{redis: ['valkey://127.0.0.1:{}']}}", server.port));
    wait_until("the store decides", || watched.charge("key"));
}

#[test]
fn connections_are_named() {
    let server = Server::start();
    say(&server, "CONFIG SET requirepass secret");
    let url = format!("redis://:secret@127.0.0.1:{}", server.port);
    let policies = "{p: {quotas: [1000 per 1h], durability: replica}, q: {quotas: [1000 per 1h]}}";
    let node = node_with(&format!("store: {{redis: ['{url}'], timeout: 300ms}}\npolicies: {policies}"));
    wait_until("the store decides", || node.check("q", "key", 1)["source"] == "store");
    node.check("p", "key", 1);
    let mut operator = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut clients = String::new();
    // Two for the checks, one for the overrides, and one that wakes their follower.
    wait_until("all connections are named", || {
        clients = redis::cmd("CLIENT").arg("LIST").query(&mut operator).unwrap();
        let named = clients.matches(" name=tollgate ").count();
        named >= 4 && named + 1 == clients.lines().count()
    });
}

/// The nodes of a cluster announce names that no name server knows.
#[test]
fn announced_addresses_are_mapped() {
    let cluster = Cluster::start();
    for number in 1..=6 {
        let mut connection = cluster.connection(number);
        let mut set = |name: &str, value: &str| redis::cmd("CONFIG").arg(&["SET", name, value]).exec(&mut connection);
        if set("cluster-announce-hostname", &format!("Node-{number}.invalid")).is_err() {
            println!("this server announces no names: Redis has them from 7.0 on");
            return;
        }
        set("cluster-preferred-endpoint-type", "hostname").unwrap();
    }
    let proxy = Proxy::start(cluster.port(cluster.owner(slot_in(0))));
    let dialed = |number: u16| match cluster.owner(slot_in(0)) == number {
        true => proxy.port,
        false => cluster.port(number),
    };
    let pair =
        |number: u16| format!("\"node-{number}.invalid:{}\": \"127.0.0.1:{}\"", cluster.port(number), dialed(number));
    let pairs: Vec<String> = (1..=6).map(pair).collect();
    let seeds = format!("redis: [{}], timeout: 3s", cluster.seeds().join(", "));
    let unmapped = Watched::start(&format!("{{{seeds}}}"));
    wait_until("the names are unknown", || unmapped.detail().contains("knows no address of this host"));
    let watched = Watched::start(&format!("{{{seeds}, address_map: {{{}}}}}", pairs.join(", ")));
    let keys = [0, 1, 2].map(key_in);
    wait_until("the store decides", || keys.iter().all(|key| watched.charge(key)));
    assert!(proxy.accepted() > 0, "the mapped address is dialed");
    assert!(
        watched.is_up() && watched.shard()["address"].as_str().unwrap().starts_with("Node-"),
        "{}",
        watched.shard()
    );
    // MOVED: a replica takes over.
    let old = cluster.owner(slot_in(1));
    cluster.fail_over(cluster.replica_of(old));
    wait_until("the store decides after a failover", || watched.charge(&keys[1]));
    // ASK: the slot of a key moves, and another policy has no counts of the key yet.
    let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(format!("{{ratelimit:{}:}}", keys[2])).to_owned();
    let slot: u16 = keyslot.query(&mut cluster.connection(1)).unwrap();
    wait_until("all know the failover", || cluster.is_primary(cluster.owner(slot_in(1))));
    let (from, to) = (cluster.owner(slot), cluster.owner(slot_in(1)));
    slots::begin(&cluster, slot, from, to);
    let answer = watched.node.check("other", &keys[2], 1);
    assert_eq!(answer["source"], "store", "{answer}");
}

/// An operator promotes the replica of a lone Redis, and the old primary returns as a primary. A
/// running node stays, a new one takes the first seed.
#[test]
fn returning_primary_divides_new_nodes_from_running_ones() {
    let (old, new) = (Server::start(), Server::start());
    let port = old.port;
    say(&new, &format!("REPLICAOF 127.0.0.1 {port}"));
    wait_until("the replica is in step", || {
        let info: redis::InfoDict = redis::cmd("INFO").query(&mut new.connection().unwrap()).unwrap();
        info.get::<String>("master_link_status").as_deref() == Some("up")
    });
    let store = format!("{{redis: [{}, {}]}}", old.url(), new.url());
    let watched = Watched::start(&store);
    let is_at = |watched: &Watched, port: u16| watched.shard()["address"] == format!("127.0.0.1:{port}");
    wait_until("the store decides", || watched.charge("key") && is_at(&watched, port));
    old.end();
    say(&new, "REPLICAOF NO ONE");
    wait_until("the promoted replica decides", || watched.charge("key") && is_at(&watched, new.port));
    let returned = Server::start_on(port, &[]);
    let until = now_ms() + 3000;
    while now_ms() < until {
        assert!(watched.charge("key") && is_at(&watched, new.port), "{}", watched.shard());
        std::thread::sleep(Duration::from_millis(50));
    }
    let newcomer = Watched::start(&store);
    wait_until("the new node takes the first seed", || newcomer.charge("key") && is_at(&newcomer, port));
    assert!(newcomer.logged().contains("of several seeds this one is no cluster"), "{}", newcomer.logged());
    // As a replica again it takes no part.
    say(&returned, &format!("REPLICAOF 127.0.0.1 {}", new.port));
    wait_until("both nodes are at the same server", || {
        newcomer.charge("key") && is_at(&newcomer, new.port) && watched.charge("key") && is_at(&watched, new.port)
    });
}
