//! `-` stands for standard input wherever a command reads a configuration.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::support::{Node, TOLLGATE, file_with, wait_until};

const POLICIES: &str = "policies: {default: {quotas: [5 per 1h], deny: {keys: [mallory]}}}\n";

fn run(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut program = Command::new(TOLLGATE)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read all.
    let _ = program.stdin.take().unwrap().write_all(input);
    let Output { status, stdout, stderr } = program.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn commands_read_a_configuration_from_standard_input() {
    let (code, out, error) = run(&["validate", "-"], POLICIES.as_bytes());
    assert_eq!((code, out.as_str()), (0, "standard input: valid, 1 policy\n"), "{error}");
    let (code, out, error) = run(&["explain", "-", "default", "mallory"], POLICIES.as_bytes());
    assert!(code == 0 && out.contains("deny, key mallory, standard input:1\n"), "{out}{error}");
    let log = file_with("{\"time\": 1, \"key\": \"k\"}\n");
    let log = log.path().to_str().unwrap();
    let (code, out, error) = run(&["replay", "-", "--log", log], POLICIES.as_bytes());
    assert!(code == 0 && out.contains("1 lines, 1 requests"), "{out}{error}");
}

#[test]
fn faults_of_standard_input_have_a_place() {
    let (code, out, error) = run(&["validate", "-"], b"policies: {default: {quotas: [5 per 1h]}}\nlisten: x\n");
    assert!(code == 1 && out.is_empty() && error.starts_with("standard input:2:9: "), "{error}");
    let (code, _, error) = run(&["validate", "-"], b"\xff");
    assert!(code == 1 && error.starts_with("standard input:1:1: not UTF-8"), "{error}");
    let (code, _, error) = run(&["explain", "-", "nope", "k"], POLICIES.as_bytes());
    assert!(code == 1 && error.contains("standard input has no policy \"nope\""), "{error}");
}

#[test]
fn endless_standard_input_is_refused() {
    let (code, _, error) = run(&["validate", "-"], &vec![b'#'; 65 * 1024 * 1024]);
    assert!(code == 1 && error.contains("standard input: cannot be read: it is larger than"), "{error}");
}

/// The second reader would find nothing.
#[test]
fn configuration_and_log_cannot_both_be_standard_input() {
    let (code, _, error) = run(&["replay", "-", "--log", "-"], POLICIES.as_bytes());
    assert!(
        code == 1 && error.contains("only one of the configuration and the logs can be standard input"),
        "{error}"
    );
}

#[test]
fn node_on_standard_input_says_that_it_cannot_reload() {
    let (configuration, log) = (file_with(POLICIES), file_with(""));
    let mut program = Command::new(TOLLGATE);
    program.stdin(configuration.reopen().unwrap()).stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["-"]);
    assert_eq!(node.check("default", "mallory", 1)["reason"], "deny_listed");
    let reload = node.post("/v1/reload", &serde_json::json!({}));
    assert_eq!(reload.status, 409, "{reload:?}");
    let told = "read from standard input, which cannot be read again";
    assert!(reload.json()["detail"].as_str().unwrap().contains(told), "{reload:?}");
    node.hang_up();
    wait_until("the log says so", || std::fs::read_to_string(log.path()).unwrap().matches(told).count() >= 2);
}
