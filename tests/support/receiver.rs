//! A receiver of notices on this machine.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use super::tls::{Authority, certificates};

pub(crate) const SECRET: &str = "a secret of the receiver";

/// A request to a receiver: its path, its signature and its body.
pub(crate) type Received = (String, String, Vec<u8>);

/// A receiver that answers by the statuses that a test chooses.
pub(crate) struct Receiver {
    pub(crate) address: String,
    received: Arc<Mutex<Vec<Received>>>,
    /// The statuses of the next answers; 204 after them.
    pub(crate) statuses: Arc<Mutex<Vec<u16>>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        Self::serve(|stream| stream)
    }

    /// The same over TLS, with the certificate `node` of this authority.
    pub(crate) fn over_tls(authority: &Authority) -> Self {
        let key = PrivateKeyDer::from_pem_file(authority.path("node.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates(&authority.path("node.pem")), key);
        let config = Arc::new(config.unwrap());
        Self::serve(move |stream| StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream))
    }

    fn serve<S: Read + Write + Send + 'static>(accept: impl Fn(TcpStream) -> S + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let receiver = Self { address, received: Arc::default(), statuses: Arc::default() };
        let (received, statuses) = (receiver.received.clone(), receiver.statuses.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (received, statuses, mut stream) = (received.clone(), statuses.clone(), accept(stream));
                std::thread::spawn(move || while receive(&mut stream, &received, &statuses).is_some() {});
            }
        });
        receiver
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.received().iter().map(|(_, _, body)| serde_json::from_slice(body).unwrap()).collect()
    }
}

fn receive(
    stream: &mut (impl Read + Write),
    received: &Mutex<Vec<Received>>,
    statuses: &Mutex<Vec<u16>>,
) -> Option<()> {
    // The reader takes no byte of the next request.
    let mut reader = BufReader::with_capacity(1, &mut *stream);
    let (mut path, mut fields, mut line) = (String::new(), HashMap::new(), String::new());
    while reader.read_line(&mut line).ok()? > 0 && !line.trim().is_empty() {
        match line.trim().split_once(": ") {
            Some((name, value)) => _ = fields.insert(name.to_lowercase(), value.to_owned()),
            None => path = line.split(' ').nth(1)?.to_owned(),
        }
        line.clear();
    }
    let mut body = vec![0; fields.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let signature = fields.get("x-tollgate-signature").cloned().unwrap_or_default();
    let status = statuses.lock().unwrap().pop().unwrap_or(204);
    received.lock().unwrap().push((path, signature, body));
    let answer = format!("HTTP/1.1 {status} .\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).ok()?;
    stream.flush().ok()
}
