//! A metric counts rejected calls and failed handshakes, and the log names a client.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::tls::{self, Authority};
use crate::support::{Node, TOLLGATE, http, wait_until};

fn node(folder: &TempDir, settings: &str) -> Node {
    let file = folder.path().join("my.yaml");
    fs::write(&file, format!("{settings}\npolicies: {{p: {{quotas: [5 per 1h]}}}}\n")).unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stderr(File::create(folder.path().join("log")).unwrap());
    Node::start_by(program, &["--config", file.to_str().unwrap()])
}

fn lines(folder: &TempDir, message: &str) -> Vec<Value> {
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["fields"]["message"] == message).collect()
}

fn count(node: &Node, series: &str) -> u64 {
    let metrics = http::call(&node.address, "GET", "/metrics", None, "");
    let metrics = String::from_utf8(metrics.body).unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("{series}: {metrics}")).trim().parse().unwrap()
}

fn refused(node: &Node, reason: &str) -> u64 {
    count(node, &format!("tollgate_refused_calls_total{{reason=\"{reason}\"}}"))
}

#[test]
fn rejected_calls_are_counted_by_reason_and_logged_with_client() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
    let made = String::from_utf8(made).unwrap();
    let (token, line) = made.trim_end().split_once('\n').unwrap();
    fs::write(folder.path().join("check.tokens"), line).unwrap();
    let node = node(&folder, "auth: {check_token_files: [check.tokens]}");
    let reasons = ["no_token", "unknown_token", "needs_admin", "no_admin_tokens", "page", "malformed_http"];
    assert_eq!(reasons.map(|reason| refused(&node, reason)), [0; 6]);
    let check = r#"{"policy": "p", "key": "secret-key"}"#;
    for _ in 0..300 {
        assert_eq!(http::call(&node.address, "POST", "/v1/check", None, check).status, 401);
        assert_eq!(http::call(&node.address, "POST", "/v1/reload", Some(token), "").status, 403);
    }
    for path in ["/v1/policies", "/v1/usage?policy=p&key=secret-key", "/nothing"] {
        assert_eq!(http::call(&node.address, "GET", path, Some("guessed-token"), "").status, 401);
    }
    assert_eq!(http::call(&node.address, "GET", "/nothing", Some(token), "").status, 404);
    assert_eq!(http::call(&node.address, "POST", "/v1/check", Some(token), check).status, 200);
    let _ = http::try_exchange(&node.address, b"GET /health/live HTTP/1.1\r\n\r\n");
    assert_eq!(reasons.map(|reason| refused(&node, reason)), [300, 3, 0, 300, 0, 1]);
    for reason in ["no_token", "unknown_token", "no_admin_tokens", "malformed_http"] {
        let told = || lines(&folder, "calls are refused").into_iter().filter(|line| line["fields"]["reason"] == reason);
        wait_until("it is told", || told().count() > 0);
        // The log admits one line in ten seconds.
        assert!(told().count() < 10, "{:?}", told().collect::<Vec<_>>());
        let line = told().next().unwrap();
        assert_eq!((&line["level"], &line["fields"]["client"]), (&"WARN".into(), &"127.0.0.1".into()), "{line}");
    }
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("secret-key") && !log.contains("guessed-token") && !log.contains(token), "{log}");
}

#[test]
fn rejected_origins_and_tokens_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let open = node(&folder, "");
    let page = http::request("POST", "/v1/reload", &[("Origin", "https://evil.example")], b"");
    assert_eq!(http::exchange(&open.address, &page).status, 403);
    assert_eq!(refused(&open, "page"), 1);
    wait_until("it is told", || lines(&folder, "calls are refused").len() == 1);

    let made = || {
        let made = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
        let made = String::from_utf8(made).unwrap();
        let (token, line) = made.trim_end().split_once('\n').unwrap();
        (token.to_owned(), line.to_owned())
    };
    let folder = tempfile::tempdir().unwrap();
    let ((check, check_line), (_, admin_line)) = (made(), made());
    fs::write(folder.path().join("check.tokens"), check_line).unwrap();
    fs::write(folder.path().join("admin.tokens"), admin_line).unwrap();
    let node = node(&folder, "auth: {check_token_files: [check.tokens], admin_token_files: [admin.tokens]}");
    assert_eq!(http::call(&node.address, "DELETE", "/v1/usage?policy=p&key=k", Some(&check), "").status, 403);
    assert_eq!(refused(&node, "needs_admin"), 1);
}

#[test]
fn failed_handshakes_are_counted_and_logged() {
    let authority = Authority::new();
    ["node", "client"].iter().for_each(|name| authority.sign(name));
    let own = authority.path("ca.pem");
    let folder = tempfile::tempdir().unwrap();
    let tls = format!(
        "tls: {{cert_file: {}, key_file: {}, client_ca_file: {}}}",
        authority.text("node.pem"),
        authority.text("node.key"),
        own.display()
    );
    let node = node(&folder, &tls);
    let failed = || {
        let request = http::request("GET", "/metrics", &[], b"");
        let (metrics, _) = tls::exchange(&node.address, authority.client(Some("client")), &request).unwrap();
        let metrics = String::from_utf8(metrics.body).unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_tls_handshakes_failed_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(failed(), 0);
    drop(TcpStream::connect(&node.address).unwrap());
    wait_until("it is counted", || failed() == 1);
    assert_eq!(lines(&folder, "no TLS was agreed on").len(), 0);
    // One client speaks no TLS, the other shows no certificate.
    let mut plain = TcpStream::connect(&node.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let _ = plain.read_to_end(&mut Vec::new());
    let _ = tls::exchange(&node.address, authority.client(None), &http::request("GET", "/metrics", &[], b""));
    wait_until("both are counted", || failed() == 3);
    wait_until("one is told", || !lines(&folder, "no TLS was agreed on").is_empty());
    let told = &lines(&folder, "no TLS was agreed on")[0]["fields"];
    assert!(told["client"] == "127.0.0.1" && told["error"].is_string(), "{told}");
}
