//! Operators change the limits of keys while the node runs, in the file of the embedded store.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Node, TOLLGATE, http, node_with, unique, wait_until};

/// A node with a file for overrides, which can start again.
struct Fixture {
    node: Node,
    config: PathBuf,
    folder: TempDir,
}

const POLICIES: &str = r#"
plans: {free: {quotas: [2 per 1h]}, pro: {quotas: [1000 per 1h]}}
policies:
  p:
    quotas: [5 per 1h]
    deny: {keys: [barred]}
    allow: {keys: [friend]}
    overrides:
      - {match: {key: listed}, quotas: [7 per 1h]}
      - {match: {prefix: "file:"}, quotas: [8 per 1h]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 3}]}
  ip: {key: {type: ip}, quotas: [5 per 1h]}
  filed: {quotas: [5 per 1h], overrides: [{match: {prefix: "192.0.2."}, quotas: [100 per 1h]}]}
"#;

impl Fixture {
    fn start() -> Self {
        Self::with(POLICIES)
    }

    fn with(policies: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("my.yaml");
        std::fs::write(&config, format!("overrides: {{file: overrides.jsonl}}\n{policies}")).unwrap();
        Self { node: Node::with_config(&config), config, folder }
    }

    fn restart(&mut self) {
        self.node.terminate();
        self.node.ended();
        self.node = Node::with_config(&self.config);
    }

    fn put(&self, policy: &str, body: &Value) -> http::Answer {
        change(&self.node, "PUT", policy, body)
    }

    fn remove(&self, policy: &str, body: &Value) -> http::Answer {
        change(&self.node, "DELETE", policy, body)
    }

    /// The limit that decides for a key; 0 if a list denies it, 1,000,000 if one allows it.
    fn limit(&self, policy: &str, key: &str) -> u64 {
        let decision = self.node.check(policy, key, 0);
        match decision["reason"].as_str() {
            Some("deny_listed") => 0,
            Some("allow_listed") => 1_000_000,
            _ => decision["limit"].as_u64().unwrap(),
        }
    }
}

fn change(node: &Node, method: &str, policy: &str, body: &Value) -> http::Answer {
    let fields = [("Content-Type", "application/json")];
    let path = format!("/v1/overrides/{policy}");
    http::exchange(&node.address, &http::request(method, &path, &fields, body.to_string().as_bytes()))
}

fn entries(node: &Node, path: &str) -> Value {
    let answer = http::get(&node.address, path);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn raised_limit_admits_an_exhausted_key_at_once_with_its_counts() {
    let fixture = Fixture::start();
    for (policy, first) in [("p", 5), ("bucket", 3)] {
        for _ in 0..first {
            assert_eq!(fixture.node.check(policy, "k", 1)["allowed"], true);
        }
        // The node knows that nothing is left.
        let denied = fixture.node.check(policy, "k", 1);
        assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("prefilter")), "{policy}");
    }
    let put = fixture.put("p", &json!({"match": {"key": "k"}, "quotas": ["9 per 1h"], "reason": "case 7"}));
    assert_eq!(put.status, 200, "{put:?}");
    let admitted = fixture.node.check("p", "k", 1);
    assert_eq!((&admitted["allowed"], &admitted["remaining"]), (&json!(true), &json!(3)));
    let quotas = json!([{"rate": "1 per 1h", "burst": 10}]);
    assert_eq!(fixture.put("bucket", &json!({"match": {"key": "k"}, "quotas": quotas})).status, 200);
    let admitted = fixture.node.check("bucket", "k", 1);
    assert_eq!((&admitted["allowed"], &admitted["remaining"]), (&json!(true), &json!(6)));
    // Its end restores the denial.
    assert_eq!(fixture.remove("p", &json!({"match": {"key": "k"}})).json(), json!({"removed": true}));
    assert_eq!(fixture.node.check("p", "k", 1)["allowed"], false);
    assert_eq!(fixture.remove("p", &json!({"match": {"key": "k"}})).json(), json!({"removed": false}));
}

