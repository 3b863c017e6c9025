//! A backend, a node and a proxy before both, by the files of a page.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use crate::source::{CLIENT, connect};
use crate::support::http::{Answer, Connection};
use crate::support::redis::Server;
use crate::support::{Node, TOLLGATE, free_port, wait_until};

/// A proxy with its page.
pub(super) struct Proxy {
    /// The page in `docs/integrations`.
    pub(super) page: &'static str,
    /// The program, as the page's commands name it, and where it comes from.
    pub(super) program: (&'static str, &'static str),
    /// Changes to the command and the files: tests share a machine and its ports.
    pub(super) changes: &'static [(&'static str, &'static str)],
    /// The status without a node.
    pub(super) down: u16,
}

/// The ports of the pages: Redis, two nodes, Traefik's and HAProxy's own, the proxy, the backend,
/// and those of Envoy's service.
const PORTS: [&str; 11] = ["6379", "7070", "7071", "7079", "8000", "8001", "8080", "8081", "8082", "9000", "10000"];

pub(super) struct Rig {
    page: Page,
    ports: BTreeMap<&'static str, u16>,
    nodes: Vec<Option<Node>>,
    /// The program of each node that starts.
    program: PathBuf,
    backend: Backend,
    _store: Option<Server>,
    running: Vec<Running>,
    /// Its programs end before it.
    folder: TempDir,
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of the former release, while `scripts/test-upgrade` runs.
pub(super) fn former() -> Option<PathBuf> {
    std::env::var_os("TOLLGATE_FORMER").map(PathBuf::from)
}

/// The program of that name on the PATH.
fn program(name: &str, install: &str) -> PathBuf {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/bin");
    let mut folders = std::iter::once(own).chain(std::env::split_paths(&paths)).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()));
    found.unwrap_or_else(|| panic!("{name} is missing: {install}, or run scripts/gateways"))
}

