//! Sockets that listen.

use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

use super::ServeError;
use crate::access::Reach;

/// Connections that the system queues until the node accepts them. It is also the default limit of
/// Linux (`net.core.somaxconn`). A client beyond it retries a second later.
pub(super) const ACCEPT_QUEUE: u32 = 4096;

/// Bytes that a connection keeps in the kernel for the client. Linux counts twice as many, for its
/// own needs, and by default it would grow this to megabytes.
const SEND_BUFFER: u32 = 128 * 1024;

/// Bytes of these that need not be on their way. A client that reads nothing soon takes nothing
/// more, so the kernel keeps little for it, and the node writes no further answer.
const UNSENT: u32 = 16 * 1024;

/// The same for bytes from the client. It is what Linux begins with, and it would grow this, too.
const RECEIVE_BUFFER: u32 = 64 * 1024;

/// Binds an address, which does not listen yet. Its connections inherit the bounds of their buffers.
pub(super) fn bind(address: SocketAddr) -> Result<(SocketAddr, TcpSocket), ServeError> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Binding also works while connections of the previous node still close.
        socket.set_reuseaddr(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT)?;
        socket.bind(address)?;
        Ok((address, socket))
    };
    open().map_err(|error| ServeError::Listen { address, error })
}

/// Listens on a bound address.
pub(super) fn listen((address, socket): (SocketAddr, TcpSocket)) -> Result<TcpListener, ServeError> {
    socket.listen(ACCEPT_QUEUE).map_err(|error| ServeError::Listen { address, error })
}

/// A listener of unknown address counts as one that other machines reach.
pub(super) fn reach(listener: &TcpListener) -> Reach {
    match listener.local_addr() {
        Ok(address) if address.ip().to_canonical().is_loopback() => Reach::Loopback,
        _ => Reach::Network,
    }
}
