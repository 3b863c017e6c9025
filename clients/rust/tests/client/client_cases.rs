use std::pin::Pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tollgate_limiter::{Check, Client, Error, HoldName, Over, QuotaSpec, Refund};

use crate::cases::{self, List, Nodes, client, client_of, known, lacks, read, run_all};
use crate::layer_cases::wait_until;
use crate::matching::assert_matches;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_passes_the_shared_cases() {
    let nodes = Nodes::start();
    run_all(read("client"), |case| {
        let nodes = nodes.clone();
        async move {
            if lacks(&case, &nodes).await {
                return;
            }
            let list = List::of(&case, &nodes).await;
            let client = client_of(&case, &list);
            for step in case["steps"].as_array().unwrap() {
                if step["stop"] == true {
                    list.proxy.as_ref().expect("a proxy").stop();
                } else if let Some(until) = step.get("until") {
                    wait_until(until, &self::client(&nodes.plain.url())).await;
                } else {
                    run(&client, step).await;
                }
            }
            list.verify(&case);
        }
    })
    .await;
}

/// A step may have others, so its future is a box.
fn run<'a>(client: &'a Client, step: &'a Value) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let members = "call with traceparent expect fails within_ms concurrently allowed together pause_ms while cost \
                   throws";
        known(step, &members.split(' ').collect::<Vec<_>>());
        if let Some(pause) = step["pause_ms"].as_u64() {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        } else if let Some(steps) = step.get("together") {
            let mut all = JoinSet::new();
            for step in steps.as_array().unwrap().clone() {
                let client = client.clone();
                all.spawn(async move { once(&client, &step).await });
            }
            all.join_all().await;
        } else if let Some(number) = step["concurrently"].as_u64() {
            let mut all = JoinSet::new();
            for _ in 0..number {
                let (client, step) = (client.clone(), step.clone());
                all.spawn(async move { ask(&client, &step).await.unwrap() });
            }
            let allowed = all.join_all().await.iter().filter(|answer| answer["allowed"] == true).count();
            assert_eq!(json!(allowed), step["allowed"], "allowed of {number}");
        } else {
            once(client, step).await;
        }
    })
}

async fn once(client: &Client, step: &Value) {
    let began = Instant::now();
    let answer = ask(client, step).await;
    within(step, began);
    match (step.get("fails"), answer) {
        (Some(want), Err(error)) => verify_failure(want, &error),
        (None, Ok(answer)) => {
            if let Some(want) = step.get("expect") {
                assert_matches("answer", want, &answer);
            }
        }
        (_, answer) => panic!("{step}: {answer:?}"),
    }
}

fn verify_failure(want: &Value, error: &Error) {
    known(want, &["denied", "unavailable", "status", "problem", "pointer"]);
    if let Some(denied) = want.get("denied") {
        let Error::Denied(decision) = error else { panic!("{error}") };
        let ended = decision.hold.as_ref().and_then(|hold| hold.ended.as_ref());
        assert_eq!(denied, &ended.map_or_else(|| json!(decision.reason), |end| json!(end)), "{error}");
        return;
    }
    let Error::Problem(problem) = error else {
        assert_eq!(want, &json!({"unavailable": true}), "{error}");
        return;
    };
    assert_eq!(want["status"], problem.status, "{problem}");
    assert_eq!(want["problem"], problem.name(), "{problem}");
    if let Some(pointer) = want.get("pointer") {
        assert_eq!(pointer, &json!(problem.violations[0].pointer), "{problem}");
    }
}

pub fn within(step: &Value, began: Instant) {
    if let Some(limit) = step["within_ms"].as_u64() {
        let took = began.elapsed();
        assert!(took <= Duration::from_millis(limit), "{took:?}: {step}");
    }
}

