//! The beginning of a connection with TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Agrees on TLS with a client, or gives it up in time.
///
/// # Errors
/// When the client speaks no TLS, has no certificate although one is asked for, or dawdles.
pub(super) async fn handshake(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let agreed = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
    agreed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
