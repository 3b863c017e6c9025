//! Starts real servers on free loopback ports, and always stops them.

pub mod redis;

pub mod steps;

use std::net::TcpListener;

/// A loopback port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A key that no other test uses.
pub fn unique(name: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let run = std::process::id();
    format!("{name}-{run}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until `condition` holds; panics with `what` when it does not within `deadline`.
pub fn wait_until(deadline: std::time::Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let clock = tollgate::clock::Clock::system();
    let end = clock.now() + u64::try_from(deadline.as_micros()).unwrap();
    while !condition() {
        assert!(clock.now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
