//! Notices of keys that cross a mark of their policy, to receivers of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;

use ring::hmac;
use serde_json::Value;
use tempfile::TempDir;
use tollgate::clock::unix_micros;

use crate::support::receiver::{Receiver, SECRET};
use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, http, wait_until};

/// A node with a policy `p` that notifies a receiver, and `more` of the policy.
fn node(receiver: &str, more: &str) -> (Node, TempDir) {
    node_by(Command::new(TOLLGATE), &format!("http://{receiver}"), more)
}

fn node_by(program: Command, receiver: &str, more: &str) -> (Node, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), format!("{SECRET}\n")).unwrap();
    let notify = format!("notify: {{at: [80, 100], url: '{receiver}/hook?a=b', secret_file: secret}}");
    let file = folder.path().join("my.yaml");
    fs::write(&file, format!("policies: {{p: {{{notify}, {more}}}}}\n")).unwrap();
    (Node::start_by(program, &["--config", file.to_str().unwrap()]), folder)
}

fn check(node: &Node, key: &str, cost: u64) -> Value {
    let body = format!(r#"{{"policy": "p", "key": "{key}", "cost": {cost}}}"#);
    http::post(&node.address, "/v1/check", body).json()
}

/// The notices of a fate, by the metrics.
fn count(node: &Node, fate: &str) -> u64 {
    let series = format!(r#"tollgate_notices_total{{policy="p",fate="{fate}"}}"#);
    let metrics = node.metrics();
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(&series))
        .map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn each_mark_is_sent_once_and_signed() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [{name: hour, limit: 10, per: 1h}]");
    check(&node, "quiet", 7);
    for _ in 0..12 {
        check(&node, "k", 1);
    }
    wait_until("both notices are there", || count(&node, "sent") == 2);
    let received = receiver.received();
    assert_eq!(received.len(), 2, "{received:?}");
    for ((path, signature, body), (mark, remaining)) in received.iter().zip([(80, 2), (100, 0)]) {
        let notice: Value = serde_json::from_slice(body).unwrap();
        let expected = serde_json::json!({
            "id": notice["id"], "policy": "p", "key": "k", "quota": "hour", "mark": mark, "limit": 10,
            "remaining": remaining, "at": notice["at"],
        });
        assert_eq!((path.as_str(), &notice), ("/hook?a=b", &expected));
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let hex: String = hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(*signature, format!("sha256={hex}"));
        assert!(notice["at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{notice}");
    }
    assert_ne!(receiver.bodies()[0]["id"], receiver.bodies()[1]["id"]);
}

#[test]
fn denial_of_a_large_cost_reaches_the_limit() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    assert_eq!(check(&node, "k", 7)["allowed"], true);
    assert_eq!(check(&node, "k", 5)["allowed"], false);
    wait_until("the notice is there", || count(&node, "sent") == 1);
    let notice = &receiver.bodies()[0];
    assert_eq!([&notice["mark"], &notice["remaining"]], [100, 3]);
}

#[test]
fn checks_of_a_batch_and_together_cross_marks() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    let checks = |key: &str, costs: &[u64]| {
        let check = |cost: &u64| format!(r#"{{"policy": "p", "key": "{key}", "cost": {cost}}}"#);
        format!(r#"{{"checks": [{}]}}"#, costs.iter().map(check).collect::<Vec<_>>().join(", "))
    };
    http::post(&node.address, "/v1/check/batch", checks("batch", &[1, 7, 1]));
    http::post(&node.address, "/v1/check/all", checks("all", &[4, 5]));
    let with_id = r#"{"policy": "p", "key": "id", "cost": 8, "id": "a"}"#;
    for _ in 0..2 {
        http::post(&node.address, "/v1/check", with_id);
    }
    let look = r#"{"policy": "p", "key": "look", "cost": 9, "look": true}"#;
    http::post(&node.address, "/v1/check", look);
    http::get(&node.address, "/v1/usage?policy=p&key=look&cost=50");
    wait_until("the notices are there", || count(&node, "sent") == 3);
    let mut keys: Vec<_> = receiver.bodies().iter().map(|notice| notice["key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    assert_eq!(keys, ["all", "batch", "id"]);
}

/// The receiver fails at first. A repetition has the same id.
#[test]
fn failed_notice_is_sent_again_with_its_id() {
    let receiver = Receiver::start();
    receiver.statuses.lock().unwrap().extend([500, 429]);
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    check(&node, "k", 8);
    wait_until("the notice is taken", || count(&node, "sent") == 1);
    let ids: Vec<_> = receiver.bodies().iter().map(|notice| notice["id"].clone()).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn rejected_notice_is_not_sent_again() {
    let receiver = Receiver::start();
    receiver.statuses.lock().unwrap().push(410);
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    check(&node, "k", 8);
    wait_until("the notice has failed", || count(&node, "failed") == 1);
    check(&node, "other", 8);
    wait_until("the next one is taken", || count(&node, "sent") == 1);
    assert_eq!(receiver.received().len(), 2);
}

/// Charges `keys` keys up to their first mark, by batches.
fn cross(node: &Node, keys: usize) {
    let check = |key: &usize| format!(r#"{{"policy": "p", "key": "k{key}", "cost": 8}}"#);
    let all: Vec<usize> = (0..keys).collect();
    for part in all.chunks(1000) {
        let checks: Vec<String> = part.iter().map(check).collect();
        let answer = http::post(&node.address, "/v1/check/batch", format!(r#"{{"checks": [{}]}}"#, checks.join(", ")));
        let results = answer.json()["results"].as_array().unwrap().clone();
        assert!(results.iter().all(|result| result["allowed"] == true));
    }
}

#[test]
fn ten_thousand_keys_cross_a_mark_at_once() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    cross(&node, 10_000);
    wait_until("all notices are taken", || count(&node, "sent") == 10_000);
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for notice in receiver.bodies() {
        let [key, id] = ["key", "id"].map(|member| notice[member].as_str().unwrap().to_owned());
        let known = ids.entry(key).or_insert_with(|| id.clone());
        assert_eq!(*known, id);
    }
    assert_eq!(ids.len(), 10_000);
    assert_eq!([count(&node, "failed"), count(&node, "dropped")], [0, 0]);
}

/// A receiver that accepts connections and never answers.
#[test]
fn dead_receiver_costs_bounded_memory_and_no_check() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (node, _folder) = node(&listener.local_addr().unwrap().to_string(), "quotas: [10 per 1h]");
    cross(&node, 60_000);
    wait_until("too many notices are dropped", || count(&node, "dropped") >= 60_000 - 2 * 16_384 - 16);
    let memory = || {
        let metrics = node.metrics();
        let resident = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        resident.unwrap().trim().parse::<f64>().unwrap()
    };
    assert!(memory() < 300e6, "{}", memory());
    let begin = unix_micros();
    for key in 0..200 {
        assert_eq!(check(&node, &format!("late{key}"), 10)["allowed"], true);
    }
    let took = unix_micros() - begin;
    assert!(took < 10_000_000, "{took} us");
}

#[test]
fn node_sends_the_last_notices_before_it_ends() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    check(&node, "k", 10);
    node.terminate();
    wait_until("both notices are there", || receiver.received().len() == 2);
}

#[test]
fn policy_shows_its_receiver_without_the_path() {
    let (node, _folder) = node("127.0.0.1:9", "quotas: [10 per 1h]");
    let shown = http::get(&node.address, "/v1/policies");
    assert_eq!(
        shown.json()["policies"][0]["notify"],
        serde_json::json!({"at": [80, 100], "receiver": "http://127.0.0.1:9"})
    );
    assert!(!String::from_utf8_lossy(&shown.body).contains("hook"));
}

#[test]
fn receiver_over_tls_needs_a_certificate_that_the_machine_trusts() {
    let authority = Authority::new();
    authority.sign("node");
    let (receiver, log) = (Receiver::over_tls(&authority), tempfile::NamedTempFile::new().unwrap());
    let url = format!("https://localhost:{}", receiver.address.rsplit_once(':').unwrap().1);
    let trusting = |authority: &Authority| {
        let mut program = Command::new(TOLLGATE);
        program.env("SSL_CERT_FILE", authority.text("ca.pem")).stderr(log.reopen().unwrap());
        node_by(program, &url, "quotas: [10 per 1h]")
    };
    let (node, _folder) = trusting(&authority);
    check(&node, "k", 8);
    wait_until("the notice is taken", || count(&node, "sent") == 1);
    assert_eq!(receiver.bodies()[0]["key"], "k");
    let (node, _folder) = trusting(&Authority::new());
    check(&node, "other", 8);
    let told = || fs::read_to_string(log.path()).unwrap();
    wait_until("the failure is logged", || told().contains("a notice was not delivered"));
    assert!(told().contains("UnknownIssuer") && !told().contains("hook"), "{}", told());
    assert_eq!(receiver.received().len(), 1);
}

/// The entries of the audit, the newest first.
fn audit(node: &Node) -> Vec<Value> {
    let (mut entries, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = http::get(&node.address, &format!("/v1/audit?policy=p{cursor}")).json();
        entries.extend(page["entries"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else { return entries };
        cursor = format!("&cursor={next}");
    }
}

/// A node without a file of overrides keeps 1000 of each.
#[test]
fn notices_push_no_act_out_of_the_audit() {
    let receiver = Receiver::start();
    let (node, _folder) = node(&receiver.address, "quotas: [10 per 1h]");
    http::call(&node.address, "DELETE", "/v1/usage?policy=p&key=k", None, "");
    cross(&node, 2_500);
    wait_until("all notices are taken", || count(&node, "sent") == 2_500);
    let entries = audit(&node);
    assert_eq!(entries.len(), 1_001);
    assert_eq!(entries.last().unwrap()["kind"], "reset");
}

#[test]
fn notices_are_few_lines_of_the_log() {
    let receiver = Receiver::start();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
    let (node, _folder) = node_by(program, &format!("http://{}", receiver.address), "quotas: [10 per 1h]");
    cross(&node, 1_000);
    wait_until("all notices are taken", || count(&node, "sent") == 1_000);
    let told = fs::read_to_string(log.path()).unwrap();
    let lines = told.lines().filter(|line| line.contains("tollgate.audit")).count();
    // The machine may take longer than ten seconds.
    assert!((1..=100).contains(&lines), "{lines} lines");
}

/// Each interim response costs the node a parse.
#[test]
fn receiver_that_answers_without_end_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (node, _folder) = node(&listener.local_addr().unwrap().to_string(), "quotas: [10 per 1h]");
    check(&node, "k", 8);
    let (mut stream, _) = listener.accept().unwrap();
    let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000);
    let mut written = 0;
    while let Ok(count) = stream.write(&interim) {
        written += count;
        assert!(written < 64 << 20, "the node reads on");
    }
}

#[test]
fn notice_is_an_entry_of_the_audit() {
    let receiver = Receiver::start();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
    let (node, _folder) = node_by(program, &format!("http://{}", receiver.address), "quotas: [10 per 1h]");
    check(&node, "k", 8);
    let lines = || -> Vec<Value> {
        let told = fs::read_to_string(log.path()).unwrap();
        let lines = told.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &Value| line["target"] == "tollgate.audit").collect()
    };
    wait_until("the entry is there", || lines().len() == 1);
    let fields = &lines()[0]["fields"];
    assert!(fields["kind"].as_str().unwrap().eq_ignore_ascii_case("notice"), "{fields}");
    let expected = ["this node", "p", "key:k", "80 % of 1h"];
    assert_eq!(["by", "policy", "match", "reason"].map(|name| fields[name].as_str().unwrap()), expected);
}
