//! Plans that know policies, the plans of a token, and places in overrides.

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::access::TokenHash;

use crate::support::{Node, TOLLGATE, http, node_with};

const PLANS: &str = "
overrides: {file: overrides.jsonl}
plans:
  pro:
    quotas: [1000 per 1m]
    in_flight: 20
    policies:
      export: {quotas: [10 per 1d], in_flight: 2}
      login: {}
      jobs: {in_flight: 7}
  only: {policies: {export: {quotas: [99 per 1d]}}}
policies:
  api: {quotas: [60 per 1m]}
  login: {quotas: [5 per 1m]}
  export: {quotas: [3 per 1d], hold: {ttl: 60s, in_flight: 1}}
  jobs: {quotas: [8 per 1m], hold: {ttl: 60s, in_flight: 4}}
";

fn node_in(folder: &TempDir, text: &str) -> Node {
    let config = folder.path().join("my.yaml");
    std::fs::write(&config, text).unwrap();
    Node::with_config(config)
}

fn limit(node: &Node, policy: &str, plan: &str) -> Value {
    let path = format!("/v1/usage?policy={policy}&key=k&plan={plan}");
    http::get(&node.address, &path).json()["limit"].clone()
}

fn put(node: &Node, policy: &str, body: &Value) -> http::Answer {
    http::call(&node.address, "PUT", &format!("/v1/overrides/{policy}"), None, &body.to_string())
}

#[test]
fn plan_has_limits_of_its_own_under_each_policy_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let node = node_in(&folder, PLANS);
    for (policy, pro) in [("api", 1000), ("login", 5), ("export", 10), ("jobs", 8)] {
        assert_eq!(limit(&node, policy, "pro"), pro, "{policy}");
    }
    let places = |policy: &str, plan: &str| {
        let id = format!("{policy}-{plan}");
        let check = json!({"policy": policy, "key": "held", "id": id, "plan": plan});
        node.post("/v1/check", &check).json()["hold"]["in_flight_limit"].clone()
    };
    assert_eq!((places("export", "pro"), places("jobs", "pro")), (json!(2), json!(7)));
    // A plan with rows alone is a plan of those policies alone.
    assert_eq!(limit(&node, "export", "only"), 99);
    let unknown = node.post("/v1/check", &json!({"policy": "api", "key": "k", "plan": "only"}));
    assert_eq!(unknown.status, 422, "{unknown:?}");
    assert!(unknown.json()["detail"].as_str().unwrap().contains("there are pro"), "{unknown:?}");
    // An override may name a plan of the policy, and has its limits there.
    assert_eq!(put(&node, "login", &json!({"match": {"key": "k"}, "plan": "pro"})).status, 200);
    assert_eq!(limit(&node, "login", "pro"), 5);
}

#[test]
fn token_names_the_plans_that_its_checks_may_name() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "the secret of a gateway, which is long enough";
    std::fs::write(folder.path().join("gateway.token"), format!("{}\n", TokenHash::of(secret))).unwrap();
    let text = format!("{PLANS}tokens:\n  - {{name: gateway, file: gateway.token, scopes: [check], plans: [pro]}}\n");
    let node = node_in(&folder, &text);
    let check = |path: &str, body: &Value| http::call(&node.address, "POST", path, Some(secret), &body.to_string());
    let of = |plan: &str| json!({"policy": "export", "key": "k", "id": plan, "plan": plan});
    assert_eq!(check("/v1/check", &of("pro")).status, 200);
    assert_eq!(check("/v1/check", &json!({"policy": "api", "key": "k"})).status, 200);
    let refused = check("/v1/check", &of("only"));
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.json()["detail"].as_str().unwrap().contains("may not name the plan \"only\""), "{refused:?}");
    let batch = check("/v1/check/batch", &json!({"checks": [of("only"), {"policy": "api", "key": "k"}]})).json();
    assert_eq!(
        (&batch["results"][0]["error"]["status"], &batch["results"][1]["allowed"]),
        (&json!(403), &json!(true)),
        "{batch}"
    );
    let both = check("/v1/check/all", &json!({"checks": [{"policy": "api", "key": "k"}, of("only")]}));
    assert_eq!((both.status, &both.json()["violations"][0]["pointer"]), (403, &json!("/checks/1/plan")), "{both:?}");
}

