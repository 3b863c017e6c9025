//! A tiny client for a running node: one HTTP/1.1 call over one connection.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::bearer::Bearer;
use super::tls::Tls;

/// How long a whole call may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which node to ask.
#[derive(Debug, clap::Args)]
pub(super) struct Node {
    /// The node to ask.
    #[arg(long, value_name = "URL", env = "TOLLGATE_URL", default_value = "http://127.0.0.1:7070")]
    url: Uri,
    #[command(flatten)]
    bearer: Bearer,
    #[command(flatten)]
    tls: Tls,
}

/// What the node said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Answer {
    /// The body as JSON; `null` when it is none.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// What a problem document says, or at least the status.
    pub(super) fn failure(&self) -> String {
        let body = self.json();
        let part = |name: &str| body[name].as_str().map(str::to_owned);
        part("detail")
            .or_else(|| part("title"))
            .unwrap_or_else(|| format!("the node answered {}", self.status))
    }
}

impl Node {
    /// Calls `GET path`.
    ///
    /// # Errors
    /// When there is no answer, in the words for a person.
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

    fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, self.ask(method, path, body)).await });
        answer
            .unwrap_or_else(|_| Err("no answer within 5 seconds".into()))
            .map_err(|reason| format!("{}: {reason}", self.url))
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let (authority, encrypted) = match (self.url.scheme_str(), self.url.authority()) {
            (Some("http"), Some(authority)) => (authority, false),
            (Some("https"), Some(authority)) => (authority, true),
            _ => return Err("must be of the form http://host:port or https://host:port".into()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }))).await;
        let stream = stream.map_err(|error| error.to_string())?;
        if encrypted {
            return self.exchange(self.tls.connect(host, stream).await?, method, path, body).await;
        }
        self.exchange(stream, method, path, body).await
    }

    /// Carries one call over `stream`.
    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method);
        if let Some(token) = self.bearer.token()? {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .uri(format!("{}{path}", self.url.path().trim_end_matches('/')))
            .header(header::HOST, self.url.authority().map_or("", Authority::as_str))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(Answer { status, body: body.to_bytes() })
    }
}
