//! Connections from an address of the caller's choice: all of 127.0.0.0/8 is this machine.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::TcpSocket;

/// A client that no test configuration trusts.
pub(crate) const CLIENT: [u8; 4] = [127, 0, 0, 9];

pub(crate) fn connect(source: [u8; 4], address: SocketAddr) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((source, 0)))?;
        socket.connect(address).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}
