//! A small client for a running node: HTTP/1.1 calls, each over a connection of its own or a given
//! one.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::bearer::Bearer;
use super::block_on;
use super::target::Target;
use super::{print, shown};
use crate::config::visible;

mod tls;

use tls::Tls;

/// The timeout of a whole call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest body of an answer, bytes: a thousand policies take a quarter of it.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Largest status line and header fields of an answer together, bytes.
const MAX_HEAD: usize = 64 * 1024;

/// An open connection to a node.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// Which node to ask.
#[derive(Debug, clap::Args)]
pub(super) struct Node {
    /// The node to ask.
    #[arg(long, value_name = "URL", env = "TOLLGATE_URL", default_value = "http://127.0.0.1:7070")]
    url: String,
    #[command(flatten)]
    access: Access,
}

// The token and the TLS of a call.
#[derive(Debug, clap::Args)]
pub(super) struct Access {
    #[command(flatten)]
    bearer: Bearer,
    #[command(flatten)]
    tls: Tls,
}

/// The node's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Answer {
    /// The body as JSON; `null` when it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The unchanged body, for programs, if it is JSON.
    pub(super) fn document(&self) -> Option<String> {
        let text = std::str::from_utf8(&self.body).ok().filter(|_| !self.json().is_null())?;
        Some(shown::json(text) + "\n")
    }

    /// Prints the body for programs if `json` asks for it, or else the text for people.
    pub(super) fn show(&self, json: bool, told: impl FnOnce() -> String) -> Result<(), String> {
        print(&self.document().filter(|_| json).unwrap_or_else(told))
    }

    /// The detail of a problem document, or else the status, on one line. For an unexpected answer.
    pub(super) fn failure(&self) -> String {
        visible(&self.reason())
    }

    fn reason(&self) -> String {
        let body = self.json();
        let violations = words(&body["violations"], |it| {
            let detail = it["detail"].as_str()?;
            // Faults of a configuration have a line, those of a request a pointer.
            Some(match (it["pointer"].as_str(), it["line"].as_u64()) {
                (Some(pointer), _) => format!("{pointer} {detail}"),
                (None, Some(line)) => format!("line {line}: {detail}"),
                (None, None) => detail.to_owned(),
            })
        });
        if !violations.is_empty() {
            return violations.join("; ");
        }
        let Some(detail) = body["detail"].as_str().or_else(|| body["title"].as_str()) else {
            return match self.status.is_success() {
                true => "what answers there is no Tollgate".to_owned(),
                false => format!("the node answered {}", self.status),
            };
        };
        let known = words(&body["known"], |name| name.as_str().map(str::to_owned));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                format!("{detail} (name its file by --token-file, or put it into TOLLGATE_TOKEN)")
            }
            _ if !known.is_empty() => format!("{detail}: there are {}", known.join(", ")),
            _ => detail.to_owned(),
        }
    }
}

fn words(list: &Value, word: impl Fn(&Value) -> Option<String>) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(word).collect()
}

impl Node {
    /// Calls `GET path`.
    ///
    /// # Errors
    /// When there is no answer, as a sentence for users.
    pub(super) fn get(&self, path: &str) -> Result<Answer, String> {
        self.call(Method::GET, path, Bytes::new())
    }

    /// Calls `POST path` with a JSON body.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub(super) fn post(&self, path: &str, body: &serde_json::Value) -> Result<Answer, String> {
        self.call(Method::POST, path, body.to_string().into())
    }

    /// Calls `PUT path` with a JSON body.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub(super) fn put(&self, path: &str, body: &serde_json::Value) -> Result<Answer, String> {
        self.call(Method::PUT, path, body.to_string().into())
    }

    /// As [`Node::put`], over `connection` as long as the node keeps it open.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub(super) async fn put_over(
        &self,
        connection: &mut Option<Connection>,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Answer, String> {
        self.access.call_over(connection, &self.url, Method::PUT, path, body.to_string().into()).await
    }

    /// Calls `DELETE path`, with a JSON body if there is one.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub(super) fn delete(&self, path: &str, body: Option<&serde_json::Value>) -> Result<Answer, String> {
        self.call(Method::DELETE, path, body.map(ToString::to_string).unwrap_or_default().into())
    }

    fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        self.access.call(&self.url, method, path, body)
    }
}

/// The query of these parameters.
pub(super) fn parameters(parameters: &[(&str, &str)]) -> String {
    let encoded = parameters.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    encoded.collect::<Vec<_>>().join("&")
}

/// A text as a part of a path or a query.
pub(super) fn encoded(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

impl Access {
    /// Calls the node at `url`.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub(super) fn call(&self, url: &str, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        block_on(self.call_over(&mut None, url, method, path, body))
    }

    async fn call_over(
        &self,
        connection: &mut Option<Connection>,
        url: &str,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let target: Target = url.parse()?;
        let asked = tokio::time::timeout(TIMEOUT, self.ask(connection, &target, method, path, body)).await;
        let answer = asked.unwrap_or_else(|_| {
            // The answer may still arrive there.
            *connection = None;
            Err("no answer within 5 seconds".into())
        });
        answer.map_err(|reason| format!("{target}: {reason}"))
    }

    /// Returns the whole answer to one call.
    ///
    /// # Errors
    /// When there is none, or it is too long.
    pub(super) async fn ask(
        &self,
        connection: &mut Option<Connection>,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        Answer::read(self.send(connection, target, method, path, body).await?).await
    }

    /// Sends one call, and returns its answer before the body has arrived. A call that fails over a
    /// used connection is sent again over a new one: the node may have ended the first.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn send(
        &self,
        connection: &mut Option<Connection>,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method);
        if let Some(token) = self.bearer.token()? {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .uri(format!("{}{path}", target.path))
            .header(header::HOST, &target.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        if let Some(used) = connection
            && used.ready().await.is_ok()
            && let Ok(response) = used.send_request(request.clone()).await
        {
            return Ok(response);
        }
        let new = connection.insert(self.connect(target).await?);
        new.send_request(request).await.map_err(|error| unanswered(&error, target))
    }

    async fn connect(&self, target: &Target) -> Result<Connection, String> {
        let host = target.host.as_str();
        let stream = TcpStream::connect((host, target.port)).await.map_err(|error| error.to_string())?;
        if target.encrypted {
            return greet(self.tls.connect(host, stream).await?).await;
        }
        greet(stream).await
    }
}

impl Answer {
    /// # Errors
    /// When the body breaks off, or is too long.
    pub(super) async fn read(response: Response<Incoming>) -> Result<Self, String> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => format!("the answer is longer than {MAX_ANSWER} bytes: what answers there is no Tollgate"),
            false => error.to_string(),
        })?;
        Ok(Self { status, body: body.to_bytes() })
    }
}

/// Starts HTTP/1.1 over `stream`.
async fn greet(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection, String> {
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The reason for a missing answer. A TLS listener never answers plain HTTP in HTTP.
fn unanswered(error: &hyper::Error, target: &Target) -> String {
    let question = if error.is_parse() && !target.encrypted { ": is it https?" } else { "" };
    format!("{error}{question}")
}
