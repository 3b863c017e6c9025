use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tollgate_limiter::Client;

use crate::browser::Browser;
use crate::cases::{List, Nodes, client, client_of, counter, known, lacks, layer_of, read, run_all};
use crate::client_cases::within;
use crate::matching::assert_matches;
use crate::servers::{HOSTS, Host};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer_passes_the_shared_cases_behind_each_server() {
    let nodes = Nodes::start();
    for host in HOSTS {
        run_all(read("middleware"), |case| run(host, case, nodes.clone())).await;
    }
}

async fn run(host: Host, case: Value, nodes: Arc<Nodes>) {
    if lacks(&case, &nodes).await {
        return;
    }
    let browser = Browser::new();
    for reset in case["reset"].as_array().into_iter().flatten() {
        let query = format!("policy={}&key={}", reset["policy"].as_str().unwrap(), reset["key"].as_str().unwrap());
        let url = format!("{}/v1/usage?{query}", nodes.plain.url());
        let response = browser.send(Method::DELETE, &url, HeaderMap::new(), Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    let list = List::of(&case, &nodes).await;
    let url = host.start(layer_of(&case, client_of(&case, &list))).await;
    for request in case["requests"].as_array().unwrap() {
        known(request, &["headers", "times", "expect", "within_ms", "concurrently", "statuses", "until"]);
        if let Some(until) = request.get("until") {
            wait_until(until, &client(&nodes.plain.url())).await;
        } else if let Some(number) = request["concurrently"].as_u64() {
            concurrently(&browser, &url, request, number).await;
        } else {
            for _ in 0..request["times"].as_u64().unwrap_or(1) {
                let began = Instant::now();
                let response = get(&browser, &url, request).await;
                within(request, began);
                verify(&request["expect"], &response);
            }
        }
    }
    list.verify(&case);
}

async fn get(browser: &Browser, url: &str, request: &Value) -> Response<Bytes> {
    let headers = request["headers"].as_object().into_iter().flatten().map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_str().unwrap().as_bytes()).unwrap();
        (HeaderName::try_from(name).unwrap(), value)
    });
    browser.send(Method::GET, url, headers.collect(), Bytes::new()).await
}

async fn concurrently(browser: &Browser, url: &str, request: &Value, number: u64) {
    let mut all = JoinSet::new();
    for _ in 0..number {
        let (browser, url, request) = (browser.clone(), url.to_owned(), request.clone());
        all.spawn(async move { get(&browser, &url, &request).await.status() });
    }
    let mut statuses = BTreeMap::<String, u64>::new();
    for status in all.join_all().await {
        *statuses.entry(status.as_u16().to_string()).or_default() += 1;
    }
    assert_eq!(json!(statuses), request["statuses"]);
}

fn verify(want: &Value, response: &Response<Bytes>) {
    known(want, &["status", "headers", "body", "json"]);
    let body = String::from_utf8_lossy(response.body());
    assert_eq!(want["status"], response.status().as_u16(), "{body}");
    for (name, want) in want["headers"].as_object().into_iter().flatten() {
        let values: Vec<_> = response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
        let got = if values.is_empty() { Value::Null } else { values.join(", ").into() };
        assert_matches(name, want, &got);
    }
    if let Some(want) = want["body"].as_str() {
        assert_eq!(want, body);
    }
    if let Some(want) = want.get("json") {
        assert_matches("json", want, &serde_json::from_slice(response.body()).unwrap());
    }
}

pub async fn wait_until(until: &Value, client: &Client) {
    known(until, &["policy", "key", "remaining", "in_flight"]);
    let mut last = Value::Null;
    for _ in 0..3000 {
        let usage = client.usage(counter(&until["policy"], &until["key"])).await.unwrap();
        last = json!({"remaining": usage.decision.remaining, "in_flight": usage.in_flight});
        if ["remaining", "in_flight"].iter().all(|name| until.get(name).is_none_or(|want| want == &last[name])) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{last}, want {until}");
}
