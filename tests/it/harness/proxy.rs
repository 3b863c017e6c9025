//! A TCP proxy that can misbehave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Says nothing more, with its connections open.
const SILENT: u64 = u64::MAX;

/// A proxy in front of one port. Its threads end with the connections.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// How long bytes take in each direction, ms, or [`SILENT`].
    delay: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Room for the descriptors to come: the kernel may take seconds to make it on busy cores.
        let _ = rustix::io::fcntl_dupfd_cloexec(&listener, 4095);
        let (delay, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let proxy = Self { port, delay: delay.clone(), open: open.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    from.set_nodelay(true).unwrap();
                    open.lock().unwrap().push(from.try_clone().unwrap());
                    let (from, to, delay) = (from.try_clone().unwrap(), to.try_clone().unwrap(), delay.clone());
                    std::thread::spawn(move || copy(from, to, &delay));
                }
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Breaks every connection.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Bytes take `ms` in each direction.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay.store(ms, Ordering::Relaxed);
    }

    /// Connections stand, and nothing comes through: as behind a firewall that forgot them.
    pub(crate) fn fall_silent(&self) {
        self.delay(SILENT);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, delay: &AtomicU64) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        match delay.load(Ordering::Relaxed) {
            0 => {}
            SILENT => continue,
            ms => std::thread::sleep(Duration::from_millis(ms)),
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
