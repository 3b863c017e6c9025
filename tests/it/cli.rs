//! Exit codes and output of the commands.

use std::process::{Command, Output};

use crate::harness::{Node, TOLLGATE};

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
fn check_tells_by_its_exit_code() {
    let node = Node::start();
    let check = |arguments: &[&str]| run(&[&["check"], arguments].concat(), &node.url());
    let (code, out, _) = check(&["five-per-minute", "me", "--cost", "5"]);
    assert!(code == 0 && out.starts_with("allowed, 0 of 5 left of quota 60s"), "{code} {out}");
    let (code, out, _) = check(&["five-per-minute", "me"]);
    assert!(code == 1 && out.starts_with("denied: over_limit") && out.lines().count() == 1, "{code} {out}");
    let (code, out, _) = check(&["five-per-minute", "me", "--json"]);
    assert!(code == 1 && out.starts_with(r#"{"allowed":false,"policy":"five-per-minute""#), "{code} {out}");
    let (code, _, reason) = check(&["five-a-minute", "me"]);
    assert!(code == 2 && reason.contains("not configured"), "{code} {reason}");
    assert_eq!(check(&["five-per-minute", ""]).0, 2);
    assert_eq!(check(&["five-per-minute", "me", "--cost", "-1"]).0, 2);
}

/// Templates leave variables empty that they have nothing for.
#[test]
fn an_empty_variable_is_as_good_as_none() {
    let node = Node::start();
    let mut command = Command::new(TOLLGATE);
    command.args(["health", "--url", &node.url()]);
    for name in ["TOLLGATE_URL", "TOLLGATE_CONFIG", "TOLLGATE_CA_FILE", "TOLLGATE_CERT_FILE", "TOLLGATE_KEY_FILE"] {
        command.env(name, "");
    }
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

#[test]
fn nobody_there_is_a_failure() {
    let nowhere = "http://127.0.0.1:1";
    assert_eq!(run(&["check", "default", "me"], nowhere).0, 2);
    assert_eq!(run(&["health"], nowhere).0, 1);
    assert_eq!(run(&["policies"], nowhere).0, 1);
    assert_eq!(run(&["check", "default", "me"], "https://127.0.0.1:1").0, 2);
}

#[test]
fn health_and_policies_of_a_running_node() {
    let node = Node::start();
    let (code, out, _) = run(&["health"], &node.url());
    assert_eq!((code, out.as_str()), (0, "ok\n"));
    let (code, out, _) = run(&["policies"], &node.url());
    assert!(
        code == 0 && out.lines().any(|line| line.starts_with("five-per-minute ") && line.contains("5 per 60000 ms")),
        "{out}"
    );
}

#[test]
fn validate_refuses_what_is_not_there() {
    let (code, _, reason) = run(&["validate", "no-such-file.yaml"], "");
    assert!(code == 1 && reason.contains("no-such-file.yaml"), "{code} {reason}");
}

#[test]
fn an_address_in_use_is_told() {
    let node = Node::start();
    let (code, _, reason) = run(&["serve", "--listen", &node.address], "");
    assert!(code == 1 && reason.contains("cannot listen on"), "{code} {reason}");
}
