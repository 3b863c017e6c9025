//! Real nodes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A running process. It ends with this value.
pub struct Node {
    pub address: String,
    config: PathBuf,
    more: Vec<String>,
    log: TempDir,
    process: Option<Child>,
}

impl Node {
    /// Runs a node with a file of the directory clients.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    pub fn start_with(config: &str, more: &[&str]) -> Self {
        let mut node = Self {
            address: free_address(),
            config: clients().join(config),
            more: more.iter().map(|&text| text.to_owned()).collect(),
            log: tempfile::tempdir().unwrap(),
            process: None,
        };
        node.restart();
        node
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Runs the node at its address, and returns when it answers.
    pub fn restart(&mut self) {
        let path = self.log.path().join("log");
        let log = File::create(&path).unwrap();
        let process = Command::new(binary())
            .args(["serve", "--listen", &self.address, "--config"])
            .arg(&self.config)
            .args(&self.more)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("TOLLGATE_BIN must name the binary of a node: {error}"));
        self.process = Some(process);
        assert!(listens(&self.address), "no node at {}:\n{}", self.address, fs::read_to_string(path).unwrap());
    }

    /// Ends the process at once, and its connections.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            end(process);
        }
    }

    /// Stops the process. It accepts connections, and answers nothing until `thaw`.
    pub fn freeze(&self) {
        signal(self.process.as_ref(), Signal::STOP);
    }

    pub fn thaw(&self) {
        signal(self.process.as_ref(), Signal::CONT);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redis for several nodes. It ends with this value.
pub struct Redis {
    pub url: String,
    process: Option<Child>,
    _folder: TempDir,
}

impl Redis {
    pub fn start() -> Self {
        let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
        let port = address.rsplit(':').next().unwrap();
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"])
            .current_dir(&folder)
            .stdout(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .expect("install redis-server");
        let redis = Self { url: format!("redis://{address}"), process: Some(process), _folder: folder };
        assert!(listens(&address), "redis-server does not listen at {address}");
        redis
    }
}

impl Redis {
    /// The memory of all data, in bytes.
    pub fn used_memory(&self) -> usize {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("redis://")).unwrap();
        stream.write_all(b"INFO memory\r\nQUIT\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (_, used) = text.split_once("used_memory:").unwrap();
        used.split_once("\r\n").unwrap().0.parse().unwrap()
    }

    /// Stops the process. It accepts connections, and answers nothing until `thaw`.
    pub fn freeze(&self) {
        signal(self.process.as_ref(), Signal::STOP);
    }

    pub fn thaw(&self) {
        signal(self.process.as_ref(), Signal::CONT);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.take().into_iter().for_each(end);
    }
}

fn signal(process: Option<&Child>, signal: Signal) {
    let process = process.expect("the process runs");
    kill_process(Pid::from_child(process), signal).unwrap();
}

fn end(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

fn listens(address: &str) -> bool {
    let pause = || std::thread::sleep(Duration::from_millis(20));
    (0..1500).any(|_| TcpStream::connect(address).inspect_err(|_| pause()).is_ok())
}

/// A loopback address where nothing listens.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The directory of all clients, which has their cases.
pub fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub fn binary() -> PathBuf {
    let built = || clients().parent().unwrap().join("target/debug/tollgate");
    std::env::var_os("TOLLGATE_BIN").map_or_else(built, PathBuf::from)
}
