//! Runs the stories of `stories.mjs` in a browser.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A story that asks for nothing.
pub(crate) fn run(story: &str, settings: &Value) {
    run_with(story, settings, |wish| panic!("{story} asks for {wish}"));
}

/// Runs a story to its end. A line `> WISH` of the story waits until `act` has fulfilled the wish.
pub(crate) fn run_with(story: &str, settings: &Value, mut act: impl FnMut(&str)) {
    let mut process = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/stories.mjs"))
        .arg(story)
        .env("SETTINGS", settings.to_string())
        .env("MODULES", installed())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}: install Node.js"));
    let mut answers = process.stdin.take().unwrap();
    let mut last = String::new();
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        if let Some(wish) = line.strip_prefix("> ") {
            act(wish);
            writeln!(answers).unwrap();
        }
        last = line;
    }
    assert!(process.wait().unwrap().success(), "the story {story} failed: {last}");
}

fn installed() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dashboard");
    assert!(
        folder.join("node_modules/playwright-core").exists() && Path::new("/usr/bin/chromium").exists(),
        "run scripts/dashboard-browser, and apt-get install chromium"
    );
    folder
}
