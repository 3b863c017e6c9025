//! A real Envoy in front of a backend.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::stream::{self, StreamExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::support::{free_port, http, wait_until};

/// A running Envoy; dropping it kills it.
pub(crate) struct Envoy {
    process: Child,
    /// `127.0.0.1:port` of its listener.
    pub(crate) address: String,
    _folder: TempDir,
}

impl Envoy {
    /// An Envoy with the documented configuration and `changes` to its text. It asks `services` at
    /// their ports and passes requests on to `backend`.
    pub(crate) fn start(services: [&str; 2], backend: &Backend, changes: &[(&str, &str)]) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let mut config = std::fs::read_to_string(documented("envoy.yaml")).unwrap();
        let [one, other] = services.map(|service| format!("port_value: {}", port_of(service)));
        let own = [
            ("port_value: 10000", format!("port_value: {port}")),
            ("port_value: 9000", format!("port_value: {}", port_of(&backend.address))),
            ("port_value: 8081", one),
            ("port_value: 8082", other),
        ];
        let changes = changes.iter().map(|(from, to)| (*from, (*to).to_owned()));
        for (from, to) in own.into_iter().chain(changes) {
            assert!(config.contains(from), "the documented configuration has no {from}");
            config = config.replace(from, &to);
        }
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let process = Command::new(program())
            .args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "error", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .expect("Envoy starts");
        let address = format!("127.0.0.1:{port}");
        let envoy = Self { process, address, _folder: folder };
        wait_until("Envoy listens", || std::net::TcpStream::connect(&envoy.address).is_ok());
        envoy
    }

    /// The answer to a request of `user`.
    pub(crate) fn get(&self, path: &str, user: &str) -> http::Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: edge\r\nX-User: {user}\r\nConnection: close\r\n\r\n");
        http::try_exchange(&self.address, request.as_bytes()).expect("Envoy answers")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The path of a documented file.
pub(crate) fn documented(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/integrations/envoy").join(name)
}

fn port_of(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}

fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/bin/envoy");
    assert!(program.exists(), "Envoy is missing: run scripts/gateways, which installs it");
    program
}

/// Answers every request with 200, and with the cost that its query names. A path of `/stream` has a
/// body that ends with [`Backend::end_streams`].
pub(crate) struct Backend {
    pub(crate) address: String,
    requests: Arc<AtomicU64>,
    streams_end: watch::Sender<()>,
}

impl Backend {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(AtomicU64::new(0));
        let (counted, streams_end) = (requests.clone(), watch::Sender::new(()));
        let ends = streams_end.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counted, ends) = (counted.clone(), ends.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let is_stream = request.uri().path() == "/stream";
                    let cost = request.uri().query().and_then(|query| query.strip_prefix("cost="));
                    let mut answer = Response::builder();
                    if let Some(cost) = cost.or((!is_stream).then_some("0")) {
                        answer = answer.header("x-cost", cost);
                    }
                    let answer = answer.body(if is_stream { stream_until(ends.subscribe()) } else { "hello\n".into() });
                    async { Ok::<_, Infallible>(answer.unwrap()) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, requests, streams_end }
    }

    /// Ends the bodies of all streams.
    pub(crate) fn end_streams(&self) {
        self.streams_end.send_replace(());
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// A body of one chunk, which ends with the next change.
fn stream_until(mut end: watch::Receiver<()>) -> Body {
    let first = stream::once(async { Ok::<_, Infallible>("hello\n") });
    let rest = stream::once(async move {
        let _ = end.changed().await;
        Ok("bye\n")
    });
    Body::from_stream(first.chain(rest))
}
