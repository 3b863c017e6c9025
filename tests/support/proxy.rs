//! A TCP proxy that can misbehave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tollgate::clock::Clock;

/// Drops all bytes, with its connections open.
const SILENT: u64 = u64::MAX;

/// A proxy in front of one port. Its threads end with the connections.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    target: Arc<AtomicU16>,
    manners: Arc<Manners>,
    accepted: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

#[derive(Default)]
struct Manners {
    /// The delay of bytes in each direction, ms, or [`SILENT`].
    delay: AtomicU64,
    /// Whether a script call breaks its connection.
    no_scripts: AtomicBool,
}

impl Proxy {
    pub(crate) fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Reserves descriptors: the kernel may take seconds to grow their table on busy cores.
        let _ = rustix::io::fcntl_dupfd_cloexec(&listener, 4095);
        let (manners, open) = (Arc::new(Manners::default()), Arc::new(Mutex::new(Vec::new())));
        let (accepted, target) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU16::new(target)));
        let proxy = Self {
            port,
            target: target.clone(),
            manners: manners.clone(),
            accepted: accepted.clone(),
            open: open.clone(),
        };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accepted.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(("127.0.0.1", target.load(Ordering::Relaxed))) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    from.set_nodelay(true).unwrap();
                    open.lock().unwrap().push(from.try_clone().unwrap());
                    let (from, to, manners) = (from.try_clone().unwrap(), to.try_clone().unwrap(), manners.clone());
                    std::thread::spawn(move || copy(from, to, &manners));
                }
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// New connections lead to another port, as when an address moves to another server.
    pub(crate) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::Relaxed);
    }

    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn delay(&self, ms: u64) {
        self.manners.delay.store(ms, Ordering::Relaxed);
    }

    /// Closes a connection at a script call, as a proxy without EVALSHA does.
    pub(crate) fn hang_up_on_scripts(&self, hang_up: bool) {
        self.manners.no_scripts.store(hang_up, Ordering::Relaxed);
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections stay open, and no bytes pass, as behind a firewall that has lost its state.
    pub(crate) fn fall_silent(&self) {
        self.delay(SILENT);
    }
}

fn copy(mut from: TcpStream, to: TcpStream, manners: &Manners) {
    let mut bytes = [0; 65536];
    let (under_way, arriving) = mpsc::channel();
    let clock = Clock::system();
    let there = clock.clone();
    std::thread::spawn(move || deliver(&arriving, to, &there));
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if manners.no_scripts.load(Ordering::Relaxed) && bytes[..count].windows(7).any(|word| word == b"EVALSHA") {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        let due = match manners.delay.load(Ordering::Relaxed) {
            SILENT => continue,
            ms => clock.now() + ms * 1000,
        };
        if under_way.send((due, bytes[..count].to_vec())).is_err() {
            break;
        }
    }
}

/// Writes each piece when it is due, us; later pieces are in flight meanwhile.
fn deliver(arriving: &mpsc::Receiver<(u64, Vec<u8>)>, mut to: TcpStream, clock: &Clock) {
    for (due, bytes) in arriving {
        std::thread::sleep(Duration::from_micros(due.saturating_sub(clock.now())));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
