//! Real nodes on free ports, which always stop, and a client that can misbehave.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::net::TcpSocket;

pub(crate) mod calendar;

pub(crate) mod chaos;

pub(crate) mod cluster;

pub(crate) mod collector;

pub(crate) mod dice;

pub(crate) mod events;

pub(crate) mod exact_log;

pub(crate) mod faketime;

pub(crate) mod frames;

pub(crate) mod fuzz;

pub(crate) mod histories;

pub(crate) mod hold_model;

pub(crate) mod holders;

pub(crate) mod holds;

pub(crate) mod http;

pub(crate) mod mutation;

pub(crate) mod openapi;

pub(crate) mod ops;

pub(crate) mod override_set;

pub(crate) mod pairs;

pub(crate) mod promtool;

pub(crate) mod proxy;

pub(crate) mod rates;

pub(crate) mod receiver;

pub(crate) mod redis;

pub(crate) mod redis_cell;

pub(crate) mod sentinel;

pub(crate) mod serving;

pub(crate) mod slots;

pub(crate) mod steps;

pub(crate) mod stores;

pub(crate) mod timed;

pub(crate) mod tls;

pub(crate) mod tries;

/// The program under test.
pub(crate) const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// A running `tollgate serve`; dropping it kills it.
pub(crate) struct Node {
    process: Child,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    /// Its standard output at the start; the last line is a command to try.
    pub(crate) greeting: String,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_by(Command::new(TOLLGATE), arguments)
    }

    pub(crate) fn with_config(file: impl AsRef<Path>) -> Self {
        Self::start_with(&["--config", file.as_ref().to_str().unwrap()])
    }

    /// The same at an address that other machines may reach.
    pub(crate) fn start_on(listen: &str, arguments: &[&str]) -> Self {
        Self::begin(Command::new(TOLLGATE), listen, arguments)
    }

    /// The same by a command that runs the program, with its own environment.
    pub(crate) fn start_by(program: Command, arguments: &[&str]) -> Self {
        Self::begin(program, "127.0.0.1:0", arguments)
    }

    /// A node whose output is not read, at an address of the caller's choice.
    pub(crate) fn start_unread(mut program: Command, address: String) -> Self {
        let process = program.args(["serve", "--listen", &address]).spawn().expect("the built program starts");
        Self { process, address, greeting: String::new() }
    }

    /// The same by both.
    pub(crate) fn begin(mut program: Command, listen: &str, arguments: &[&str]) -> Self {
        if !program.get_envs().any(|(name, _)| name == "RUST_LOG") {
            program.env("RUST_LOG", "warn");
        }
        let mut process = program
            .args(["serve", "--listen", listen])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the built program starts");
        let mut out = BufReader::new(process.stdout.take().expect("its output is piped"));
        let mut greeting = String::new();
        while !greeting.contains("  try ") && out.read_line(&mut greeting).expect("it greets") > 0 {}
        let address = greeting.split("listening on http").nth(1).and_then(|rest| rest.split("://").nth(1));
        let address = address.unwrap_or_default();
        let address = address.lines().next().unwrap_or_default().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "the node did not say where it listens: {greeting:?}");
        Self { process, address, greeting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> http::Answer {
        http::post(&self.address, path, body.to_string())
    }

    pub(crate) fn check(&self, policy: &str, key: &str, cost: u64) -> Value {
        self.post("/v1/check", &json!({"policy": policy, "key": key, "cost": cost})).json()
    }

    pub(crate) fn metrics(&self) -> String {
        let answer = http::get(&self.address, "/metrics");
        assert_eq!(answer.status, 200);
        String::from_utf8(answer.body).unwrap()
    }

    /// The body of `GET /health/live`, which is that of `/health/ready`.
    pub(crate) fn health(&self) -> Value {
        let answer = http::get(&self.address, "/health/live");
        assert_eq!(answer.status, 200);
        answer.json()
    }

    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends SIGHUP, the usual signal for a reload.
    pub(crate) fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    /// Stops it, as an overloaded machine does.
    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("it still runs");
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the node has ended", || {
            status = self.process.try_wait().expect("it is our child");
            status.is_some()
        });
        status.expect("it has ended")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it still runs").count()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.try_wait().expect("it is our child").is_none()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command in a folder, with `arguments` divided at blanks. Returns its code and both outputs.
pub(crate) fn run_in(folder: &Path, command: &[&str], arguments: &str) -> (i32, String, String) {
    let mut program = Command::new(TOLLGATE);
    let output = program.current_dir(folder).args(command).args(arguments.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A loopback port without a listener until the test opens one; connections to it fail. The next
/// hundred calls return other ports.
pub(crate) fn free_port() -> u16 {
    hold_port(0).expect("a free port")
}

/// Reserves `port`, or any for 0: the system assigns no port to which a socket is bound. The test
/// may still listen on it (SO_REUSEADDR, on both sides), because this socket does not listen.
///
/// # Errors
/// Another socket uses the port.
pub(crate) fn hold_port(port: u16) -> std::io::Result<u16> {
    static HELD: Mutex<VecDeque<TcpSocket>> = Mutex::new(VecDeque::new());
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
    socket.set_reuseaddr(true)?;
    let port = socket.local_addr()?.port();
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.push_back(socket);
    // Far fewer than the descriptors of a process (1024), more than concurrent tests use.
    if held.len() > 100 {
        held.pop_front();
    }
    Ok(port)
}

/// A key that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn config_on(seeds: &[String], policies: &str) -> NamedTempFile {
    file_with(&format!("store: {{redis: [{}]}}\n{policies}\n", seeds.join(", ")))
}

pub(crate) fn file_with(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

pub(crate) fn node_with(configuration: &str) -> Node {
    Node::with_config(file_with(configuration))
}

pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The memory that the kernel needs for the connections to these addresses, KiB: what they have
/// received and not sent, with the overhead.
pub(crate) fn socket_kib(addresses: &[&str]) -> u64 {
    let ports = addresses.iter().map(|address| format!("sport = :{}", address.rsplit(':').next().unwrap()));
    let filter = ports.collect::<Vec<_>>().join(" or ");
    let output = Command::new("ss").args(["-tmnH", "state", "connected"]).arg(&filter).output();
    let text = String::from_utf8(output.expect("ss is there: apt-get install iproute2").stdout).unwrap();
    // As in `skmem:(r0,rb131072,t0,tb262144,f4096,w61440,o0,bl0,d0)`.
    let fields = text.split("skmem:(").skip(1).flat_map(|memory| memory.split(')').next().unwrap().split(','));
    let used = fields
        .filter_map(|field| ["r", "f", "w"].iter().find_map(|name| field.strip_prefix(name)?.parse::<u64>().ok()));
    used.sum::<u64>() / 1024
}

/// Waits up to thirty seconds until `condition` holds.
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "waited 30 s in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
