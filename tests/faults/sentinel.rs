//! Sentinels name the primary: a node follows their majority, and nothing less.

use crate::hostile_servers::{Hostile, Sent, usual};
use crate::support::chaos::now_ms;
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::sentinel::{MASTER, Watched, watching};
use crate::support::tls::Authority;
use crate::support::{Node, file_with, free_port, http, node_with, unique, wait_until};

const POLICIES: &str = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny, timeout: 500ms}}";

/// A node on the servers that these sentinels watch, once it decides by the store.
fn node_on(watched: &Watched) -> Node {
    let node = node_with(&format!("{}\n{POLICIES}", watched.store()));
    wait_until("the store decides", || decides(&node));
    node
}

fn decides(node: &Node) -> bool {
    node.check("p", &unique("sentinel"), 1)["source"] == "store"
}

/// The port of the only shard.
fn primary_of(node: &Node) -> Option<u16> {
    let health = node.health();
    let address = health["store"]["shards"].get(0)?["address"].as_str()?.to_owned();
    address.rsplit(':').next()?.parse().ok()
}

fn is_ok(node: &Node) -> bool {
    node.health()["status"] == "ok"
}

/// Whether the node is degraded for a reason that contains `part`.
/// A node that has never reached its store is `starting`, since it lacks its overrides.
fn is_degraded(node: &Node, part: &str) -> bool {
    let health = node.health();
    health["status"] != "ok" && health["store"]["reason"].as_str().is_some_and(|reason| reason.contains(part))
}

/// Waits until the node uses the server at `place`, which is returned.
fn follows<'a>(node: &Node, watched: &'a Watched, place: usize) -> &'a Server {
    let promoted = &watched.servers[place];
    wait_until("the promoted one decides", || primary_of(node) == Some(promoted.port) && decides(node));
    promoted
}

#[test]
fn killed_primary_is_replaced_by_the_promoted_one() {
    let mut watched = Watched::start();
    let node = node_on(&watched);
    wait_until("health is ok", || is_ok(&node));
    assert_eq!(node.health()["store"]["kind"], "redis-sentinel");
    let killed = watched.servers.remove(0);
    let port = killed.port;
    assert_eq!(primary_of(&node), Some(port));
    killed.end();
    follows(&node, &watched, watched.promoted(port));
    wait_until("health is ok", || is_ok(&node));
}

/// The former primary remains a primary for seconds, in its own eyes.
#[test]
fn connection_to_former_primary_closes_at_once() {
    let watched = Watched::start();
    let node = node_on(&watched);
    let former = &watched.servers[0];
    let promoted = follows(&node, &watched, watched.fail_over());
    let connections = || {
        let mut own = former.connection().unwrap();
        let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut own).unwrap();
        let list: String = redis::cmd("CLIENT").arg(&["LIST", "TYPE", "normal"]).query(&mut own).unwrap();
        let is_other = |line: &&str| !line.contains("name=sentinel") && !line.starts_with(&format!("id={id} "));
        list.lines().filter(is_other).count()
    };
    wait_until("no connection of the node is left", || connections() == 0);
    let before = former.calls(["evalsha"]);
    (0..50).for_each(|_| assert!(decides(&node)));
    assert_eq!(former.calls(["evalsha"]), before, "the former primary receives no call");
    assert!(promoted.calls(["evalsha"]) > [0]);
}

/// The former primary has charged the call, and its answer would come in time.
#[test]
fn call_under_way_at_a_switch_is_not_resent() {
    let (former, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(former.port);
    let sentinel = Server::start_sentinel(&watching(proxy.port, 1));
    let nodes = format!("nodes: ['127.0.0.1:{}']", sentinel.port);
    let policies = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny, timeout: 10s}}";
    let node = node_with(&format!("store: {{sentinel: {{master: {MASTER}, {nodes}}}}}\n{policies}"));
    wait_until("the store decides", || decides(&node));
    let (key, before) = (unique("under-way"), former.calls(["evalsha"]));
    proxy.delay(600);
    let answer = std::thread::scope(|scope| {
        let check = scope.spawn(|| node.check("p", &key, 7));
        wait_until("the call has arrived", || former.calls(["evalsha"]) > before);
        let mut operator = sentinel.connection().unwrap();
        redis::cmd("SENTINEL").arg(&["REMOVE", MASTER]).exec(&mut operator).unwrap();
        let (port, name) = (new.port.to_string(), ["MONITOR", MASTER, "127.0.0.1"]);
        redis::cmd("SENTINEL").arg(&name).arg(&[&port, "1"]).exec(&mut operator).unwrap();
        // The node asks at once.
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec(&mut operator).unwrap();
        check.join().unwrap()
    });
    assert_eq!((&answer["fallback"]["cause"], &answer["charged"]), (&"timeout".into(), &0.into()), "{answer}");
    wait_until("the new primary decides", || decides(&node));
    assert_eq!(primary_of(&node), Some(new.port));
    let usage = http::get(&node.address, &format!("/v1/usage?policy=p&key={key}")).json();
    assert_eq!((&usage["source"], &usage["remaining"]), (&"store".into(), &1_000_000.into()), "{usage}");
}

