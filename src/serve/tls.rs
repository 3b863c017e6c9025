//! The handshake of a TLS connection.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::timeouts::HANDSHAKE;

/// Performs the handshake with a client within `HANDSHAKE`.
///
/// # Errors
/// The client speaks no TLS, lacks a required certificate, or is too slow.
pub(super) async fn handshake(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let agreed = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
    agreed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
