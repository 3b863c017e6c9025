//! `-` stands for standard input wherever a command reads a configuration. `overrides import`
//! reads lines there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

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

/// Answers `answers` changes on each connection, and then ends it without a word. Returns the URL,
/// and the number of changes on each connection.
fn changed_by(answers: usize) -> (String, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let changes = Arc::new(Mutex::new(Vec::new()));
    let counted = changes.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            counted.lock().unwrap().push(0);
            for _ in 0..answers {
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    if stream.read_line(&mut line).unwrap_or(0) == 0 {
                        return;
                    }
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line == "\r\n" {
                        break;
                    }
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                *counted.lock().unwrap().last_mut().unwrap() += 1;
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            }
        }
    });
    (url, changes)
}

#[test]
fn import_changes_all_lines_over_one_connection_while_it_is_open() {
    let lines = "{\"match\": {\"key\": \"a\"}, \"allow\": true}\n".repeat(5);
    for (answers, connections) in [(9, vec![5]), (2, vec![2, 2, 1])] {
        let (url, changes) = changed_by(answers);
        let (code, out, error) = run(&["overrides", "import", "p", "--url", &url], lines.as_bytes());
        assert_eq!((code, out.as_str()), (0, "5 set, 0 failed\n"), "{error}");
        assert_eq!(*changes.lock().unwrap(), connections);
    }
}