impl Rig {
    /// One node with an embedded store, and more files. The second node of the page is down.
    pub(super) fn with_one_node(proxy: &Proxy, more: &[(&str, &str)]) -> Self {
        let mut rig = Self::prepare(proxy, None);
        rig.page.files.extend(more.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        let own = rig.page.files["tollgate.yaml"].lines().filter(|line| !line.starts_with("store:"));
        let own = own.map(|line| format!("{line}\n")).collect::<String>();
        rig.page.files.insert("tollgate.yaml".to_owned(), own);
        rig.run(proxy, 1)
    }

    /// All that the page starts: a store, two nodes of a program and the proxy.
    pub(super) fn as_printed(proxy: &Proxy, program: PathBuf) -> Self {
        let store = Server::start();
        let rig = Self::prepare(proxy, Some(store));
        Self { program, ..rig }.run(proxy, 2)
    }

    fn prepare(proxy: &Proxy, store: Option<Server>) -> Self {
        let (page, backend) = (Page::read(proxy.page), Backend::start());
        let mut ports: BTreeMap<_, _> = PORTS.into_iter().map(|port| (port, free_port())).collect();
        ports.extend(["8080", "9000"].map(|port| (port, backend.port)));
        ports.extend(store.as_ref().map(|store| ("6379", store.port)));
        let folder = tempfile::tempdir().unwrap();
        let program = TOLLGATE.into();
        Self { page, ports, nodes: Vec::new(), program, backend, _store: store, running: Vec::new(), folder }
    }

    fn run(mut self, proxy: &Proxy, nodes: usize) -> Self {
        for (name, text) in &self.page.files {
            fs::write(self.folder.path().join(name), self.own(text, proxy)).unwrap();
        }
        let commands = self.page.commands.clone();
        for printed in commands.iter().filter(|printed| printed.output.is_empty()) {
            let command = self.own(&printed.text, proxy);
            let Some(command) = command.strip_suffix(" &") else {
                assert!(self.shell(&command).status.success(), "{command}");
                continue;
            };
            match command.split(' ').next().unwrap() {
                // The test has its own.
                "redis-server" | "python3" => {}
                "tollgate" if self.nodes.len() < nodes => self.nodes.push(Some(self.node(command))),
                "tollgate" => {}
                name if name == proxy.program.0 => {
                    let path = program(name, proxy.program.1);
                    let process = Command::new("sh")
                        .args(["-c", &format!("exec {}{}", path.display(), &command[name.len()..])])
                        .current_dir(self.folder.path())
                        .env("CADDY_ADMIN", format!("127.0.0.1:{}", free_port()))
                        .env("HOME", self.folder.path())
                        .stdin(Stdio::null())
                        .spawn()
                        .expect("the proxy starts");
                    self.running.push(Running(process));
                }
                name => panic!("the page starts {name}, which the test does not know"),
            }
        }
        assert_eq!((self.nodes.len(), self.running.len()), (nodes, 1), "{}: its commands", proxy.page);
        let client = self.client();
        wait_until("the proxy passes requests on", || {
            client.try_ask("GET", "/health", "status.example.com", &[]).is_ok_and(|answer| answer.status == 200)
        });
        self.backend.answered.store(0, Ordering::Relaxed);
        self
    }

    /// The text with the ports and the folder of this rig.
    fn own(&self, text: &str, proxy: &Proxy) -> String {
        let mut own = String::new();
        let mut rest = text;
        // A port is a whole number in the text.
        while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
            let digits = rest[start..].find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len() - start);
            let (before, number) = (&rest[..start], &rest[start..start + digits]);
            own.push_str(before);
            own.push_str(&self.ports.get(number).map_or(number.to_owned(), u16::to_string));
            rest = &rest[start + digits..];
        }
        own.push_str(rest);
        let folder = self.folder.path().display().to_string();
        let changes = proxy.changes.iter().map(|(from, to)| (*from, to.replace("FOLDER", &folder)));
        changes.fold(own, |own, (from, to)| own.replace(from, &to))
    }

    /// Runs `tollgate serve FILE --listen ADDRESS`.
    fn node(&self, command: &str) -> Node {
        let words: Vec<&str> = command.split(' ').collect();
        let ["tollgate", "serve", file, "--listen", address] = words[..] else { panic!("{command}") };
        let file = self.folder.path().join(file);
        Node::begin(Command::new(&self.program), address, &[file.to_str().unwrap()])
    }

    fn shell(&self, command: &str) -> std::process::Output {
        Command::new("bash").args(["-c", command]).current_dir(self.folder.path()).output().unwrap()
    }

    /// Runs the page's commands that print something. Returns what they should print, and do.
    pub(super) fn printed(&self, proxy: &Proxy) -> Vec<(String, String)> {
        let printing = self.page.commands.iter().filter(|command| !command.output.is_empty());
        printing
            .map(|command| {
                let found = self.shell(&self.own(&command.text, proxy));
                (command.output.clone(), String::from_utf8_lossy(&found.stdout).into_owned())
            })
            .collect()
    }

    pub(super) fn client(&self) -> Client {
        let port = if self.page.has("10000") { "10000" } else { "8000" };
        Client { port: self.ports[port], source: CLIENT }
    }

    /// Requests that the backend answered since the start.
    pub(super) fn answered(&self) -> u64 {
        self.backend.answered.load(Ordering::Relaxed)
    }

    /// The head of the last request to the backend.
    pub(super) fn last_head(&self) -> String {
        self.backend.last.lock().unwrap().clone()
    }

    /// Ends a node and starts it again by a program, when its last answer is sent.
    pub(super) fn restart_node(&mut self, place: usize, program: PathBuf) {
        self.program = program;
        let mut node = self.nodes[place].take().unwrap();
        node.terminate();
        node.ended();
        let commands = self.page.commands.iter().filter_map(|command| command.text.strip_suffix(" &"));
        let command = commands.filter(|command| command.starts_with("tollgate")).nth(place).unwrap();
        let command = self.own(command, &PLAIN);
        self.nodes[place] = Some(self.node(&command));
    }

    /// Checks of all doors that the node has answered.
    pub(super) fn checks(&self, place: usize) -> u64 {
        let metrics = self.nodes[place].as_ref().unwrap().metrics();
        let counts = metrics.lines().filter(|line| line.starts_with("tollgate_checks_total{"));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// The units that a key has left under a policy of the first node.
    pub(super) fn left(&self, policy: &str, key: &str) -> u64 {
        self.nodes[0].as_ref().unwrap().check(policy, key, 0)["remaining"].as_u64().unwrap()
    }

    pub(super) fn kill_node(&mut self, place: usize) {
        self.nodes[place] = None;
    }

    /// Ends the nodes; the rest goes on.
    pub(super) fn stop_nodes(&mut self) {
        for mut node in self.nodes.iter_mut().filter_map(Option::take) {
            node.terminate();
            node.ended();
        }
    }
}

