//! The page for operators, and the nodes that may compare their policies.

use std::process::Command;

use serde_json::json;

use crate::support::{Node, file_with, free_port, http, node_with};

const POLICIES: &str = "policies: {p: {quotas: [5 per 1h]}}";

fn options(node: &Node, path: &str, origin: &str) -> http::Answer {
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    // A browser sends it outside of the API, so the description does not have it.
    http::try_exchange(&node.address, &http::request("OPTIONS", path, &headers, b"")).unwrap()
}

fn policies(node: &Node, origin: &str) -> http::Answer {
    let headers = [("Origin", origin), ("Sec-Fetch-Site", "cross-site")];
    http::exchange(&node.address, &http::request("GET", "/v1/policies", &headers, b""))
}

#[test]
fn browser_runs_only_the_script_of_the_page() {
    let node = node_with(&format!("dashboard: {{nodes: [\"http://10.0.0.2:7071\", \"https://b\"]}}\n{POLICIES}"));
    let page = http::get(&node.address, "/dashboard");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'sha256-",
        "style-src 'sha256-",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "connect-src 'self' http://10.0.0.2:7071 https://b",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")] {
        assert_eq!(page.header(name), Some(value));
    }
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains(r#"<meta name="nodes" content="http://10.0.0.2:7071 https://b">"#));
    let index = http::get(&node.address, "/");
    assert_eq!((index.status, index.header("location")), (302, Some("/dashboard")));
}

/// By the program that browsers agree with.
fn decompressed(bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let output = Command::new("gzip")
        .arg("-dc")
        .stdin(file.reopen().unwrap())
        .output()
        .expect("apt-get install gzip");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[test]
fn page_is_compressed_for_clients_that_accept_it() {
    for nodes in ["", "dashboard: {nodes: [\"http://10.0.0.2:7071\", \"https://b\"]}\n"] {
        let node = node_with(&format!("{nodes}{POLICIES}"));
        let page = |accepted: &str| {
            let headers = [("Accept-Encoding", accepted)];
            let page = http::exchange(&node.address, &http::request("GET", "/dashboard", &headers, b""));
            assert_eq!((page.status, page.header("vary")), (200, Some("accept-encoding")));
            page
        };
        let (gzip, plain) = (page("br, gzip"), page("gzip;q=0"));
        assert_eq!([&gzip, &plain].map(|page| page.header("content-encoding")), [Some("gzip"), None]);
        assert_eq!(decompressed(&gzip.body), plain.body);
        assert_eq!(http::get(&node.address, "/dashboard").body, plain.body);
        assert!(3 * gzip.body.len() < plain.body.len());
    }
}

/// The page also asks for the usage of a key and refunds it, so these calls are on both listeners.
#[test]
fn page_is_on_the_listener_of_operators_only() {
    let port = free_port();
    let file = file_with(&format!("admin_listen: 127.0.0.1:{port}\n{POLICIES}\n"));
    let node = Node::with_config(file.path());
    let operators = format!("127.0.0.1:{port}");
    for path in ["/dashboard", "/"] {
        assert_eq!(http::get(&node.address, path).status, 404);
    }
    assert_eq!(http::get(&operators, "/dashboard").status, 200);
    assert_eq!(http::get(&operators, "/").status, 302);
    for address in [&node.address, &operators] {
        assert_eq!(http::get(address, "/v1/usage?policy=p&key=k").status, 200);
        let refund = json!({"policy": "p", "key": "k", "cost": 1}).to_string();
        assert_eq!(http::post(address, "/v1/refund", refund).status, 200);
    }
    assert_eq!(http::call(&operators, "POST", "/v1/check", None, r#"{"policy": "p", "key": "k"}"#).status, 404);
}

#[test]
fn named_nodes_may_read_the_live_view_and_the_policies() {
    let node = node_with(&format!("dashboard: {{nodes: [\"http://10.0.0.2:7071\"]}}\n{POLICIES}"));
    let named = "http://10.0.0.2:7071";
    let permission = options(&node, "/v1/policies", named);
    assert_eq!(permission.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", named),
        ("access-control-allow-methods", "GET"),
        ("access-control-allow-headers", "authorization"),
    ] {
        assert_eq!(permission.header(name), Some(value));
    }
    let answer = policies(&node, named);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(named)));
    assert_eq!(answer.header("vary"), Some("origin"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    for path in ["/v1/live", "/v1/top"] {
        assert_eq!(options(&node, path, named).header("access-control-allow-origin"), Some(named), "{path}");
    }
}

#[test]
fn other_origins_and_other_calls_stay_closed() {
    let node = node_with(&format!("dashboard: {{nodes: [\"http://10.0.0.2:7071\"]}}\n{POLICIES}"));
    let unnamed =
        ["http://10.0.0.2", "http://10.0.0.3:7071", "null", "http://10.0.0.2:7071.evil", "HTTP://10.0.0.2:7071"];
    for origin in unnamed {
        let answer = policies(&node, origin);
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None), "{origin}");
        assert_ne!(options(&node, "/v1/policies", origin).status, 204, "{origin}");
    }
    for path in ["/v1/usage", "/v1/reload", "/v1/check", "/v1/refund", "/v1/explain"] {
        let answer = options(&node, path, "http://10.0.0.2:7071");
        assert_ne!(answer.status, 204, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
}
