//! Tokens for checks, tokens for operators, and listeners without tokens.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::support::events::Events;
use crate::support::{Node, TOLLGATE, http, wait_until};

const CHECK: &str = r#"{"policy": "p", "key": "k"}"#;

fn token() -> (String, String) {
    let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (token, line) = text.trim_end().split_once('\n').unwrap();
    (token.to_owned(), line.to_owned())
}

fn folder(settings: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "my.yaml", &format!("{settings}\npolicies: {{p: {{quotas: [5 per 1h]}}}}\n"));
    folder
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn node(folder: &TempDir) -> Node {
    Node::with_config(folder.path().join("my.yaml"))
}

fn status(node: &Node, method: &str, path: &str, token: Option<&str>) -> u16 {
    http::call(&node.address, method, path, token, if method == "POST" { CHECK } else { "" }).status
}

#[test]
fn each_call_requires_its_token() {
    let ((check, check_line), (admin, admin_line)) = (token(), token());
    let folder = folder("auth: {check_token_files: [check.tokens], admin_token_files: [admin.tokens]}");
    write(folder.path(), "check.tokens", &format!("# The shop.\n{check_line}   # since May\n\n"));
    write(folder.path(), "admin.tokens", &admin_line);
    let node = node(&folder);
    let (check, admin) = (Some(check.as_str()), Some(admin.as_str()));
    for (method, path, by_check, by_admin) in [
        ("POST", "/v1/check", 200, 200),
        ("POST", "/v1/check/batch", 422, 422),
        ("GET", "/v1/usage?policy=p&key=k", 200, 200),
        ("GET", "/v1/policies", 200, 200),
        ("GET", "/v1/explain?policy=p&key=k", 200, 200),
        ("GET", "/v1/top", 200, 200),
        ("GET", "/v1/live", 200, 200),
        ("POST", "/v1/reload", 403, 200),
        ("GET", "/v1/nothing", 404, 404),
        ("PUT", "/v1/check", 405, 405),
    ] {
        for stranger in [None, Some("guessed"), Some("")] {
            let refused = http::call(&node.address, method, path, stranger, CHECK);
            assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some(r#"Bearer realm="tollgate""#)));
            assert_eq!(refused.json()["type"], "urn:tollgate:problem:unauthorized");
        }
        assert_eq!(status(&node, method, path, check), by_check, "{method} {path}");
        assert_eq!(status(&node, method, path, admin), by_admin, "{method} {path}");
    }
    let forbidden = http::call(&node.address, "POST", "/v1/reload", check, "");
    assert_eq!(forbidden.json()["type"], "urn:tollgate:problem:forbidden");
    assert_eq!(status(&node, "DELETE", "/v1/usage?policy=p&key=k", check), 403);
    for path in ["/health/live", "/health/ready"] {
        assert_eq!(status(&node, "GET", path, None), 200);
    }
}

/// Under a policy of several limits a large refund would reset all of them.
#[test]
fn check_token_refunds_at_most_what_one_check_can_charge() {
    let ((check, check_line), (admin, admin_line)) = (token(), token());
    for auth in [
        "auth: {check_token_files: [check.tokens], admin_token_files: [admin.tokens]}",
        "auth: {check_token_files: [check.tokens]}",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let policies =
            "policies: {p: {quotas: [5 per 1m, 100 per 1h], overrides: [{match: {key: big}, quotas: [50 per 1h]}]}}";
        write(folder.path(), "my.yaml", &format!("{auth}\n{policies}\n"));
        write(folder.path(), "check.tokens", &check_line);
        write(folder.path(), "admin.tokens", &admin_line);
        let node = node(&folder);
        let post = |path: &str, token: &str, body: &str| http::call(&node.address, "POST", path, Some(token), body);
        let refund = |token: &str, key: &str, cost: u64| {
            post("/v1/refund", token, &format!(r#"{{"policy": "p", "key": "{key}", "cost": {cost}}}"#))
        };
        let remaining = |key: &str| {
            let usage = http::call(&node.address, "GET", &format!("/v1/usage?policy=p&key={key}"), Some(&check), "");
            usage.json()["remaining"].as_u64().unwrap()
        };
        for (key, most) in [("k", 5), ("big", 50)] {
            let charge = format!(r#"{{"policy": "p", "key": "{key}", "cost": {most}}}"#);
            assert_eq!(post("/v1/check", &check, &charge).json()["allowed"], true);
            for cost in [most + 1, 1_000_000_000_000_000] {
                let refused = refund(&check, key, cost);
                let detail = refused.json()["detail"].as_str().unwrap().to_owned();
                assert!(refused.status == 403 && detail.contains(&format!("up to {most} here")), "{detail}");
            }
            assert_eq!(remaining(key), 0);
            assert_eq!(refund(&check, key, 2).json()["refunded"], 2);
            assert_eq!(remaining(key), 2);
        }
        if auth.contains("admin") {
            let all = refund(&admin, "k", 1_000_000_000_000_000);
            assert_eq!((all.status, all.json()["refunded"].as_u64(), remaining("k")), (200, Some(3), 5));
        }
        assert_eq!(refund(&check, "k", 1).status, 200, "as a store that decrements does");
    }
}

/// An unauthenticated caller charges nothing, and learns of no policy.
#[test]
fn rejected_token_charges_nothing() {
    let (check, line) = token();
    let folder = folder("auth: {check_token_files: [tokens]}");
    write(folder.path(), "tokens", &line);
    let node = node(&folder);
    for _ in 0..10 {
        let refused = http::call(&node.address, "POST", "/v1/check", None, r#"{"policy": "x", "key": "k"}"#);
        assert_eq!((refused.status, refused.json().get("known")), (401, None));
        assert_eq!(status(&node, "POST", "/v1/check", None), 401);
    }
    let first = http::call(&node.address, "POST", "/v1/check", Some(&check), CHECK).json();
    assert_eq!(first["remaining"], 4);
}

#[test]
fn tokens_are_reloaded() {
    let ((old, old_line), (new, new_line)) = (token(), token());
    let folder = folder("auth: {check_token_files: [tokens], admin_token_files: [tokens]}");
    write(folder.path(), "tokens", &old_line);
    let node = node(&folder);
    let mut events = Events::open(&node.address, "", Some(&old));
    assert_eq!(events.next().unwrap()["node"]["keys"], "clear");
    write(folder.path(), "tokens", &new_line);
    wait_until("the new token is known", || status(&node, "POST", "/v1/check", Some(&new)) == 200);
    assert_eq!(status(&node, "POST", "/v1/check", Some(&old)), 401);
    // The stream of the old token ends.
    while events.next().is_some() {}
    write(folder.path(), "tokens", "not a line\n");
    let refused = http::call(&node.address, "POST", "/v1/reload", Some(&new), "");
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(!String::from_utf8_lossy(&refused.body).contains("not a line"), "{refused:?}");
    assert_eq!(status(&node, "POST", "/v1/check", Some(&new)), 200);
}

/// A faulty token file never counts as an empty one.
#[test]
fn token_file_faults_are_reported_without_token() {
    let folder = folder("auth:\n  check_token_files: [absent, empty, plain]");
    write(folder.path(), "empty", "# nobody\n");
    write(folder.path(), "plain", "hunter2\n");
    let file = folder.path().join("my.yaml");
    let output = Command::new(TOLLGATE).arg("validate").arg(&file).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(1), 3), "{told}");
    for (line, part) in lines.iter().zip([
        ":2:23: an entry of `check_token_files` must name a file such as `admin.tokens`, and never be a token itself",
        ":2:31: the file `empty` holds no token",
        ":2:38: the file `plain` must",
    ]) {
        assert!(line.contains(part), "{line}");
    }
    assert!(!told.contains("hunter2"));
}

/// The responses of a reload and of the policies do not repeat it either.
#[test]
fn token_in_place_of_file_is_not_printed() {
    let (token, line) = token();
    let [secret, hash] = [&token["tollgate_".len()..], &line["sha256:".len()..]].map(|whole| &whole[..16]);
    let folder = folder("");
    let file = folder.path().join("my.yaml");
    let node = node(&folder);
    for auth in [
        format!("{{check_token_files: [{token}]}}"),
        format!("{{check_token_files: [\"{line}\"]}}"),
        format!("{{check_token_files: {token}}}"),
        format!("{{allow_anonymous: {token}}}"),
        format!("{{{token}: true}}"),
        token.clone(),
    ] {
        write(folder.path(), "my.yaml", &format!("auth: {auth}\npolicies: {{p: {{quotas: [5 per 1h]}}}}\n"));
        let output = Command::new(TOLLGATE).arg("validate").arg(&file).output().unwrap();
        let refused = http::call(&node.address, "POST", "/v1/reload", None, "");
        let policies = http::get(&node.address, "/v1/policies");
        assert_eq!((output.status.code(), refused.status), (Some(1), 422), "{auth}");
        for told in [&output.stderr, &refused.body, &policies.body] {
            let told = String::from_utf8_lossy(told);
            assert!(!told.contains(secret) && !told.contains(hash), "{told}");
        }
    }
}

/// Any page in a local browser may call 127.0.0.1, though it may not read the response.
#[test]
fn browser_pages_are_no_operators() {
    let folder = folder("");
    let node = node(&folder);
    let call = |method: &str, path: &str, headers: &[(&str, &str)]| {
        http::exchange(&node.address, &http::request(method, path, headers, CHECK.as_bytes()))
    };
    let evil = ("Origin", "https://evil.example");
    let rebound = ("Origin", "http://evil.example:7070");
    for (method, path) in [
        ("POST", "/v1/reload"),
        ("DELETE", "/v1/usage?policy=p&key=k"),
        ("GET", "/v1/policies"),
        ("GET", "/v1/explain?policy=p&key=k"),
    ] {
        for page in
            [evil, rebound, ("Origin", "null"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site")]
        {
            let refused = call(method, path, &[page, ("Content-Type", "text/plain")]);
            assert_eq!(refused.status, 403, "{method} {path} {page:?}");
            let problem = refused.json();
            assert_eq!(problem["type"], "urn:tollgate:problem:forbidden");
            assert!(problem["detail"].as_str().unwrap().contains("page in a browser"), "{problem}");
        }
        assert_eq!(call(method, path, &[("Sec-Fetch-Site", "none")]).status, 200, "{method} {path}");
        assert_eq!(call(method, path, &[("X-Forwarded-Host", "example.org")]).status, 200, "{method} {path}");
    }
    // It may check, and so give a check back, but not more. A hold is another caller's.
    let json = ("Content-Type", "application/json");
    let hold = r#"{"policy": "p", "key": "k", "id": "job"}"#;
    for (path, body, by_others) in [
        ("/v1/refund", r#"{"policy": "p", "key": "k", "cost": 1}"#, None),
        ("/v1/refund", r#"{"policy": "p", "key": "k", "cost": 1000000000000000}"#, Some(200)),
        // The policy has no holds.
        ("/v1/settle", hold, Some(422)),
    ] {
        let send = |headers: &[(&str, &str)]| {
            http::exchange(&node.address, &http::request("POST", path, headers, body.as_bytes()))
        };
        let answer = send(&[json, evil]);
        assert_eq!(answer.status, if by_others.is_some() { 403 } else { 200 }, "{path} {body}");
        if let Some(expected) = by_others {
            assert!(answer.json()["detail"].as_str().unwrap().contains("page in a browser"), "{answer:?}");
            assert_eq!(send(&[json]).status, expected, "{path} {body}");
        }
    }
    // A local proxy may forward a browser's header fields.
    let passed = [evil, ("Sec-Fetch-Site", "cross-site"), ("Content-Type", "application/json")];
    assert_eq!(call("POST", "/v1/check", &passed).status, 200);
    assert_eq!(call("GET", "/v1/usage?policy=p&key=k", &passed).status, 200);
}

/// A caller with an operator token is an operator, wherever its page comes from.
#[test]
fn browser_page_with_token_is_operator() {
    let (token, line) = token();
    let folder = folder("auth: {admin_token_files: [tokens]}");
    write(folder.path(), "tokens", &line);
    let node = node(&folder);
    let bearer = format!("Bearer {token}");
    let headers = [("Origin", "https://ours.example"), ("Authorization", &bearer)];
    let answer = http::exchange(&node.address, &http::request("POST", "/v1/reload", &headers, b""));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn public_address_needs_tokens() {
    let (_, line) = token();
    let config = folder("auth: {check_token_files: [tokens]}");
    write(config.path(), "tokens", &line);
    let begin = |listen: &str, config: Option<&TempDir>| {
        let mut command = Command::new(TOLLGATE);
        command.args(["serve", "--listen", listen]).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(config) = config {
            command.arg("--config").arg(config.path().join("my.yaml"));
        }
        command.spawn().unwrap()
    };
    let output = begin("0.0.0.0:0", None).wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told.contains("--listen or TOLLGATE_LISTEN: 0.0.0.0:0 can be reached") && told.contains("token new"),
        "{told}"
    );

    let node = Node::start_on("0.0.0.0:0", &["--config", config.path().join("my.yaml").to_str().unwrap()]);
    assert_eq!(status(&node, "POST", "/v1/check", None), 401);
    assert_eq!(status(&node, "GET", "/health/live", None), 200);
}

#[test]
fn anonymous_public_node_has_no_operators() {
    let config = folder("auth: {allow_anonymous: true}");
    let node = Node::start_on("0.0.0.0:0", &["--config", config.path().join("my.yaml").to_str().unwrap()]);
    assert_eq!(status(&node, "POST", "/v1/check", None), 200);
    assert_eq!(status(&node, "POST", "/v1/reload", None), 403);
    assert_eq!(status(&node, "GET", "/v1/policies", None), 403);
    assert_eq!(status(&node, "GET", "/nothing", None), 404);
}

/// Policies show the limits of keys, so callers need the rights of a check to read them. Without
/// check tokens any loopback client may read them, except web pages.
#[test]
fn policies_call_needs_token_of_a_check() {
    let (token, line) = token();
    let ask = |node: &Node, headers: &[(&str, &str)]| {
        http::exchange(&node.address, &http::request("GET", "/v1/policies", headers, b"")).status
    };
    let (bearer, page) = (format!("Bearer {token}"), ("Origin", "https://ours.example"));
    let shown = ("Authorization", bearer.as_str());
    let for_checks = folder("auth: {check_token_files: [tokens]}");
    let for_operators = folder("auth: {admin_token_files: [tokens]}");
    for folder in [&for_checks, &for_operators] {
        write(folder.path(), "tokens", &line);
    }
    let local = node(&for_checks);
    assert_eq!([ask(&local, &[]), ask(&local, &[shown]), ask(&local, &[shown, page])], [401, 200, 200]);
    assert_eq!([ask(&local, &[page]), ask(&local, &[("Authorization", "Bearer guessed")])], [401, 401]);
    let local = node(&for_operators);
    assert_eq!([ask(&local, &[]), ask(&local, &[shown]), ask(&local, &[shown, page])], [200, 200, 200]);
    assert_eq!(ask(&local, &[page]), 401);
    let public = folder("auth: {admin_token_files: [tokens], allow_anonymous: true}");
    write(public.path(), "tokens", &line);
    let public = Node::start_on("0.0.0.0:0", &["--config", public.path().join("my.yaml").to_str().unwrap()]);
    assert_eq!([ask(&public, &[]), ask(&public, &[shown])], [401, 200]);
}

#[test]
fn printed_command_names_the_required_token() {
    let (token, line) = token();
    let folder = folder("auth: {check_token_files: [tokens]}");
    write(folder.path(), "tokens", &line);
    let node = node(&folder);
    let line = node.greeting.lines().last().unwrap().trim().strip_prefix("try").unwrap();
    let output = Command::new("sh").args(["-c", line]).env("TOLLGATE_TOKEN", token).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "install curl to run this test: {answer}");
    assert!(!Node::start().greeting.contains("TOLLGATE_TOKEN"));
}

/// RFC 9110, 15.5.2: a response with that status carries a challenge.
#[test]
fn denial_with_status_401_has_challenge() {
    let node = Node::start();
    let body = json!({"policy": "five-per-minute", "key": "k", "cost": 6}).to_string();
    let denied = http::post(&node.address, "/v1/check?deny_status=401", body);
    assert_eq!((denied.status, denied.header("www-authenticate")), (401, Some(r#"Bearer realm="tollgate""#)));
}

#[test]
fn commands_send_their_token() {
    let (token, line) = token();
    let folder = folder("auth: {check_token_files: [tokens], admin_token_files: [tokens]}");
    write(folder.path(), "tokens", &line);
    write(folder.path(), "mine", &format!("{token}\n"));
    let node = node(&folder);
    let mine = folder.path().join("mine");
    let run = |arguments: &[&str], variable: Option<&str>| {
        let mut command = Command::new(TOLLGATE);
        command
            .args(arguments)
            .env("TOLLGATE_URL", node.url())
            .env("TOLLGATE_TOKEN", variable.unwrap_or_default());
        command.output().unwrap().status.code()
    };
    assert_eq!(run(&["check", "p", "k"], None), Some(2));
    assert_eq!(run(&["check", "p", "k"], Some(&token)), Some(0));
    assert_eq!(run(&["policies", "--token-file", mine.to_str().unwrap()], None), Some(0));
    let mut hashing = Command::new(TOLLGATE)
        .args(["token", "hash"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut hashing.stdin.take().unwrap(), token.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(hashing.wait_with_output().unwrap().stdout).unwrap().trim(), line);
}
