//! The reports of a cluster's servers about themselves.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use tollgate::config::{ClientTls, Credentials, Login, Password, RedisConfig};
use tollgate::store::RedisStore;

use crate::acl::rules;
use crate::support::cluster::{self, Cluster};
use crate::support::redis::{Server, bus_port, opened};
use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, config_on, unique, wait_until};

fn of(cluster: &Cluster, prefix: &str) -> RedisConfig {
    RedisConfig { seeds: cluster.seeds(), key_prefix: prefix.into(), ..RedisConfig::default() }
}

fn primaries(cluster: &Cluster) -> BTreeSet<String> {
    cluster.ranges().into_iter().map(|(_, _, owner)| address(cluster, owner)).collect()
}

fn address(cluster: &Cluster, number: u16) -> String {
    format!("127.0.0.1:{}", cluster.port(number))
}

fn observed(store: &RedisStore) -> BTreeSet<String> {
    store.servers().keys().cloned().collect()
}

#[test]
fn every_primary_reports_about_itself() {
    let cluster = cluster::shared();
    let prefix = unique("observe");
    for number in 0..30 {
        let name = format!("{{{prefix}:{number}:}}p:windows");
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&name).query(&mut cluster.connection(1)).unwrap();
        let mut owner = cluster.connection(cluster.owner(slot));
        redis::cmd("SET").arg(&name).arg("").arg("EX").arg(300).exec(&mut owner).unwrap();
    }
    let (_runtime, store) = opened(&of(cluster, &prefix));
    assert!(store.servers().is_empty());
    let _watch = store.watch_servers();
    wait_until("all primaries are observed", || observed(&store) == primaries(cluster));
    for (address, told) in store.servers().iter() {
        assert!(told.memory_bytes > Some(100_000) && told.replication_lag_bytes.is_some(), "{address}: {told:?}");
        assert!(told.keys.is_some() && told.memory_policy.is_some(), "{address}: {told:?}");
    }
}

#[test]
fn top_shows_the_reports_of_all_shards() {
    let cluster = cluster::shared();
    let file = config_on(&cluster.seeds(), "policies: {default: {quotas: [5 per 1h]}}");
    let node = Node::with_config(&file);
    let mut told = Value::Null;
    wait_until("top shows the report of each primary", || {
        let arguments = ["top", "--json", "--count", "5", "--url", &node.url()];
        let output = Command::new(TOLLGATE).args(arguments).output().unwrap();
        told =
            serde_json::from_slice(output.stdout.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap()).unwrap();
        let shards = told["shards"].as_array().unwrap();
        shards.len() == 3 && shards.iter().all(|shard| shard["server"]["memory_bytes"].as_u64() > Some(0))
    });
    let seen = |shard: &Value| (shard["nodes"].clone(), shard["up"].clone(), shard["open"].clone());
    let shards = told["shards"].as_array().unwrap();
    assert!(shards.iter().all(|shard| seen(shard) == (1.into(), 1.into(), 0.into())), "{told}");
}

#[test]
fn frozen_primary_hides_no_other() {
    let cluster = Cluster::start();
    // It must not fail over.
    cluster.configure("cluster-node-timeout", "60000");
    let (_runtime, store) = opened(&of(&cluster, "ratelimit"));
    let watch = store.watch_servers();
    let all = primaries(&cluster);
    wait_until("all primaries are observed", || observed(&store) == all);

    let victim = cluster.owner(0);
    cluster.run(&["freeze", &victim.to_string()]);
    let others: BTreeSet<String> = all.iter().filter(|known| **known != address(&cluster, victim)).cloned().collect();
    wait_until("the frozen primary has no report, and the others have", || observed(&store) == others);
    // A new client meets the frozen primary, too.
    drop(watch);
    wait_until("there is no watcher", || store.servers().is_empty());
    let _watch = store.watch_servers();
    wait_until("the others are observed again", || observed(&store) == others);

    cluster.heal();
    wait_until("all are observed again", || observed(&store) == all);
}

