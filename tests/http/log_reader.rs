//! The reader of the log stops or closes the pipe: the node still decides checks.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::process::Command;

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::support::{Node, TOLLGATE, file_with, free_port, http, wait_until};

/// The number of faults in the configuration; the line that names them has some 20 KB.
const FAULTS: usize = 200;

/// More of those lines than the pipe and its queue can hold.
const RELOADS: usize = 200;

#[test]
fn blocked_log_reader_delays_no_check_and_learns_dropped_lines() {
    let mut fixture = Fixture::begin();
    fixture.log_much_and_ask();
    let dropped = fixture.dropped();
    assert!((1..=RELOADS as u64).contains(&dropped), "{dropped} lines were dropped");

    let mut lines = BufReader::new(fixture.log.take().unwrap()).lines().map(|line| line.unwrap());
    let told = lines.find_map(|line| {
        let line: Value = serde_json::from_str(&line).expect("each line is whole");
        let fields = &line["fields"];
        fields["message"]
            .as_str()?
            .contains("lines of the log were dropped")
            .then(|| fields["lines"].as_u64().unwrap())
    });
    assert_eq!(told, Some(dropped));
    fixture.node.terminate();
    assert!(lines.any(|line| line.contains("\"stopped\"")), "what is logged last is written before the end");
    assert_eq!(fixture.node.ended().code(), Some(0));
}

#[test]
fn blocked_log_reader_does_not_block_shutdown() {
    let mut fixture = Fixture::begin();
    fixture.log_much_and_ask();
    fixture.node.terminate();
    assert_eq!(fixture.node.ended().code(), Some(0));
}

#[test]
fn closed_log_pipe_does_not_end_the_node() {
    let mut fixture = Fixture::begin();
    drop(fixture.log.take());
    (0..4).for_each(|_| reload_and_ask(&fixture.node));
    wait_until("what is lost is counted", || fixture.dropped() >= 4);
    fixture.node.terminate();
    assert_eq!(fixture.node.ended().code(), Some(0));
}

/// A non-blocking write may write a part of a line.
#[test]
fn nonblocking_shared_log_has_whole_lines() {
    let (log, far_end) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&far_end, true).unwrap();
    let mut fixture = Fixture::logging_to(log, far_end);
    (0..20).for_each(|_| reload_and_ask(&fixture.node));
    let log = fixture.log.take().unwrap();
    let lines = std::thread::spawn(|| BufReader::new(log).lines().map(|line| line.unwrap()).collect::<Vec<_>>());
    fixture.node.terminate();
    assert_eq!(fixture.node.ended().code(), Some(0));
    let whole = lines.join().unwrap().iter().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    assert!(whole > 20, "{whole} lines are whole");
}

#[test]
fn log_keeps_numbers_and_lists_typed() {
    let (log, far_end) = pipe().unwrap();
    let file = file_with("policies: {a: {quotas: [1 per 1s]}}");
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(far_end);
    let mut node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let changed = "shutdown: {delay: 10ms}\npolicies: {b: {quotas: [1 per 1s]}, c: {quotas: [1 per 1s]}}";
    std::fs::write(&file, changed).unwrap();
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    let lines: Vec<Value> =
        BufReader::new(log).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let fields = |message: &str| {
        let told = lines.iter().map(|line| &line["fields"]).find(|fields| fields["message"] == message);
        told.unwrap_or_else(|| panic!("no line says {message:?}: {lines:?}"))
    };
    let loaded = fields("the configuration was loaded again");
    assert_eq!([&loaded["added"], &loaded["changed"], &loaded["removed"]], ["b,c", "", "a"]);
    assert_eq!(fields("these settings have changed and need a restart")["settings"], "shutdown");
    assert_eq!(fields("draining")["delay_ms"], 0);
}

#[test]
fn oversized_log_line_is_reported() {
    let faults: String = (0..20_000).map(|number| format!("unknown{number}: 1\n")).collect();
    let file = file_with(&faults);
    let program = Command::new(TOLLGATE).args(["serve", "--config"]).arg(file.path()).output().unwrap();
    let told = String::from_utf8(program.stderr).unwrap();
    assert!(
        !program.status.success() && told.len() > 1 << 20 && told.contains("unknown19999"),
        "{} bytes",
        told.len()
    );
}

/// A pipe that outlives restarts may be full.
#[test]
fn unread_greeting_does_not_block_serving() {
    let (_reader, mut full) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stdout(full);
    let mut node = Node::start_unread(program, format!("127.0.0.1:{}", free_port()));
    let ask = || http::try_exchange(&node.address, &http::json_request("/v1/check", br#"{"key": "k", "cost": 0}"#));
    wait_until("it answers", || ask().is_ok_and(|answer| answer.status == 200));
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
}

struct Fixture {
    node: Node,
    log: Option<PipeReader>,
    _file: NamedTempFile,
}

impl Fixture {
    fn begin() -> Self {
        let (log, far_end) = pipe().unwrap();
        Self::logging_to(log, far_end)
    }

    fn logging_to(log: PipeReader, far_end: PipeWriter) -> Self {
        let file = file_with("policies:\n  default: {quotas: [10 per 1s]}\n");
        let mut program = Command::new(TOLLGATE);
        program.env("RUST_LOG", "info").stderr(far_end);
        let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
        let faults: String = (0..FAULTS).map(|number| format!("unknown{number}: 1\n")).collect();
        std::fs::write(&file, faults).unwrap();
        Self { node, log: Some(log), _file: file }
    }

    fn log_much_and_ask(&self) {
        (0..RELOADS).for_each(|_| reload_and_ask(&self.node));
        // The node also watches the file: from here on it logs nothing more.
        let mut before = None;
        wait_until("nothing is logged", || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            before.replace(self.dropped()) == Some(self.dropped())
        });
    }

    fn dropped(&self) -> u64 {
        let metrics = self.node.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_log_lines_dropped_total "));
        line.expect("the metric is there").parse().unwrap()
    }
}

fn reload_and_ask(node: &Node) {
    let reload = http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b""));
    assert_eq!(reload.status, 422);
    assert_eq!(http::post(&node.address, "/v1/check", r#"{"key": "k", "cost": 0}"#).status, 200);
}
