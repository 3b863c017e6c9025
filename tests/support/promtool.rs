//! Prometheus' own checker of rules and metrics.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Its output, given `text` as its input.
pub(crate) fn promtool(arguments: &[&str], text: &str) -> Output {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = spawned.expect("promtool starts (Debian: apt-get install prometheus)");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    promtool.wait_with_output().unwrap()
}