#[test]
fn new_primary_is_observed_after_a_failover() {
    let cluster = Cluster::start();
    let (_runtime, store) = opened(&of(&cluster, "ratelimit"));
    let _watch = store.watch_servers();
    wait_until("all primaries are observed", || observed(&store) == primaries(&cluster));
    let owner = cluster.owner(0);
    let replica = cluster.replica_of(owner);
    cluster.fail_over(replica);
    wait_until("the new primary is observed instead of the old one", || {
        let observed = observed(&store);
        observed.contains(&address(&cluster, replica)) && !observed.contains(&address(&cluster, owner))
    });
}

/// INFO is enough for all but the number of keys.
#[test]
fn documented_user_reads_all_but_the_keys() {
    let server = Server::start_on(bus_port(), &["--cluster-enabled", "yes"]);
    let mut connection = server.connection().unwrap();
    redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).exec(&mut connection).unwrap();
    let allow = |connection: &mut redis::Connection, more: &[&str]| {
        let user = redis::cmd("ACL").arg(&["SETUSER", "tollgate", "on", ">pass"]).arg(rules()).arg(more).to_owned();
        user.exec(connection).unwrap();
    };
    allow(&mut connection, &[]);
    let login = Login { username: Some("tollgate".into()), password: Password::Text("pass".into()) };
    let config = RedisConfig {
        seeds: vec![server.url()],
        key_prefix: "ratelimit".into(),
        credentials: Credentials { login: Some(login), tls: None },
        ..RedisConfig::default()
    };
    let (_runtime, store) = opened(&config);
    let _watch = store.watch_servers();
    let told = || store.servers().values().next().cloned();
    wait_until("the primary is observed", || told().is_some());
    let first = told().unwrap();
    assert!(first.memory_bytes.is_some() && first.keys.is_none(), "{first:?}");
    allow(&mut connection, &["+scan"]);
    wait_until("the keys are counted", || told().is_some_and(|told| told.keys == Some(0)));
}

/// The client has the TLS, the login and the address map of the lanes.
#[test]
fn cluster_behind_tls_and_login_is_observed() {
    let (authority, port) = (Authority::new(), bus_port());
    authority.sign("server");
    authority.sign("node");
    let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(|name| authority.text(name));
    let port_text = port.to_string();
    let announced = "observed.invalid";
    let server = Server::start_with(
        &[
            ["--cluster-enabled", "yes", "--tls-cluster", "yes"],
            ["--tls-port", &port_text, "--tls-auth-clients", "yes"],
            ["--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate],
            ["--tls-key-file", &key, "--cluster-announce-hostname", announced],
        ]
        .concat(),
    );
    let mut connection = server.connection().unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "cluster-preferred-endpoint-type", "hostname"])
        .exec(&mut connection)
        .unwrap();
    redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).exec(&mut connection).unwrap();
    redis::cmd("ACL")
        .arg(&["SETUSER", "tollgate", "on", ">pass", "~*", "+@all"])
        .exec(&mut connection)
        .unwrap();
    redis::cmd("ACL").arg(&["SETUSER", "default", "off"]).exec(&mut connection).unwrap();
    let login = Login { username: Some("tollgate".into()), password: Password::Text("pass".into()) };
    let identity = Some((authority.path("node.pem"), authority.path("node.key")));
    let tls = ClientTls { ca_file: Some(authority.path("ca.pem")), identity };
    let config = RedisConfig {
        seeds: vec![format!("rediss://127.0.0.1:{port}")],
        address_map: [(format!("{announced}:{port}"), format!("127.0.0.1:{port}"))].into(),
        key_prefix: "ratelimit".into(),
        credentials: Credentials { login: Some(login), tls: Some(tls) },
        ..RedisConfig::default()
    };
    let (_runtime, store) = opened(&config);
    let _watch = store.watch_servers();
    wait_until("the primary is observed", || !store.servers().is_empty());
    let servers = store.servers();
    let (address, told) = servers.first_key_value().unwrap();
    assert_eq!((address.as_str(), told.keys), (format!("{announced}:{port}").as_str(), Some(0)));
}
