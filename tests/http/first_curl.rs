//! The first minutes: the printed command works, five checks pass, and the sixth is denied.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Node, http};

const BODY: &str = r#"{"policy":"five-per-minute","key":"203.0.113.7"}"#;

#[test]
fn five_checks_pass_and_sixth_has_retry_after() {
    let node = Node::start();
    for left in (0..5).rev() {
        let answer = http::post(&node.address, "/v1/check", BODY);
        let decision = answer.json();
        assert_eq!((answer.status, &decision["allowed"], &decision["remaining"]), (200, &json!(true), &json!(left)));
        assert_eq!((&decision["retry_after_ms"], &decision["charged"]), (&json!(0), &json!(1)));
        assert_eq!(answer.header("retry-after"), None);
    }
    let answer = http::post(&node.address, "/v1/check?deny_status=429", BODY);
    let decision = answer.json();
    let (wait, reset) = (decision["retry_after_ms"].as_u64().unwrap(), decision["reset_after_ms"].as_u64().unwrap());
    assert!((50_000..=61_000).contains(&wait), "{decision}");
    assert_eq!(answer.status, 429);
    let members = json!({"allowed": false, "policy": "five-per-minute", "key": "203.0.113.7", "cost": 1, "charged": 0,
        "limit": 5, "remaining": 0, "retry_after_ms": wait, "reset_after_ms": reset, "quota": "60s",
        "source": "prefilter", "reason": "over_limit"});
    assert_eq!(decision, members);
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""60s";q=5;w=60"#));
    let state = format!(r#""60s";r=0;t={}"#, wait.div_ceil(1000));
    assert_eq!(answer.header("ratelimit"), Some(state.as_str()));
    assert_eq!(answer.header("retry-after"), Some(wait.div_ceil(1000).to_string().as_str()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

/// The same check is allowed at the promised instant. Tests with a manual clock show that it is not
/// allowed sooner.
#[test]
fn waiting_retry_after_allows_the_next_check() {
    let node = Node::start();
    let ask = || http::post(&node.address, "/v1/check", r#"{"key": "a", "cost": 1000}"#).json();
    assert_eq!(ask()["allowed"], true);
    // After a stall of a second the store allows one more.
    let denied = (0..4).map(|_| ask()).find(|answer| answer["allowed"] == false).expect("it is denied");
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((1..=1016).contains(&wait), "{denied}");
    std::thread::sleep(Duration::from_millis(wait));
    assert_eq!(ask()["allowed"], true);
}

#[test]
fn printed_command_works_as_printed() {
    let node = Node::start();
    let line = node.greeting.lines().last().unwrap().trim().strip_prefix("try").unwrap();
    let output = Command::new("sh").args(["-c", line]).output().expect("a shell runs");
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "install curl to run this test: {answer}");
    let decision: Value = serde_json::from_str(answer.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&decision["allowed"], &decision["limit"], &decision["remaining"]),
        (&json!(true), &json!(5), &json!(4))
    );
}

#[test]
fn request_id_is_echoed_or_generated() {
    let node = Node::start();
    let ask = |id: &str| {
        let request = http::request("GET", "/nowhere", &[("X-Request-Id", id)], b"");
        http::exchange(&node.address, &request).header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(ask("abc-123"), "abc-123");
    for unusable in ["", "two words", &"x".repeat(129)] {
        let made = ask(unusable);
        assert!(made.len() == 32 && made != ask(unusable), "{made}");
    }
}

#[test]
fn operators_may_have_a_separate_listener() {
    let node = Node::start_with(&["--admin-listen", "127.0.0.1:0"]);
    assert_eq!(http::get(&node.address, "/v1/policies").status, 404);
    assert_eq!(http::get(&node.address, "/health/live").json()["status"], "ok");
    let admin = node.greeting.lines().find_map(|line| line.trim().strip_prefix("operators  http://")).unwrap();
    let policies = http::get(admin, "/v1/policies").json();
    let none = json!({"keys": 0, "prefixes": 0, "cidrs": 0});
    let told = policies["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "five-per-minute");
    assert_eq!(
        told.unwrap(),
        &json!({"name": "five-per-minute", "algorithm": "sliding-window",
        "quotas": [{"name": "60s", "limit": 5, "window_ms": 60000, "says": "5 per 1m"}], "key": {"type": "text"},
        "on_store_failure": "local", "timeout_ms": 100, "shadow": false, "inline": false,
        "deny": none, "allow": none, "overrides": none})
    );
    assert!(policies["loaded_at"].as_str().unwrap().ends_with('Z') && policies["origin"] == "built-in");
    assert_eq!(http::post(admin, "/v1/check", BODY).status, 404);
    assert_eq!(http::get(admin, "/health/ready").status, 200);
}