async fn ask(client: &Client, step: &Value) -> Result<Value, Error> {
    let with = &step["with"];
    let check = |with| match step["traceparent"].as_str() {
        Some(traceparent) => check_of(with).traceparent(traceparent),
        None => check_of(with),
    };
    let checks = || with["checks"].as_array().unwrap().iter().map(check);
    if step["call"] == "hold" {
        let checks = if with.get("checks").is_some() { checks().collect() } else { vec![check(with)] };
        return hold(client, step, checks).await;
    }
    Ok(match step["call"].as_str().unwrap() {
        "check" => value(client.check(check(with)).await?),
        "acquire" => {
            let wait = Duration::from_millis(with["wait_ms"].as_u64().unwrap());
            value(client.acquire(check(with), wait).await?)
        }
        "checkBatch" => {
            let results = client.check_batch(checks()).await?.into_iter().map(|result| match result {
                Ok(decision) => value(decision),
                Err(problem) => json!({"error": problem}),
            });
            json!({"results": results.collect::<Vec<_>>()})
        }
        "checkAll" => value(client.check_all(checks()).await?),
        "refund" => value(client.refund(refund_of(with)).await?),
        "settle" => value(client.settle(&name_of(with), with["cost"].as_u64()).await?),
        "renew" => value(client.renew(&name_of(with)).await?),
        "usage" => value(client.usage(check(with)).await?),
        call => panic!("unknown call {call}"),
    })
}

/// The decision of the first check. The step has what happens while the hold is open.
async fn hold(client: &Client, step: &Value, checks: Vec<Check>) -> Result<Value, Error> {
    let hold = client.hold_all(checks).await?;
    for step in step["while"].as_array().unwrap() {
        run(client, step).await;
    }
    assert!(!hold.is_ended(), "{:?}", hold.ended().await);
    let decision = value(hold.decision());
    if let Some(cost) = step["cost"].as_u64() {
        hold.set_cost(cost);
    }
    if step["throws"] == true {
        let failed = tokio::spawn(async move {
            let _hold = hold;
            panic!("the work fails");
        });
        assert!(failed.await.is_err());
        client.close().await;
    } else {
        hold.end().await?;
    }
    Ok(decision)
}

fn name_of(with: &Value) -> HoldName {
    known(with, &["policy", "key", "id", "cost"]);
    let text = |name: &str| with[name].as_str().unwrap();
    HoldName::new(text("key"), text("id")).policy(text("policy"))
}

fn value<T: serde::Serialize>(answer: T) -> Value {
    serde_json::to_value(answer).unwrap()
}

fn check_of(with: &Value) -> Check {
    known(with, &["policy", "key", "plan", "cost", "meta", "id", "once", "look", "wait_ms", "quotas", "over"]);
    let mut check = Check::new(with["key"].as_str().unwrap()).once(with["once"] == true).look(with["look"] == true);
    let text = |name: &str| with[name].as_str();
    if let Some(policy) = text("policy") {
        check = check.policy(policy);
    }
    if let Some(plan) = text("plan") {
        check = check.plan(plan);
    }
    if let Some(units) = with["cost"].as_u64() {
        check = check.cost(units);
    }
    if let Some(meta) = text("meta") {
        check = check.meta(meta);
    }
    if let Some(id) = text("id") {
        check = check.id(id);
    }
    if with["over"] == "drain" {
        check = check.over(Over::Drain);
    }
    if let Some(quotas) = with.get("quotas") {
        check = check.quotas(cases::texts(quotas).into_iter().map(quota_of));
    }
    check
}

fn quota_of(text: &str) -> QuotaSpec {
    let (limit, window) = text.split_once(" per ").unwrap();
    QuotaSpec::limit(limit.parse().unwrap(), window)
}

fn refund_of(with: &Value) -> Refund {
    known(with, &["policy", "key", "cost", "id"]);
    let key = with["key"].as_str().unwrap();
    let refund = match with["id"].as_str() {
        Some(id) => Refund::by_id(key, id),
        None => Refund::by_cost(key, with["cost"].as_u64().unwrap()),
    };
    match with["policy"].as_str() {
        Some(policy) => refund.policy(policy),
        None => refund,
    }
}
