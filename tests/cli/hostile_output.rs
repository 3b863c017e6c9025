//! Commands bound what they read, and escape all text that they print.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{TOLLGATE, file_with};

/// Control characters that a terminal executes.
const ESCAPES: &str = r"\u001b[2J\u009b31m\u202e\u0007";

fn node(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            // A command that has read enough closes the connection.
            let _ = answer(&mut stream);
        }
    });
    url
}

fn says(status: &'static str, body: String) -> String {
    node(move |stream| write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// Runs a command in 400 MB of address space. Returns its exit code and both outputs.
fn run(arguments: &[&str], url: &str) -> (Option<i32>, String, String) {
    let output = Command::new("prlimit")
        .args(["--as=400000000", TOLLGATE])
        .args(arguments)
        .env("TOLLGATE_URL", url)
        .stdin(Stdio::null())
        .output()
        .expect("prlimit of util-linux");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn is_harmless(text: &str) -> bool {
    text.chars().all(|letter| letter == '\n' || !letter.is_control() && letter != '\u{202e}')
}

const COMMANDS: &[&[&str]] =
    &[&["check", "p", "k"], &["check", "p", "k", "--json"], &["health"], &["policies"], &["policies", "--json"]];

#[test]
fn escape_sequences_of_a_node_are_escaped() {
    let text = |name: &str| format!(r#""{name}":"{ESCAPES}\nfake line""#);
    let decision = format!(
        r#"{{"allowed":false,"limit":5,"remaining":0,"retry_after_ms":1,{},{},{}}}"#,
        text("quota"),
        text("source"),
        text("reason")
    );
    let policy = format!(
        r#"{{{},{},"key":{{{}}},{},"quotas":[{{{},{}}}]}}"#,
        text("name"),
        text("algorithm"),
        text("type"),
        text("on_store_failure"),
        text("name"),
        text("says")
    );
    let last = format!(
        r#"{{"successful":false,{},"faults":[{{{}}}],"restart_needed":["{ESCAPES}"]}}"#,
        text("at"),
        text("detail")
    );
    let policies = format!(
        r#"{{"policies":[{policy}],{},{},{},"last_reload":{last}}}"#,
        text("version"),
        text("loaded_at"),
        text("origin")
    );
    let problem = format!(
        r#"{{{},"known":["{ESCAPES}"],"violations":[{{{},{}}}]}}"#,
        text("detail"),
        text("pointer"),
        text("detail")
    );
    let short = format!(r#"{{{},"known":["{ESCAPES}"]}}"#, text("detail"));
    for (status, body) in [
        ("200 OK", decision.as_str()),
        ("200 OK", &policies),
        ("422 x", &problem),
        ("404 x", &short),
        ("401 x", &short),
        ("500 \u{1b}[2J", "\u{1b}[2J"),
        ("200 OK", "\u{1b}[2J"),
    ] {
        let url = says(status, body.to_owned());
        for arguments in COMMANDS {
            let (_, out, reason) = run(arguments, &url);
            assert!(is_harmless(&out) && is_harmless(&reason), "{arguments:?} {body}: {out:?} {reason:?}");
            let fakes = |text: &str| text.lines().any(|line| line.starts_with("fake line"));
            assert!(!fakes(&out) && !fakes(&reason), "{arguments:?}: {out} {reason}");
            let is_shown = out.lines().count() == 1 && arguments.contains(&"--json");
            if is_shown {
                let told: serde_json::Value = serde_json::from_str(&out).unwrap();
                assert_eq!(told, serde_json::from_str::<serde_json::Value>(body).unwrap());
            }
        }
    }
}

#[test]
fn escape_sequences_of_arguments_and_files_are_escaped() {
    let escapes = "\u{1b}[2J\u{9b}31m\u{202e}";
    let file = file_with("policies: {default: {quotas: [5 per 1h]}}");
    let path = file.path().to_str().unwrap();
    let log = file_with(&format!("{{\"time\": 1, \"key\": \"a{escapes}\"}}\n{escapes}\n"));
    let log = log.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(format!("{escapes}.yaml"));
    std::fs::write(&odd, "policies: {default: {quotas: [5 per 1h]}}").unwrap();
    let odd = odd.to_str().unwrap();
    let faulty = file_with(&format!("policies: {{default: {{quotas: ['5 per 1h{escapes}'], '{escapes}': 1}}}}"));
    let changed = file_with("policies: {default: {quotas: [5 per 1h], deny: {prefixes: [a]}}}");
    let changed = changed.path().to_str().unwrap();
    for arguments in [
        &["validate", odd][..],
        &["validate", faulty.path().to_str().unwrap()],
        &["validate", escapes],
        &["explain", path, "default", escapes],
        &["explain", path, "default", escapes, "--json"],
        &["explain", path, escapes, "k"],
        &["explain", odd, "default", "k"],
        &["replay", path, "--log", log],
        &["replay", path, "--log", log, "--json"],
        &["replay", path, "--log", escapes],
        &["replay", path, "--policy", escapes, "--log", log],
        &["diff", path, odd, "--log", log],
        &["diff", path, changed, "--log", log],
        &["diff", path, changed, "--log", log, "--json"],
        &["diff", path, changed, "--log", log, "--markdown"],
        &["diff", path, faulty.path().to_str().unwrap(), "--log", log],
        &["replay", path, "--log", log, "--key", escapes],
        &["check", escapes, escapes, "--url", "http://127.0.0.1:1"],
        &["check", "p", "k", "--cost", escapes],
        &["check", "p", "k", "--url", escapes],
        &["check", "p", "k", "--token-file", escapes],
        &["health", "--url", "https://127.0.0.1:1", "--ca-file", escapes],
        &["bench", "--policy", escapes, "-n", "1", "--url", "http://127.0.0.1:1"],
        &["serve", "--config", escapes],
        &["serve", "--listen", escapes],
        &["serve", "--store", escapes],
        &[escapes],
    ] {
        let (_, out, reason) = run(arguments, "http://127.0.0.1:1");
        assert!(is_harmless(&out) && is_harmless(&reason), "{arguments:?}: {out:?} {reason:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn endless_response_is_aborted() {
    let endless = |start: &'static str, more: &'static [u8]| {
        node(move |stream| {
            stream.write_all(start.as_bytes())?;
            let more = more.repeat(64 * 1024 / more.len());
            loop {
                stream.write_all(&more)?;
            }
        })
    };
    let ok = "HTTP/1.1 200 OK\r\n";
    let commands = [&["check", "p", "k"][..], &["health"], &["policies", "--json"]];
    // The commands share their client, so each row takes one of them in turn.
    for ((url, expected), arguments) in [
        (endless("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b" "), "longer than 4194304 bytes"),
        (endless("HTTP/1.1 200 OK\r\n\r\n", b"{"), "longer than 4194304 bytes"),
        (endless("HTTP/1.1 500 x\r\n\r\n", b"{"), "longer than 4194304 bytes"),
        (
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10\r\n0123456789abcdef\r\n"),
            "longer than 4194304 bytes",
        ),
        (endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"), ""),
        (endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"), ""),
        (endless(ok, b"A: b\r\n"), "message head is too large"),
        (endless("HTTP/1.1 200 OK\r\nA: ", b"x"), "message head is too large"),
        (endless("HTTP/1.1 200 ", b"x"), "message head is too large"),
        (endless("", b"HTTP/1.1 100 Continue\r\n\r\n"), ""),
        (
            node(|stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")?;
                loop {
                    stream.write_all(b"")?;
                    std::thread::sleep(Duration::from_secs(1));
                }
            }),
            "no answer within 5 seconds",
        ),
    ]
    .into_iter()
    .zip(commands.into_iter().cycle())
    {
        let started = Instant::now();
        let (code, out, reason) = run(arguments, &url);
        let failed = if arguments[0] == "check" { 2 } else { 1 };
        assert_eq!((code, out.as_str()), (Some(failed), ""), "{arguments:?} {expected}: {reason}");
        assert!(reason.contains(expected) && reason.starts_with("tollgate: "), "{arguments:?}: {reason}");
        assert!(started.elapsed() < Duration::from_secs(30), "{arguments:?} {expected}");
    }
}

#[test]
fn endless_file_is_not_read() {
    let nobody = "https://127.0.0.1:1";
    for arguments in [
        &["check", "p", "k", "--token-file", "/dev/zero"][..],
        &["health", "--token-file", "/dev/zero"],
        &["policies", "--token-file", "/dev/zero"],
        &["bench", "-n", "1", "--token-file", "/dev/zero"],
    ] {
        let (code, _, reason) = run(arguments, "http://127.0.0.1:1");
        assert!(code.is_some_and(|code| code > 0) && !reason.contains("alloc"), "{arguments:?}: {reason}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    for arguments in [&["health", "--ca-file", "/dev/zero"][..], &["policies", "--ca-file", "/dev/zero"]] {
        let (code, _, reason) = run(arguments, &url);
        assert!(code == Some(1) && reason.contains("/dev/zero: it is larger than"), "{arguments:?}: {reason}");
    }
    let (code, _, reason) = run(&["health", "--ca-file", "/dev/zero"], nobody);
    assert_eq!(code, Some(1), "{reason}");
}

#[test]
fn short_or_multiple_tokens_are_rejected_without_their_line() {
    let hash = |text: &str| {
        let file = file_with(text);
        let input = std::fs::File::open(file.path()).unwrap();
        let output = Command::new(TOLLGATE).args(["token", "hash"]).stdin(input).output().unwrap();
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    let long = "x".repeat(20);
    for (text, expected) in [
        ("a".to_owned(), "at least 20 characters"),
        ("x".repeat(19), "at least 20 characters"),
        (format!("{}   ", "x".repeat(19)), "at least 20 characters"),
        (format!("{long}\n{long}\n"), "one line"),
        (format!("{long}\n\nsecond\n"), "one line"),
        (format!("{long}\r{long}"), "one line"),
        (format!("{long} {long}"), "letters, digits and signs"),
        (String::new(), "standard input"),
        ("\n\n".to_owned(), "standard input"),
    ] {
        let (code, out, reason) = hash(&text);
        assert!(code == Some(1) && out.is_empty() && reason.contains(expected), "{text:?}: {reason}");
        assert!(!reason.contains("xxx"), "a token is not repeated: {reason}");
    }
    for text in [long.clone(), format!("  {long}\r\n\n"), format!("\u{feff}{long}\n")] {
        let (code, out, reason) = hash(&text);
        assert!(code == Some(0) && out.starts_with(b"sha256:"), "{text:?}: {reason}");
    }
}
