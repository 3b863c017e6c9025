//! The only file that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// An instant by which leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseInstant {
    /// By a clock that runs on while the machine is suspended, where there is one, us.
    pub elapsed: u64,
    /// By the wall clock, us.
    pub wall: u64,
}

/// How far the wall clock may run ahead of the other clock, us.
const APART: u64 = 1_000_000;

impl LeaseInstant {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
    pub fn now() -> Self {
        Self { elapsed: elapsed(), wall: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros) }
    }

    /// How long ago `earlier` was, us. If the wall clock has run over a second ahead meanwhile, it
    /// decides: then the machine was paused without the other clock's notice.
    pub fn since(self, earlier: Self) -> u64 {
        let elapsed = self.elapsed.saturating_sub(earlier.elapsed);
        let wall = self.wall.saturating_sub(earlier.wall);
        if wall > elapsed + APART { wall } else { elapsed }
    }
}

/// Time since the machine's start, us.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn elapsed() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|number| u64::try_from(number).unwrap_or(0));
    seconds * 1_000_000 + nanos / 1000
}

/// Time since the first call, us. On macOS the clock runs on during suspension.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn elapsed() -> u64 {
    static FIRST: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(now);
    micros(now().saturating_duration_since(*FIRST))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
