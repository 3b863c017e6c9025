//! Health reports why a shard makes no charges, and that it makes them again. A failure to connect
//! names its cause.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;

use crate::support::chaos::{key_in, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::redis::Server;
use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, free_port, http, wait_until};

/// Phrases of the driver, and pieces of the scripts.
const FOREIGN_WORDS: [&str; 8] =
    ["- Client", "- Io", "Parse error", "An error was signalled", "redis.call", "local ", "ARGV", "Pipeline failure"];

pub(crate) struct Watched {
    pub(crate) node: Node,
    folder: tempfile::TempDir,
}

impl Watched {
    pub(crate) fn start(store: &str) -> Self {
        let policies = "{p: {quotas: [1000000 per 1h], on_store_failure: error}, other: {quotas: [1000000 per 1d]}}";
        Self::with_policies(store, policies)
    }

    pub(crate) fn with_policies(store: &str, policies: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my.yaml");
        std::fs::write(&file, format!("store: {store}\npolicies: {policies}\n")).unwrap();
        let mut program = Command::new(TOLLGATE);
        program.stderr(File::create(folder.path().join("log")).unwrap()).env("RUST_LOG", "info");
        Self { node: Node::start_by(program, &["--config", file.to_str().unwrap()]), folder }
    }

    fn on(server: &Server) -> Self {
        let watched = Self::start(&format!("{{redis: [{}]}}", server.url()));
        wait_until("the store decides", || watched.charge("key"));
        watched
    }

    pub(crate) fn charge(&self, key: &str) -> bool {
        self.node.check("p", key, 1)["source"] == "store"
    }

