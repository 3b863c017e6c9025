//! Redis with authentication: users, changed passwords, TLS with and without a client's
//! certificate. A node never reveals anything about a password.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::support::proxy::Proxy;
use crate::support::redis::{Server, bus_port};
use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, free_port, http, unique, wait_until};

fn node(folder: &Path, store: &str) -> Node {
    node_by(Command::new(TOLLGATE), folder, store)
}

fn node_by(mut program: Command, folder: &Path, store: &str) -> Node {
    let file = folder.join("my.yaml");
    let policies = "policies: {p: {quotas: [5000 per 1h], on_store_failure: deny}}";
    std::fs::write(&file, format!("store: {store}\n{policies}\n")).unwrap();
    program.stderr(File::create(folder.join("log")).unwrap());
    Node::start_by(program, &["--config", file.to_str().unwrap()])
}

fn logged(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap()
}

fn source(node: &Node) -> String {
    node.check("p", &unique("auth"), 1)["source"].as_str().unwrap().to_owned()
}

fn health(node: &Node) -> String {
    node.health()["status"].as_str().unwrap().to_owned()
}

/// A server where `tollgate` has the permissions of a node, and the default user needs a password.
fn guarded(password: &str) -> Server {
    let server = Server::start();
    let mut connection = server.connection().unwrap();
    let rules = format!("ACL SETUSER tollgate on >{password} ~{{ratelimit:* +@all -@admin -@dangerous +info");
    let rules: Vec<&str> = rules.split(' ').collect();
    redis::cmd(rules[0]).arg(&rules[1..]).exec(&mut connection).unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "for-the-default-user"])
        .exec(&mut connection)
        .unwrap();
    server
}

#[test]
fn user_logs_in_by_file_or_url() {
    let server = guarded("s3cret/@");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("password"), "s3cret/@\n").unwrap();
    let by_file = format!("{{redis: [{}], username: tollgate, password_file: password}}", server.url());
    let by_url = format!("{{redis: ['redis://tollgate:s3cret%2F%40@127.0.0.1:{}']}}", server.port);
    for store in [by_file, by_url] {
        let node = node(folder.path(), &store);
        wait_until("the store decides", || source(&node) == "store");
        for path in ["/v1/policies", "/health/ready"] {
            let told = String::from_utf8(http::get(&node.address, path).body).unwrap();
            assert!(!told.contains("s3cret"), "{told}");
        }
        assert!(!logged(folder.path()).contains("s3cret"), "{}", logged(folder.path()));
    }
}

#[test]
fn wrong_password_is_reported_and_retried() {
    let server = guarded("right-one");
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "wr0ng-one").unwrap();
    let store = format!("{{redis: [{}], username: tollgate, password_file: password}}", server.url());
    let node = node(folder.path(), &store);
    assert_eq!((source(&node).as_str(), health(&node).as_str()), ("fallback", "starting"));
    wait_until("it is told", || logged(folder.path()).contains("WRONGPASS"));
    let told = logged(folder.path());
    assert!(!told.contains("wr0ng-one"), "{told}");
    assert!(told.lines().count() < 10, "{told}");
    std::fs::write(&password, "right-one").unwrap();
    wait_until("the store decides", || source(&node) == "store");
    wait_until("it has its overrides", || health(&node) == "ok");
}

/// When the reason of a store failure changes, the log and the responses report the new one.
#[test]
fn second_connect_failure_is_reported_as_well() {
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let node = node(folder.path(), &format!("{{redis: ['redis://:wr0ng-one@127.0.0.1:{port}']}}"));
    assert_eq!(source(&node), "fallback");
    wait_until("the first reason is told", || {
        let told = logged(folder.path());
        told.contains(&format!("127.0.0.1:{port}")) && told.contains("connection refused")
    });
    let server = Server::start_on(port, &[]);
    let mut connection = server.connection().unwrap();
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "right-one"]).exec(&mut connection).unwrap();
    // The log admits one line every 10 s.
    wait_until("the new reason is told", || {
        source(&node);
        logged(folder.path()).matches("has no password for its default user").count() > 0
            || logged(folder.path()).matches("WRONGPASS").count() > 0
    });
    let told = logged(folder.path());
    assert!(!told.contains("is known to own slot"), "{told}");
    assert!(!told.contains("wr0ng-one"), "{told}");
}

