//! The stream below a connection: TCP, with or without TLS, or a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::attempt::{Attempt, Step};
use crate::store::redis::protocol::failure::Failure;

/// Opens a stream to `host` at one of its addresses.
///
/// # Errors
/// When the server does not accept the connection, or TLS fails.
pub async fn dial(
    at: SocketAddr,
    tls: Option<&TlsConnector>,
    host: &str,
    attempt: &Attempt,
) -> Result<Stream, Failure> {
    let stream = TcpStream::connect(at).await.map_err(|error| not_connected(&error))?;
    // A socket without this option works all the same.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Stream::Plain(stream)) };
    attempt.reach(Step::Tls);
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| Failure::connection("the host is no name that a certificate could be for"))?;
    match tls.connect(name, stream).await {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
        Err(error) => Err(not_encrypted(&error)),
    }
}

/// Opens a stream to the Unix socket at `path`.
///
/// # Errors
/// When there is none, or no server accepts the connection.
pub async fn dial_socket(path: &Path) -> Result<Stream, Failure> {
    let sentence = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "no socket is at this path: the server may not run, or listen elsewhere",
        io::ErrorKind::PermissionDenied => "the user of this process may not open the socket (unixsocketperm)",
        io::ErrorKind::ConnectionRefused => "connection refused: no server listens at this socket",
        _ => "the socket cannot be opened",
    };
    UnixStream::connect(path)
        .await
        .map(Stream::Socket)
        .map_err(|error| Failure::connection(sentence(error)))
}

fn not_connected(error: &io::Error) -> Failure {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match error.kind() {
        ConnectionRefused => Failure::connection("connection refused: no server listens at this address"),
        HostUnreachable | NetworkUnreachable => Failure::connection("no route leads to this address"),
        TimedOut => Failure::connection("the server does not accept the connection in time"),
        other => Failure::connection(format!("the connection cannot be opened: {other}")),
    }
}

fn not_encrypted(error: &io::Error) -> Failure {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let sentence = match tls {
        Some(InvalidMessage(_)) => "the port does not speak TLS: begin the URL with redis://, or name the TLS port",
        Some(InvalidCertificate(fault)) => return Failure::connection(untrusted(fault)),
        Some(AlertReceived(_)) => {
            "the server breaks off the TLS handshake: it may ask for a certificate (`store.tls.cert_file`)"
        }
        Some(_) => "the server and this node agree on no version or cipher of TLS",
        None => "the server closed the connection in the TLS handshake: its port may not speak TLS (redis://)",
    };
    Failure::connection(sentence)
}

fn untrusted(fault: &rustls::CertificateError) -> &'static str {
    use rustls::CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
        UnknownIssuer,
    };
    match fault {
        Expired | ExpiredContext { .. } => "the server's certificate has expired",
        NotValidYet | NotValidYetContext { .. } => "the server's certificate is not valid yet",
        NotValidForName | NotValidForNameContext { .. } => "the server's certificate is for another host",
        UnknownIssuer => "the server's certificate is of an authority that `store.tls.ca_file` does not name",
        _ => "the server's certificate cannot be trusted",
    }
}

pub enum Stream {
    Plain(TcpStream),
    Socket(UnixStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Socket(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Socket(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Socket(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Socket(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
