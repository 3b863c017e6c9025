//! The store asks a server about itself while there is a watcher.
use tollgate::config::{Credentials, Login, Password, RedisConfig};
use tollgate::store::{RedisStore, ServerInfo};

use crate::support::redis::{Server, opened};
use crate::support::wait_until;

fn told(store: &RedisStore) -> ServerInfo {
    wait_until("the server is observed", || !store.servers().is_empty());
    store.servers().values().next().unwrap().clone()
}

fn fill(server: &Server, prefix: &str, keys: usize) {
    let mut pipe = redis::pipe();
    (0..keys).for_each(|key| _ = pipe.cmd("SET").arg(format!("{prefix}{key}:}}p:windows")).arg("").ignore());
    pipe.exec(&mut server.connection().unwrap()).unwrap();
}

#[test]
fn report_has_memory_rate_and_keys_of_the_prefix() {
    let server = Server::start_with(&["--maxmemory", "64mb", "--maxmemory-policy", "noeviction"]);
    fill(&server, "{ratelimit:", 70);
    fill(&server, "{ratelimit2:", 30);
    let (_runtime, store) = opened(&server.config());
    let _watch = store.watch_servers();
    let told = told(&store);
    assert_eq!(store.servers().keys().collect::<Vec<_>>(), [&format!("127.0.0.1:{}", server.port)]);
    assert_eq!((told.keys, told.max_memory_bytes), (Some(70), Some(64 << 20)));
    assert_eq!(told.memory_policy.as_deref(), Some("noeviction"));
    assert!(told.memory_bytes > Some(100_000) && told.operations_per_s.is_some(), "{told:?}");
    assert_eq!(told.replication_lag_bytes, None, "it has no replica");
}

/// 1,000 keys of 40,000 are visited, so a quarter has a standard error of 5.5 % of itself.
#[test]
fn keys_of_a_large_server_are_estimated() {
    let server = Server::start();
    fill(&server, "{ratelimit:", 10_000);
    fill(&server, "{other:", 30_000);
    let (_runtime, store) = opened(&server.config());
    let _watch = store.watch_servers();
    let keys = told(&store).keys.unwrap();
    assert!((6_000..14_000).contains(&keys), "{keys}");
    assert_eq!(server.calls(["keys", "scan"]), [0, 1]);
}

#[test]
fn server_is_asked_only_while_there_is_a_watcher() {
    let server = Server::start();
    let (_runtime, store) = opened(&server.config());
    let connections = || {
        server
            .info("clients")
            .lines()
            .find(|line| line.starts_with("connected_clients:"))
            .unwrap()
            .to_owned()
    };
    let idle = connections();
    assert_eq!(server.calls(["scan"]), [0]);
    assert!(store.servers().is_empty());

    let watches = [store.watch_servers(), store.watch_servers()];
    told(&store);
    assert_eq!(server.calls(["scan"]), [1], "two watchers share one answer");
    assert_ne!(connections(), idle);
    drop(watches);
    wait_until("the connection is closed", || connections() == idle);
    assert!(store.servers().is_empty());
    assert_eq!(server.calls(["scan"]), [1]);

    let _again = store.watch_servers();
    told(&store);
    assert_eq!(server.calls(["scan"]), [2]);
}

#[test]
fn missing_rights_leave_members_absent() {
    let server = Server::start();
    fill(&server, "{ratelimit:", 7);
    let user = |rules: &[&str]| {
        let set = ["SETUSER", "tollgate", "reset", "on", ">pass", "~{ratelimit:*", "+@all", "-@dangerous", "+info"];
        redis::cmd("ACL").arg(&set).arg(rules).exec(&mut server.connection().unwrap()).unwrap();
    };
    let login = Login { username: Some("tollgate".into()), password: Password::Text("pass".into()) };
    let config = RedisConfig { credentials: Credentials { login: Some(login), tls: None }, ..server.config() };

    user(&["-scan"]);
    let (_runtime, store) = opened(&config);
    let watch = store.watch_servers();
    let without_scan = told(&store);
    assert_eq!(without_scan.keys, None);
    assert!(without_scan.memory_bytes.is_some(), "{without_scan:?}");
    drop(watch);

    user(&["-info"]);
    let asked = server.calls(["scan"]);
    let _watch = store.watch_servers();
    wait_until("the server was asked", || server.calls(["scan"]) > asked);
    assert!(store.servers().is_empty());
}

#[test]
fn replication_lag_is_that_of_the_replica() {
    let server = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    wait_until("the replica is connected", || server.info("replication").contains("state=online"));
    let (_runtime, store) = opened(&server.config());
    let _watch = store.watch_servers();
    assert!(told(&store).replication_lag_bytes.is_some());

    replica.freeze();
    // It answers no more, so its offset stays.
    fill(&server, "{ratelimit:", 10_000);
    wait_until("the lag is reported", || told(&store).replication_lag_bytes > Some(100_000));
    replica.thaw();
    wait_until("the replica has caught up", || told(&store).replication_lag_bytes < Some(1_000));
}