/// The password changes, and later the connections break. New connections use the new password.
#[test]
fn changed_password_is_read_at_connect() {
    let server = guarded("first-one");
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "first-one").unwrap();
    let store = format!("{{redis: [{}], username: tollgate, password_file: password}}", server.url());
    let node = node(folder.path(), &store);
    wait_until("the store decides", || source(&node) == "store");
    let url = format!("redis://:for-the-default-user@127.0.0.1:{}", server.port);
    let mut operator = redis::Client::open(url).unwrap().get_connection().unwrap();
    let change = ["SETUSER", "tollgate", "resetpass", ">second-one"];
    redis::cmd("ACL").arg(&change).exec(&mut operator).unwrap();
    std::fs::write(&password, "second-one").unwrap();
    for _ in 0..3 {
        redis::cmd("CLIENT").arg(&["KILL", "USER", "tollgate"]).exec(&mut operator).unwrap();
        wait_until("the store decides again", || source(&node) == "store");
    }
}

/// A login takes a round trip, and so does each call, here 300 ms.
#[test]
fn distant_server_is_connected() {
    let server = guarded("secret");
    let proxy = Proxy::start(server.port);
    proxy.delay(150);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("password"), "secret").unwrap();
    let store = format!("{{redis: [{}], username: tollgate, password_file: password, timeout: 3s}}", proxy.url());
    let node = node(folder.path(), &store);
    wait_until("the store decides", || source(&node) == "store");
    for _ in 0..5 {
        assert_eq!(source(&node), "store");
    }
}

/// A server with TLS beside its plain port, which only the test uses.
fn encrypted(authority: &Authority, options: &[&str]) -> (Server, u16) {
    let port = bus_port();
    let (ca, certificate, key) = (authority.text("ca.pem"), authority.text("server.pem"), authority.text("server.key"));
    let port_text = port.to_string();
    let tls =
        ["--tls-port", &port_text, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    (Server::start_with(&[&tls[..], options].concat()), port)
}

fn authority() -> Authority {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("node");
    authority
}

/// A pipe without a writer simulates a disk that does not answer.
#[test]
fn unreadable_password_uses_few_threads() {
    let server = guarded("secret");
    let folder = tempfile::tempdir().unwrap();
    let [password, pipe] = ["password", "pipe"].map(|name| folder.path().join(name));
    std::fs::write(&password, "secret").unwrap();
    let store = format!("{{redis: [{}], username: tollgate, password_file: password}}", server.url());
    let node = node(folder.path(), &store);
    wait_until("the store decides", || source(&node) == "store");
    let before = node.threads();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, &password).unwrap();
    drop(server);
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(source(&node), "fallback");
    assert!(node.threads() <= before + 6, "{} threads, {before} before", node.threads());
}

#[test]
fn system_roots_load_only_without_ca_file() {
    let authority = authority();
    let (_server, port) = encrypted(&authority, &["--tls-auth-clients", "no"]);
    let ca = authority.text("ca.pem");
    let named = format!("{{redis: ['rediss://127.0.0.1:{port}'], tls: {{ca_file: {ca}}}}}");
    let unnamed = format!("{{redis: ['rediss://127.0.0.1:{port}']}}");
    let garbled = tempfile::tempdir().unwrap();
    std::fs::write(garbled.path().join("bad.pem"), "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n")
        .unwrap();
    for (store, file) in [(&named, "/nonexistent"), (&unnamed, ca.as_str())] {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Command::new(TOLLGATE);
        program.env("SSL_CERT_FILE", file).env("SSL_CERT_DIR", garbled.path());
        let node = node_by(program, folder.path(), store);
        wait_until("the store decides", || source(&node) == "store");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", garbled.path());
    let trusts_nobody = node_by(program, folder.path(), &unnamed);
    wait_until("it is told", || logged(folder.path()).contains("name `store.tls.ca_file`"));
    assert_eq!(source(&trusts_nobody), "fallback");
}

#[test]
fn tls_server_is_trusted_by_its_ca_only() {
    let authority = authority();
    let (server, port) = encrypted(&authority, &["--tls-auth-clients", "no"]);
    let folder = tempfile::tempdir().unwrap();
    let store = |authority: &Authority| {
        format!("{{redis: ['rediss://127.0.0.1:{port}'], tls: {{ca_file: {}}}}}", authority.text("ca.pem"))
    };
    let trusting = node(folder.path(), &store(&authority));
    wait_until("the store decides", || source(&trusting) == "store");
    let elsewhere = tempfile::tempdir().unwrap();
    let doubting = node(elsewhere.path(), &store(&Authority::new()));
    assert_eq!((source(&doubting).as_str(), health(&doubting).as_str()), ("fallback", "starting"));
    wait_until("it is told", || logged(elsewhere.path()).contains("certificate"));
    let plain = tempfile::tempdir().unwrap();
    let plain_node = node(plain.path(), &format!("{{redis: ['redis://127.0.0.1:{port}']}}"));
    assert_eq!(source(&plain_node), "fallback");
    drop(server);
}

/// Without TLS the node would ignore the section.
#[test]
fn tls_section_enables_tls_for_any_url_scheme() {
    let authority = authority();
    let (server, port) = encrypted(&authority, &["--tls-auth-clients", "yes"]);
    let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| authority.text(name));
    let tls = format!("tls: {{ca_file: {ca}, cert_file: {certificate}, key_file: {key}}}");
    let folder = tempfile::tempdir().unwrap();
    let encrypted = node(folder.path(), &format!("{{redis: ['redis://127.0.0.1:{port}'], {tls}}}"));
    wait_until("the store decides", || source(&encrypted) == "store");
    let shards = encrypted.health()["store"]["shards"].take();
    assert_eq!(shards, json!([{"address": format!("127.0.0.1:{port}"), "up": true}]));
    let folder = tempfile::tempdir().unwrap();
    let flagged = {
        let mut program = Command::new(TOLLGATE);
        program.env("TOLLGATE_STORE", format!("redis://127.0.0.1:{port}"));
        node_by(program, folder.path(), &format!("{{{tls}}}"))
    };
    wait_until("the store decides", || source(&flagged) == "store");
    let folder = tempfile::tempdir().unwrap();
    let plain_port = node(folder.path(), &format!("{{redis: [{}], {tls}}}", server.url()));
    wait_until("it is told", || logged(folder.path()).contains("WARN"));
    assert_eq!((source(&plain_port).as_str(), health(&plain_port).as_str()), ("fallback", "starting"));
}

