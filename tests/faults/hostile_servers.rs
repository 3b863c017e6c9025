//! Servers that violate the Redis protocol. A node keeps its memory, its other work and its
//! terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::health::assert_plain;
use crate::support::chaos::now_ms;
use crate::support::{Node, TOLLGATE, http, resident_kib, wait_until};

#[derive(Clone)]
pub(crate) enum Sent {
    Bytes(Vec<u8>),
    /// The first bytes, and then the second ones for ever.
    Endless(Vec<u8>, Vec<u8>),
}

impl Sent {
    pub(crate) fn text(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }

    pub(crate) fn bulk(text: &str) -> Self {
        Self::text(&format!("${}\r\n{text}\r\n", text.len()))
    }
}

type Manners = dyn Fn(&str) -> Sent + Send + Sync;

/// An attacker with just enough of the Redis protocol. It ends when dropped.
pub(crate) struct Hostile {
    pub(crate) port: u16,
    is_over: Arc<AtomicBool>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Hostile {
    pub(crate) fn start(manners: impl Fn(&str) -> Sent + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_over, manners): (_, Arc<Manners>) = (Arc::new(AtomicBool::new(false)), Arc::new(manners));
        let ended = is_over.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (manners, ended) = (manners.clone(), ended.clone());
                std::thread::spawn(move || answer(stream, &*manners, &ended));
            }
        });
        Self { port, is_over }
    }

    fn node(&self, folder: &std::path::Path) -> Node {
        let file = folder.join("my.yaml");
        let policies = "{p: {quotas: [1000 per 1h], on_store_failure: error}}";
        let store = format!("{{redis: ['redis://127.0.0.1:{}']}}", self.port);
        std::fs::write(&file, format!("store: {store}\npolicies: {policies}\n")).unwrap();
        let mut program = Command::new(TOLLGATE);
        program.stderr(File::create(folder.join("log")).unwrap()).env("RUST_LOG", "info");
        Node::start_by(program, &["--config", file.to_str().unwrap()])
    }
}

