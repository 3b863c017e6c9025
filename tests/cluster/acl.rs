//! The user in docs/security.md has all permissions that a node needs, and no others.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::receiver::{Receiver, SECRET};
use crate::support::{Node, slots, unique};

mod calls;

use calls::{ask_everything, post};

/// The rules of the line `user tollgate on #HASH KEYS RULES...` in the document, without name and
/// hash.
pub(crate) fn rules() -> Vec<&'static str> {
    let document = include_str!("../../docs/security.md");
    let line = document.lines().find(|line| line.starts_with("user tollgate on ")).unwrap();
    line.split(' ').skip(4).collect()
}

/// The commands that these rules allow, in the spelling of INFO commandstats.
fn allowed() -> impl Iterator<Item = &'static str> {
    rules().into_iter().filter_map(|rule| rule.strip_prefix('+'))
}

#[test]
fn documented_user_has_exactly_the_needed_permissions() {
    let cluster = Cluster::start();
    for number in 1..=6 {
        let user = redis::cmd("ACL").arg(&["SETUSER", "tollgate", "on", ">pass"]).arg(rules()).to_owned();
        user.exec(&mut cluster.connection(number)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("password"), "pass").unwrap();
    let file = folder.path().join("my.yaml");
    let store = format!(
        "{{redis: [{}], username: tollgate, password_file: password, timeout: 3s}}",
        cluster.seeds().join(", ")
    );
    let receiver = Receiver::start();
    std::fs::write(folder.path().join("secret"), SECRET).unwrap();
    let policies = calls::POLICIES.replace("RECEIVER", &receiver.address);
    std::fs::write(&file, format!("store: {store}\npolicies:{policies}")).unwrap();
    let node = Node::with_config(&file);

    ask_everything(&node, &receiver);
    forget_scripts(&node, &cluster);
    while_a_slot_moves(&node, &cluster);

    let mut used = BTreeSet::new();
    for number in 1..=6 {
        let mut connection = cluster.connection(number);
        let refused: Value = refused(&mut connection);
        assert_eq!(refused, json!([]), "node {number}");
        used.extend(commands(&mut connection));
    }
    // Redis before 7.0 does not count subcommands separately.
    let is_used = |command: &str| used.contains(command) || used.contains(command.split('|').next().unwrap());
    let superfluous: Vec<_> = allowed().filter(|command| !is_used(command)).collect();
    assert!(superfluous.is_empty(), "nobody needs {superfluous:?}; used: {used:?}");
    may_do_nothing_else(&cluster);
}

fn forget_scripts(node: &Node, cluster: &Cluster) {
    for number in 1..=6 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut cluster.connection(number)).unwrap();
    }
    for policy in ["window", "plain", "fixed", "day", "bucket", "log", "counter"] {
        (0..6).for_each(|_| _ = post(node, "/v1/check", &json!({"policy": policy, "key": unique("acl")})));
    }
}

/// The node sends a check of a key that does not exist yet to the target of the slot migration.
fn while_a_slot_moves(node: &Node, cluster: &Cluster) {
    let key = unique("acl");
    let slot: u16 = redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(format!("{{ratelimit:{key}:}}"))
        .query(&mut cluster.connection(1))
        .unwrap();
    let from = cluster.owner(slot);
    let to = (1..=6).find(|number| *number != from && cluster.is_primary(*number)).unwrap();
    slots::begin(cluster, slot, from, to);
    for policy in ["plain", "bucket"] {
        (0..3).for_each(|_| _ = post(node, "/v1/check", &json!({"policy": policy, "key": key})));
    }
}

/// The rejected commands of all users, from ACL LOG.
fn refused(connection: &mut redis::Connection) -> Value {
    let log: redis::Value = redis::cmd("ACL").arg("LOG").query(connection).unwrap();
    match log {
        redis::Value::Array(entries) => entries.iter().map(|entry| json!(format!("{entry:?}"))).collect(),
        other => json!(format!("{other:?}")),
    }
}

fn commands(connection: &mut redis::Connection) -> Vec<String> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let name = |line: &str| Some(line.strip_prefix("cmdstat_")?.split(':').next()?.to_owned());
    stats.lines().filter_map(name).collect()
}

fn may_do_nothing_else(cluster: &Cluster) {
    let url = format!("redis://tollgate:pass@127.0.0.1:{}", cluster.port(1));
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let calls: [&[&str]; 7] = [
        &["GET", "elsewhere"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "elsewhere"],
        &["FLUSHALL"],
        &["KEYS", "*"],
        &["CONFIG", "GET", "requirepass"],
        &["SCRIPT", "FLUSH"],
        &["PUBLISH", "c", "m"],
    ];
    for call in calls {
        let error = redis::cmd(call[0]).arg(&call[1..]).exec(&mut connection).unwrap_err().to_string();
        assert!(error.to_lowercase().contains("permission") || error.contains("No permissions"), "{call:?}: {error}");
    }
}