#[test]
fn client_certificate_is_sent_on_request() {
    let authority = authority();
    let (_server, port) = encrypted(&authority, &["--tls-auth-clients", "yes"]);
    let ca = authority.text("ca.pem");
    let tls = |more: &str| format!("{{redis: ['rediss://127.0.0.1:{port}'], tls: {{ca_file: {ca}{more}}}}}");
    let folder = tempfile::tempdir().unwrap();
    let shown = format!(", cert_file: {}, key_file: {}", authority.text("node.pem"), authority.text("node.key"));
    let known = node(folder.path(), &tls(&shown));
    wait_until("the store decides", || source(&known) == "store");
    let folder = tempfile::tempdir().unwrap();
    let unknown = node(folder.path(), &tls(""));
    assert_eq!((source(&unknown).as_str(), health(&unknown).as_str()), ("fallback", "starting"));
}

/// Two primaries whose plain ports the node never learns. CLUSTER SLOTS and redirections over TLS
/// name the TLS ports.
#[test]
fn cluster_with_tls_works() {
    let authority = authority();
    let options = ["--tls-auth-clients", "no", "--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let servers: Vec<(Server, u16)> = (0..2).map(|_| encrypted(&authority, &options)).collect();
    let mut connections: Vec<_> = servers.iter().map(|(server, _)| server.connection().unwrap()).collect();
    for (connection, range) in connections.iter_mut().zip([["0", "8191"], ["8192", "16383"]]) {
        redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(&range).exec(connection).unwrap();
    }
    redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(7).exec(&mut connections[1]).unwrap();
    redis::cmd("CLUSTER")
        .arg("MEET")
        .arg("127.0.0.1")
        .arg(servers[1].1)
        .exec(&mut connections[0])
        .unwrap();
    wait_until("the two are one cluster", || {
        connections.iter_mut().all(|connection| {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query(connection).unwrap();
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        })
    });
    let folder = tempfile::tempdir().unwrap();
    for scheme in ["rediss", "redis"] {
        let seed = format!("{scheme}://127.0.0.1:{}", servers[0].1);
        let tls = format!("tls: {{ca_file: {}}}", authority.text("ca.pem"));
        let node = node(folder.path(), &format!("{{redis: ['{seed}'], timeout: 5s, {tls}}}"));
        wait_until("both shards are up", || health(&node) == "ok" && source(&node) == "store");
        for _ in 0..50 {
            assert_eq!(source(&node), "store");
        }
        let told = node.health();
        let mut ports: Vec<String> = servers.iter().map(|(_, port)| format!("127.0.0.1:{port}")).collect();
        ports.sort();
        let shards: Vec<_> =
            told["store"]["shards"].as_array().unwrap().iter().map(|shard| &shard["address"]).collect();
        assert_eq!(shards, ports.iter().collect::<Vec<_>>(), "{told}");
    }
}