    pub(crate) fn detail(&self) -> String {
        self.node.check("p", "key", 1)["detail"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn shard(&self) -> Value {
        self.node.health()["store"]["shards"][0].clone()
    }

    pub(crate) fn is_down_for(&self, reason: &str) -> bool {
        let (health, metrics) = (self.node.health(), self.node.metrics());
        let shard = &health["store"]["shards"][0];
        // A node whose server never worked has not loaded its overrides, and is starting.
        (health["status"] == "degraded" || health["status"] == "starting")
            && shard["up"] == false
            && shard["reason"].as_str().is_some_and(|told| told.contains(reason) && told.len() <= 300)
            && metrics.lines().any(|line| line.starts_with("tollgate_shard_up{") && line.ends_with(" 0.0"))
    }

    pub(crate) fn is_up(&self) -> bool {
        let health = self.node.health();
        let shard = &health["store"]["shards"][0];
        health["status"] == "ok" && shard["up"] == true && shard["reason"].is_null()
    }

    /// Sends charges until health reports the shard down for this reason.
    pub(crate) fn goes_down(&self, reason: &str) {
        wait_until(&format!("health tells of {reason}, not {}", self.shard()), || {
            self.charge("key");
            self.is_down_for(reason)
        });
        wait_until(&format!("the log tells of {reason}"), || self.logged().contains(reason));
        assert_plain(&self.logged());
    }

    /// Waits until the shard is up; `asks` sends charges meanwhile.
    fn comes_up(&self, asks: bool) {
        wait_until("health reports the shard up", || {
            if asks {
                self.charge("key");
            }
            self.is_up()
        });
    }
}

pub(crate) fn assert_plain(text: &str) {
    for word in FOREIGN_WORDS {
        assert!(!text.contains(word), "{word:?} in {text}");
    }
}

pub(crate) fn say(server: &Server, command: &str) {
    let mut parts = command.split(' ').map(|part| if part == "''" { "" } else { part });
    let mut cmd = redis::cmd(parts.next().unwrap());
    parts.for_each(|part| _ = cmd.arg(part));
    cmd.exec(&mut server.connection().unwrap()).unwrap();
}

#[test]
fn redis_that_rejects_charges_is_down_with_reason() {
    let rows = [
        ("CONFIG SET min-replicas-to-write 1", "NOREPLICAS", "CONFIG SET min-replicas-to-write 0"),
        ("CONFIG SET maxmemory 1", "OOM", "CONFIG SET maxmemory 0"),
        ("ACL SETUSER default -evalsha -eval", "may not call eval;", "ACL SETUSER default +@all"),
        ("ACL SETUSER default -set -setrange", "lacks a right", "ACL SETUSER default +@all"),
        ("ACL SETUSER default resetkeys ~other*", "NOPERM", "ACL SETUSER default ~*"),
    ];
    let server = Server::start();
    let watched = Watched::on(&server);
    let logged = |event: &str| watched.logged().matches(event).count();
    let mut outages = 0;
    for (before, reason, after) in rows {
        for asks in [false, true] {
            say(&server, before);
            watched.goes_down(reason);
            outages += 1;
            // Health reports an outage up to a second before the log.
            wait_until("the log reports the outage", || logged("the shard is down") == outages);
            // Replies of reading calls do not end the state. A late one changes its reason until
            // the next probe. One outage of each reason shows this.
            let reads = if asks { 0 } else { 3 };
            for _ in 0..reads {
                let usage = http::get(&watched.node.address, "/v1/usage?policy=other&key=key");
                assert!([200, 503].contains(&usage.status), "{usage:?}");
                std::thread::sleep(Duration::from_millis(500));
                assert!(!watched.is_up(), "{before}: {}", watched.shard());
            }
            wait_until("health reports the reason again", || watched.is_down_for(reason));
            say(&server, after);
            watched.comes_up(asks);
            wait_until("the log reports its end", || logged("the shard is up") == outages);
        }
    }
    assert_eq!(logged("the shard is down"), outages, "{}", watched.logged());
}

#[test]
fn redis_that_cannot_save_is_down_with_reason() {
    let server = Server::start_with(&["--dir", "/proc"]);
    let watched = Watched::on(&server);
    redis::cmd("CONFIG")
        .arg(&["SET", "save", "3600 1000000"])
        .exec(&mut server.connection().unwrap())
        .unwrap();
    say(&server, "BGSAVE");
    watched.goes_down("MISCONF");
    say(&server, "CONFIG SET stop-writes-on-bgsave-error no");
    watched.comes_up(false);
}

#[test]
fn redis_without_a_command_is_down_with_reason() {
    let server = Server::start_with(&["--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""]);
    let watched = Watched::start(&format!("{{redis: [{}]}}", server.url()));
    watched.goes_down("does not know the command EVAL,");
}

#[test]
fn replica_frozen_or_dead_redis_is_down_with_reason() {
    let server = Server::start();
    let watched = Watched::on(&server);
    say(&server, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    watched.goes_down("is a replica");
    say(&server, "REPLICAOF NO ONE");
    watched.comes_up(false);
    server.freeze();
    watched.goes_down("does not answer in time");
    server.thaw();
    watched.comes_up(false);
    server.end();
    wait_until("health tells of its end", || watched.is_down_for("connection refused"));
}

/// Without calls the shard keeps its state, up or down.
#[test]
fn idle_shard_keeps_its_state() {
    let server = Server::start();
    let watched = Watched::on(&server);
    say(&server, "CONFIG SET min-replicas-to-write 1");
    let until = now_ms() + 3000;
    while now_ms() < until {
        let usage = http::get(&watched.node.address, "/v1/usage?policy=other&key=key");
        assert_eq!(usage.status, 200, "{usage:?}");
        assert!(watched.is_up(), "{}", watched.shard());
        std::thread::sleep(Duration::from_millis(100));
    }
    watched.goes_down("NOREPLICAS");
    std::thread::sleep(Duration::from_secs(3));
    assert!(watched.is_down_for("NOREPLICAS"), "{}", watched.shard());
}

/// A corrupt value at one key does not concern the shard.
#[test]
fn corrupt_key_does_not_lower_health() {
    let server = Server::start();
    let watched = Watched::on(&server);
    redis::cmd("SET")
        .arg("{ratelimit:spoilt:}p:windows")
        .arg("x")
        .exec(&mut server.connection().unwrap())
        .unwrap();
    let until = now_ms() + 3000;
    while now_ms() < until {
        let answer = watched.node.check("p", "spoilt", 1);
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("a reset (DELETE /v1/usage) ends it"), "{answer}");
        assert!(watched.is_up(), "{}", watched.shard());
    }
}

#[test]
fn cluster_shard_that_rejects_charges_is_down_with_reason() {
    let cluster = Cluster::start();
    let watched = Watched::start(&format!("{{redis: [{}]}}", cluster.seeds().join(", ")));
    let keys = [0, 1, 2].map(key_in);
    wait_until("the store decides", || keys.iter().all(|key| watched.charge(key)));
    let victim = cluster.owner(slot_in(1));
    let address = format!("127.0.0.1:{}", cluster.port(victim));
    let say = |value: &str| {
        let set = redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", value]).to_owned();
        set.exec(&mut cluster.connection(victim)).unwrap();
    };
    let shards = || watched.node.health()["store"]["shards"].as_array().unwrap().clone();
    say("5");
    wait_until("health tells of the one", || {
        keys.iter().for_each(|key| _ = watched.charge(key));
        shards().iter().all(|shard| {
            let is_down = shard["up"] == false && shard["reason"].as_str().unwrap().contains("NOREPLICAS");
            if shard["address"] == address { is_down } else { shard["up"] == true }
        })
    });
    say("0");
    wait_until("health reports the end", || watched.node.health()["status"] == "ok");
}

pub(crate) struct Process(Child, #[allow(dead_code, reason = "its folder goes with it")] tempfile::TempDir);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn sentinel(port: u16) -> Process {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.conf");
    std::fs::write(&file, format!("port {port}\nbind 127.0.0.1\n")).unwrap();
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let mut command = Command::new(program);
    command.arg(&file).arg("--sentinel").current_dir(folder.path()).stdout(std::process::Stdio::null());
    let process = Process(command.spawn().unwrap(), folder);
    wait_until("the Sentinel answers", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    process
}

/// Answers everything with a fixed text.
pub(crate) fn parrot(text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                if stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(text.as_bytes());
                }
            });
        }
    });
    port
}

