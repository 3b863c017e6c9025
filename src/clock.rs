//! The only file that reads the time.
//!
//! A node uses its monotonic clock, anchored at its wall clock once, at the start. Redis decides by
//! the shard's own clock.
//!
//! The embedded store counts calendar windows, so its clock must follow the wall clock. Operators
//! may correct the wall clock, and it runs on while a virtual machine sleeps. So the embedded store
//! uses the node's clock, moved forward whenever the wall clock is ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::limit::time::{MICROS_PER_SECOND, Micros, micros};

/// Differences from the wall clock up to this are ignored, us.
const APART: Micros = MICROS_PER_SECOND;

/// A clock that never steps back, in us since the Unix epoch. The wall clock set it at the start.
#[derive(Debug, Clone)]
pub struct Clock {
    source: Source,
    /// How far this clock has followed the wall clock. Clones share it. `None`: it does not follow.
    followed: Option<Arc<Followed>>,
}

#[derive(Debug, Clone)]
enum Source {
    System { started: Instant, epoch: Micros },
    Manual { time: Arc<AtomicU64>, wall: Arc<AtomicU64> },
}

#[derive(Debug, Default)]
struct Followed {
    /// How far the clock is ahead of its source, us. It never decreases.
    ahead: AtomicU64,
    /// `follow` has reported that the wall clock is behind.
    behind_told: AtomicBool,
}

/// A difference between a clock and the wall clock that it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The wall clock was ahead by this many us, and the clock has caught up.
    Forward(Micros),
    /// The wall clock is behind by this many us, and the clock waits for it. Reported once until
    /// they meet again.
    Behind(Micros),
}

impl Clock {
    /// The machine's monotonic clock, anchored at its wall clock now.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
    pub fn system() -> Self {
        Self { source: Source::System { started: Instant::now(), epoch: unix_micros() }, followed: None }
    }

    /// A clock for tests that moves only with `time`.
    pub fn manual(time: Arc<AtomicU64>) -> Self {
        Self::manual_beside(time.clone(), time)
    }

    /// A manual clock with a wall clock of its own.
    pub fn manual_beside(time: Arc<AtomicU64>, wall: Arc<AtomicU64>) -> Self {
        Self { source: Source::Manual { time, wall }, followed: None }
    }

    /// A clock with the same source that `follow` moves forward to the wall clock.
    #[must_use]
    pub fn following(&self) -> Self {
        Self { source: self.source.clone(), followed: Some(Arc::default()) }
    }

    /// Now, us.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
    pub fn now(&self) -> Micros {
        let now = match &self.source {
            Source::System { started, epoch } => epoch + micros(started.elapsed()),
            Source::Manual { time, .. } => time.load(Ordering::SeqCst),
        };
        now + self.followed.as_ref().map_or(0, |followed| followed.ahead.load(Ordering::SeqCst))
    }

    /// An instant that no suspension of this machine can delay.
    pub fn instant(&self) -> LeaseInstant {
        match &self.source {
            Source::System { .. } => LeaseInstant { elapsed: since_boot(), wall: unix_micros() },
            Source::Manual { time, wall } => {
                LeaseInstant { elapsed: time.load(Ordering::SeqCst), wall: wall.load(Ordering::SeqCst) }
            }
        }
    }

    /// Moves this clock and its clones forward if the wall clock is over a second ahead. Returns
    /// the difference if it needs a report. Clocks that do not follow return `None`. Only one
    /// caller at a time may use it.
    pub fn follow(&self) -> Option<Step> {
        let Followed { ahead, behind_told } = self.followed.as_deref()?;
        let (wall, now) = (self.wall(), self.now());
        let (forward, behind) = (wall.saturating_sub(now), now.saturating_sub(wall));
        let told = behind_told.swap(behind > APART, Ordering::SeqCst);
        if forward > APART {
            ahead.fetch_add(forward, Ordering::SeqCst);
            return Some(Step::Forward(forward));
        }
        (behind > APART && !told).then_some(Step::Behind(behind))
    }

    fn wall(&self) -> Micros {
        match &self.source {
            Source::System { .. } => unix_micros(),
            Source::Manual { wall, .. } => wall.load(Ordering::SeqCst),
        }
    }
}

/// An instant by which leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseInstant {
    /// By a clock that runs on while the machine is suspended, us.
    elapsed: Micros,
    /// By the wall clock, us.
    wall: Micros,
}

impl LeaseInstant {
    /// How long ago `earlier` was, us. If the wall clock has run over a second ahead meanwhile, it
    /// decides: then the machine was paused without the other clock's notice.
    pub fn since(self, earlier: Self) -> Micros {
        let (elapsed, wall) =
            (self.elapsed - earlier.elapsed.min(self.elapsed), self.wall.saturating_sub(earlier.wall));
        if wall > elapsed + APART { wall } else { elapsed }
    }
}

/// Time since the machine's start, with the time in which it was suspended, us.
fn since_boot() -> Micros {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * MICROS_PER_SECOND + u64::try_from(time.tv_nsec).unwrap_or_default() / 1000
}

/// The wall clock in us since the Unix epoch. People see it as load times, and clocks follow it.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
pub fn unix_micros() -> Micros {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The instant `micros` after the Unix epoch.
pub fn wall(micros: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Micros = 1_790_000_000_000_000;
    const DAY: Micros = 86_400_000_000;

    fn times() -> (Arc<AtomicU64>, Arc<AtomicU64>, Clock) {
        let [time, wall] = [(); 2].map(|()| Arc::new(AtomicU64::new(START)));
        let clock = Clock::manual_beside(time.clone(), wall.clone());
        (time, wall, clock)
    }

    #[test]
    fn only_wall_clocks_follow_a_jump_ahead() {
        let (time, wall, clock) = times();
        let (following, other) = (clock.following(), clock.following());
        let clone = following.clone();
        wall.store(START + APART, Ordering::SeqCst);
        assert_eq!((following.follow(), following.now()), (None, START));
        wall.store(START + DAY, Ordering::SeqCst);
        assert_eq!((following.follow(), following.now()), (Some(Step::Forward(DAY)), START + DAY));
        assert_eq!((clone.follow(), clone.now()), (None, START + DAY));
        time.store(START + 5, Ordering::SeqCst);
        assert_eq!([following.now(), clone.now()], [START + DAY + 5; 2]);
        assert_eq!((clock.follow(), clock.now(), other.now()), (None, START + 5, START + 5));
    }

    #[test]
    fn late_wall_clock_is_logged_once_and_not_followed() {
        let (time, wall, clock) = times();
        let following = clock.following();
        for _ in 0..2 {
            wall.store(START - APART, Ordering::SeqCst);
            assert_eq!(following.follow(), None);
            wall.store(START - DAY, Ordering::SeqCst);
            let told = [following.follow(), following.clone().follow(), following.follow()];
            assert_eq!((told, following.now()), ([Some(Step::Behind(DAY)), None, None], START));
        }
        // They have met, and the wall clock runs ahead.
        time.store(START + 1, Ordering::SeqCst);
        wall.store(START + DAY, Ordering::SeqCst);
        assert_eq!((following.follow(), following.now()), (Some(Step::Forward(DAY - 1)), START + DAY));
    }
}