#[test]
fn override_gives_places_alone_or_beside_quotas() {
    let folder = tempfile::tempdir().unwrap();
    let node = node_in(&folder, PLANS);
    let of = |body: Value| {
        let mut body = body;
        body["match"] = json!({"key": "k"});
        put(&node, "jobs", &body)
    };
    let open = |id: &str| node.post("/v1/check", &json!({"policy": "jobs", "key": "k", "id": id})).json();
    let set = of(json!({"in_flight": 8}));
    assert_eq!((set.status, set.json().get("quotas"), &set.json()["in_flight"]), (200, None, &json!(8)), "{set:?}");
    let opened = open("a");
    assert_eq!((&opened["hold"]["in_flight_limit"], &opened["limit"]), (&json!(8), &json!(8)), "{opened}");
    // Fewer places need consent.
    let fewer = of(json!({"in_flight": 2}));
    assert_eq!(fewer.status, 409);
    let detail = fewer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("`in_flight` is 2 here, and 8 there"), "{detail}");
    assert_eq!(of(json!({"in_flight": 2, "lower": true})).status, 200);
    assert_eq!(of(json!({"in_flight": 9, "quotas": ["50 per 1m"]})).status, 200);
    let opened = open("b");
    assert_eq!((&opened["hold"]["in_flight_limit"], &opened["limit"]), (&json!(9), &json!(50)), "{opened}");
    // Quotas alone keep the places of the policy, and a plan has its own.
    assert_eq!(of(json!({"quotas": ["60 per 1m"], "lower": true})).status, 200);
    assert_eq!(open("c")["hold"]["in_flight_limit"], 4);
    for (body, pointer) in [
        (json!({"in_flight": 0}), "/in_flight"),
        (json!({"in_flight": 9, "plan": "pro"}), "/in_flight"),
        (json!({"in_flight": 9, "deny": true}), "/in_flight"),
        (json!({"quotas": []}), "/quotas"),
    ] {
        let refused = of(body.clone());
        assert_eq!((refused.status, &refused.json()["violations"][0]["pointer"]), (422, &json!(pointer)), "{body}");
    }
    let unheld = put(&node, "api", &json!({"match": {"key": "k"}, "in_flight": 3}));
    assert!(unheld.json()["detail"].as_str().unwrap().contains("needs a policy with `hold`"), "{unheld:?}");
    // The file has it after a restart.
    assert_eq!(of(json!({"in_flight": 5, "lower": true})).status, 200);
    let explained = |key: &str| {
        let call = http::get(&node.address, &format!("/v1/explain?policy=jobs&key={key}")).json();
        let url = format!("http://{}", node.address);
        let output = std::process::Command::new(TOLLGATE).args(["explain", &url, "jobs", key]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        (call["override"]["in_flight"].clone(), call["in_flight"].clone(), told)
    };
    for (key, given, places) in [("k", json!(5), 5), ("other", Value::Null, 4)] {
        let (of_override, of_key, told) = explained(key);
        assert_eq!((of_override, of_key), (given, json!(places)), "{key}");
        assert!(told.contains(&format!("places  {places}\n")), "{told}");
    }
    drop(node);
    let node = Node::with_config(folder.path().join("my.yaml"));
    let opened = node.post("/v1/check", &json!({"policy": "jobs", "key": "k", "id": "d"})).json();
    assert_eq!(opened["hold"]["in_flight_limit"], 5, "{opened}");
}

