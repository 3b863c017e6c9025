//! The reports of a cluster's servers about themselves, by the cluster client of the redis crate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::clock::Clock;
use tollgate::config::{ClientTls, Credentials, Login, Password, RedisConfig};
use tollgate::store::RedisStore;
use tollgate::workers::Workers;

use crate::support::cluster::{self, Cluster};
use crate::support::redis::{Server, bus_port};
use crate::support::tls::Authority;
use crate::support::{unique, wait_until};

fn open(config: &RedisConfig) -> (Runtime, RedisStore) {
    let runtime = Runtime::new().unwrap();
    let store = {
        let _inside = runtime.enter();
        RedisStore::open(config, Clock::system(), Duration::from_secs(5), Arc::default(), Workers::default(), None)
            .unwrap()
    };
    runtime.block_on(store.ready());
    (runtime, store)
}

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
    let (_runtime, store) = open(&of(cluster, &prefix));
    assert!(store.servers().is_empty());
    let _watch = store.watch_servers();
    wait_until("all primaries are observed", || observed(&store) == primaries(cluster));
    for (address, told) in store.servers().iter() {
        assert!(told.memory_bytes > Some(100_000) && told.replication_lag_bytes.is_some(), "{address}: {told:?}");
        assert!(told.keys.is_some() && told.memory_policy.is_some(), "{address}: {told:?}");
    }
}

#[test]
fn frozen_primary_hides_no_other() {
    let cluster = Cluster::start();
    // It must not fail over.
    cluster.configure("cluster-node-timeout", "60000");
    let (_runtime, store) = open(&of(&cluster, "ratelimit"));
    let watch = store.watch_servers();
    let all = primaries(&cluster);
    wait_until("all primaries are observed", || observed(&store) == all);

    let victim = cluster.owner(0);
    cluster.run(&["freeze", &victim.to_string()]);
    let others: BTreeSet<String> = all.iter().filter(|known| **known != address(&cluster, victim)).cloned().collect();
    wait_until("the frozen primary has no report, and the others have", || observed(&store) == others);
    // A new client meets the frozen primary, too.
    drop(watch);
    wait_until("nobody watches", || store.servers().is_empty());
    let _watch = store.watch_servers();
    wait_until("the others are observed again", || observed(&store) == others);

    cluster.heal();
    wait_until("all are observed again", || observed(&store) == all);
}

#[test]
fn new_primary_is_observed_after_a_failover() {
    let cluster = Cluster::start();
    let (_runtime, store) = open(&of(&cluster, "ratelimit"));
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
    let (_runtime, store) = open(&config);
    let _watch = store.watch_servers();
    wait_until("the primary is observed", || !store.servers().is_empty());
    let servers = store.servers();
    let (address, told) = servers.first_key_value().unwrap();
    assert_eq!((address.as_str(), told.keys), (format!("{announced}:{port}").as_str(), Some(0)));
}
