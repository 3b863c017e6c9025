//! A node in this process, so that these tests need no other program.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tollgate::clock::unix_micros;
use tollgate::config::{Overrides, Setup};
use tollgate::serve::Server;

pub(crate) struct Node {
    pub(crate) address: String,
    /// The text for the terminal, which names the other addresses.
    greeting: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::with_config(None)
    }

    pub(crate) fn with_config(file: Option<PathBuf>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (sender, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listen = Some("127.0.0.1:0".into());
                let overrides = Overrides { listen, ..Overrides::default() };
                let setup = Setup { file, overrides, ..Setup::default() };
                let config = setup.load(unix_micros()).unwrap();
                let server = Server::open(setup, config).await.unwrap();
                sender.send((server.address().unwrap().to_string(), server.greeting())).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
            runtime.shutdown_background();
        });
        let (address, greeting) = started.recv().expect("the node starts");
        Self { address, greeting, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL of the listener that the greeting calls so.
    pub(crate) fn url_of(&self, listener: &str) -> String {
        let line = self.greeting.lines().find_map(|line| line.trim().strip_prefix(listener)).expect("it listens");
        format!("http://{}", line.rsplit('/').next().unwrap_or_default())
    }

    /// Units that `key` may still spend under `policy`.
    pub(crate) fn remaining(&self, policy: &str, key: &str) -> u64 {
        let body = json!({"policy": policy, "key": key, "cost": 0}).to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /v1/check HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}"));
        body["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread has already printed its panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