#[test]
fn refusal_names_the_quota_that_is_less_or_missing() {
    let folder = tempfile::tempdir().unwrap();
    let text = "overrides: {file: o.jsonl}\npolicies: {p: {quotas: [100000 per 1s, 20 per 1m]}, b: {algorithm: \
                token-bucket, quotas: [{rate: 5 per 1s, burst: 10}]}}";
    let node = node_in(&folder, text);
    let refusal = |policy: &str, quotas: Value| {
        let refused = put(&node, policy, &json!({"match": {"key": "k"}, "quotas": quotas}));
        assert_eq!(refused.status, 409, "{quotas}");
        refused.json()["detail"].as_str().unwrap().to_owned()
    };
    for (policy, quotas, named) in [
        ("p", json!(["50 per 1m"]), "the quota `1s` is missing here"),
        ("p", json!(["100000 per 1s", "19 per 1m"]), "the quota `1m` has 19 here, and 20 there"),
        ("p", json!(["100000 per 1s", "20 per 1m", "500 per 1h"]), "no quota there has the window of `1h`"),
        (
            "b",
            json!([{"rate": "5 per 1s", "burst": 9}]),
            "the quota `1s` has `5 per 1s, burst 9` here, and `5 per 1s, burst 10` there",
        ),
        (
            "b",
            json!([{"rate": "4 per 1s", "burst": 20}]),
            "the quota `1s` has `4 per 1s, burst 20` here, and `5 per 1s, burst 10` there",
        ),
    ] {
        let detail = refusal(policy, quotas);
        assert!(detail.contains(named), "{detail}");
    }
}

#[test]
fn validate_warns_of_the_pairs_that_can_meet_alone() {
    let warnings = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("my.yaml"), text).unwrap();
        let output = std::process::Command::new(TOLLGATE)
            .arg("validate")
            .arg(folder.path().join("my.yaml"))
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{told}");
        told.lines().filter(|line| line.contains("has a window of its own")).count()
    };
    let policies = "policies: {api: {quotas: [60 per 1m]}, login: {quotas: [5 per 1h]}, export: {quotas: [3 per 1d]}}";
    // Four plans for three policies.
    let global =
        "plans: {a: {quotas: [9 per 1m]}, b: {quotas: [99 per 1m]}, c: {quotas: [9 per 1h]}, d: {quotas: [9 per 1d]}}";
    let rows = "plans: {a: {policies: {api: {quotas: [9 per 1m]}}}, b: {policies: {api: {quotas: [99 per 1m]}}}, c: \
                {policies: {login: {quotas: [9 per 1h]}}}, d: {quotas: [9 per 1m], policies: {login: {}, export: {}}}}";
    assert_eq!(warnings(&format!("{global}\n{policies}")), 8);
    assert_eq!(warnings(&format!("{rows}\n{policies}")), 0);
    assert_eq!(warnings(&format!("plans: {{a: {{policies: {{api: {{quotas: [9 per 1h]}}}}}}}}\n{policies}")), 1);
    drop(node_with(&format!("{rows}\n{policies}")));
    // Tokens part them, too: no check may name `a` under `login`.
    let folder = tempfile::tempdir().unwrap();
    let two = "plans: {a: {quotas: [9 per 1m]}, b: {quotas: [9 per 1h]}}";
    let token = |name: &str, policy: &str, plan: &str| {
        std::fs::write(folder.path().join(name), format!("{}\n", TokenHash::of(&name.repeat(8)))).unwrap();
        let file = folder.path().join(name).display().to_string();
        format!("{{name: {name}, file: {file}, scopes: [check], policies: [{policy}], plans: [{plan}]}}")
    };
    let tokens = [token("shop", "api", "a"), token("door", "login", "b")].join(", ");
    assert_eq!(warnings(&format!("{two}\ntokens: [{tokens}]\n{policies}")), 0);
    let tokens = [token("shop", "api", "a"), token("door", "login", "a, b")].join(", ");
    assert_eq!(warnings(&format!("{two}\ntokens: [{tokens}]\n{policies}")), 1);
}
