//! Servers of the tests: proxies, servers that never answer, and applications behind a layer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tollgate_limiter::{HoldHandle, LimitLayer};
use tower_layer::Layer;
use tower_service::Service;

use crate::browser::Browser;

/// Listens, and never accepts. The kernel completes the connections.
pub fn silent() -> (String, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    (format!("http://{}", listener.local_addr().unwrap()), listener)
}

/// Answers each request by a function, one task for each connection.
async fn serve<F, A>(listener: TcpListener, answer: F, on_connection: impl Fn())
where
    F: Fn(SocketAddr, Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Response<Full<Bytes>>, Lost>> + Send + 'static,
{
    // The connections end with this future.
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        on_connection();
        let answer = answer.clone();
        let service = service_fn(move |request| answer(peer, request));
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Closes the connection in place of an answer.
#[derive(Debug)]
pub struct Lost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("lost")
    }
}

impl std::error::Error for Lost {}

/// Answers each call by a fixed response.
pub async fn fixed(status: u16, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = move |_, _| async move {
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok(response)
    };
    tokio::spawn(serve(listener, answer, || {}));
    url
}

/// Forwards each call to a node and records it.
pub struct Proxy {
    pub url: String,
    pub seen: Arc<Mutex<Seen>>,
    serving: AbortHandle,
}

#[derive(Default)]
pub struct Seen {
    pub connections: usize,
    pub paths: Vec<String>,
    pub headers: Vec<HeaderMap>,
    /// The checks that arrived, also those of batches.
    pub checks: Vec<Value>,
    /// The header fields of the newest response.
    pub answered: HeaderMap,
}

/// The fault of a proxy.
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    Faithful,
    /// Forwards its first call, waits for the answer, and closes the connection instead.
    Lossy,
    /// Rejects batches as a whole.
    NoBatches,
}

impl Proxy {
    pub async fn start(node: String, mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (browser, calls, connections) = (Browser::new(), seen.clone(), seen.clone());
        let answer = move |_, request| forward(node.clone(), browser.clone(), calls.clone(), mode, request);
        let serving = tokio::spawn(serve(listener, answer, move || connections.lock().unwrap().connections += 1));
        Self { url, seen, serving: serving.abort_handle() }
    }

    /// Closes the listener and all connections.
    pub fn stop(&self) {
        self.serving.abort();
    }

    pub fn calls(&self) -> usize {
        self.seen.lock().unwrap().paths.len()
    }
}

async fn forward(
    node: String,
    browser: Browser,
    seen: Arc<Mutex<Seen>>,
    mode: Mode,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Lost> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut headers = head.headers.clone();
    headers.remove(HOST);
    headers.remove(CONTENT_LENGTH);
    let body = body.collect().await.unwrap().to_bytes();
    let checks = match serde_json::from_slice::<Value>(&body) {
        Ok(Value::Object(mut batch)) if path == "/v1/check/batch" => batch["checks"].take().as_array().unwrap().clone(),
        Ok(check) => vec![check],
        Err(_) => Vec::new(),
    };
    // The record comes before the node acts on the call, which a test may see at the node.
    let is_lost = {
        let mut seen = seen.lock().unwrap();
        seen.paths.push(path.clone());
        seen.checks.extend(checks);
        seen.headers.push(head.headers);
        mode == Mode::Lossy && seen.paths.len() == 1
    };
    let (head_of_answer, answer) = if mode == Mode::NoBatches && path == "/v1/check/batch" {
        let problem = r#"{"type":"urn:tollgate:problem:invalid-request","title":"","status":422,"detail":""}"#;
        let (mut head, body) = Response::new(Bytes::from(problem)).into_parts();
        head.status = StatusCode::UNPROCESSABLE_ENTITY;
        (head, body)
    } else {
        browser.send(head.method, &format!("{node}{}", head.uri), headers, body).await.into_parts()
    };
    seen.lock().unwrap().answered.clone_from(&head_of_answer.headers);
    if is_lost { Err(Lost) } else { Ok(Response::from_parts(head_of_answer, Full::new(answer))) }
}

/// A server framework.
#[derive(Debug, Clone, Copy)]
pub enum Host {
    Axum,
    Hyper,
}

pub const HOSTS: [Host; 2] = [Host::Axum, Host::Hyper];

impl Host {
    /// Runs an application that answers `hello` behind the layer, and returns its URL.
    pub async fn start(self, layer: LimitLayer) -> String {
        match self {
            Self::Axum => {
                let answer = async |hold: Option<Extension<HoldHandle>>, headers: HeaderMap| {
                    set_cost(hold.map(|Extension(hold)| hold).as_ref(), &headers);
                    "hello"
                };
                run(Router::new().route("/", get(answer)).layer(layer)).await
            }
            Self::Hyper => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let url = format!("http://{}", listener.local_addr().unwrap());
                let limited = layer.layer(Hello { is_ready: false });
                let answer = move |peer: SocketAddr, mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    let mut limited = limited.clone();
                    async move {
                        std::future::poll_fn(|context| Service::<Request<Incoming>>::poll_ready(&mut limited, context))
                            .await
                            .unwrap();
                        let (head, body) = limited.call(request).await.unwrap().into_parts();
                        Ok(Response::from_parts(head, Full::new(body.collect().await.unwrap().to_bytes())))
                    }
                };
                tokio::spawn(serve(listener, answer, || {}));
                url
            }
        }
    }
}

/// Runs an application of axum, and returns its URL.
pub async fn run(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    url
}

/// The true cost of a request is that of its header.
fn set_cost(hold: Option<&HoldHandle>, headers: &HeaderMap) {
    if let (Some(hold), Some(used)) = (hold, headers.get("x-used")) {
        hold.set_cost(used.to_str().unwrap().parse().unwrap());
    }
}

/// A service that insists on `poll_ready` before each call, as some do.
struct Hello {
    is_ready: bool,
}

impl Clone for Hello {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl<B> Service<Request<B>> for Hello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        set_cost(request.extensions().get(), request.headers());
        assert!(std::mem::take(&mut self.is_ready), "a call of a service that is not ready");
        std::future::ready(Ok(Response::new(Full::from("hello"))))
    }
}
