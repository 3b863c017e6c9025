//! Exit codes and output of the commands.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, file_with, http, node_with, wait_until};

fn run(arguments: &[&str], url: &str) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(TOLLGATE)
        .args(arguments)
        .env("TOLLGATE_URL", url)
        .output()
        .expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}

#[test]
fn check_exit_code_reports_decision() {
    let node = Node::start();
    let check = |arguments: &[&str]| run(&[&["check"], arguments].concat(), &node.url());
    let (code, out, _) = check(&["five-per-minute", "me", "--cost", "5"]);
    assert!(code == 0 && out.starts_with("allowed, 0 of 5 left of quota 60s"), "{code} {out}");
    let (code, out, _) = check(&["five-per-minute", "me"]);
    assert!(code == 1 && out.starts_with("denied: over_limit") && out.lines().count() == 1, "{code} {out}");
    let (code, out, _) = check(&["five-per-minute", "you", "--cost", "7", "--drain"]);
    assert!(code == 1 && out.contains("cost_exceeds_limit, 5 charged, 2 owed, 0 of 5 left"), "{code} {out}");
    let (code, out, _) = check(&["five-per-minute", "me", "--json"]);
    assert!(code == 1 && out.starts_with(r#"{"allowed":false,"policy":"five-per-minute""#), "{code} {out}");
    let (code, _, reason) = check(&["five-a-minute", "me"]);
    assert!(code == 2 && reason.contains("not configured"), "{code} {reason}");
    assert_eq!(check(&["five-per-minute", ""]).0, 2);
    assert_eq!(check(&["five-per-minute", "me", "--cost", "-1"]).0, 2);
}

#[test]
fn overrides_are_set_listed_exported_imported_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    let text =
        "overrides: {file: overrides.jsonl}\nplans: {pro: {quotas: [9 per 1h]}}\npolicies: {p: {quotas: [5 per 1h]}}";
    std::fs::write(&file, text).unwrap();
    let node = Node::with_config(&file);
    let overrides = |arguments: &[&str]| run(&[&["overrides"], arguments].concat(), &node.url());
    let (code, out, _) =
        overrides(&["set", "p", "key:alice", "--plan", "pro", "--reason", "case 7", "--expires-in", "1h"]);
    assert!(
        code == 0 && out.starts_with("key:alice  plan pro  until 2") && out.contains(": case 7"),
        "{code} {out}"
    );
    let (code, out, _) =
        overrides(&["set", "p", "prefix:t:", "--quota", "7 per 1h", "--quota", "70 per 1d", "--lower"]);
    assert!(code == 0 && out.starts_with("prefix:t:  7 per 1h, 70 per 1d  by "), "{code} {out}");
    let (code, _, reason) = overrides(&["set", "p", "key:alice", "--quota", "2 per 1h"]);
    assert!(code == 1 && reason.contains("less than the keys have now"), "{code} {reason}");
    let (code, _, reason) = overrides(&["set", "p", "alice", "--deny"]);
    assert!(code == 1 && reason.contains("write `key:alice`"), "{code} {reason}");
    let (code, exported, _) = overrides(&["export", "p"]);
    assert!(code == 0 && exported.lines().count() == 2, "{code} {exported}");
    assert_eq!(overrides(&["remove", "p", "key:alice", "--reason", "over"]), (0, "removed\n".into(), String::new()));
    assert_eq!(overrides(&["remove", "p", "key:alice"]).1, "there was none\n");
    let mut import = Command::new(TOLLGATE)
        .args(["overrides", "import", "p", "--url", &node.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = format!("{exported}\n{{\"match\":{{\"key\":\"bob\"}}}}\n");
    import.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = import.wait_with_output().unwrap();
    let (out, fault) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!((status.code(), &*out), (Some(1), "2 set, 1 failed\n"), "{fault}");
    assert!(fault.contains("line 4: /quotas or /plan"), "{fault}");
    let (code, out, _) = overrides(&["list", "p", "--match", "key:"]);
    assert!(code == 0 && out.lines().count() == 1 && out.starts_with("key:alice"), "{code} {out}");
}

/// A backup has each key as it is, whatever its letters, and each grant.
#[test]
fn exported_overrides_of_all_letters_and_grants_are_imported_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    let text = "overrides: {file: overrides.jsonl}\nplans: {pro: {quotas: [9 per 1h]}}\npolicies: {p: {quotas: [5 per \
                1h], hold: {ttl: 60s, in_flight: 3}}}";
    std::fs::write(&file, text).unwrap();
    let node = Node::with_config(&file);
    let letters = "\0\u{1}\t\n\r\u{1b}\u{7f}\u{85}\u{9b}\u{a0}\u{ad}\u{301}\u{600}\u{61c}\u{180e}\u{200b}\u{200d}\u{2028}\
                   \u{202e}\u{3000}\u{e000}\u{feff}\u{fff9}\u{fffd}\u{1f600}\u{e0001}\u{10ffff}\"'\\{}ä ";
    let grants = [
        serde_json::json!({"deny": true}),
        serde_json::json!({"allow": true}),
        serde_json::json!({"plan": "pro", "expires_in_ms": 86_400_000}),
        serde_json::json!({"quotas": ["7 per 1h", {"limit": 70, "per": "1d", "name": "day"}], "lower": true}),
        serde_json::json!({"in_flight": 8}),
        serde_json::json!({"quotas": ["8 per 1h"], "in_flight": 9, "lower": true}),
    ];
    let matches = letters.chars().map(|letter| format!("a{letter}b")).chain(letters.chars().map(String::from));
    let matches: Vec<String> = matches.collect();
    for (place, key) in matches.iter().enumerate() {
        let kind = if place % 5 == 4 { "prefix" } else { "key" };
        let mut body = grants[place % grants.len()].clone();
        (body["match"], body["reason"]) = (serde_json::json!({kind: key}), serde_json::json!(format!("case {key}")));
        let put = http::call(&node.address, "PUT", "/v1/overrides/p", None, &body.to_string());
        assert_eq!(put.status, 200, "{body}: {put:?}");
    }
    let overrides = |arguments: &[&str]| run(&[&["overrides"], arguments].concat(), &node.url());
    let export = || {
        let (code, exported, fault) = overrides(&["export", "p"]);
        assert_eq!((code, &*fault), (0, ""));
        exported
    };
    let exported = export();
    assert_eq!(exported.lines().count(), matches.len());
    assert!(exported.chars().all(|letter| letter == '\n' || !letter.is_control()), "{exported}");
    assert_eq!(overrides(&["clear", "p", "--reason", "a trial"]).1, format!("{} removed\n", matches.len()));
    assert_eq!((export(), overrides(&["clear", "p"]).1), (String::new(), "0 removed\n".to_owned()));
    let mut import = Command::new(TOLLGATE)
        .args(["overrides", "import", "p", "--lower", "--url", &node.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(exported.as_bytes()).unwrap();
    let out = String::from_utf8(import.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(out, format!("{} set, 0 failed\n", matches.len()));
    // Only the time until an end has passed.
    let without_ends = |exported: &str| {
        let entry = |line: &str| {
            let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
            entry.as_object_mut().unwrap().remove("expires_at");
            entry
        };
        exported.lines().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(without_ends(&export()), without_ends(&exported));
}

/// An export that is a day old neither moves an end nor makes an override again that has ended.
#[test]
fn imported_overrides_end_when_the_exported_ones_would() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    std::fs::write(&file, "overrides: {file: overrides.jsonl}\npolicies: {p: {quotas: [5 per 1h]}}").unwrap();
    let node = Node::with_config(&file);
    let overrides = |arguments: &[&str]| run(&[&["overrides"], arguments].concat(), &node.url());
    let ends = || {
        let list = http::get(&node.address, "/v1/overrides/p").json();
        let entries = list["entries"].as_array().unwrap().iter();
        let ends = entries.map(|entry| {
            let end: jiff::Timestamp = entry["expires_at"].as_str().unwrap().parse().unwrap();
            (entry["match"]["key"].as_str().unwrap().to_owned(), end)
        });
        ends.collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(overrides(&["set", "p", "key:day", "--deny", "--expires-in", "1d"]).0, 0);
    let (_, exported, _) = overrides(&["export", "p"]);
    let line: serde_json::Value = serde_json::from_str(&exported).unwrap();
    assert!(line.get("expires_in_ms").is_none(), "{line}");
    let exported: jiff::Timestamp = line["expires_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(ends()["day"], exported);
    let now = jiff::Timestamp::now();
    let at = |hours: i64| (now + jiff::SignedDuration::from_hours(hours)).to_string();
    let lines = [
        serde_json::json!({"match": {"key": "over"}, "deny": true, "expires_at": at(-1)}),
        serde_json::json!({"match": {"key": "old"}, "deny": true, "expires_at": "1969-01-01T00:00:00Z"}),
        serde_json::json!({"match": {"key": "hour"}, "deny": true, "expires_at": at(1)}),
        serde_json::json!({"match": {"key": "former"}, "deny": true, "expires_in_ms": 7_200_000}),
        serde_json::json!({"match": {"key": "wrong"}, "deny": true, "expires_at": "tomorrow"}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut import = Command::new(TOLLGATE)
        .args(["overrides", "import", "p", "--url", &node.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = import.wait_with_output().unwrap();
    let (out, fault) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    let told = "2 set, 1 failed, 2 skipped since they have ended\n";
    assert_eq!((status.code(), &*out), (Some(1), told), "{fault}");
    assert!(fault.contains("line 5: `expires_at` is \"tomorrow\": write an instant such as"), "{fault}");
    let ends = ends();
    assert_eq!(ends.keys().collect::<Vec<_>>(), ["day", "former", "hour"]);
    for (key, hours) in [("hour", 1), ("former", 2)] {
        let late = ends[key].duration_since(now).as_secs() - hours * 3600;
        assert!((0..60).contains(&late), "{key} ends {late} s late");
    }
}

#[test]
fn remove_takes_each_match_as_list_prints_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    std::fs::write(&file, "overrides: {file: overrides.jsonl}\npolicies: {p: {quotas: [5 per 1h]}}").unwrap();
    let node = Node::with_config(&file);
    let overrides = |arguments: &[&str]| run(&[&["overrides"], arguments].concat(), &node.url());
    let keys = ["a\0b", "a\\0b", "\u{1b}[2J\u{9b}\u{202e}", "C:\\new", "\"quoted\" {\"key\":1}", "plain"];
    for key in keys {
        let body = serde_json::json!({"match": {"key": key}, "deny": true}).to_string();
        assert_eq!(http::call(&node.address, "PUT", "/v1/overrides/p", None, &body).status, 200, "{key:?}");
    }
    let (_, listed, _) = overrides(&["list", "p"]);
    assert!(
        listed.chars().all(|letter| letter == '\n' || !letter.is_control() && letter != '\u{202e}'),
        "{listed}"
    );
    let matches: Vec<&str> = listed.lines().map(|line| line.split("  deny").next().unwrap()).collect();
    assert_eq!(matches.len(), keys.len());
    for matched in matches {
        assert_eq!(overrides(&["remove", "p", matched]).1, "removed\n", "{matched}");
    }
    let (code, _, reason) = overrides(&["remove", "p", "{key:alice}"]);
    assert!(code == 1 && reason.contains("is no JSON object"), "{code} {reason}");
}

#[test]
fn validate_warns_of_a_folder_that_cannot_have_the_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    let validate = |place: &str| {
        let text = format!("overrides: {{file: {place}}}\npolicies: {{p: {{quotas: [5 per 1h]}}}}");
        std::fs::write(&file, text).unwrap();
        let (code, _, told) = run(&["validate", file.to_str().unwrap()], "");
        assert_eq!(code, 0, "{told}");
        told
    };
    assert_eq!(validate("overrides.jsonl"), "");
    let told = validate("missing/overrides.jsonl");
    assert!(told.contains("is not writable here: No such file") && told.contains("/var/lib/tollgate"), "{told}");
}

/// Templates leave variables empty when they have no value.
#[test]
fn empty_variable_counts_as_unset() {
    let node = Node::start();
    let mut command = Command::new(TOLLGATE);
    command.args(["health", "--url", &node.url()]);
    for name in ["TOLLGATE_URL", "TOLLGATE_CONFIG", "TOLLGATE_CA_FILE", "TOLLGATE_CERT_FILE", "TOLLGATE_KEY_FILE"] {
        command.env(name, "");
    }
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

/// A full disk causes such errors. A reader that closes its pipe early, such as `head`, is a
/// different case.
#[test]
fn unwritable_output_is_a_failure() {
    let node = Node::start();
    let file = file_with("policies: {default: {quotas: [5 per 1h]}}");
    let path = file.path().to_str().unwrap();
    let log = file_with("{\"time\": 1, \"key\": \"k\"}\n");
    let log = log.path().to_str().unwrap();
    for (arguments, failed) in [
        (&["token", "new"][..], 1),
        (&["validate", path], 1),
        (&["explain", path, "default", "me"], 1),
        (&["explain", path, "default", "me", "--json"], 1),
        (&["policies"], 1),
        (&["health"], 1),
        (&["--version"], 1),
        (&["serve", "--help"], 1),
        (&["check", "default", "me"], 2),
        (&["check", "default", "me", "--json"], 2),
        (&["bench", "-n", "1"], 2),
        (&["replay", path, "--log", log, "--json"], 2),
    ] {
        let run = |out: Stdio| {
            Command::new(TOLLGATE)
                .args(arguments)
                .env("TOLLGATE_URL", node.url())
                .stdout(out)
                .stderr(Stdio::piped())
                .output()
                .unwrap()
        };
        let full = run(std::fs::File::options().write(true).open("/dev/full").unwrap().into());
        let reason = String::from_utf8(full.stderr).unwrap();
        assert_eq!(full.status.code(), Some(failed), "{arguments:?}: {reason}");
        let told = reason.lines().filter(|line| line.contains("standard output: No space left")).count();
        assert_eq!(told, 1, "{arguments:?}: {reason}");
        let (reader, gone) = std::io::pipe().unwrap();
        drop(reader);
        let unread = run(gone.into());
        assert_eq!(unread.status.code(), Some(0), "{arguments:?}: {unread:?}");
    }
}

#[test]
fn unreachable_node_is_a_failure() {
    let nowhere = "http://127.0.0.1:1";
    assert_eq!(run(&["check", "default", "me"], nowhere).0, 2);
    assert_eq!(run(&["health"], nowhere).0, 1);
    assert_eq!(run(&["policies"], nowhere).0, 1);
    assert_eq!(run(&["check", "default", "me"], "https://127.0.0.1:1").0, 2);
}

#[test]
fn health_and_policies_print_state_of_running_node() {
    let node = Node::start();
    let (code, out, _) = run(&["health"], &node.url());
    assert_eq!((code, out.as_str()), (0, "ok\n"));
    let (code, out, _) = run(&["policies"], &node.url());
    assert_eq!(code, 0, "{out}");
    for (policy, columns) in [
        ("five-per-minute ", &["60s: 5 per 1m"][..]),
        ("smooth ", &["token-bucket", "1s: 10 per 1s, burst 20"]),
        ("price-list ", &["1d: 10000 per 1d; monthly: 200000 per 1mo"]),
        ("login-trial ", &["sliding-window, shadow "]),
        ("plan ", &["sliding-window, inline "]),
    ] {
        let line = out.lines().find(|line| line.starts_with(policy)).unwrap_or_default();
        assert!(columns.iter().all(|column| line.contains(column)), "{line}");
    }
    let (code, out, _) = run(&["policies", "--json"], &node.url());
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told), (0, &http::get(&node.address, "/v1/policies").json()));
}

#[test]
fn policies_lists_settings_that_need_a_restart() {
    let policies = "policies: {default: {quotas: [5 per 1h]}}";
    let file = file_with(policies);
    let node = Node::with_config(&file);
    let others = "fallback: {expected_nodes: 2}\nshutdown: {delay: 1s}\n";
    std::fs::write(file.path(), format!("{others}{policies}")).unwrap();
    http::post(&node.address, "/v1/reload", "");
    for arguments in [&["policies"][..], &["policies", "--json"]] {
        let (code, _, reason) = run(arguments, &node.url());
        assert!(code == 0 && reason.contains("need a restart: `fallback`, `shutdown`"), "{code} {reason}");
    }
}

fn ask_another(body: &'static str, arguments: &[&str]) -> (i32, String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    });
    run(arguments, &url)
}

#[test]
fn response_of_another_service_is_a_failure() {
    for body in ["<html>", "{}", r#"{"status": "UP"}"#] {
        for (arguments, expected) in [(&["health"][..], 1), (&["policies"], 1), (&["check", "default", "me"], 2)] {
            let (code, out, reason) = ask_another(body, arguments);
            assert_eq!((code, out.as_str()), (expected, ""), "{arguments:?} {body}");
            assert!(reason.contains("what answers there is no Tollgate"), "{reason}");
        }
    }
}

#[test]
fn invalid_url_is_rejected_and_not_printed() {
    for (url, expected) in [
        ("http://127.0.0.1:70000/hunter2", "the port must be 1 to 65535"),
        ("https://127.0.0.1:0/hunter2", "the port must be 1 to 65535"),
        ("http://me:hunter2@127.0.0.1:1", "no user or password goes there"),
        ("http://127.0.0.1:1/?x=hunter2", "neither a query nor a fragment goes there"),
        ("http://127.0.0.1:1/#hunter2", "neither a query nor a fragment goes there"),
        ("ftp://127.0.0.1:1/hunter2", "write http://host:port"),
        ("hunter2 127.0.0.1", "write http://host:port"),
    ] {
        for (arguments, failed) in
            [(&["health"][..], 1), (&["policies"], 1), (&["check", "default", "me"], 2), (&["bench", "-n", "1"], 2)]
        {
            let (code, _, reason) = run(arguments, url);
            assert!(code == failed && reason.contains(expected), "{arguments:?} {url}: {code} {reason}");
            assert!(!reason.contains("hunter2"), "{arguments:?}: {reason}");
        }
    }
}

#[test]
fn failure_prints_problem_of_node() {
    let node = Node::start();
    let id = "x".repeat(65);
    let (_, _, reason) = run(&["check", "five-per-minute", "", "--id", &id], &node.url());
    assert!(
        reason.contains("/key ") && reason.contains("/id ") && !reason.contains("see violations"),
        "{reason}"
    );
    let (_, _, reason) = run(&["check", "five-a-minute", "me"], &node.url());
    assert!(reason.contains("there are ") && reason.contains("five-per-minute"), "{reason}");
    let hash = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
    let folder = tempfile::tempdir().unwrap();
    let line = String::from_utf8(hash).unwrap().lines().nth(1).unwrap().to_owned();
    std::fs::write(folder.path().join("check.tokens"), line).unwrap();
    let config = "auth: {check_token_files: [check.tokens]}\npolicies: {default: {quotas: [5 per 1h]}}\n";
    std::fs::write(folder.path().join("my.yaml"), config).unwrap();
    let node = Node::with_config(folder.path().join("my.yaml"));
    let (code, _, reason) = run(&["check", "default", "me"], &node.url());
    assert!(code == 2 && reason.contains("--token-file") && reason.contains("TOLLGATE_TOKEN"), "{code} {reason}");
}

#[test]
fn shadow_denial_is_printed() {
    let file = file_with("policies: {watched: {quotas: [1 per 1h], shadow: true}}");
    let node = Node::with_config(&file);
    let (code, out, _) = run(&["check", "watched", "me", "--cost", "2"], &node.url());
    assert!(code == 0 && out.starts_with("allowed, as the policy only watches (shadow)"), "{code} {out}");
}

#[test]
fn policies_reports_failed_reload() {
    let file = file_with("policies: {default: {quotas: [5 per 1h]}}");
    let node = Node::with_config(&file);
    let (code, _, reason) = run(&["policies"], &node.url());
    assert_eq!((code, reason.as_str()), (0, ""));
    std::fs::write(file.path(), "\npolices: {}\n").unwrap();
    http::post(&node.address, "/v1/reload", "");
    let (code, out, reason) = run(&["policies"], &node.url());
    assert!(code == 0 && out.contains("5 per 1h"), "{code} {out}");
    assert!(
        reason.contains("policies of before") && reason.contains("line 2, column 1: ") && reason.contains("polices"),
        "{reason}"
    );
}

/// Variables of `serve` complete this file.
#[test]
fn check_reads_configuration_like_serve() {
    let file = file_with("store: {timeout: 50ms, key_prefix: shop}\npolicies: {default: {quotas: [5 per 1h]}}");
    let path = file.path().to_str().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let log = log.path().to_str().unwrap();
    for arguments in [&["validate", path][..], &["explain", path, "default", "me"], &["replay", path, "--log", log]] {
        let alone = Command::new(TOLLGATE).args(arguments).output().unwrap();
        assert_eq!(alone.status.code(), Some(1), "{alone:?}");
        let output = Command::new(TOLLGATE)
            .args(arguments)
            .env("TOLLGATE_STORE", "redis://127.0.0.1:1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn unreadable_variable_is_named() {
    let file = file_with("policies: {default: {quotas: [5 per 1h]}}");
    let output = Command::new(TOLLGATE)
        .arg("validate")
        .arg(file.path())
        .env("TOLLGATE_STORE", OsStr::from_bytes(b"redis://me:hunter2\xff@127.0.0.1:1"))
        .output()
        .unwrap();
    let reason = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), reason.as_str()), (Some(1), "TOLLGATE_STORE: not UTF-8\n"));
}

#[test]
fn argument_mistaken_for_url_is_named() {
    for (arguments, variable, expected) in [
        (&["--store", "redis://127.0.0.1:1", "my.yaml"][..], "", "`my.yaml` is not the URL of a Redis"),
        (&[], "redis://127.0.0.1:1 redis://127.0.0.1:2", "several are separated by commas"),
    ] {
        let mut command = Command::new(TOLLGATE);
        let output = command.arg("serve").args(arguments).env("TOLLGATE_STORE", variable).output().unwrap();
        let reason = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && reason.contains(expected), "{reason}");
    }
}

#[test]
fn plain_request_to_tls_listener_suggests_https() {
    let authority = Authority::new();
    authority.sign("node");
    let text = "tls: {cert_file: node.pem, key_file: node.key}\npolicies: {default: {quotas: [5 per 1h]}}";
    std::fs::write(authority.path("my.yaml"), text).unwrap();
    let node = Node::start_with(&["--config", &authority.text("my.yaml")]);
    let (code, _, reason) = run(&["health"], &format!("http://{}", node.address));
    assert!(code == 1 && reason.contains("is it https?"), "{code} {reason}");
}

/// Some editors write it at the start of a file.
#[test]
fn byte_order_mark_is_not_part_of_token() {
    let folder = tempfile::tempdir().unwrap();
    let made = String::from_utf8(Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout).unwrap();
    let files = ["mine.token", "check.tokens"].map(|name| folder.path().join(name));
    for (file, line) in files.iter().zip(made.lines()) {
        std::fs::write(file, format!("\u{feff}{line}\n")).unwrap();
    }
    let config = "auth: {check_token_files: [check.tokens]}\npolicies: {default: {quotas: [5 per 1h]}}\n";
    std::fs::write(folder.path().join("my.yaml"), config).unwrap();
    let node = Node::with_config(folder.path().join("my.yaml"));
    let (code, _, reason) = run(&["check", "default", "me", "--token-file", files[0].to_str().unwrap()], &node.url());
    assert_eq!(code, 0, "{reason}");
}

#[test]
fn invalid_rust_log_is_a_log_line() {
    let file = file_with("policies: {}");
    let mut command = Command::new(TOLLGATE);
    let output = command.arg("serve").arg(file.path()).env("RUST_LOG", "info,h2=loud").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let told: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!((&told["level"], &told["fields"]["ignored"]), (&"WARN".into(), &"h2=loud".into()), "{log}");
}

/// `serve` accepts its file as `validate`, `explain` and `replay` do.
#[test]
fn serve_accepts_file_by_position() {
    let file = file_with("policies: {mine: {quotas: [5 per 1h]}}");
    let path = file.path().to_str().unwrap();
    let mut program = Command::new(TOLLGATE);
    program.env("TOLLGATE_CONFIG", "no-such-file.yaml");
    let node = Node::start_by(program, &[path]);
    assert_eq!(run(&["check", "mine", "me"], &node.url()).0, 0);
    let mut program = Command::new(TOLLGATE);
    program.env("TOLLGATE_CONFIG", path);
    let node = Node::start_by(program, &[]);
    assert_eq!(run(&["check", "mine", "me"], &node.url()).0, 0);
    let (code, _, reason) = run(&["serve", path, "--config", path], "");
    assert!(code == 2 && reason.contains("cannot be used with"), "{code} {reason}");
}

#[test]
fn help_explains_each_positional_argument() {
    for (command, arguments) in [
        ("serve", &["[FILE]"][..]),
        ("validate", &["<FILE>"]),
        ("check", &["<POLICY>", "<KEY>"]),
        ("explain", &["<FILE|URL>", "[POLICY]", "[KEY]"]),
        ("replay", &["<FILE>"]),
    ] {
        let (_, help, _) = run(&[command, "-h"], "");
        for argument in arguments {
            let text = help.lines().find_map(|line| line.trim().strip_prefix(argument));
            assert!(text.is_some_and(|text| text.trim().len() > 5), "{command} {argument}: {help}");
        }
    }
}

/// Users copy help into tickets and chats.
#[test]
fn help_names_variables_without_their_values() {
    let variables = [
        "TOLLGATE_LISTEN",
        "TOLLGATE_ADMIN_LISTEN",
        "TOLLGATE_STORE",
        "TOLLGATE_URL",
        "TOLLGATE_CA_FILE",
        "TOLLGATE_CERT_FILE",
        "TOLLGATE_KEY_FILE",
    ];
    for (arguments, named) in [
        (&["serve", "--help"][..], "TOLLGATE_STORE"),
        (&["serve", "-h"], "TOLLGATE_STORE"),
        (&["help", "serve"], "TOLLGATE_STORE"),
        (&["check", "--help"], "TOLLGATE_URL"),
        (&["health", "-h"], "TOLLGATE_KEY_FILE"),
    ] {
        let held = "redis://me:hunter2@127.0.0.1:1";
        let output = Command::new(TOLLGATE).args(arguments).envs(variables.map(|name| (name, held))).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains(named) && !help.contains("hunter2"), "{arguments:?}: {help}");
    }
}

#[test]
fn counts_of_one_are_singular() {
    let file = file_with("policies: {default: {quotas: [5 per 1h]}}");
    let path = file.path().to_str().unwrap();
    let (_, out, _) = run(&["validate", path], "");
    assert!(out.ends_with("valid, 1 policy\n"), "{out}");
    let node = Node::start_with(&["--config", path]);
    std::fs::write(file.path(), "policies: {default: {quotas: [0 per 1h]}}").unwrap();
    let refused = http::post(&node.address, "/v1/reload", "").json();
    assert_eq!(refused["detail"], "the running policies stay in force: 1 fault, see violations");
}

/// Editors and CI parse these lines, from the first one on.
#[test]
fn validate_reports_faults_by_file_line_and_column() {
    let file = file_with("listen: nowhere\npolicies:\n  a: {quotas: [0 per 1s]}\n  b: {quotos: [5 per 1s]}\n");
    let path = file.path().to_str().unwrap();
    let (code, out, reason) = run(&["validate", path], "");
    let lines: Vec<&str> = reason.lines().collect();
    assert!(code == 1 && out.is_empty() && lines.len() == 3, "{code} {out} {reason}");
    for (line, at) in lines.iter().zip(["1:9: ", "3:16: ", "4:7: "]) {
        assert!(line.starts_with(&format!("{path}:{at}")), "{reason}");
    }
    assert!(lines.iter().all(|line| line.starts_with(path)), "{reason}");
}

#[test]
fn validate_warns_of_windows_of_one_tick() {
    let policy =
        |more: &str| format!("policies: {{p: {{algorithm: sliding-counter, quotas: [5 per 1s, 9 per 10s]{more}}}}}");
    let warned = |more: &str| {
        let file = file_with(&policy(more));
        let (code, out, reason) = run(&["validate", file.path().to_str().unwrap()], "");
        assert!(code == 0 && out.ends_with("valid, 1 policy\n"), "{code} {out} {reason}");
        reason
    };
    assert_eq!(
        warned(""),
        "warning: policy `p`: the quota `1s` has a window of one tick, which is a fixed window. Write a shorter `tick`, or \
         `strict: true`\n"
    );
    assert_eq!([", strict: true", ", tick: 500ms"].map(warned), ["", ""]);
}

#[test]
fn validate_warns_of_places_that_no_policy_counts() {
    let file = file_with("plans: {pro: {quotas: [9 per 1s], in_flight: 2}}\npolicies: {p: {quotas: [5 per 1s]}}");
    let (code, _, reason) = run(&["validate", file.path().to_str().unwrap()], "");
    let warning = "the plan `pro` has `in_flight`, which only a policy with `hold` counts: no policy has one";
    assert_eq!((code, reason), (0, format!("warning: {warning}\n")));
}

/// The operators' calls, each on a node with a policy of every kind of count.
#[test]
fn key_is_shown_refunded_and_reset_on_a_running_node() {
    let node = node_with(
        "policies:\n  p: {quotas: [5 per 1h]}\n  log: {algorithm: sliding-log, quotas: [5 per 1h]}\n  ticks: {algorithm: sliding-counter, quotas: [5 per 1m]}\n  jobs: {hold: {ttl: 60s, in_flight: 2}}\n",
    );
    let ask = |arguments: &str| run(&arguments.split(' ').collect::<Vec<_>>(), &node.url());
    for policy in ["p", "log", "ticks"] {
        node.check(policy, "a b&c", 4);
    }
    let key = "a b&c";
    let usage = |policy: &str, more: &[&str]| run(&[&["usage", policy, key], more].concat(), &node.url());
    let (code, out, _) = usage("p", &["--cost", "2"]);
    assert!(
        code == 0 && out.starts_with("denied: over_limit, 1 of 5 left of quota 1h, retry after "),
        "{code} {out}"
    );
    assert!(out.contains("\n  1h: 4 of 5 used, whole again after "), "{out}");
    assert!(usage("log", &[]).1.contains(" ms ago: 4\n"), "{}", usage("log", &[]).1);
    assert!(usage("ticks", &[]).1.contains(": 4\n"), "{}", usage("ticks", &[]).1);
    let held = serde_json::json!({"policy": "jobs", "key": key, "id": "run-1", "meta": "anna"});
    assert_eq!(node.post("/v1/check", &held).status, 200);
    let held = usage("jobs", &[]).1;
    assert!(held.contains("\n  1 of 2 in flight\n  run-1 for anna: 1, held for "), "{held}");
    let (code, out, _) = usage("p", &["--json"]);
    assert!(code == 0 && out.starts_with(r#"{"allowed":true,"policy":"p","key":"a b&c","cost":1"#), "{out}");
    let refund = |more: &[&str]| run(&[&["refund", "p", key], more].concat(), &node.url());
    assert_eq!(refund(&["--cost", "3"]), (0, "3 refunded\n".to_owned(), String::new()));
    assert!(usage("p", &[]).1.contains("1 of 5 used"), "{}", usage("p", &[]).1);
    let (code, _, reason) = refund(&[]);
    assert!(code == 2 && reason.contains("--cost <N>"), "{reason}");
    assert_eq!(refund(&["--cost", "0"]).0, 2);
    let (code, out, _) = run(&["reset", "p", key], &node.url());
    assert!(code == 0 && out.starts_with("reset: allowed, 5 of 5 left"), "{code} {out}");
    for command in ["usage", "reset"] {
        let (code, out, reason) = ask(&format!("{command} q k"));
        assert!(code == 1 && out.is_empty() && reason.contains("there are jobs, log, p, ticks"), "{code} {reason}");
    }
}

#[test]
fn running_node_explains_and_reloads() {
    let file = file_with("policies: {p: {quotas: [5 per 1h], deny: {keys: [mallory]}}}");
    let node = Node::with_config(file.path());
    let explain = |arguments: &[&str]| run(&[&["explain", node.url().as_str()], arguments].concat(), "");
    let (code, out, _) = explain(&["p", "alice"]);
    assert_eq!(code, 0, "{out}");
    assert_eq!(
        out,
        "policy  p (sliding-window)\nkey     alice\nmatch   no list, no override\nanswer  counted\nquota   1h: 5 per 1h\n"
    );
    let (_, out, _) = explain(&["p", "mallory"]);
    assert!(out.contains("match   deny, key mallory, line 1\nanswer  deny_listed\n"), "{out}");
    assert!(explain(&["p", "alice", "--json"]).1.starts_with(r#"{"policy":"p","key":"alice""#));
    let (code, _, reason) = explain(&["q", "alice"]);
    assert!(code == 1 && reason.contains("there are p"), "{code} {reason}");
    let (code, _, reason) = explain(&["--gate", "edge"]);
    assert!(code == 1 && reason.contains("--gate and --domain need the file"), "{code} {reason}");
    std::fs::write(file.path(), "policies: {p: {quotas: [6 per 1h]}, q: {quotas: [1 per 1h]}}").unwrap();
    let (code, out, reason) = run(&["reload"], &node.url());
    assert!(code == 0 && out.starts_with("loaded version "), "{code} {out} {reason}");
    std::fs::write(file.path(), "policies: {p: {quota: [6 per 1h]}}").unwrap();
    let (code, _, reason) = run(&["reload"], &node.url());
    assert!(code == 1 && reason.contains("did you mean `quotas`"), "{code} {reason}");
}

#[test]
fn help_and_man_pages_are_for_terminals() {
    let output = Command::new(TOLLGATE).args(["replay", "--help"]).env("COLUMNS", "70").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let widest = help.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(help.contains("--propose <SHARE>") && widest <= 70, "{widest}\n{help}");
    let (code, page, _) = run(&["man", "usage"], "");
    assert!(code == 0 && page.contains(".TH tollgate-usage 1") && page.contains("\\-\\-cost"), "{page}");
    assert!(run(&["man"], "").1.contains("tollgate\\-check(1)"));
    let (code, _, reason) = run(&["man", "nothing"], "");
    assert!(code == 1 && reason.contains("no command is named `nothing`"), "{reason}");
}

#[test]
fn schema_is_printed_for_editors() {
    let (code, out, _) = run(&["schema"], "");
    let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
    let algorithms = schema["definitions"]["policy"]["properties"]["algorithm"]["enum"].as_array().unwrap();
    assert!(code == 0 && algorithms.contains(&"sliding-window".into()), "{out}");
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn validate_warns_of_quotas_that_never_deny() {
    let file = file_with("policies: {p: {quotas: [100 per 1s, {name: minute, limit: 50, per: 1m}]}}");
    let (code, out, warnings) = run(&["validate", file.path().to_str().unwrap()], "");
    assert!(code == 0 && out.ends_with("valid, 1 policy\n"), "{code} {out}");
    assert_eq!(
        warnings,
        "warning: policy `p`: the quota `1s` (100 per 1s) never denies, since `minute` (50 per 1m) is full before it. \
         Lower its limit, or leave it out\n"
    );
}

#[test]
fn validate_warns_of_leases_that_leave_less_than_usual() {
    let warned = |policy: &str| {
        let file = file_with(&format!("store: {{redis: [\"redis://127.0.0.1:6379\"]}}\npolicies: {{p: {{{policy}}}}}"));
        run(&["validate", file.path().to_str().unwrap()], "").2
    };
    for (policy, share) in [
        ("quotas: [64 per 64s], lease: {}", None),
        ("quotas: [64 per 64s], lease: {span: 1s}", None),
        ("quotas: [64 per 64s], lease: {span: 8s}", Some("8s leaves 87 %")),
        ("quotas: [90 per 1h, 64 per 64s], lease: {span: 2s}", Some("2s leaves 95 %")),
        (
            "quotas: [90 per 1h], overrides: [{match: {key: k}, quotas: [64 per 64s]}], lease: {span: 2s}",
            Some("2s leaves 95 %"),
        ),
        ("algorithm: sliding-log, quotas: [64 per 64s], lease: {span: 8s}", Some("8s leaves 88 %")),
        ("algorithm: fixed-window, quotas: [64 per 64s], lease: {span: 8s}", None),
        ("algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 64}], lease: {}", None),
        ("algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 500}], lease: {span: auto}", None),
        ("algorithm: token-bucket, quotas: [{rate: 7 per 1s, burst: 500}], lease: {span: auto}", None),
        (
            "algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 64}], lease: {span: 8s}",
            Some("8s leaves 87 %"),
        ),
    ] {
        let sentence = |share: &str| {
            format!(
                "warning: policy `p`: a `lease` with a `span` of {share} of the limit usable. Write at most 1s, a 64th of \
                 the shortest window\n"
            )
        };
        assert_eq!(warned(policy), share.map(sentence).unwrap_or_default(), "{policy}");
    }
}

#[test]
fn validate_warns_of_leases_that_nothing_sells() {
    let warned_of = |store: &str, limit: u64, lease: &str| {
        let policy = format!("policies: {{p: {{quotas: [{limit} per 64s], lease: {{{lease}}}}}}}");
        run(&["validate", file_with(&format!("{store}\n{policy}")).path().to_str().unwrap()], "").2
    };
    let warned = |store: &str, limit: u64, nodes: u64| warned_of(store, limit, &format!("nodes: {nodes}"));
    assert!(warned("", 1000, 1).starts_with("warning: policy `p`: the embedded store sells no leases to nodes"));
    // It sells them to callers.
    assert_eq!(warned_of("", 256, "callers: 16"), "");
    let few = warned_of("", 255, "callers: 16");
    assert!(few.contains("too low to sell a lease. With `callers: 16` it must be at least 256"), "{few}");
    let redis = "store: {redis: [\"redis://127.0.0.1:6379\"]}";
    assert_eq!([warned(redis, 17, 1), warned(redis, 33, 2)], ["", ""]);
    assert!(
        warned(redis, 32, 2)
            .contains("its limit of 32 is too low to sell a lease. With `nodes: 2` it must be at least 33")
    );
}

/// Sets every member to a documented value and names existing files.
#[test]
fn documented_configuration_is_valid() {
    let authority = Authority::new();
    authority.sign("node");
    let (folder, password) = (authority.folder.path(), authority.text("password"));
    std::fs::write(&password, "secret\n").unwrap();
    std::fs::write(folder.join("admin.token"), format!("sha256:{}\n", "0".repeat(64))).unwrap();
    let documented = include_str!("../fixtures/config/documented.yaml").replace("/run/secrets/redis", &password);
    let file = folder.join("my.yaml");
    std::fs::write(&file, documented).unwrap();
    let (code, out, reason) = run(&["validate", file.to_str().unwrap()], "");
    assert!(code == 0 && out.ends_with("valid, 5 policies\n"), "{code} {out} {reason}");
}

#[test]
fn validate_rejects_missing_files() {
    let (code, _, reason) = run(&["validate", "no-such-file.yaml"], "");
    assert!(code == 1 && reason.contains("no-such-file.yaml"), "{code} {reason}");
}

/// A path given by mistake neither fills the memory nor blocks the command.
#[test]
fn endless_file_is_no_configuration() {
    let (code, _, reason) = run(&["validate", "/dev/zero"], "");
    assert!(code == 1 && reason.contains("/dev/zero: cannot be read: it is larger than"), "{code} {reason}");
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for named in ["/dev/zero", pipe.to_str().unwrap()] {
        let config = format!("auth: {{check_token_files: [{named}]}}\npolicies: {{default: {{quotas: [5 per 1h]}}}}");
        let file = file_with(&config);
        let (code, _, reason) = run(&["validate", file.path().to_str().unwrap()], "");
        assert!(code == 1 && reason.contains("cannot be read: it is no file"), "{code} {reason}");
    }
}

#[test]
fn endless_token_file_is_rejected() {
    let hash = |file: &str| {
        let input = std::fs::File::open(file).unwrap();
        let mut command = Command::new("prlimit");
        command.args(["--as=2000000000", TOLLGATE, "token", "hash"]).stdin(input);
        let output = command.output().expect("prlimit of util-linux");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(hash("/dev/zero"), (Some(1), "tollgate: standard input: it is larger than 4096 bytes\n".to_owned()));
    let longest = file_with(&"x".repeat(4096));
    assert_eq!(hash(longest.path().to_str().unwrap()).0, Some(0));
}

#[test]
fn unusable_token_is_rejected_without_its_line() {
    for token in ["två-två-två-två-två-två", "two words of many letters", "twenty-letters-and-a\u{7f}"] {
        let file = file_with(&format!(" {token} \n"));
        let input = std::fs::File::open(file.path()).unwrap();
        let output = Command::new(TOLLGATE).args(["token", "hash"]).stdin(input).output().unwrap();
        let reason = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{token}: {reason}");
        assert!(reason.contains("letters, digits and signs") && !reason.contains(token), "{reason}");
    }
}

#[test]
fn empty_ca_file_is_reported() {
    let (code, _, reason) = run(&["health", "--ca-file", "/dev/null"], &{
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || listener.accept());
        url
    });
    assert!(code == 1 && reason.contains("/dev/null holds no certificate"), "{code} {reason}");
}

#[test]
fn too_few_descriptors_are_reported() {
    // A single core needs 15.
    for permitted in 4..=14 {
        // The descriptors that a caller of the tests leaves open would count, too.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec 3>&- 4>&- 5>&-; exec "$@""#, "sh", "prlimit"]);
        command.args([&format!("--nofile={permitted}:{permitted}"), TOLLGATE, "serve", "--listen", "127.0.0.1:0"]);
        let output = command.stdout(Stdio::null()).output();
        let Output { status, stderr, .. } = output.expect("prlimit of util-linux");
        let reason = String::from_utf8(stderr).unwrap();
        assert!(
            status.code() == Some(1) && reason.contains("Too many open files") && reason.contains("ulimit -n"),
            "{permitted}: {status} {reason}"
        );
    }
}

#[test]
fn address_in_use_is_reported() {
    let node = Node::start();
    let (code, _, reason) = run(&["serve", "--listen", &node.address], "");
    assert!(code == 1 && reason.contains("cannot listen on"), "{code} {reason}");
}

/// The programs are hard links, so no test writes a program that another test starts.
#[test]
fn bench_finds_load_generator_or_names_it() {
    let folder = tempfile::tempdir_in(Path::new(TOLLGATE).parent().unwrap()).unwrap();
    let path = folder.path().join("path");
    std::fs::create_dir(&path).unwrap();
    let tollgate = folder.path().join("tollgate");
    std::fs::hard_link(TOLLGATE, &tollgate).unwrap();
    let bench = || {
        let output = Command::new(&tollgate).args(["bench", "--url", "there"]).env("PATH", &path).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, reason) = bench();
    assert!(code == Some(2) && out.is_empty(), "{code:?} {out} {reason}");
    assert!(reason.starts_with("tollgate: the load generator is the program tollgate-bench"), "{reason}");
    std::os::unix::fs::symlink("/bin/echo", path.join("tollgate-bench")).unwrap();
    assert_eq!(bench(), (Some(0), "--url there\n".into(), String::new()));
    std::os::unix::fs::symlink("/bin/false", folder.path().join("tollgate-bench")).unwrap();
    assert_eq!(bench(), (Some(1), String::new(), String::new()));
}

#[test]
fn log_of_a_start_names_version_doors_and_store() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let file = file_with("admin_listen: 127.0.0.1:0\npolicies: {default: {quotas: [5 per 1h]}}");
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &[file.path().to_str().unwrap()]);
    // Only warnings of this machine's limits may precede it. The log may lag behind the greeting.
    let mut first = None;
    wait_until("the log has the start", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        first = lines.into_iter().find(|line| line["level"] == "INFO");
        first.is_some()
    });
    let line = first.unwrap();
    let fields = &line["fields"];
    assert_eq!(fields["version"], env!("CARGO_PKG_VERSION"), "{line}");
    assert_eq!((&fields["listen"], &fields["store"]), (&node.address.as_str().into(), &"embedded".into()), "{line}");
    let operators = format!("http://{}", fields["admin_listen"].as_str().unwrap());
    for (door, path) in [("dashboard", "/dashboard"), ("metrics", "/metrics")] {
        let line = node.greeting.lines().find_map(|line| line.trim().strip_prefix(door)).unwrap();
        assert_eq!(line.trim(), format!("{operators}{path}"));
        assert_eq!(http::get(operators.trim_start_matches("http://"), path).status, 200);
    }
}

/// Bash itself lists the commands by the printed script.
#[test]
fn completions_of_bash_list_the_commands() {
    let (code, script, reason) = run(&["completions", "bash"], "");
    assert_eq!(code, 0, "{reason}");
    let ask = "COMP_WORDS=(tollgate va) COMP_CWORD=1; _tollgate tollgate va tollgate; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "validate");
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        assert!(run(&["completions", shell], "").1.contains("validate"), "{shell}");
    }
    assert_eq!(run(&["completions", "csh"], "").0, 2);
}
