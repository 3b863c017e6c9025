//! A small client for a running node: one HTTP/1.1 call over one connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::bearer::Bearer;
use super::bounded::{self, PEM_BYTES};
use super::shown;
use super::target::Target;
use crate::config::visible;

/// The timeout of a whole call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest body of an answer, bytes: a thousand policies take a quarter of it.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Largest status line and header fields of an answer together, bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Which node to ask.
#[derive(Debug, clap::Args)]
pub(super) struct Node {
    /// The node to ask.
    #[arg(long, value_name = "URL", env = "TOLLGATE_URL", default_value = "http://127.0.0.1:7070")]
    url: String,
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

    /// The detail of a problem document, or else the status, on one line. For an unexpected answer.
    pub(super) fn failure(&self) -> String {
        visible(&self.reason())
    }

    fn reason(&self) -> String {
        let body = self.json();
        let violations =
            words(&body["violations"], |it| Some(format!("{} {}", it["pointer"].as_str()?, it["detail"].as_str()?)));
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

    fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let target: Target = self.url.parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let answer =
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, self.ask(&target, method, path, body)).await });
        // A name look-up may still be running.
        runtime.shutdown_background();
        answer
            .unwrap_or_else(|_| Err("no answer within 5 seconds".into()))
            .map_err(|reason| format!("{target}: {reason}"))
    }

    async fn ask(&self, target: &Target, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let host = target.host.as_str();
        let stream = TcpStream::connect((host, target.port)).await.map_err(|error| error.to_string())?;
        if target.encrypted {
            return self.exchange(self.tls.connect(host, stream).await?, target, method, path, body).await;
        }
        self.exchange(stream, target, method, path, body).await
    }

    /// Sends one call over `stream`.
    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
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
        let response = sender.send_request(request).await.map_err(|error| unanswered(&error, target))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => format!("the answer is longer than {MAX_ANSWER} bytes: what answers there is no Tollgate"),
            false => error.to_string(),
        })?;
        Ok(Answer { status, body: body.to_bytes() })
    }
}

/// The reason for a missing answer. A TLS listener never answers plain HTTP in HTTP.
fn unanswered(error: &hyper::Error, target: &Target) -> String {
    let question = if error.is_parse() && !target.encrypted { ": is it https?" } else { "" };
    format!("{error}{question}")
}

// TLS towards a node, verified with the authority of its certificate.
#[derive(Debug, clap::Args)]
struct Tls {
    /// For https: the authority that signed the node's certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate to show, where the node asks for one, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CERT_FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_KEY_FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
}

impl Tls {
    /// Starts TLS with `host`.
    ///
    /// # Errors
    /// When a file is missing or wrong, or the node's certificate does not match.
    async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        connector.connect(name, stream).await.map_err(|error| error.to_string())
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let file = self.ca_file.as_ref().ok_or("name the authority of the node's certificate by --ca-file")?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(file)?);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let (Some(cert_file), Some(key_file)) = (&self.cert_file, &self.key_file) else {
            return Ok(config.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(&bounded::read(key_file, PEM_BYTES)?);
        let key = key.map_err(|error| format!("{}: {error}", key_file.display()))?;
        config.with_client_auth_cert(certificates(cert_file)?, key).map_err(|error| error.to_string())
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bounded::read(file, PEM_BYTES)?).collect();
    match read {
        Ok(read) if read.is_empty() => Err(format!("{} holds no certificate in PEM", file.display())),
        read => read.map_err(|error| format!("{}: {error}", file.display())),
    }
}
