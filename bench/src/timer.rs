//! Sleeps for microseconds: the runtime's timer counts whole milliseconds, too coarse for thousands
//! of calls a second.

use std::io;

use tollgate::limit::time::Micros;

#[cfg(target_os = "linux")]
mod precise {
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    use super::{Micros, io};

    /// A kernel timer in the runtime's poll.
    #[derive(Debug)]
    pub(in super::super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        /// Needs a runtime context.
        #[expect(deprecated, reason = "its successor is unsafe; an OwnedFd is what makes `new` sound")]
        pub(in super::super) fn new() -> io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            Ok(Self(AsyncFd::new(timer)?))
        }

        pub(in super::super) async fn sleep(&self, span: Micros) -> io::Result<()> {
            let span = span.max(1);
            let value = Timespec { tv_sec: (span / 1_000_000) as i64, tv_nsec: (span % 1_000_000 * 1000) as i64 };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            let mut ready = self.0.readable().await?;
            // Reads the number of expirations; unread, the timer stays ready.
            let _ = rustix::io::read(self.0.get_ref(), &mut [0; 8]);
            ready.clear_ready();
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod precise {
    use std::time::Duration;

    use super::{Micros, io};

    /// The runtime's timer.
    #[derive(Debug)]
    pub(in super::super) struct Timer;

    impl Timer {
        pub(in super::super) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(in super::super) async fn sleep(&self, span: Micros) -> io::Result<()> {
            tokio::time::sleep(Duration::from_micros(span)).await;
            Ok(())
        }
    }
}

pub(super) use precise::Timer;
