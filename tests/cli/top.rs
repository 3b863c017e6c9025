//! `tollgate top`, in a terminal that tmux provides, and its lines for programs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, file_with, free_port, http, node_with, unique, wait_until};

const POLICIES: &str = "policies:
  open: {quotas: [1000000 per 1h]}
  login: {quotas: [5 per 1h]}
";

fn node() -> Node {
    node_with(POLICIES)
}

/// Denies eight keys and allows others, until it is dropped.
struct Load(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Load {
    fn start(address: &str) -> Self {
        let (ends, address) = (Arc::new(AtomicBool::new(false)), address.to_owned());
        let end = ends.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let check = |policy: &str, key: String| json!({"policy": policy, "key": key});
                let denied = (0..8).map(|key| check("login", format!("caller-{key}")));
                let checks: Vec<_> = denied.chain([check("open", "anyone".into())]).collect();
                // The node may restart meanwhile.
                let body = json!({"checks": checks}).to_string();
                let _ = http::try_exchange(&address, &http::json_request("/v1/check/batch", body.as_bytes()));
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// A terminal with a command. It ends with the value.
struct Terminal(String);

impl Terminal {
    fn start(width: u16, height: u16, command: &str) -> Self {
        let terminal = Self(unique("tollgate-top"));
        let (width, height) = (width.to_string(), height.to_string());
        // The shell stays, so that its terminal can be looked at.
        let command = format!("{command}; echo \"ended with $?\"; exec sh");
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, &command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.0]).args(arguments).env("LC_ALL", "C.UTF-8").output();
        let output = output.expect("tmux is there: apt-get install tmux");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(str::to_owned).collect()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn wait_for(&self, text: &str) -> Vec<String> {
        let mut screen = Vec::new();
        wait_until(&format!("the terminal shows {text:?}"), || {
            screen = self.screen();
            screen.iter().any(|line| line.contains(text))
        });
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).output();
    }
}

fn top(urls: &[String]) -> String {
    format!("{TOLLGATE} top --url {}", urls.join(" "))
}

/// The columns where the words of a line begin.
fn columns(line: &str) -> Vec<usize> {
    let letters: Vec<char> = line.chars().collect();
    let begins = |place: &usize| letters[*place] != ' ' && (*place == 0 || letters[*place - 1] == ' ');
    (0..letters.len()).filter(begins).collect()
}

/// The columns where the words of a line end.
fn ends(line: &str) -> Vec<usize> {
    let letters: Vec<char> = line.chars().collect();
    let ends = |place: &usize| letters[*place] != ' ' && letters.get(*place + 1).is_none_or(|next| *next == ' ');
    (0..letters.len()).filter(ends).collect()
}

#[test]
fn columns_align_in_terminals_of_both_sizes() {
    let node = node();
    let _load = Load::start(&node.address);
    for (width, height) in [(80, 24), (200, 50)] {
        let terminal = Terminal::start(width, height, &top(&[node.url()]));
        terminal.wait_for("prefilter  denied");
        wait_until("all eight keys are denied and the picture is whole", || {
            terminal.screen().iter().filter(|line| line.starts_with("login ")).count() == 8
        });
        let screen = terminal.screen();
        assert_eq!(screen.len(), usize::from(height), "{screen:#?}");
        assert!(screen.iter().all(|line| line.chars().count() <= usize::from(width)), "{screen:#?}");
        let find = |text: &str| {
            screen.iter().find(|line| line.starts_with(text)).unwrap_or_else(|| panic!("{text} in {screen:#?}"))
        };
        assert!(find("nodes 1/1 up   status ok").len() > 10 && find("checks ").contains("/s   p50 "), "{screen:#?}");
        let head = find("SOURCE");
        for row in [find("prefilter  denied"), find("store      allowed")] {
            assert_eq!(columns(row)[..2], columns(head)[..2], "{screen:#?}");
            // PER S and IN ALL are two words each.
            assert_eq!((ends(row)[2], ends(row)[3]), (ends(head)[3], ends(head)[5]), "{screen:#?}");
        }
        let head = find("POLICY");
        for row in screen.iter().filter(|line| line.starts_with("login ")) {
            assert_eq!(columns(row)[..2], columns(head)[..2], "{screen:#?}");
            // DENIED, and AT LEAST, which is two words.
            assert_eq!((ends(row)[2], ends(row)[3]), (ends(head)[2], ends(head)[4]), "{screen:#?}");
        }
        terminal.press("q");
        terminal.wait_for("ended with 0");
    }
}

#[test]
fn keys_change_the_picture() {
    let node = node();
    let _load = Load::start(&node.address);
    let terminal = Terminal::start(80, 24, &top(&[node.url()]));
    terminal.wait_for("prefilter  denied");
    terminal.press("5");
    terminal.wait_for("keys denied most, last 5 min");
    wait_until("the keys of five minutes are there", || {
        terminal.screen().iter().filter(|line| line.starts_with("login ")).count() == 8
    });
    terminal.press("m");
    terminal.wait_for("last 15 min");
    terminal.press("1");
    terminal.wait_for("last 1 min");
    terminal.press("p");
    let screen = terminal.wait_for("policy login");
    assert!(!screen.is_empty());
    wait_until("only that policy is shown", || {
        !terminal.screen().iter().any(|line| line.contains("allowed  ") && line.starts_with("open"))
    });
    terminal.press("p");
    terminal.wait_for("policy open");
    terminal.wait_for("no key was denied");
    terminal.press("p");
    terminal.wait_for("all policies");
    terminal.press("?");
    terminal.wait_for("choose a key");
    terminal.press("?");
    wait_until("the help is gone", || !terminal.screen().iter().any(|line| line.contains("choose a key")));
    terminal.press("j");
    wait_until("the last line shows a key in full", || {
        terminal.screen().last().is_some_and(|line| columns(line).len() == 3 && line.starts_with("login"))
    });
    terminal.press("C-c");
    terminal.wait_for("ended with 0");
}

#[test]
fn chosen_key_shows_who_holds_its_places() {
    let jobs = "policies: {jobs: {hold: {ttl: 1h, in_flight: 4}}}";
    for (telemetry, shown) in [("telemetry: {record_keys: true}", "run-1"), ("", "the node hides the key")] {
        let node = node_with(&format!("{telemetry}\n{jobs}"));
        let check = json!({"policy": "jobs", "key": "anna", "id": "run-1"});
        assert_eq!(node.post("/v1/check", &check).json()["allowed"], true);
        let terminal = Terminal::start(80, 24, &top(&[node.url()]));
        terminal.wait_for("tollgate top");
        terminal.press("h");
        terminal.wait_for("keys with places in use");
        terminal.press("j");
        terminal.wait_for(shown);
        terminal.press("q");
        terminal.wait_for("ended with 0");
    }
}

#[test]
fn restart_of_a_node_is_survived() {
    let file = file_with(POLICIES);
    let address = format!("127.0.0.1:{}", free_port());
    let start = || {
        let mut command = Command::new(TOLLGATE);
        command
            .args(["serve", "--config", file.path().to_str().unwrap(), "--listen", &address])
            .env("RUST_LOG", "error");
        command.stdout(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    let (stays, mut restarts) = (node(), start());
    let _loads = [Load::start(&stays.address), Load::start(&address)];
    let terminal = Terminal::start(80, 24, &top(&[stays.url(), format!("http://{address}")]));
    terminal.wait_for("nodes 2/2 up");
    restarts.kill().unwrap();
    restarts.wait().unwrap();
    let screen = terminal.wait_for("nodes 1/2 up");
    let told = format!("trying again: http://{address}: ");
    assert!(screen.iter().any(|line| line.contains(&told)), "{screen:#?}");
    // The other node is still shown.
    terminal.wait_for("prefilter  denied");
    let mut again = start();
    terminal.wait_for("nodes 2/2 up");
    terminal.press("q");
    terminal.wait_for("ended with 0");
    again.kill().unwrap();
    again.wait().unwrap();
}

/// The screen of before is back, and lines are echoed.
#[test]
fn signal_restores_the_terminal() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let command = format!("echo before-top; sh -c 'echo $$ > {}; exec {}'", pid.display(), top(&[node.url()]));
    let terminal = Terminal::start(80, 24, &command);
    terminal.wait_for("nodes 1/1 up");
    let id: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::TERM).unwrap();
    terminal.wait_for("ended with 0");
    terminal.wait_for("before-top");
    terminal.tmux(&["send-keys", "echo is-$((20+3))-echoed", "Enter"]);
    terminal.wait_for("is-23-echoed");
}

#[test]
fn colours_are_off_where_no_color_says_so() {
    let node = node();
    let _load = Load::start(&node.address);
    for (variable, has_colours) in [("", true), ("NO_COLOR=1 ", false)] {
        let terminal = Terminal::start(80, 24, &format!("{variable}{}", top(&[node.url()])));
        terminal.wait_for("prefilter  denied");
        let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
        // Yellow, of the palette.
        let coloured = screen.contains("[38;5;3m") || screen.contains("[33m");
        assert_eq!(coloured, has_colours, "{screen:?}");
    }
}

fn lines(arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let Output { status, stdout, stderr } =
        Command::new(TOLLGATE).args(["top", "--json"]).args(arguments).output().unwrap();
    let lines = String::from_utf8(stdout).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (status.code().unwrap(), lines, String::from_utf8(stderr).unwrap())
}

#[test]
fn json_lines_sum_two_nodes() {
    let nodes = [node(), node()];
    let urls = nodes.each_ref().map(Node::url);
    let mut top = Command::new(TOLLGATE)
        .args(["top", "--json", "--url", &urls[0], &urls[1]])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
        .take(60);
    let state = |line: &Value| {
        let nodes = line["nodes"].as_array().unwrap().iter();
        Value::Array(nodes.map(|node| json!([node["url"], node["up"], node["status"]])).collect())
    };
    let up = json!([[urls[0], true, "ok"], [urls[1], true, "ok"]]);
    assert!(lines.any(|line| state(&line) == up), "both nodes are up within a minute");
    for (node, checks) in nodes.iter().zip([30, 40]) {
        for _ in 0..checks {
            let check = json!({"policy": "login", "key": "mallory"}).to_string();
            assert_eq!(http::post(&node.address, "/v1/check", check).status, 200);
        }
    }
    // Each node has five of its own.
    let (mut allowed, mut denied) = (0, 0);
    let last = lines.find(|line| {
        for checks in line["checks"].as_array().unwrap() {
            let total = if checks["outcome"] == "allowed" { &mut allowed } else { &mut denied };
            *total += checks["count"].as_u64().unwrap();
        }
        let top: u64 = line["top"].as_array().unwrap().iter().map(|key| key["denied"].as_u64().unwrap()).sum();
        (allowed, denied, top) == (10, 60, 60)
    });
    let last = last.unwrap_or_else(|| panic!("{allowed} allowed and {denied} denied within a minute"));
    assert_eq!(state(&last), up);
    assert!(last["top"].as_array().unwrap().iter().all(|key| key["key_hash"].is_string()), "{last}");
    top.kill().unwrap();
    top.wait().unwrap();
    let (code, lines, reason) = self::lines(&["--url", &urls[0], "--count", "5"]);
    assert_eq!((code, lines.len()), (0, 5), "{reason}");
}

#[test]
fn lines_end_when_nobody_reads_them() {
    let node = node();
    let mut top = Command::new(TOLLGATE);
    top.args(["top", "--json", "--url", &node.url()]).stdout(Stdio::piped());
    let mut top = top.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    wait_until("it ends", || top.try_wait().unwrap().is_some());
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

#[test]
fn missing_terminal_and_missing_node_are_failures() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let output = Command::new(TOLLGATE).args(["top", "--url", &url]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && told.contains("there is no terminal") && told.contains("--json"),
        "{told}"
    );

    let (code, lines, reason) = lines(&["--url", &url, "--count", "2"]);
    assert_eq!((code, lines.len()), (1, 2));
    assert_eq!(lines[1]["nodes"][0]["up"], false);
    assert!(reason.contains(&url) && reason.contains("refused"), "{reason}");

    let (code, _, reason) = self::lines(&["--url", &url, &url, "--count", "1"]);
    assert!(code == 1 && reason.contains("is named twice"), "{reason}");

    let (code, _, reason) = self::lines(&["--url", "node:7070", "--count", "1"]);
    assert!(code == 1 && reason.contains("--url: write http://host:port"), "{reason}");
}

/// Another program may answer, and never end its event.
#[test]
fn endless_event_is_refused() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // A second connection gets no answer, so the reason stays.
    let first = listener.try_clone().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, mut sent) = (first.accept().unwrap().0, 0);
        // A client gives up an answer that precedes its call.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ");
        while stream.write_all(&[b'x'; 65_536]).is_ok() {
            sent += 65_536;
        }
        sent
    });
    let mut top = Command::new(TOLLGATE)
        .args(["top", "--json", "--url", &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(top.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .take(60)
        .find(|line| line.contains("longer than"));
    assert!(line.is_some_and(|line| line.contains("an event is longer than")));
    // The buffers of both sockets come on top.
    assert!(server.join().unwrap() < 32 * 1024 * 1024);
    top.kill().unwrap();
    top.wait().unwrap();
}