fn answer(mut stream: TcpStream, manners: &Manners, is_over: &AtomicBool) {
    let (mut known, mut bytes) = (Vec::new(), [0; 65536]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        known.extend_from_slice(&bytes[..count]);
        while let Some((command, length)) = command(&known) {
            known.drain(..length);
            // No node becomes ready without an answer about its overrides, and there are none.
            let reply = no_overrides(&command).unwrap_or_else(|| manners(&command));
            let sent = match reply {
                Sent::Bytes(bytes) => stream.write_all(&bytes),
                Sent::Endless(first, chunk) => {
                    let more = chunk.repeat(65536 / chunk.len());
                    let mut sent = stream.write_all(&first);
                    while sent.is_ok() && !is_over.load(Ordering::Relaxed) {
                        sent = stream.write_all(&more);
                    }
                    sent
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

fn command(bytes: &[u8]) -> Option<(String, usize)> {
    let mut at = 0;
    let mut line = || {
        let end = bytes[at..].iter().position(|byte| *byte == b'\n')?;
        let text = std::str::from_utf8(&bytes[at..at + end]).ok()?.trim_end().to_owned();
        at += end + 1;
        Some((text, at))
    };
    let count: usize = line()?.0.strip_prefix('*')?.parse().ok()?;
    let mut parts = Vec::new();
    let mut place = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    for _ in 0..count {
        let end = place + bytes.get(place..)?.iter().position(|byte| *byte == b'\n')?;
        let length: usize = std::str::from_utf8(&bytes[place..end]).ok()?.trim_end().strip_prefix('$')?.parse().ok()?;
        parts.push(String::from_utf8_lossy(bytes.get(end + 1..end + 1 + length)?).into_owned());
        place = end + 1 + length + 2;
    }
    (place <= bytes.len()).then(|| (parts.join(" "), place))
}

/// The answer to a question about overrides.
fn no_overrides(command: &str) -> Option<Sent> {
    let mut words = command.split(' ');
    let word = words.next().filter(|_| command.contains(":%o"))?;
    Some(Sent::text(match word {
        "EVAL" => "*6\r\n$16\r\n1790000000000000\r\n$1\r\n0\r\n$0\r\n\r\n$1\r\n0\r\n$1\r\n0\r\n*0\r\n",
        "HSCAN" => "*2\r\n$1\r\n0\r\n*0\r\n",
        "HGET" => "$-1\r\n",
        "MGET" => {
            return Some(Sent::text(&format!("*{0}\r\n{1}", words.clone().count(), "$-1\r\n".repeat(words.count()))));
        }
        "XREVRANGE" => "*0\r\n",
        _ => return None,
    }))
}

pub(crate) fn usual(command: &str, cluster: bool) -> Sent {
    let word = command.split(' ').next().unwrap_or_default();
    match word {
        "INFO" => Sent::bulk(&format!(
            "redis_version:7.2.0\r\nredis_mode:standalone\r\nrole:master\r\ncluster_enabled:{}\r\n",
            u8::from(cluster)
        )),
        "TIME" => Sent::text("*2\r\n$10\r\n1790000000\r\n$1\r\n0\r\n"),
        "CLUSTER" if command.starts_with("CLUSTER INFO") => Sent::bulk("cluster_state:ok\r\n"),
        _ => Sent::text("+OK\r\n"),
    }
}

fn is_script(command: &str) -> bool {
    command.starts_with("EVAL")
}

/// The node responds, and other callers do not wait.
fn stays_well(node: &Node, millis: u64) {
    let (begin, mut worst) = (now_ms(), 0);
    while now_ms() < begin + millis {
        let before = now_ms();
        let answer = node.check("p", "key", 1);
        assert_ne!(answer["source"], "store", "{answer}");
        assert_eq!(http::get(&node.address, "/health/live").status, 200);
        worst = worst.max(now_ms() - before);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(worst < 4000, "an answer took {worst} ms");
}

/// Endless replies of all kinds, to each command of a node.
#[test]
fn endless_reply_is_aborted() {
    let endless = |first: &str, chunk: &str| Sent::Endless(first.into(), chunk.into());
    let kinds = [
        ("a bulk string", endless("$999999999999\r\n", "x")),
        ("a simple string", endless("+", "x")),
        ("an error", endless("-ERR ", "x")),
        ("an error of many lines", endless("-ERR ", "x\n")),
        ("an array", endless("*999999999999\r\n", ":1\r\n")),
        ("arrays of one", endless("*999999999999\r\n", "*1\r\n:1\r\n")),
        ("arrays in arrays", endless("", "*1\r\n")),
        ("empty strings", endless("*999999999999\r\n", "$0\r\n\r\n")),
        ("a map", endless("%999999999999\r\n", "+a\r\n:1\r\n")),
        ("a negative length", endless("=-5\r\n", "x")),
        ("answers that nobody asked for", endless("", "+OK\r\n")),
    ];
    let questions: &'static [&'static str] = &["INFO", "TIME", "SCRIPT", "CLUSTER SLOTS", "CLUSTER INFO", "EVALSHA"];
    std::thread::scope(|scope| {
        for half in kinds.chunks(3) {
            scope.spawn(move || {
                for (number, (what, sent)) in half.iter().enumerate() {
                    for question in questions.iter().skip(number % 2).step_by(2) {
                        let (is_cluster, sent) = (question.starts_with("CLUSTER"), sent.clone());
                        let hostile = Hostile::start(move |command| match command.starts_with(question) {
                            true => sent.clone(),
                            false => usual(command, is_cluster),
                        });
                        let folder = tempfile::tempdir().unwrap();
                        let node = hostile.node(folder.path());
                        stays_well(&node, 1000);
                        let resident = resident_kib(node.pid()) / 1024;
                        assert!(resident < 400, "{what} to {question}: {resident} MiB");
                    }
                }
            });
        }
    });
}

/// The detail names a truncated reply.
#[test]
fn oversized_reply_is_logged() {
    let hostile = Hostile::start(|command| match is_script(command) {
        true => Sent::Endless(b"$999999999999\r\n".to_vec(), b"x".to_vec()),
        false => usual(command, false),
    });
    let folder = tempfile::tempdir().unwrap();
    let node = hostile.node(folder.path());
    let mut detail = String::new();
    wait_until("a caller is told", || {
        detail = node.check("p", "key", 1)["detail"].as_str().unwrap_or_default().to_owned();
        detail.contains("longer than any that this node asks for")
    });
    assert!(detail.len() <= 300, "{detail}");
}

/// An error of 5 MB, and one with terminal escapes, to each command.
#[test]
fn server_error_is_truncated_in_log_and_hidden_from_callers() {
    let long = format!("-ERR {}\r\n", "x".repeat(5 << 20));
    let code = format!("-{} x\r\n", "X".repeat(5 << 20));
    let terminal = "-ERR \u{1b}[31mred\u{1b}]0;title\u{7} \u{9b}1mxxxx\r\n".to_owned();
    for sent in [long, code, terminal] {
        for question in ["EVALSHA", "INFO", "CLUSTER SLOTS", "CLUSTER INFO"] {
            let (sent, is_cluster) = (sent.clone(), question.starts_with("CLUSTER"));
            let hostile = Hostile::start(move |command| match command.starts_with(question) {
                true => Sent::text(&sent),
                false => usual(command, is_cluster),
            });
            let folder = tempfile::tempdir().unwrap();
            let node = hostile.node(folder.path());
            let logged = || std::fs::read_to_string(folder.path().join("log")).unwrap();
            let mut answer = http::get(&node.address, "/health/ready");
            wait_until("the log tells", || {
                let body = r#"{"policy": "p", "key": "key"}"#;
                answer = http::post(&node.address, "/v1/check", body);
                logged().contains("xxxx") || logged().contains("XXXX")
            });
            for text in [&answer.body, &http::get(&node.address, "/health/ready").body] {
                let text = String::from_utf8_lossy(text);
                assert!(text.len() < 1000 && !text.contains("xxxx") && !text.contains('\u{1b}'), "{text}");
            }
            let told = logged();
            let longest = told.lines().map(str::len).max().unwrap_or_default();
            assert!(longest < 1000, "{question}: a line of {longest} bytes");
            assert!(!told.contains("\u{1b}[31m") && !told.contains('\u{7}'), "{told}");
        }
    }
}

/// Errors and values that no Redis sends, to each command: a caller and health get one short
/// sentence.
#[test]
fn every_detail_is_one_short_sentence() {
    let long = "x".repeat(100_000);
    let blob = "first\r\n\r\nsecond \u{1b}[31m";
    let rows: Vec<Vec<u8>> = [
        format!("-ERR {long}\r\n"),
        format!("-NOPERM User {long} has no permissions to run the '{long}' command\r\n"),
        format!("-ERR unknown command '{long}', with args beginning with: '{long}'\r\n"),
        format!("!{}\r\n{blob}\r\n", blob.len()),
        "-ERR first\nsecond\tthird\u{7}\u{202e}\r\n".into(),
        "-ERR Parse error at 1 - Io - Client: redis.call('SET', KEYS[1], ARGV[1])\r\n".into(),
        "-\r\n".into(),
        "-ERR\r\n".into(),
        "-MOVED 1 nowhere\r\n".into(),
        "-ASK x \u{1b}[31m:1\r\n".into(),
        "$-1\r\n".into(),
        ":1\r\n".into(),
        "*0\r\n".into(),
        "%1\r\n+a\r\n+b\r\n".into(),
        "hello\r\n".into(),
        String::new(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([b"-ERR \xff\xfe\0\r\n".to_vec()])
    .collect();
    let questions = ["", "CLIENT", "INFO", "CLUSTER SLOTS", "EVAL"];
    std::thread::scope(|scope| {
        for part in rows.chunks(5) {
            scope.spawn(move || part.iter().for_each(|sent| questions.iter().for_each(|to| short_detail(sent, to))));
        }
    });
}

/// Answers `sent` to every command that begins with `question`. Without a text the connection
/// closes.
fn short_detail(sent: &[u8], question: &'static str) {
    let (text, is_cluster, sent) =
        (String::from_utf8_lossy(sent).into_owned(), question.starts_with("CLUSTER"), sent.to_vec());
    let hostile = Hostile::start(move |command| match command.starts_with(question) {
        true => Sent::Bytes(sent.clone()),
        false => usual(command, is_cluster),
    });
    let folder = tempfile::tempdir().unwrap();
    let node = hostile.node(folder.path());
    let mut told = Vec::new();
    wait_until("a caller is told", || {
        told = vec![node.check("p", "key", 1)["detail"].as_str().unwrap_or_default().to_owned()];
        !told[0].is_empty()
    });
    std::thread::sleep(Duration::from_millis(100));
    told.push(node.check("p", "key", 1)["detail"].as_str().unwrap_or_default().to_owned());
    told.extend(node.health()["store"]["shards"][0]["reason"].as_str().map(str::to_owned));
    for detail in told {
        let excerpt = &text.chars().take(60).collect::<String>();
        assert!(detail.len() <= 300 && !detail.contains(char::is_control), "{excerpt:?} to {question:?}: {detail}");
        assert!(!detail.contains("xxx") && !detail.contains("second"), "{excerpt:?} to {question:?}: {detail}");
        assert_plain(&detail);
    }
}

/// CLUSTER SLOTS with more ranges than slots, with two owners of a slot, with thousands of
/// primaries, with invalid hosts.
#[test]
fn impossible_slot_tables_are_rejected() {
    let range = |first: usize, last: usize, host: &str, port: usize| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n${}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n", host.len())
    };
    let all = |ranges: Vec<String>| format!("*{}\r\n{}", ranges.len(), ranges.concat());
    let host = "127.0.0.1";
    let rows = [
        (all((0..200_000).map(|_| range(0, 16383, host, 9)).collect()), "longer than any"),
        (all((0..20_000).map(|_| range(0, 16383, host, 9)).collect()), "more ranges than there are slots"),
        (all(vec![range(0, 100, host, 9), range(100, 16383, host, 9)]), "two owners of one slot"),
        (all(vec![range(0, 20_000, host, 9)]), "a slot that there is not"),
        (all(vec![range(5, 4, host, 9)]), "a slot that there is not"),
        (
            all((0..5000).map(|slot| range(slot, slot, host, 1000 + slot)).collect()),
            "more than 1000 primaries",
        ),
        (all(vec![range(0, 16383, "\u{1b}[31m", 9)]), "knows no owner of any slot"),
        (all(vec![range(0, 16383, &"h".repeat(100_000), 9)]), "knows no owner of any slot"),
    ];
    for (slots, reason) in rows {
        let hostile = Hostile::start(move |command| match command.starts_with("CLUSTER SLOTS") {
            true => Sent::text(&slots),
            false => usual(command, true),
        });
        let folder = tempfile::tempdir().unwrap();
        let node = hostile.node(folder.path());
        stays_well(&node, 1500);
        let logged = || std::fs::read_to_string(folder.path().join("log")).unwrap();
        wait_until(&format!("the log tells of {reason}"), || logged().contains(reason));
        let told = logged();
        assert!(!told.contains("\u{1b}[31m"), "{told}");
        assert!(told.lines().all(|line| line.len() < 1000));
        let health = node.health();
        assert!(health["store"]["shards"][0]["reason"].as_str().unwrap().contains(reason), "{health}");
    }
}

/// A redirection to a new node for each check opens a bounded number of lanes.
#[test]
fn endless_redirections_end() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let port = Arc::new(std::sync::atomic::AtomicU16::new(0));
    let own = port.clone();
    let hostile = Hostile::start(move |command| {
        if is_script(command) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            return Sent::text(&format!(
                "-MOVED 1 127.{}.{}.{}:1\r\n",
                number / 65536 % 256,
                number / 256 % 256,
                number % 256
            ));
        }
        if command.starts_with("CLUSTER SLOTS") {
            let port = own.load(Ordering::Relaxed);
            return Sent::text(&format!(
                "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"
            ));
        }
        usual(command, true)
    });
    port.store(hostile.port, Ordering::Relaxed);
    let folder = tempfile::tempdir().unwrap();
    let node = hostile.node(folder.path());
    stays_well(&node, 3000);
    assert!(resident_kib(node.pid()) / 1024 < 400);
}

/// The address that the server of a test names in its redirections.
type Own = Arc<std::sync::atomic::AtomicU16>;

/// A server that answers scripts by `reply`, in a cluster that it owns alone or outside of one.
/// `PORT` in the reply is its own port.
fn answering(reply: &'static str, is_cluster: bool, answers_probes: bool) -> Hostile {
    let own = Own::default();
    let port = own.clone();
    let hostile = Hostile::start(move |command| {
        let port = own.load(Ordering::Relaxed);
        match command {
            _ if is_script(command) && answers_probes && is_probe(command) => Sent::text(":1\r\n"),
            _ if is_script(command) => Sent::text(&reply.replace("PORT", &port.to_string())),
            _ if command.starts_with("CLUSTER SLOTS") => {
                Sent::text(&format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"))
            }
            _ => usual(command, is_cluster),
        }
    });
    port.store(hostile.port, Ordering::Relaxed);
    hostile
}

fn is_probe(command: &str) -> bool {
    command.contains("}probe")
}

/// Every check has a key of its own and falls back. Health reports the reason and stays degraded.
/// The log has no line for each check.
#[test]
fn server_that_makes_no_charge_is_down_whatever_it_answers() {
    let rows: [(&str, &str, bool); 17] = [
        (":1\r\n", "not one that the script makes", false),
        ("$-1\r\n", "not one that the script makes", true),
        ("+OK\r\n", "not one that the script makes", false),
        ("*0\r\n", "not one that the script makes", true),
        ("*2\r\n:1790000000000000\r\n$-1\r\n", "decides no call", false),
        ("*1\r\n:1\r\n", "decides no call", false),
        ("*2\r\n:1790000000000000\r\n$0\r\n\r\n", "no count of this program", false),
        (
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            "no count of this program",
            true,
        ),
        ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "TRYAGAIN", true),
        ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "TRYAGAIN", false),
        ("-MOVED 1 127.0.0.1:PORT\r\n", "redirects to itself", true),
        ("-ASK 1 127.0.0.1:PORT\r\n", "redirects to itself", true),
        ("-MOVED 1 127.0.0.1:1\r\n", "redirects to 127.0.0.1:1", true),
        ("-ASK 1 127.0.0.1:1\r\n", "redirects to 127.0.0.1:1", true),
        ("-MOVED 1 nowhere\r\n", "redirects to another one", true),
        ("-MOVED 1 127.0.0.1:1\r\n", "part of no cluster", false),
        ("-ASK 1 127.0.0.1:PORT\r\n", "part of no cluster", false),
    ];
    std::thread::scope(|scope| {
        for part in rows.chunks(3) {
            scope.spawn(move || {
                for (reply, reason, is_cluster) in part {
                    for answers_probes in [false, true] {
                        stays_down(reply, reason, *is_cluster, answers_probes);
                    }
                }
            });
        }
    });
}

fn stays_down(reply: &'static str, reason: &str, is_cluster: bool, answers_probes: bool) {
    let hostile = answering(reply, is_cluster, answers_probes);
    let folder = tempfile::tempdir().unwrap();
    let node = hostile.node(folder.path());
    let address = format!("127.0.0.1:{}", hostile.port);
    let mut number = 0;
    let mut is_down = || {
        number += 1;
        let answer = node.check("p", &format!("key-{number}"), 1);
        assert_ne!(answer["source"], "store", "{answer}");
        let health = node.health();
        let shards = health["store"]["shards"].as_array().unwrap();
        let shard = shards.iter().find(|shard| shard["address"] == address.as_str());
        // Another address may own the slots for a moment.
        let has_reason = shard.is_none_or(|shard| {
            shard["up"] == false && shard["reason"].as_str().is_some_and(|told| told.contains(reason))
        });
        (health["status"] == "degraded", has_reason, health)
    };
    wait_until(&format!("{reply:?} is told as {reason:?}, not {}", node.health()), || {
        let (is_down, has_reason, _) = is_down();
        is_down && has_reason
    });
    // A probe that succeeds may end it once, until the next check.
    let (begin, mut up) = (now_ms(), 0);
    while now_ms() < begin + 2000 {
        // On a busy machine the last check may have had no answer in time.
        let (is_down, _, health) = is_down();
        up += u32::from(!is_down);
        assert!(up <= 2, "{reply:?}: {health}");
    }
    let logged = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let lines = logged.lines().count();
    assert!(lines <= 40, "{reply:?}: {lines} lines for {number} checks:\n{logged}");
}

/// A server outside a cluster owns all slots, so the node connects to no address that it names.
#[test]
fn redirection_of_a_lone_server_is_not_followed() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let elsewhere: &'static str = Box::leak(other.local_addr().unwrap().to_string().into_boxed_str());
    for word in ["MOVED", "ASK"] {
        let hostile = Hostile::start(move |command| match is_script(command) {
            true => Sent::text(&format!("-{word} 1 {elsewhere}\r\n")),
            false => usual(command, false),
        });
        let folder = tempfile::tempdir().unwrap();
        let node = hostile.node(folder.path());
        wait_until("a caller is told", || {
            let answer = node.check("p", "key", 1);
            answer["detail"].as_str().is_some_and(|detail| detail.contains("part of no cluster"))
        });
        (0..20).for_each(|_| _ = node.check("p", "key", 1));
        assert!(other.accept().is_err(), "the node has connected to {elsewhere}");
    }
}

/// A server that breaks each connection at the first charge answers its probes.
#[test]
fn server_that_breaks_connections_at_charges_is_down() {
    let hostile = Hostile::start(|command| match command {
        _ if is_script(command) && is_probe(command) => Sent::text(":1\r\n"),
        // No reply begins so.
        _ if is_script(command) => Sent::text("hello\r\n"),
        _ => usual(command, false),
    });
    let folder = tempfile::tempdir().unwrap();
    let node = hostile.node(folder.path());
    let mut checks = 0;
    let mut is_down = || {
        checks += 1;
        node.check("p", "key", 1);
        node.health()["status"] == "degraded"
    };
    // Until it has made no charge for a second, its health follows its connections.
    let (begin, mut up) = (now_ms(), 0);
    while now_ms() < begin + 5000 {
        up += u32::from(!is_down() && now_ms() > begin + 2000);
        assert!(up <= 2, "{}", node.health());
        std::thread::sleep(Duration::from_millis(5));
    }
    let logged = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(logged.lines().count() <= 40, "for {checks} checks:\n{logged}");
}
