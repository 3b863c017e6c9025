//! `GET /v1/live` and `GET /v1/top`: the present state of a node for operators.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::collector::tracing_to;
use crate::support::dice::Dice;
use crate::support::events::{Events, sum};
use crate::support::{Node, TOLLGATE, file_with, http, node_with, resident_kib, wait_until};

const POLICIES: &str = r#"policies:
  p: {quotas: [{name: few, limit: 3, per: 1h}, {name: many, limit: 100, per: 1d}]}
  q: {quotas: [1 per 1h], deny: {keys: [mallory]}, inline: true}
gates:
  edge: {client_from: peer, trusted_proxies: [127.0.0.1/32], anonymous: true, rules: [{checks: [{policy: q, key: "{client_ip}"}]}]}
"#;

fn top(node: &Node, query: &str) -> Value {
    let answer = http::get(&node.address, &format!("/v1/top{query}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn checks_that_a_shadow_policy_would_deny_are_shown() {
    let node = node_with("policies:\n  trial: {shadow: true, quotas: [2 per 1h], deny: {keys: [mallory]}}\n");
    let mut events = Events::open(&node.address, "?seconds=900", None);
    for key in ["k", "k", "k", "k", "mallory"] {
        assert_eq!(node.check("trial", key, 1)["allowed"], true);
    }
    let (mut seen, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        seen.push(events.next().unwrap());
        let of = |outcome: &str| ["store", "prefilter", "list"].map(|source| sum(&seen, "trial", outcome, source));
        counts = vec![of("allowed"), of("denied"), of("shadow")];
        if counts.iter().flatten().sum::<u64>() == 5 {
            break;
        }
    }
    // The pre-filter knows from the second check that k has nothing left.
    assert_eq!(counts, [[2, 0, 0], [0, 0, 0], [0, 2, 1]]);
}

#[test]
fn reads_refunds_and_resets_are_no_checks() {
    let node = node_with(
        "policies:\n  p: {quotas: [{name: few, limit: 3, per: 1h}]}\n  ticks: {algorithm: sliding-counter, quotas: [3 per 1m]}\n",
    );
    for policy in ["p", "ticks"] {
        (0..4).for_each(|_| _ = node.check(policy, "k", 1));
        for _ in 0..5 {
            let usage = http::get(&node.address, &format!("/v1/usage?policy={policy}&key=k&cost=1"));
            assert_eq!(usage.json()["allowed"], false, "{usage:?}");
        }
        node.post("/v1/refund", &json!({"policy": policy, "key": "k", "cost": 1}));
        let reset = http::request("DELETE", &format!("/v1/usage?policy={policy}&key=k"), &[], b"");
        assert_eq!(http::exchange(&node.address, &reset).status, 200);
    }
    let metrics = node.metrics();
    let counts = |name: &str, policy: &str| -> u64 {
        let series = metrics.lines().filter(|line| line.starts_with(&format!(r#"{name}{{policy="{policy}""#)));
        series.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    for policy in ["p", "ticks"] {
        let of = |name| counts(name, policy);
        assert_eq!((of("tollgate_checks_total"), of("tollgate_denials_total")), (4, 1), "{metrics}");
        for (operation, count) in [("read", 5), ("refund", 1), ("reset", 1)] {
            let labels = format!(r#"{{policy="{policy}",operation="{operation}",outcome="done"}} {count}"#);
            assert!(metrics.contains(&format!("tollgate_operations_total{labels}")), "{labels}\n{metrics}");
        }
    }
    wait_until("both denials of checks are shown", || top(&node, "")["denied"] == 2);
}

/// The costs of a key's checks are what an operator judges it by.
#[test]
fn units_are_counted_by_policy_and_by_key() {
    let node = node_with(
        "policies:\n  p: {quotas: [10 per 1h], key: {type: ip}}\n  trial: {shadow: true, quotas: [1 per 1h]}\n",
    );
    let mut events = Events::open(&node.address, "?seconds=900", None);
    for (key, cost) in [("192.0.2.1", 7), ("192.0.2.1", 6), ("192.0.2.1", 5), ("192.0.2.2", 2), ("192.0.2.1", 8)] {
        node.check("p", key, cost);
    }
    (0..2).for_each(|_| _ = node.check("trial", "k", 1));
    let drain = json!({"policy": "p", "key": "192.0.2.2", "cost": 20, "over": "drain"});
    assert_eq!(node.post("/v1/check", &drain).json()["charged"], 8);
    let metrics = node.metrics();
    for (policy, outcome, units) in [
        ("p", "allowed", 9),
        ("p", "denied", 19),
        ("p", "drained", 8),
        ("p", "shadow", 0),
        ("trial", "allowed", 1),
        ("trial", "shadow", 1),
    ] {
        let series = format!(r#"tollgate_units_total{{policy="{policy}",outcome="{outcome}"}} {units}"#);
        assert!(metrics.lines().any(|line| line == series), "{series}\n{metrics}");
    }
    let one = |key: &str| top(&node, &format!("?policy=p&key={key}"));
    wait_until("all checks are noted", || one("192.0.2.2")["consumers"][0]["checks"] == 2);
    // The key is counted in its normal form.
    let found = one("::ffff:192.0.2.1");
    let (denied, consumer) = (&found["top"][0], &found["consumers"][0]);
    assert_eq!((&found["denied"], &found["used"]), (&json!(3), &json!(17)));
    assert_eq!((&denied["denied"], &denied["cost"]), (&json!(3), &json!(6)));
    let costs: Vec<_> = denied["last"].as_array().unwrap().iter().map(|last| last["cost"].as_u64()).collect();
    assert_eq!(costs, [8, 5, 6].map(Some));
    assert_eq!((&consumer["units"], &consumer["at_least"], &consumer["cost"]), (&json!(7), &json!(7), &json!(7)));
    assert!(one("192.0.2.3")["consumers"] == json!([]) && one("192.0.2.3")["top"] == json!([]));
    let all = top(&node, "?n=2");
    let heaviest: Vec<_> = all["consumers"].as_array().unwrap().iter().map(|row| row["units"].as_u64()).collect();
    assert_eq!(heaviest, [10, 7].map(Some));
    let mut seen = Vec::new();
    let units = |seen: &[Value]| -> u64 {
        let seconds = seen.iter().flat_map(|snapshot| snapshot["seconds"].as_array().unwrap());
        let checks = seconds.flat_map(|second| second["checks"].as_array().unwrap());
        checks
            .filter(|checks| checks["policy"] == "p")
            .map(|checks| checks["units"].as_u64().unwrap())
            .sum()
    };
    while units(&seen) < 36 && seen.len() < 30 {
        seen.push(events.next().unwrap());
    }
    assert_eq!(units(&seen), 36);
    let snapshot = seen.last().unwrap();
    assert_eq!(snapshot["consumers"][0]["units"], 10);
    assert_eq!(snapshot["recent"].as_array().unwrap().last().unwrap()["cost"], 6);
}

/// Each second has the checks that ended in it, whatever brought them.
#[test]
fn seconds_and_keys_count_the_checks_of_all_doors() {
    let node = node_with(POLICIES);
    let mut events = Events::open(&node.address, "?seconds=900", None);
    assert!(events.head.contains("content-type: text/event-stream") && events.head.contains("no-store"));
    for _ in 0..10 {
        node.check("p", "k", 1);
    }
    let check = |key: &str, cost: u64| json!({"policy": "p", "key": key, "cost": cost});
    node.post(
        "/v1/check/batch",
        &json!({"checks": [check("k", 1), check("l", 3), check("l", 1), check("m", 200)]}),
    );
    node.post("/v1/check/all", &json!({"checks": [check("n", 1), {"policy": "q", "key": "mallory"}]}));
    (0..3).for_each(|_| assert!(http::get(&node.address, "/v1/gate/edge").status < 500));
    let mut seen = Vec::new();
    let counts = |seen: &[Value]| {
        let of = |policy, outcome| ["store", "prefilter", "list"].map(|source| sum(seen, policy, outcome, source));
        [of("p", "allowed"), of("p", "denied"), of("q", "allowed"), of("q", "denied")]
    };
    // The pre-filter knows from the third check that k has nothing left.
    let expected = [[5, 0, 0], [2, 8, 0], [1, 0, 0], [0, 2, 1]];
    while counts(&seen).iter().flatten().sum::<u64>() < expected.iter().flatten().sum() && seen.len() < 30 {
        seen.push(events.next().unwrap());
    }
    assert_eq!(counts(&seen), expected);
    let seconds: Vec<_> = seen.iter().flat_map(|snapshot| snapshot["seconds"].as_array().unwrap()).collect();
    let times: BTreeSet<_> = seconds.iter().map(|second| second["at"].as_u64().unwrap()).collect();
    assert_eq!(times.len(), seconds.len(), "{seconds:?}");
    let busy = seconds.iter().find(|second| second["checks"] != json!([])).unwrap();
    let [p50, p99] = ["p50_us", "p99_us"].map(|name| busy[name].as_u64().unwrap());
    assert!(0 < p50 && p50 <= p99 && p99 <= 1_000_000, "{busy}");
    let metrics = node.metrics();
    for series in [
        r#"tollgate_denials_total{policy="p",quota="few"} 10"#,
        r#"tollgate_denials_total{policy="p",quota="many"} 0"#,
        r#"tollgate_denials_total{policy="q",quota="1h"} 2"#,
    ] {
        assert!(metrics.lines().any(|line| line == series), "{series}\n{metrics}");
    }
    let snapshot = seen.last().unwrap();
    let denied = |top: &Value| -> Vec<(String, u64, u64)> {
        let row = |row: &Value| {
            let number = |name: &str| row[name].as_u64().unwrap();
            (row["policy"].as_str().unwrap().to_owned(), number("denied"), number("at_least"))
        };
        top.as_array().unwrap().iter().map(row).collect()
    };
    let own = |policy: &str, count| (policy.to_owned(), count, count);
    let heaviest = [own("p", 8), own("q", 2)];
    assert_eq!(denied(&snapshot["top"])[..2], heaviest);
    assert_eq!(denied(&snapshot["top"]).len(), 5);
    for minutes in [1, 5, 15] {
        let all = top(&node, &format!("?minutes={minutes}"));
        assert_eq!((all["denied"].as_u64(), &all["top"]), (Some(13), &snapshot["top"]));
        let one = top(&node, &format!("?minutes={minutes}&policy=q&n=1"));
        assert_eq!((one["denied"].as_u64(), denied(&one["top"])), (Some(3), vec![own("q", 2)]));
    }
    // At most one of each policy and source in 100 ms is kept.
    let recent = snapshot["recent"].as_array().unwrap();
    assert!((3..=13).contains(&recent.len()), "{recent:?}");
    let times: Vec<_> = recent.iter().map(|check| check["at_ms"].as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "{times:?}");
    assert!(recent.iter().any(|check| check["quota"] == "few" && check["reason"] == "over_limit"), "{recent:?}");
    // On a busy machine an allowed check may be slow.
    let is_shown = |check: &Value| check["allowed"] == false || check["took_us"].as_u64() > Some(10_000);
    assert!(recent.iter().all(|check| is_shown(check) && check.get("trace_id").is_none()), "{recent:?}");
}

#[test]
fn recent_check_names_its_trace() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let program = tracing_to("http://127.0.0.1:9", &[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]);
    let file = file_with(POLICIES);
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let body = br#"{"policy": "p", "key": "k", "cost": 200}"#;
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [("Content-Type", "application/json"), ("traceparent", traceparent.as_str())];
    assert_eq!(http::exchange(&node.address, &http::request("POST", "/v1/check", &headers, body)).status, 200);
    let mut events = Events::open(&node.address, "", None);
    let snapshot = events.until("the check is listed", |snapshot| snapshot["recent"] != json!([]));
    assert_eq!(snapshot["recent"][0]["trace_id"], TRACE);
}

#[test]
fn history_begins_before_the_subscription() {
    let node = node_with(POLICIES);
    let mut first = Events::open(&node.address, "", None);
    node.check("p", "k", 1);
    first.until("the check is counted", |snapshot| sum(std::slice::from_ref(snapshot), "p", "allowed", "store") == 1);
    let later = Events::open(&node.address, "?seconds=900", None).next().unwrap();
    assert_eq!(sum(&[later], "p", "allowed", "store"), 1);
    let (one, next) = (first.next().unwrap(), first.next().unwrap());
    assert_eq!(next["seconds"].as_array().unwrap().len(), 1, "{next}");
    assert!(next["at"].as_u64() > one["at"].as_u64());
}

#[test]
fn snapshot_describes_node_policies_and_store() {
    let node = node_with(&format!("telemetry: {{trace_url: 'http://127.0.0.1:1/trace/{{trace_id}}'}}\n{POLICIES}"));
    let snapshot = Events::open(&node.address, "", None).next().unwrap();
    assert_eq!((&snapshot["node"]["status"], &snapshot["node"]["keys"]), (&json!("ok"), &json!("hashed")));
    assert_eq!(snapshot["node"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(snapshot["policies"]["names"], json!(["p", "q"]));
    let policies = http::get(&node.address, "/v1/policies").json();
    for member in ["version", "loaded_at"] {
        assert_eq!(snapshot["policies"][member], policies[member]);
    }
    assert_eq!(snapshot["store"], json!({"kind": "embedded", "shards": []}));
    assert_eq!(snapshot["trace_url"], "http://127.0.0.1:1/trace/{trace_id}");
}

#[test]
fn wrong_queries_report_every_violation() {
    let node = node_with(POLICIES);
    for (path, pointers) in [
        ("/v1/live?seconds=0", vec!["/seconds"]),
        ("/v1/live?seconds=901&second=1", vec!["/second", "/seconds"]),
        ("/v1/live?minutes=361", vec!["/minutes"]),
        ("/v1/live?seconds=1&seconds=2", vec!["/seconds"]),
        ("/v1/top?n=257&minutes=2&kye=k", vec!["/kye", "/n", "/minutes"]),
        ("/v1/top?key=k", vec!["/policy"]),
        ("/v1/top?n=0&minutes=-1", vec!["/n", "/minutes"]),
        ("/v1/top?n=a&policy=p&policy=q", vec!["/policy", "/n"]),
    ] {
        let answer = http::get(&node.address, path);
        let violations = answer.json()["violations"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> = violations.iter().map(|violation| violation["pointer"].as_str().unwrap()).collect();
        assert_eq!((answer.status, found), (422, pointers), "{path}");
    }
    let unknown = http::get(&node.address, "/v1/top?policy=r");
    assert_eq!((unknown.status, &unknown.json()["known"]), (404, &json!(["p", "q"])));
}

const SECRET_KEY: &str = "customer-4711-of-shop";

fn token() -> (String, String) {
    let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (token, line) = text.trim_end().split_once('\n').unwrap();
    (token.to_owned(), line.to_owned())
}

/// A node that logs all it can, with a check token and an admin token. Its log is the third.
fn node_with_tokens(settings: &str) -> (Node, [String; 2], tempfile::TempDir) {
    let ((check, check_line), (admin, admin_line)) = (token(), token());
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("check.tokens", &check_line);
    write("admin.tokens", &admin_line);
    let auth = "auth: {check_token_files: [check.tokens], admin_token_files: [admin.tokens]}";
    write("my.yaml", &format!("{settings}\n{auth}\n{POLICIES}"));
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "trace").stderr(File::create(folder.path().join("log")).unwrap());
    let node = Node::start_by(program, &["--config", folder.path().join("my.yaml").to_str().unwrap()]);
    (node, [check, admin], folder)
}

/// The texts of an event and of the keys denied most, after denials of the secret key.
fn seen(node: &Node, check: &str, token: &str) -> [String; 2] {
    let body = json!({"policy": "p", "key": SECRET_KEY, "cost": 200}).to_string();
    assert_eq!(http::call(&node.address, "POST", "/v1/check", Some(check), &body).json()["allowed"], false);
    let mut events = Events::open(&node.address, "", Some(token));
    let mut event = events.next_text().unwrap();
    for _ in 0..30 {
        if event.contains(r#""denied":"#) && event.contains("cost_exceeds_limit") {
            break;
        }
        event = events.next_text().unwrap();
    }
    [event, String::from_utf8(http::call(&node.address, "GET", "/v1/top", Some(token), "").body).unwrap()]
}

#[test]
fn keys_are_readable_only_by_admins() {
    let (mut node, [check, admin], folder) = node_with_tokens("");
    let hashed = seen(&node, &check, &check);
    for text in &hashed {
        assert!(
            !text.contains("4711") && text.contains(r#""keys":"hashed""#) && text.contains(r#""key_hash":""#),
            "{text}"
        );
    }
    for text in seen(&node, &check, &admin) {
        assert!(
            text.contains(&format!(r#""key":"{SECRET_KEY}","key_hash":""#)) && text.contains(r#""keys":"clear""#),
            "{text}"
        );
    }
    assert!(!node.greeting.contains("4711"));
    assert!(
        !http::call(&node.address, "GET", "/metrics", Some(&admin), "")
            .body
            .windows(4)
            .any(|part| part == b"4711")
    );
    assert_eq!(http::call(&node.address, "POST", "/v1/reload", Some(&admin), "").status, 200);
    // It writes its log to the end.
    node.terminate();
    node.ended();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.is_empty() && !log.contains("4711"), "{log}");
}

#[test]
fn record_keys_shows_keys_to_all_who_may_read() {
    let (node, [check, _], _folder) = node_with_tokens("telemetry: {record_keys: true}");
    for text in seen(&node, &check, &check) {
        assert!(text.contains(SECRET_KEY) && text.contains(r#""keys":"clear""#), "{text}");
    }
}

/// Without tokens everyone on the machine is an operator, and still reads no key.
#[test]
fn keys_are_hashed_on_a_node_without_tokens() {
    let node = node_with(POLICIES);
    node.check("p", SECRET_KEY, 200);
    let mut events = Events::open(&node.address, "", Some("guessed"));
    let snapshot = events.until("the denial is listed", |snapshot| snapshot["top"] != json!([]));
    assert!(!snapshot.to_string().contains("4711"), "{snapshot}");
    assert!(!top(&node, "").to_string().contains("4711"));
}

/// Quotas of requests have names of the caller's choice, which must not become series.
#[test]
fn denials_by_inline_quotas_share_a_series() {
    let node = node_with(POLICIES);
    for number in 0..20 {
        let quotas = json!([{"name": format!("own-{number}"), "limit": 1, "per": "1h"}]);
        node.post("/v1/check", &json!({"policy": "q", "key": "k", "cost": 2, "quotas": quotas}));
    }
    let metrics = node.metrics();
    assert!(metrics.contains(r#"tollgate_denials_total{policy="q",quota="(request)"} 20"#), "{metrics}");
    assert!(!metrics.contains("own-"));
    wait_until("the denials of the key are one row", || {
        let top = top(&node, "?policy=q");
        top["top"].as_array().unwrap().len() == 1 && top["top"][0]["denied"] == 20
    });
}

/// Thousands of policies neither multiply the rows of a second nor change their sum.
#[test]
fn rows_and_names_are_bounded_with_many_policies() {
    const POLICIES: usize = 2_000;
    let policies: String = (0..POLICIES).map(|number| format!("  p{number}: {{quotas: [1 per 1h]}}\n")).collect();
    let node = node_with(&format!("policies:\n{policies}"));
    let mut events = Events::open(&node.address, "", None);
    for first in [0, POLICIES / 2] {
        let check = |number| json!({"policy": format!("p{number}"), "key": "k", "cost": 2});
        let checks: Vec<_> = (first..first + POLICIES / 2).map(check).collect();
        node.post("/v1/check/batch", &json!({"checks": checks}));
    }
    let (mut all, mut most) = (0, 0);
    while all < POLICIES as u64 {
        let snapshot = events.next().unwrap();
        for second in snapshot["seconds"].as_array().unwrap() {
            let rows = second["checks"].as_array().unwrap();
            all += rows.iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>();
            most = most.max(rows.len());
            assert_eq!(rows.len() > 128, rows.iter().any(|row| row["policy"] == "(others)"), "{rows:?}");
        }
        assert_eq!(snapshot["policies"]["names"].as_array().unwrap().len(), 1_000);
        assert!(snapshot["recent"].as_array().unwrap().len() <= 50);
    }
    assert_eq!((all, most), (POLICIES as u64, 129));
    assert_eq!(top(&node, "?n=256")["denied"], POLICIES);
    let of_one = top(&node, "?policy=p77");
    assert!(of_one["denied"] == 1, "{of_one}");
}

/// 60 MB of keys that are denied once.
#[test]
fn long_keys_do_not_occupy_memory() {
    let node = node_with("policies: {p: {quotas: [1 per 1h], deny: {all: true}}}");
    let deny = |from: usize, to: usize| {
        let mut connection = http::Connection::open(&node.address).unwrap();
        for first in (from..to).step_by(500) {
            let check = |number: usize| json!({"policy": "p", "key": format!("{number:0>1024}")});
            let batch = json!({"checks": (first..first + 500).map(check).collect::<Vec<_>>()}).to_string();
            connection.send(&http::json_request("/v1/check/batch", batch.as_bytes())).unwrap();
            assert_eq!(connection.receive(true).unwrap().status, 200);
        }
    };
    deny(0, 5_000);
    let before = resident_kib(node.pid());
    deny(5_000, 65_000);
    let grown = resident_kib(node.pid()).saturating_sub(before);
    assert!(grown < 30 * 1024, "the node grew by {grown} KiB");
}

/// The key of rank n is denied about `KEYS / 8 n` times, in random order and over two connections.
#[test]
fn ten_heaviest_of_100_000_denied_keys_are_in_order() {
    const KEYS: usize = 100_000;
    let denials = |rank: usize| KEYS / rank / 8 + 1;
    let node = node_with("telemetry: {record_keys: true}\npolicies: {p: {quotas: [1 per 1h], deny: {all: true}}}");
    let mut stream: Vec<usize> = (1..=KEYS).flat_map(|rank| std::iter::repeat_n(rank, denials(rank))).collect();
    let mut dice = Dice::new(7);
    for place in (1..stream.len()).rev() {
        stream.swap(place, dice.place(place + 1));
    }
    let send = |ranks: &[usize]| {
        let mut connection = http::Connection::open(&node.address).unwrap();
        for ranks in ranks.chunks(500) {
            let check = |rank: &usize| json!({"policy": "p", "key": format!("key-{rank}")});
            let batch = json!({"checks": ranks.iter().map(check).collect::<Vec<_>>()}).to_string();
            connection.send(&http::json_request("/v1/check/batch", batch.as_bytes())).unwrap();
            assert_eq!(connection.receive(true).unwrap().status, 200);
        }
    };
    let (one, other) = stream.split_at(stream.len() / 2);
    std::thread::scope(|scope| _ = [one, other].map(|ranks| scope.spawn(move || send(ranks))));
    wait_until("all denials are counted", || top(&node, "?minutes=15")["denied"] == stream.len());
    let top = top(&node, "?minutes=15&n=10");
    let rows = top["top"].as_array().unwrap();
    let expected: Vec<_> = (1..=10).map(|rank| format!("key-{rank}")).collect();
    assert_eq!(rows.iter().map(|row| row["key"].as_str().unwrap()).collect::<Vec<_>>(), expected, "{top}");
    for (row, rank) in rows.iter().zip(1..) {
        let count = denials(rank) as u64;
        assert!(row["at_least"].as_u64() <= Some(count) && Some(count) <= row["denied"].as_u64(), "{row}");
    }
}
