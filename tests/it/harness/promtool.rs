//! Prometheus' own checker of what it is given.

use std::io::{ErrorKind, Write, stderr};
use std::process::{Command, Output, Stdio};

/// What it says, given `text` as its input; nothing, and a word about it, where there is no promtool.
pub(crate) fn promtool(arguments: &[&str], text: &str) -> Option<Output> {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match spawned {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Past the test runner, which would keep what a test that passes prints to itself.
            let why = "it is not installed (Debian: apt-get install prometheus)";
            let line = format!("SKIPPED: promtool {arguments:?}: {why}\n");
            stderr().write_all(line.as_bytes()).unwrap();
            return None;
        }
        spawned => spawned.unwrap(),
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    Some(promtool.wait_with_output().unwrap())
}