#[test]
fn the_most_exact_match_decides_and_verdicts_come_first() {
    let fixture = Fixture::start();
    let put = |policy, matched: Value, grant: Value| {
        let mut body = grant;
        body["match"] = matched;
        body["lower"] = json!(true);
        let answer = fixture.put(policy, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    put("p", json!({"prefix": "team:"}), json!({"quotas": ["20 per 1h"]}));
    put("p", json!({"prefix": "team:a:"}), json!({"quotas": ["21 per 1h"]}));
    put("p", json!({"key": "team:a:1"}), json!({"plan": "pro"}));
    put("p", json!({"prefix": "team:bad:"}), json!({"deny": true}));
    put("p", json!({"key": "team:bad:1"}), json!({"allow": true}));
    put("p", json!({"key": "barred"}), json!({"allow": true}));
    put("p", json!({"key": "friend"}), json!({"quotas": ["9 per 1h"]}));
    put("p", json!({"key": "listed"}), json!({"quotas": ["11 per 1h"]}));
    put("p", json!({"prefix": "file:"}), json!({"quotas": ["12 per 1h"]}));
    put("p", json!({"prefix": "fi"}), json!({"quotas": ["13 per 1h"]}));
    put("p", json!({"prefix": "file:x"}), json!({"quotas": ["14 per 1h"]}));
    put("ip", json!({"cidr": "192.0.2.0/24"}), json!({"quotas": ["30 per 1h"]}));
    put("ip", json!({"cidr": "192.0.2.128/25"}), json!({"quotas": ["31 per 1h"]}));
    put("ip", json!({"prefix": "192.0.2.200"}), json!({"quotas": ["32 per 1h"]}));
    put("ip", json!({"key": "192.0.2.201"}), json!({"quotas": ["33 per 1h"]}));
    for (policy, key, limit) in [
        ("p", "other", 5),
        ("p", "team:b", 20),
        ("p", "team:a:2", 21),
        ("p", "team:a:1", 1000),
        ("p", "team:bad:1", 0),
        ("p", "team:bad:2", 0),
        ("p", "barred", 0),
        ("p", "friend", 1_000_000),
        ("p", "listed", 11),
        ("p", "file:a", 12),
        ("p", "file:x", 14),
        ("p", "fish", 13),
        ("ip", "192.0.2.1", 30),
        ("ip", "192.0.2.200", 31),
        ("ip", "::ffff:192.0.2.201", 33),
        ("ip", "198.51.100.1", 5),
    ] {
        assert_eq!(fixture.limit(policy, key), limit, "{policy} {key}");
    }
}

#[test]
fn plan_of_a_check_counts_by_its_quotas_and_an_override_beats_it() {
    let fixture = Fixture::start();
    let check = |plan: &str| fixture.node.post("/v1/check", &json!({"policy": "p", "key": "k", "plan": plan})).json();
    assert_eq!([check("free")["allowed"].clone(), check("free")["allowed"].clone()], [true, true]);
    // A known denial under one plan denies nothing under another.
    assert_eq!(check("free")["source"], "prefilter");
    let paid = check("pro");
    assert_eq!((&paid["allowed"], &paid["remaining"]), (&json!(true), &json!(997)));
    assert_eq!(check("free")["allowed"], false);
    assert_eq!(fixture.put("p", &json!({"match": {"key": "k"}, "quotas": ["50 per 1h"]})).status, 200);
    assert_eq!(check("free")["limit"], 50);
    let unknown = fixture.node.post("/v1/check", &json!({"policy": "p", "key": "k", "plan": "gold"}));
    assert_eq!(unknown.status, 422);
    assert_eq!(
        unknown.json()["detail"],
        "/plan is refused: the plan \"gold\" is none of this policy: there are free, pro"
    );
    // Windows are nothing for a token bucket.
    let unfit = fixture.node.post("/v1/check", &json!({"policy": "bucket", "key": "k", "plan": "pro"}));
    assert!(unfit.json()["detail"].as_str().unwrap().contains("has no plans"), "{unfit:?}");
    let policies = entries(&fixture.node, "/v1/policies");
    let named = |name: &str| policies["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == name);
    assert_eq!(named("p").unwrap()["plans"][1]["quotas"][0]["limit"], 1000);
    assert_eq!(named("bucket").unwrap().get("plans"), None);
    let usage = entries(&fixture.node, "/v1/usage?policy=p&key=other&plan=pro");
    assert_eq!(usage["limit"], 1000);
}

#[test]
fn plan_with_fewer_places_needs_consent() {
    let fixture = Fixture::with(
        "plans: {few: {in_flight: 1}, many: {in_flight: 9}}\npolicies: {jobs: {hold: {ttl: 60s, in_flight: 4}}}",
    );
    let post = |path: &str, id: &str| fixture.node.post(path, &json!({"policy": "jobs", "key": "k", "id": id})).json();
    let open = |id: &str| post("/v1/check", id);
    let few = json!({"match": {"key": "k"}, "plan": "few"});
    assert_eq!(fixture.put("jobs", &few).status, 409);
    assert_eq!(fixture.put("jobs", &json!({"match": {"key": "k"}, "plan": "many"})).status, 200);
    assert_eq!(open("a")["hold"]["in_flight_limit"], 9);
    assert_eq!(fixture.put("jobs", &json!({"match": {"key": "k"}, "plan": "few", "lower": true})).status, 200);
    // The holder keeps its place, and nobody else gets one.
    assert_eq!(open("b")["reason"], "in_flight");
    assert_eq!(post("/v1/settle", "a")["settled"], true);
    assert_eq!(open("b")["hold"]["in_flight_limit"], 1);
}

#[test]
fn stale_version_and_lower_limit_are_rejected() {
    let fixture = Fixture::start();
    let of = |limit: u64| json!({"match": {"key": "k"}, "quotas": [format!("{limit} per 1h")]});
    let with = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let first = fixture.put("p", &with(of(10), "if_version", json!(0)));
    assert_eq!(first.status, 200, "{first:?}");
    let version = first.json()["version"].clone();
    let stale = fixture.put("p", &with(of(20), "if_version", json!(0)));
    assert_eq!((stale.status, &stale.json()["entry"]["version"]), (409, &version));
    assert_eq!(stale.json()["type"], "urn:tollgate:problem:override-changed");
    let next = fixture.put("p", &with(of(20), "if_version", version.clone())).json();
    assert!(next["version"].as_u64() > version.as_u64());
    // Less than the entry itself has, and less than the policy has.
    let lower = fixture.put("p", &of(19));
    assert_eq!((lower.status, &lower.json()["type"]), (409, &json!("urn:tollgate:problem:lower-limit")));
    assert!(lower.json()["detail"].as_str().unwrap().contains("the override of key k"), "{lower:?}");
    let lower = fixture.put("p", &json!({"match": {"prefix": "x"}, "quotas": ["4 per 1h"]}));
    assert!(lower.json()["detail"].as_str().unwrap().contains("by the policy"), "{lower:?}");
    let lower = fixture.put("p", &json!({"match": {"key": "file:1"}, "quotas": ["7 per 1h"]}));
    assert!(lower.json()["detail"].as_str().unwrap().contains("the override of prefix file:"), "{lower:?}");
    let other = fixture.put("p", &json!({"match": {"key": "k"}, "quotas": ["900 per 1d"]}));
    assert_eq!(other.status, 409, "{other:?}");
    let other = fixture.put("p", &json!({"match": {"key": "k"}, "quotas": ["900 per 1d"], "lower": true}));
    assert!(other.json()["warnings"][0].as_str().unwrap().contains("counts begin anew"), "{other:?}");
    // A verdict needs no consent.
    assert_eq!(fixture.put("p", &json!({"match": {"key": "k"}, "deny": true})).status, 200);
    assert_eq!(fixture.remove("p", &json!({"match": {"key": "k"}, "if_version": version})).status, 409);
    let versions: Vec<u64> = (0..3)
        .map(|_| {
            let made = fixture.put("p", &of(30)).json()["version"].as_u64().unwrap();
            assert_eq!(fixture.remove("p", &json!({"match": {"key": "k"}, "if_version": made})).status, 200);
            made
        })
        .collect();
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
}

/// A network decides before a prefix, so it takes the limit of each address that both match.
#[test]
fn network_that_lowers_a_prefix_needs_consent() {
    let fixture = Fixture::start();
    let put = |policy, matched: Value, quota: &str| fixture.put(policy, &json!({"match": matched, "quotas": [quota]}));
    for (policy, prefix, lower, apart) in [
        (
            "p",
            "203.0.",
            &["203.0.113.0/24", "203.0.0.0/16", "203.0.113.7/32", "203.0.112.0/20"][..],
            "198.51.100.0/24",
        ),
        ("ip", "203.0.113.", &["203.0.113.0/24", "203.0.0.0/16", "203.0.113.128/25"], "203.0.114.7/32"),
        (
            "ip",
            "2001:db8:",
            &["2001:db8::/32", "2001:db8:7::/48", "2001:db8:0:7::/64", "2000::/8"],
            "2001:db9::/32",
        ),
    ] {
        assert_eq!(put(policy, json!({"prefix": prefix}), "100 per 1h").status, 200);
        for cidr in lower {
            let rejected = put(policy, json!({"cidr": cidr}), "50 per 1h");
            assert_eq!(rejected.status, 409, "{policy} {cidr}: {rejected:?}");
            assert!(rejected.json()["detail"].as_str().unwrap().contains(prefix), "{rejected:?}");
        }
        assert_eq!(put(policy, json!({"cidr": apart}), "50 per 1h").status, 200, "{apart}");
    }
    // The prefix of the file counts, too.
    assert_eq!(put("filed", json!({"cidr": "192.0.2.0/24"}), "50 per 1h").status, 409);
    // A network around the new one decides already, whatever the prefix gives.
    assert_eq!(put("filed", json!({"cidr": "192.0.0.0/16"}), "100 per 1h").status, 200);
    assert_eq!(put("filed", json!({"cidr": "192.0.2.0/24"}), "99 per 1h").status, 409);
    assert_eq!(put("filed", json!({"cidr": "192.0.2.0/24"}), "100 per 1h").status, 200);
}

/// An operator copies matches from lists, and a backup sends them back.
#[test]
fn listed_match_can_be_sent_back() {
    let fixture = Fixture::start();
    let body = |key: &Value| json!({"match": {"key": key}, "quotas": ["50 per 1h"]});
    for (key, counted) in
        [("2001:db8::1", "2001:db8::/64"), ("[2001:DB8:1::9]:443", "2001:db8:1::/64"), ("::ffff:9.9.9.9", "9.9.9.9")]
    {
        let put = fixture.put("ip", &body(&json!(key))).json();
        let listed = &put["match"]["key"];
        assert_eq!(listed, counted);
        assert_eq!(fixture.put("ip", &body(listed)).json()["match"]["key"], counted);
        assert_eq!(fixture.limit("ip", counted), 50);
        assert_eq!(fixture.remove("ip", &json!({"match": {"key": listed}})).json(), json!({"removed": true}));
        // Without an entry its spelling stays a match.
        assert_eq!(fixture.put("ip", &body(&json!(counted))).json()["match"]["key"], counted);
    }
    let part = fixture.put("ip", &body(&json!("2001:db8::/48")));
    assert_eq!(part.status, 422, "{part:?}");
    // A key inside a network has the limit of the network, which a lower one takes.
    let network = json!({"match": {"cidr": "2001:db8:9::/48"}, "quotas": ["90 per 1h"]});
    assert_eq!(fixture.put("ip", &network).status, 200);
    assert_eq!(fixture.put("ip", &body(&json!("2001:db8:9::1"))).status, 409);
}

#[test]
fn entry_of_a_key_that_a_reload_spells_otherwise_can_be_removed() {
    let fixture = Fixture::start();
    for key in ["no address", "::ffff:9.9.9.9"] {
        assert_eq!(fixture.put("filed", &json!({"match": {"key": key}, "quotas": ["50 per 1h"]})).status, 200);
    }
    let changed = POLICIES.replace("filed: {", "filed: {key: {type: ip}, ");
    std::fs::write(&fixture.config, format!("overrides: {{file: overrides.jsonl}}\n{changed}")).unwrap();
    let reloaded = http::exchange(&fixture.node.address, &http::request("POST", "/v1/reload", &[], b""));
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    assert_eq!(fixture.node.post("/v1/check", &json!({"policy": "filed", "key": "no address"})).status, 422);
    for key in ["no address", "::ffff:9.9.9.9"] {
        assert_eq!(fixture.remove("filed", &json!({"match": {"key": key}})).json(), json!({"removed": true}), "{key}");
    }
    assert_eq!(entries(&fixture.node, "/v1/overrides/filed")["entries"], json!([]));
}

#[test]
fn override_ends_in_time_also_across_a_restart() {
    let mut fixture = Fixture::start();
    let put = |fixture: &Fixture, key: &str, millis: u64| {
        let body = json!({"match": {"key": key}, "deny": true, "expires_in_ms": millis});
        let put = fixture.put("p", &body).json();
        assert!(put["expires_in_ms"].as_u64() <= Some(millis) && put["expires_at"].is_string(), "{put}");
    };
    put(&fixture, "short", 700);
    assert_eq!(fixture.limit("p", "short"), 0);
    wait_until("the override has ended", || fixture.limit("p", "short") == 5);
    put(&fixture, "over", 1500);
    put(&fixture, "stays", 3_600_000);
    fixture.restart();
    assert_eq!(fixture.limit("p", "stays"), 0);
    wait_until("the override of before the restart has ended", || fixture.limit("p", "over") == 5);
    assert_eq!(entries(&fixture.node, "/v1/overrides/p")["entries"].as_array().unwrap().len(), 1);
}

#[test]
fn overrides_and_their_audit_survive_a_kill_and_a_torn_line() {
    let mut fixture = Fixture::start();
    for key in ["a", "b"] {
        assert_eq!(fixture.put("p", &json!({"match": {"key": key}, "allow": true, "reason": key})).status, 200);
    }
    assert_eq!(fixture.remove("p", &json!({"match": {"key": "a"}, "reason": "done"})).status, 200);
    drop(std::mem::replace(&mut fixture.node, node_with("policies: {p: {quotas: [1 per 1s]}}")));
    let file = fixture.folder.path().join("overrides.jsonl");
    let mut written = std::fs::read(&file).unwrap();
    written.extend(br#"{"change":{"version":1"#);
    std::fs::write(&file, written).unwrap();
    fixture.node = Node::with_config(&fixture.config);
    assert_eq!((fixture.limit("p", "a"), fixture.limit("p", "b")), (5, 1_000_000));
    let audit = entries(&fixture.node, "/v1/audit?policy=p");
    let told: Vec<_> = audit["entries"].as_array().unwrap().iter().map(|entry| &entry["reason"]).collect();
    assert_eq!(told, ["done", "b", "a"]);
    let removal = &audit["entries"][0];
    assert_eq!((&removal["match"], &removal["before"]["allow"]), (&json!("key:a"), &json!(true)));
    assert!(removal["after"].is_null() && removal["by"].is_string() && removal["at"].is_string(), "{removal}");
    // The next change follows whole lines.
    assert_eq!(fixture.put("p", &json!({"match": {"key": "c"}, "deny": true})).status, 200);
    fixture.restart();
    assert_eq!(fixture.limit("p", "c"), 0);
}

#[test]
fn lists_have_pages_in_the_order_of_matches() {
    let fixture = Fixture::start();
    for number in 0..150 {
        let body = json!({"match": {"key": format!("k{number:03}")}, "quotas": ["9 per 1h"]});
        assert_eq!(fixture.put("p", &body).status, 200);
    }
    assert_eq!(fixture.put("p", &json!({"match": {"prefix": "z"}, "plan": "pro"})).status, 200);
    let first = entries(&fixture.node, "/v1/overrides/p");
    assert_eq!((first["entries"].as_array().unwrap().len(), &first["next"]), (100, &json!("key:k099")));
    let second = entries(&fixture.node, "/v1/overrides/p?cursor=key:k099");
    let matches = second["entries"].as_array().unwrap();
    assert_eq!((matches.len(), &matches[50]["match"]), (51, &json!({"prefix": "z"})));
    assert!(second["next"].is_null());
    let some = entries(&fixture.node, "/v1/overrides/p?match=key:k01");
    assert_eq!(some["entries"].as_array().unwrap().len(), 10);
    let pages: Vec<_> = {
        let first = entries(&fixture.node, "/v1/audit");
        let next = first["next"].as_str().unwrap().to_owned();
        vec![first, entries(&fixture.node, &format!("/v1/audit?cursor={next}"))]
    };
    let versions: Vec<u64> = pages
        .iter()
        .flat_map(|page| page["entries"].as_array().unwrap())
        .map(|entry| entry["version"].as_u64().unwrap())
        .collect();
    assert!(versions.len() == 151 && versions.is_sorted_by(|one, next| one > next), "{versions:?}");
}

#[test]
fn explanation_names_the_override_its_author_and_reason() {
    let fixture = Fixture::start();
    let body = json!({"match": {"prefix": "team:"}, "plan": "pro", "reason": "contract 12", "expires_in_ms": 60000});
    assert_eq!(fixture.put("p", &body).status, 200);
    let told = entries(&fixture.node, "/v1/explain?policy=p&key=team:a");
    let decides = &told["override"];
    assert_eq!((&decides["entry"], &decides["plan"]), (&json!("prefix team:"), &json!("pro")));
    assert_eq!((&decides["reason"], &decides["by"]), (&json!("contract 12"), &json!("a caller without a token")));
    assert_eq!(told["quotas"][0]["limit"], 1000);
    let by_command = |key| {
        let url = format!("http://{}", fixture.node.address);
        let output = Command::new(TOLLGATE).args(["explain", &url, "p", key]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told = by_command("team:a");
    let lines = "plan    pro\nreason  contract 12\nby      a caller without a token\nexpires ";
    assert!(told.contains(lines), "{told}");
    assert_eq!(fixture.put("p", &json!({"match": {"key": "x"}, "deny": true, "reason": "abuse"})).status, 200);
    let told = entries(&fixture.node, "/v1/explain?policy=p&key=x");
    assert_eq!((&told["list"]["name"], &told["list"]["reason"]), (&json!("deny"), &json!("abuse")));
    assert!(told.get("quotas").is_none(), "{told}");
    assert!(by_command("x").contains("reason  abuse\nby "), "{}", by_command("x"));
    let told = entries(&fixture.node, "/v1/explain?policy=p&key=y&plan=free");
    assert_eq!((&told["plan"], &told["quotas"][0]["limit"]), (&json!("free"), &json!(2)));
}

#[test]
fn wrong_changes_are_rejected_with_what_would_be_right() {
    let fixture = Fixture::start();
    for (policy, body, status, detail) in [
        ("p", json!({}), 422, "/match is required"),
        ("p", json!({"match": {}, "deny": true}), 422, "must have one of `key`, `prefix` and `cidr`"),
        ("p", json!({"match": {"key": "a", "cidr": "::/0"}, "deny": true}), 422, "must have one of"),
        ("p", json!({"match": {"key": "a"}}), 422, "what the keys get"),
        ("p", json!({"match": {"key": "a"}, "deny": true, "allow": true}), 422, "give one of them"),
        ("p", json!({"match": {"key": "a"}, "deny": false}), 422, "must be true, or absent"),
        ("p", json!({"match": {"key": "a"}, "quotas": ["many"]}), 422, "a quota reads like `1000 per 1s`"),
        ("p", json!({"match": {"key": "a"}, "quotas": []}), 422, "there may be 1 to 8 quotas"),
        ("p", json!({"match": {"key": "a"}, "plan": "gold"}), 422, "there are free, pro"),
        (
            "p",
            json!({"match": {"key": "a"}, "deny": true, "expires_in_ms": 0}),
            422,
            "must be an integer from 1",
        ),
        ("p", json!({"match": {"key": "a"}, "deny": true, "reason": ""}), 422, "must have 1 to 256 bytes"),
        ("p", json!({"match": {"key": "x".repeat(1025)}, "deny": true}), 422, "must have 1 to 1024 bytes"),
        ("ip", json!({"match": {"key": "localhost"}, "deny": true}), 422, "is no key of this policy"),
        ("ip", json!({"match": {"cidr": "192.0.2.1/24"}, "deny": true}), 422, "did you mean `192.0.2.0/24`?"),
        ("bucket", json!({"match": {"key": "a"}, "quotas": ["5 per 1h"]}), 422, "a quota such as `{rate:"),
        ("none", json!({"match": {"key": "a"}, "deny": true}), 404, "is not configured"),
    ] {
        let answer = fixture.put(policy, &body);
        let told = answer.json();
        assert_eq!(answer.status, status, "{body}: {told}");
        assert!(told["detail"].as_str().unwrap().contains(detail), "{body}: {told}");
    }
    assert_eq!(entries(&fixture.node, "/v1/audit")["entries"], json!([]));
}

#[test]
fn node_without_a_place_for_overrides_says_so() {
    let node = node_with("policies: {p: {quotas: [5 per 1h]}}");
    let refused = change(&node, "PUT", "p", &json!({"match": {"key": "a"}, "deny": true}));
    assert_eq!((refused.status, &refused.json()["type"]), (409, &json!("urn:tollgate:problem:no-overrides")));
    assert_eq!(entries(&node, "/v1/overrides/p"), json!({"entries": [], "next": null}));
}

#[test]
fn entries_of_a_plan_that_left_the_file_count_as_absent() {
    let fixture = Fixture::start();
    assert_eq!(fixture.put("p", &json!({"match": {"key": "k"}, "plan": "pro"})).status, 200);
    assert_eq!(fixture.limit("p", "k"), 1000);
    let text = format!("overrides: {{file: overrides.jsonl}}\n{}", POLICIES.replace("pro:", "team:"));
    std::fs::write(&fixture.config, text).unwrap();
    let reloaded = http::exchange(&fixture.node.address, &http::request("POST", "/v1/reload", &[], b""));
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    assert_eq!(fixture.limit("p", "k"), 5);
    wait_until("health names the entry", || fixture.node.health()["overrides"]["reason"].is_string());
    let health = fixture.node.health();
    assert_eq!(health["status"], "degraded", "{health}");
}

#[test]
fn two_writers_of_one_version_get_one_winner() {
    let fixture = Fixture::start();
    let body = json!({"match": {"key": unique("k")}, "quotas": ["9 per 1h"], "if_version": 0});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|_| scope.spawn(|| fixture.put("p", &body).status)).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 7, "{statuses:?}");
}
