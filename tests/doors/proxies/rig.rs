//! A backend, a node and a proxy before both, by the files of a page.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::source::{CLIENT, connect};
use crate::support::http::{Answer, Connection};
use crate::support::{Node, free_port, wait_until};

pub(super) struct Proxy {
    /// The page in `docs/integrations`.
    pub(super) page: &'static str,
    /// Writes the files and returns the command.
    pub(super) start: fn(&Rig) -> Command,
    /// The status without a node.
    pub(super) down: u16,
}

pub(super) struct Rig {
    page: String,
    folder: TempDir,
    node: Node,
    backend: Backend,
    port: u16,
    running: Option<Running>,
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of that name on the PATH.
pub(super) fn program(name: &str, install: &str) -> Command {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/bin");
    let mut folders = std::iter::once(own).chain(std::env::split_paths(&paths)).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()));
    Command::new(found.unwrap_or_else(|| panic!("{name} is missing: {install}, or run scripts/gateways")))
}

impl Rig {
    pub(super) fn start(proxy: &Proxy) -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/integrations/{}.md", proxy.page));
        let page = fs::read_to_string(page).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tollgate.yaml"), block(&page, "tollgate.yaml")).unwrap();
        let node = Node::with_config(folder.path().join("tollgate.yaml"));
        let mut rig = Self { page, folder, node, backend: Backend::start(), port: free_port(), running: None };
        let mut command = (proxy.start)(&rig);
        let process = command.current_dir(rig.folder()).stdout(Stdio::inherit()).spawn().expect("the proxy starts");
        rig.running = Some(Running(process));
        let client = rig.client();
        wait_until("the proxy passes requests on", || {
            client.try_ask("GET", "/health", "status.example.com", &[]).is_ok_and(|answer| answer.status == 200)
        });
        rig.backend.answered.store(0, Ordering::Relaxed);
        rig
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder().join(name), text).unwrap();
    }

    /// Writes a file of the page, with the ports of this rig.
    pub(super) fn write_block(&self, name: &str) {
        let node: SocketAddr = self.node.address.parse().unwrap();
        let ports = [("7070", node.port()), ("8080", self.backend.port), ("8000", self.port)];
        let mut text = block(&self.page, name);
        for (written, _) in ports {
            assert!(!text.contains(&format!("@{written}@")));
            text = text.replace(written, &format!("@{written}@"));
        }
        for (written, port) in ports {
            text = text.replace(&format!("@{written}@"), &port.to_string());
        }
        self.write(name, &text);
    }

    pub(super) fn client(&self) -> Client {
        Client { port: self.port }
    }

    /// Requests that the backend answered since the start.
    pub(super) fn answered(&self) -> u64 {
        self.backend.answered.load(Ordering::Relaxed)
    }

    /// Ends the node; the rest goes on.
    pub(super) fn stop_node(&mut self) {
        self.node.terminate();
        self.node.ended();
    }
}

/// The fenced block of the page whose first line names the file.
fn block(page: &str, name: &str) -> String {
    let blocks = page.split("\n```").filter_map(|part| part.split_once('\n').map(|(_, block)| block));
    let is_file = |block: &&str| {
        let first = block.lines().next().unwrap_or_default();
        let named = first.trim_start_matches(['#', '-']).trim();
        first.starts_with(['#', '-']) && (named == name || named.ends_with(&format!("/{name}")))
    };
    blocks
        .into_iter()
        .find(is_file)
        .map_or_else(|| panic!("the page has no {name}"), |block| format!("{block}\n"))
}

/// A client with an address of its own.
#[derive(Clone, Copy)]
pub(super) struct Client {
    port: u16,
}

impl Client {
    pub(super) fn ask(self, method: &str, target: &str, host: &str, headers: &[(String, String)]) -> Answer {
        self.try_ask(method, target, host, headers)
            .unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    fn try_ask(self, method: &str, target: &str, host: &str, headers: &[(String, String)]) -> std::io::Result<Answer> {
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{length}{fields}\r\n");
        let mut connection = Connection::over(connect(CLIENT, SocketAddr::from(([127, 0, 0, 1], self.port)))?);
        connection.send(head.as_bytes())?;
        connection.receive(method != "HEAD")
    }
}

/// Answers every request with 200.
struct Backend {
    port: u16,
    answered: Arc<AtomicU64>,
}

impl Backend {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, answered) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
        let counter = answered.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counter = counter.clone();
                thread::spawn(move || answer_all(stream, &counter));
            }
        });
        Self { port, answered }
    }
}

fn answer_all(stream: TcpStream, answered: &AtomicU64) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        for number in 0.. {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
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
        answered.fetch_add(1, Ordering::Relaxed);
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nbackend").ok()?;
    }
}
