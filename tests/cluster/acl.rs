//! The user in docs/security.md has all permissions that a node needs, and no others.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::http;
use crate::support::{Node, slots, unique};

/// One of each algorithm. Some wait for the replica, so that WAIT is needed. All fail where the
/// store rejects a call.
const POLICIES: &str = "
  window: {quotas: [1000 per 1m, 5000 per 1h], durability: replica, on_store_failure: error}
  plain: {quotas: [1000 per 1m], on_store_failure: error}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [1000 per 1m], durability: replica, on_store_failure: error}
  day: {algorithm: fixed-window, anchor: clock, timezone: Europe/Berlin, quotas: [1000 per 1d], on_store_failure: error}
  bucket: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1000}], durability: replica, on_store_failure: error}
  log: {algorithm: sliding-log, quotas: [1000 per 1h], durability: replica, on_store_failure: error}
  counter: {algorithm: sliding-counter, quotas: [1000 per 1m], durability: replica, on_store_failure: error}
  short: {algorithm: sliding-log, quotas: [1000 per 500ms], on_store_failure: error}
";

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
fn compose_file_has_the_documented_user() {
    let line = rules().join(" ");
    assert!(include_str!("../../cluster/secure").contains(&format!(" {line}\n")), "{line}");
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
    std::fs::write(&file, format!("store: {store}\npolicies:{POLICIES}")).unwrap();
    let node = Node::with_config(&file);

    ask_everything(&node);
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

fn ask_everything(node: &Node) {
    let policies = ["window", "plain", "fixed", "day", "bucket", "log", "short", "counter"];
    for policy in policies {
        for key in (0..6).map(|_| unique("acl")) {
            let check = json!({"policy": policy, "key": key, "meta": "m"});
            let with_id = json!({"policy": policy, "key": key, "meta": "m", "id": "i"});
            let checks = json!({"checks": [check, {"policy": policy, "key": unique("acl")}]});
            let dear = json!({"checks": [check, {"policy": policy, "key": unique("acl"), "cost": 1_000_000}]});
            post(node, "/v1/check", &check);
            post(node, "/v1/check", &with_id);
            post(node, "/v1/check", &with_id);
            post(node, "/v1/check/all", &checks);
            post(node, "/v1/check/all", &dear);
            post(node, "/v1/refund", &json!({"policy": policy, "key": key, "id": "i"}));
            post(node, "/v1/refund", &json!({"policy": policy, "key": key, "cost": 1}));
            done(&http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}")));
            done(&http::call(&node.address, "DELETE", &format!("/v1/usage?policy={policy}&key={key}"), None, ""));
        }
    }
    long_logs(node);
    overrides(node);
}

/// Makes, ends and lists an override, and waits until one has expired.
fn overrides(node: &Node) {
    let call = |method: &str, body: &Value| {
        done(&http::call(&node.address, method, "/v1/overrides/plain", None, &body.to_string()));
    };
    call("PUT", &json!({"match": {"key": "a"}, "deny": true, "expires_in_ms": 1}));
    call("PUT", &json!({"match": {"key": "b"}, "allow": true}));
    call("DELETE", &json!({"match": {"key": "b"}}));
    done(&http::get(&node.address, "/v1/audit"));
    // The node asks for changes twice a second.
    sleep(Duration::from_secs(2));
}

/// Fills a long log and refunds an early charge and a part of one. In another log charges expire
/// while others arrive.
fn long_logs(node: &Node) {
    let key = unique("acl");
    let check = json!({"policy": "log", "key": key, "meta": "m"});
    post(node, "/v1/check", &check);
    post(node, "/v1/check", &json!({"policy": "log", "key": key, "meta": "m", "id": "early"}));
    post(node, "/v1/check/batch", &json!({"checks": vec![check.clone(); 300]}));
    post(node, "/v1/check", &check);
    post(node, "/v1/refund", &json!({"policy": "log", "key": key, "id": "early"}));
    post(node, "/v1/refund", &json!({"policy": "log", "key": key, "cost": 200}));
    let dear = unique("acl");
    post(node, "/v1/check", &json!({"policy": "log", "key": dear, "meta": "m", "cost": 3}));
    post(node, "/v1/refund", &json!({"policy": "log", "key": dear, "cost": 2}));
    for _ in 0..30 {
        post(node, "/v1/check", &json!({"policy": "short", "key": key, "meta": "m"}));
        sleep(Duration::from_millis(100));
    }
}

fn forget_scripts(node: &Node, cluster: &Cluster) {
    for number in 1..=6 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut cluster.connection(number)).unwrap();
    }
    for policy in ["window", "plain", "fixed", "day", "bucket", "log", "counter"] {
        (0..6).for_each(|_| post(node, "/v1/check", &json!({"policy": policy, "key": unique("acl")})));
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
        (0..3).for_each(|_| post(node, "/v1/check", &json!({"policy": policy, "key": key})));
    }
}

fn post(node: &Node, path: &str, body: &Value) {
    done(&node.post(path, body));
}

fn done(answer: &http::Answer) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(!told.contains("\"fallback\"") && !told.contains("problem:"), "{told}");
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