fn tls_server(authority: &Authority) -> (Server, u16) {
    let port = free_port();
    let (ca, certificate, key) = (authority.text("ca.pem"), authority.text("server.pem"), authority.text("server.key"));
    let text = port.to_string();
    let options = ["--tls-port", &text, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate];
    let more = ["--tls-key-file", &key, "--tls-auth-clients", "no"];
    (Server::start_with(&[&options[..], &more[..]].concat()), port)
}

/// Callers, the log and health get a single short sentence that names the likely cause.
pub(crate) fn tells(what: &str, store: &str, cause: &str) {
    let watched = Watched::start(store);
    let mut detail = String::new();
    wait_until(&format!("{what}: a caller is told {cause:?}"), || {
        detail = watched.detail();
        detail.contains(cause)
    });
    assert!(detail.len() <= 300, "{what}: {detail}");
    assert_plain(&detail);
    wait_until(&format!("{what}: the log tells {cause:?}"), || watched.logged().contains(cause));
    wait_until(&format!("{what}: health tells {cause:?}, not {}", watched.node.health()), || {
        // A shard is down when it makes no charge for a second although callers ask.
        watched.detail();
        watched.is_down_for(cause)
    });
    assert_plain(&watched.logged());
    let longest = watched.logged().lines().map(str::len).max().unwrap_or_default();
    assert!(longest <= 700, "{what}: a line of {longest} bytes");
}

#[test]
fn connect_failure_names_its_likely_cause() {
    let authority = Authority::new();
    authority.sign("server");
    let (_encrypted, tls_port) = tls_server(&authority);
    let ca = authority.text("ca.pem");
    let plain = Server::start();
    let guarded = Server::start();
    say(&guarded, "CONFIG SET requirepass secret");
    let full = Server::start();
    say(&full, "CONFIG SET maxclients 1");
    let held = full.connection();
    let sentinel_port = free_port();
    let _sentinel = sentinel(sentinel_port);
    let at = |port: u16| format!("{{redis: ['redis://127.0.0.1:{port}']}}");
    let rows: Vec<(&str, String, &str)> = vec![
        ("nobody listens", at(free_port()), "connection refused"),
        (
            "an unknown name",
            "{redis: ['redis://no-such-host.invalid:6379']}".into(),
            "knows no address of this host",
        ),
        (
            "TLS to a plain port",
            format!("{{redis: ['rediss://127.0.0.1:{}'], tls: {{ca_file: {ca}}}}}", plain.port),
            "may not speak TLS",
        ),
        ("a plain connection to a TLS port", at(tls_port), "rediss://"),
        (
            "an HTTP server",
            at(parrot("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")),
            "an HTTP server answers",
        ),
        (
            "a server of another protocol",
            at(parrot("SSH-2.0-OpenSSH_9.2p1\r\n")),
            "does not speak the protocol of Redis",
        ),
        ("a Sentinel", at(sentinel_port), "a Sentinel is at this address"),
        ("too many clients", at(full.port), "maxclients"),
        ("no password", at(guarded.port), "NOAUTH"),
        ("a wrong password", format!("{{redis: ['redis://:wrong@127.0.0.1:{}']}}", guarded.port), "WRONGPASS"),
        (
            "a password for nobody",
            format!("{{redis: ['redis://:wrong@127.0.0.1:{}']}}", plain.port),
            "has no password for its default user",
        ),
    ];
    std::thread::scope(|scope| {
        for (what, store, cause) in &rows {
            scope.spawn(move || tells(what, store, cause));
        }
    });
    drop(held);
}
