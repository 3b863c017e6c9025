//! A store that rejects everything: each mode gives its decision, and never a 500.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::clock::Clock;
use tollgate::config::{Overrides, Policies, Setup, built_in};
use tollgate::engine::Engine;
use tollgate::engine::fallback::FallbackStore;
use tollgate::limit::key::KeyType;
use tollgate::limit::policy::{Algorithm, OnStoreFailure, Policy};
use tollgate::limit::quota::{Quota, Rule};
use tollgate::node::{Lifecycle, Load, Node, Refusals, Watchers};
use tollgate::prefilter::Prefilter;
use tollgate::reload::Reloader;
use tollgate::store::Generations;
use tollgate::store::{MemoryStore, Store};

use crate::support::http::{self, Answer};
use crate::support::serving::serve;

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_mode_gives_its_decision() {
    let address = start().await;
    let tests = tokio::task::spawn_blocking(move || {
        let check = |policy: &str| {
            let body = json!({"policy": policy, "key": "2001:db8::1"}).to_string();
            http::post(&address, "/v1/check?deny_status=403", body)
        };
        blind(&check("allow"), 200, &json!(0));
        blind(&check("deny"), 403, &json!(1000));
        local(&check("local"));
        refused(&check("error"));
        wrong_key(&http::post(&address, "/v1/check", r#"{"policy": "local", "key": "localhost"}"#));
        drained(&address);
        let batch = json!({"checks": [{"policy": "error", "key": "::1"}, {"policy": "allow", "key": "::1"}]});
        let results = http::post(&address, "/v1/check/batch", batch.to_string()).json()["results"].clone();
        assert_eq!((&results[0]["error"]["status"], &results[1]["allowed"]), (&json!(503), &json!(true)));
    });
    tests.await.unwrap();
}

/// Without a counter the response has no quotas.
fn blind(answer: &Answer, status: u16, retry_after_ms: &Value) {
    let decision = answer.json();
    assert_eq!((answer.status, &decision["retry_after_ms"]), (status, retry_after_ms));
    for member in ["limit", "remaining", "reset_after_ms", "quota"] {
        assert_eq!(decision.get(member), Some(&Value::Null), "{member}");
    }
    assert_eq!((&decision["quotas"], &decision["reason"]), (&json!([]), &json!("store_unavailable")));
    assert_eq!(decision["fallback"]["cause"], "refused");
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
    assert_eq!(answer.header("retry-after"), (status == 403).then_some("1"));
}

fn local(answer: &Answer) {
    let decision = answer.json();
    assert_eq!(
        (&decision["limit"], &decision["remaining"], &decision["charged"]),
        (&json!(5), &json!(4), &json!(0))
    );
    assert_eq!((&decision["source"], &decision["fallback"]["mode"]), (&json!("fallback"), &json!("local")));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""1m";q=5;w=60"#));
    assert_eq!(decision["key"], "2001:db8::1");
}

/// The store charges nothing, so all is owed. With mode `local` the share of 5 takes a part.
fn drained(address: &str) {
    for (policy, remaining) in [("allow", Value::Null), ("deny", Value::Null), ("local", json!(0))] {
        let body = json!({"policy": policy, "key": "2001:db8::7", "cost": 8, "over": "drain"}).to_string();
        let answer = http::post(address, "/v1/check", body).json();
        assert_eq!((&answer["charged"], &answer["owed"], &answer["remaining"]), (&json!(0), &json!(8), &remaining));
        let quotas = answer["quotas"].as_array().unwrap();
        assert!(quotas.iter().all(|quota| quota["charged"] == 0), "{answer}");
        assert_eq!(answer["allowed"], policy == "allow", "{answer}");
    }
    let body = json!({"policy": "error", "key": "2001:db8::7", "cost": 8, "over": "drain"}).to_string();
    refused(&http::post(address, "/v1/check", body));
}

fn refused(answer: &Answer) {
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.json()["type"], "urn:tollgate:problem:store-unavailable");
}

fn wrong_key(answer: &Answer) {
    assert_eq!((answer.status, &answer.json()["violations"][0]["pointer"]), (422, &json!("/key")));
}

async fn start() -> String {
    use OnStoreFailure::{Allow, Deny, Error, Local};
    let by_name = [Local, Allow, Deny, Error].map(|mode| (mode.name().to_owned(), Arc::new(policy(mode))));
    let policies = Policies {
        by_name: BTreeMap::from(by_name),
        version: "v".into(),
        origin: "test".into(),
        loaded_at: 0,
        placeless_plans: Vec::new(),
    };
    let full = Store::Memory(MemoryStore::new(Clock::system(), 0));
    let fallback = FallbackStore::new(MemoryStore::new(Clock::system(), 10), NonZeroU64::new(2).unwrap());
    let prefilter = Prefilter::new(10, Duration::from_secs(1), Arc::new(Generations::default()));
    let engine = Engine::new(policies, prefilter, full, fallback, Clock::system());
    let config = built_in(&Overrides::default(), 0).unwrap();
    let reloader = Arc::new(Reloader::new(Setup::default(), config, engine.clone()));
    let (lifecycle, refusals) = (Lifecycle::default(), Refusals::default());
    let node = Node {
        engine,
        lifecycle,
        load: Load::default(),
        refusals,
        reloader,
        tracing: None,
        keys: Arc::default(),
        watchers: Watchers::default(),
    };
    serve(node).await
}

fn policy(on_store_failure: OnStoreFailure) -> Policy {
    let limit = NonZeroU64::new(10).unwrap();
    let quota = Quota { name: "1m".into(), limit, window: 60_000_000, rule: Rule::default() };
    let policy =
        Policy::new(on_store_failure.name(), Algorithm::SlidingWindow, vec![quota], Duration::from_millis(100));
    Policy { key_type: KeyType::Ip { ipv6_prefix: 64 }, on_store_failure, ..policy }
}