/// No changes beside those of the ports.
const PLAIN: Proxy = Proxy { page: "", program: ("", ""), changes: &[], down: 0 };

/// The files and the commands of a page.
struct Page {
    files: BTreeMap<String, String>,
    commands: Vec<Printed>,
}

/// A command, and the lines below it.
#[derive(Clone)]
struct Printed {
    text: String,
    output: String,
}

impl Page {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/integrations");
        let text = fs::read_to_string(folder.join(format!("{name}.md"))).unwrap();
        let mut page = Self { files: BTreeMap::new(), commands: Vec::new() };
        // A page may have its files in a folder of its name.
        for file in fs::read_dir(folder.join(name)).into_iter().flatten().map(|file| file.unwrap()) {
            let name = file.file_name().into_string().unwrap();
            page.files.insert(name, fs::read_to_string(file.path()).unwrap());
        }
        for (kind, block) in text.split("\n```").filter_map(|part| part.split_once('\n')) {
            if kind == "console" {
                page.commands.extend(printed(block));
            } else if let Some(name) = file_name(block) {
                page.files.insert(name, format!("{block}\n"));
            }
        }
        page
    }

    fn has(&self, port: &str) -> bool {
        self.files.values().any(|text| text.contains(&format!("port_value: {port}}}")))
    }
}

/// The name in the first line of a block: `# /etc/nginx/name.conf, in words`.
fn file_name(block: &str) -> Option<String> {
    let first = block.lines().next()?;
    let named = first.strip_prefix("# ").or_else(|| first.strip_prefix("-- "))?;
    let path = named.split([',', ' ']).next()?;
    let name = path.rsplit('/').next()?;
    (name.contains('.') || name == "Caddyfile").then(|| name.to_owned())
}

/// The commands of a block. A comment ends each, and a backslash continues it.
fn printed(block: &str) -> Vec<Printed> {
    let mut commands: Vec<Printed> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => {
                let text = text.split(" #").next().unwrap_or(text).trim_end().to_owned();
                commands.push(Printed { text, output: String::new() });
            }
            (None, Some(last)) if last.text.ends_with('\\') => {
                last.text.pop();
                last.text.push_str(line.trim_start());
            }
            (None, Some(last)) => last.output += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    commands
}

/// A client with an address of its own.
#[derive(Clone, Copy)]
pub(super) struct Client {
    port: u16,
    source: [u8; 4],
}

impl Client {
    /// A client on the machine of the proxy, which every page trusts.
    pub(super) fn on_this_machine(self) -> Self {
        self.from([127, 0, 0, 1])
    }

    pub(super) fn from(self, source: [u8; 4]) -> Self {
        Self { source, ..self }
    }

    pub(super) fn ask(self, method: &str, target: &str, host: &str, headers: &[(String, String)]) -> Answer {
        self.try_ask(method, target, host, headers)
            .unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    pub(super) fn try_ask(
        self,
        method: &str,
        target: &str,
        host: &str,
        headers: &[(String, String)],
    ) -> std::io::Result<Answer> {
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{length}{fields}\r\n");
        let mut connection = Connection::over(connect(self.source, SocketAddr::from(([127, 0, 0, 1], self.port)))?);
        connection.send(head.as_bytes())?;
        connection.receive(method != "HEAD")
    }
}

/// Answers every request with 200.
struct Backend {
    port: u16,
    answered: Arc<AtomicU64>,
    /// The head of the last request.
    last: Arc<Mutex<String>>,
}

impl Backend {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, answered) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
        let last = Arc::new(Mutex::new(String::new()));
        let (counter, head) = (answered.clone(), last.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (counter, head) = (counter.clone(), head.clone());
                thread::spawn(move || answer_all(stream, &counter, &head));
            }
        });
        Self { port, answered, last }
    }
}

fn answer_all(stream: TcpStream, answered: &AtomicU64, last: &Mutex<String>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut head) = (0, String::new());
        for number in 0.. {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            head.push_str(&line);
            if let Some((name, value)) = line.split_once(':').filter(|_| number > 0)
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        *last.lock().unwrap() = head;
        answered.fetch_add(1, Ordering::Relaxed);
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nbackend").ok()?;
    }
}
