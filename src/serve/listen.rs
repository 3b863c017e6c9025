//! Sockets that listen.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::ServeError;
use crate::access::Reach;

/// Connections that the system queues until the node accepts them. It is also the default limit of
/// Linux (`net.core.somaxconn`). A client beyond it retries a second later.
pub(super) const ACCEPT_QUEUE: u32 = 4096;

/// Binds an address, which does not listen yet.
pub(super) fn bind(address: SocketAddr) -> Result<(SocketAddr, TcpSocket), ServeError> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Binding also works while connections of the previous node still close.
        socket.set_reuseaddr(true)?;
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