#[test]
fn thawed_former_primary_receives_no_charges() {
    let watched = Watched::start();
    let node = node_on(&watched);
    let former = &watched.servers[0];
    former.freeze();
    let promoted = follows(&node, &watched, watched.promoted(former.port));
    former.thaw();
    assert!(former.is_primary(), "it does not know yet");
    let late = node_with(&format!("{}\n{POLICIES}", watched.store()));
    wait_until("the store decides", || decides(&late));
    let before = former.calls(["evalsha"]);
    for _ in 0..50 {
        assert!(decides(&node) && decides(&late));
    }
    assert_eq!(former.calls(["evalsha"]), before, "the former primary receives no call");
    assert_eq!([&node, &late].map(primary_of), [Some(promoted.port); 2]);
}

#[test]
fn stale_sentinel_is_outvoted() {
    let watched = Watched::start();
    let node = node_on(&watched);
    watched.sentinels[2].freeze();
    let promoted = follows(&node, &watched, watched.fail_over()).port;
    watched.sentinels[2].thaw();
    let late = node_with(&format!("{}\n{POLICIES}", watched.store()));
    wait_until("the store decides", || decides(&late));
    wait_until("the thawed one has learned", || {
        assert_eq!([&node, &late].map(primary_of), [Some(promoted); 2]);
        watched.named_by(2) == Some(promoted)
    });
}

/// Two sentinels start anew from their first files.
#[test]
fn majority_of_a_lower_epoch_is_not_followed() {
    let mut watched = Watched::start();
    let node = node_on(&watched);
    let former = watched.servers[0].port;
    let promoted = follows(&node, &watched, watched.fail_over()).port;
    watched.sentinels[0].freeze();
    for place in [1, 2] {
        let port = watched.sentinels[place].port;
        watched.sentinels.remove(place).end();
        watched.sentinels.insert(place, Server::start_sentinel_on(port, &watching(former, 2)));
    }
    let reason = format!("names 127.0.0.1:{former} under epoch 0, which is lower than a former one");
    wait_until("health tells", || is_degraded(&node, &reason));
    assert!(decides(&node));
    assert_eq!(primary_of(&node), Some(promoted));
    watched.sentinels[0].thaw();
    wait_until("the others have learned", || is_ok(&node));
    assert_eq!(primary_of(&node), Some(promoted));
}

#[test]
fn minority_of_sentinels_changes_nothing_and_degrades_health() {
    let watched = Watched::start();
    let node = node_on(&watched);
    wait_until("health is ok", || is_ok(&node));
    watched.sentinels[..2].iter().for_each(Server::freeze);
    wait_until("health tells", || {
        assert!(decides(&node));
        is_degraded(&node, "no majority of the 3 sentinels names one primary, 1 answer: 127.0.0.1:")
    });
    let late = node_with(&format!("{}\n{POLICIES}", watched.store()));
    let answer = late.check("p", "k", 1);
    assert_eq!(answer["source"], "fallback", "{answer}");
    assert!(is_degraded(&late, "no majority of the 3 sentinels"), "{}", late.health());
    watched.sentinels[..2].iter().for_each(Server::thaw);
    for node in [&node, &late] {
        wait_until("health is ok, and the store decides", || is_ok(node) && decides(node));
    }
}

#[test]
fn sentinel_of_no_use_is_named_with_the_cause() {
    let server = Server::start();
    let sentinel = Server::start_sentinel(&watching(server.port, 1));
    let guarded = Server::start_sentinel(&watching(server.port, 1));
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", ">secret"])
        .exec(&mut guarded.connection().unwrap())
        .unwrap();
    let node = |master: &str, port: u16| {
        let store = format!("store: {{sentinel: {{master: {master}, nodes: ['127.0.0.1:{port}']}}}}");
        node_with(&format!("{store}\n{POLICIES}"))
    };
    let rows = [
        (node("unknown", sentinel.port), "watches no master of the name in `store.sentinel.master`"),
        (node(MASTER, server.port), "no sentinel is at this address"),
        (node(MASTER, free_port()), "connection refused"),
        (node(MASTER, guarded.port), "NOAUTH"),
    ];
    for (node, cause) in &rows {
        wait_until(&format!("health tells: {cause}"), || is_degraded(node, cause));
    }
}

/// The sentinels have a password and TLS, the servers have neither.
#[test]
fn sentinels_have_credentials_of_their_own() {
    let (server, authority, tls_port) = (Server::start(), Authority::new(), free_port());
    authority.sign("server");
    let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(|file| authority.text(file));
    let tls = format!(
        "tls-port {tls_port}\ntls-ca-cert-file {ca}\ntls-cert-file {certificate}\ntls-key-file {key}\n\
         tls-auth-clients no\n"
    );
    let sentinel = Server::start_sentinel(&format!("{tls}{}", watching(server.port, 1)));
    let mut operator = sentinel.connection().unwrap();
    let rights = "on >secret resetchannels &+switch-master -@all +subscribe +sentinel|master \
                  +sentinel|get-master-addr-by-name";
    for user in [format!("tollgate {rights}"), "default >unknown".into()] {
        let words: Vec<_> = user.split(' ').collect();
        redis::cmd("ACL").arg("SETUSER").arg(words).exec(&mut operator).unwrap();
    }
    let password = file_with("secret\n");
    let file = password.path().display();
    let credentials = format!("username: tollgate, password_file: {file}, tls: {{ca_file: {ca}}}");
    let nodes = format!("nodes: ['127.0.0.1:{tls_port}']");
    let store = format!("store: {{sentinel: {{master: {MASTER}, {nodes}, {credentials}}}}}");
    let node = node_with(&format!("{store}\n{POLICIES}"));
    wait_until("the store decides", || decides(&node));
    assert_eq!(primary_of(&node), Some(server.port));
    wait_until("the node is subscribed", || {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut operator).unwrap();
        clients.lines().any(|line| line.contains("user=tollgate") && line.contains(" sub=1 "))
    });
}

/// Without an end, on the connection for announcements and on that for questions.
#[test]
fn flooding_sentinel_costs_little_and_is_reported() {
    let announcement = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$1\r\nx\r\n";
    for question in ["SUBSCRIBE", "SENTINEL MASTER"] {
        let hostile = Hostile::start(move |command| match command.starts_with(question) {
            true => Sent::Endless(Vec::new(), announcement.into()),
            false => usual(command, false),
        });
        let nodes = format!("nodes: ['127.0.0.1:{}']", hostile.port);
        let node = node_with(&format!("store: {{sentinel: {{master: {MASTER}, {nodes}}}}}\n{POLICIES}"));
        wait_until("health tells of the flood", || is_degraded(&node, "sends more than any sentinel does"));
        let (begin, before) = (now_ms(), cpu_ms(node.pid()));
        wait_until("three seconds have passed", || now_ms() > begin + 3000);
        let spent = cpu_ms(node.pid()) - before;
        // It costs 0.8 s a second where the node reads it all.
        assert!(spent < 600, "{question}: {spent} ms in 3 s");
    }
}

/// A hostile sentinel is outvoted, and the others answer as before.
#[test]
fn flooding_sentinel_is_outvoted() {
    let watched = Watched::start();
    let hostile = Hostile::start(|command| match command.starts_with("SUBSCRIBE") {
        true => Sent::Endless(Vec::new(), b"x".into()),
        false => usual(command, false),
    });
    let nodes = [hostile.port, watched.sentinels[0].port, watched.sentinels[1].port];
    let nodes = nodes.map(|port| format!("'127.0.0.1:{port}'")).join(", ");
    let node = node_with(&format!("store: {{sentinel: {{master: {MASTER}, nodes: [{nodes}]}}}}\n{POLICIES}"));
    wait_until("the store decides", || decides(&node));
    follows(&node, &watched, watched.fail_over());
    wait_until("health is ok", || is_ok(&node));
}

/// The CPU time of a process, ms.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // A tick is 10 ms on all of Debian's machines.
    ticks * 10
}
