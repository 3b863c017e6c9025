//! The run: threads are started, watched and ended, and what they counted becomes one report.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::limit::time::Micros;

use super::crew::{Hired, hire};
use super::plan::Plan;
use super::report::Report;
use super::scan::complaint;
use super::tally::Tally;
use super::watch::Watch;

const TICK: Duration = Duration::from_millis(100);

/// What all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    stopped: AtomicBool,
    /// Checks that may still be asked.
    left: AtomicU64,
    /// Calls that ended, also of the warm-up.
    answered: AtomicU64,
    abandoned: watch::Sender<bool>,
    /// What the first failure said that said anything.
    complaint: OnceLock<String>,
}

/// The instants of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) started: Micros,
    /// When the warm-up is over.
    pub(super) counted_from: Micros,
    /// No call goes out any more.
    pub(super) until: Micros,
}

impl Shared {
    /// For `checks` to ask.
    pub(super) fn new(checks: u64) -> Self {
        Self {
            clock: Clock::system(),
            stopped: AtomicBool::new(false),
            left: AtomicU64::new(checks),
            answered: AtomicU64::new(0),
            abandoned: watch::Sender::new(false),
            complaint: OnceLock::new(),
        }
    }

    /// Takes `checks` from what may still be asked.
    pub(super) fn claim(&self, checks: u64) -> bool {
        let less = |left: u64| left.checked_sub(checks);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Whether calls of `checks` have taken all of it.
    pub(super) fn is_claimed(&self, checks: u64) -> bool {
        self.left.load(Ordering::Relaxed) < checks
    }

    pub(super) fn note_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Checks that have been asked, of those that are counted.
    pub(super) fn claimed(&self, of: u64) -> u64 {
        of.saturating_sub(self.left.load(Ordering::Relaxed))
    }

    /// Keeps what a failure says, if it is the first that says anything.
    pub(super) fn note_complaint(&self, status: u16, body: &[u8]) {
        if self.complaint.get().is_none()
            && let Some(complaint) = complaint(status, body)
        {
            // Another thread may have been faster.
            let _ = self.complaint.set(complaint);
        }
    }

    /// No more calls; what is under way is waited for.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Gives up what is under way.
    pub(super) fn abandon(&self) {
        self.stop();
        self.abandoned.send_replace(true);
    }

    /// Ready when not even the answers that are under way are waited for.
    pub(super) async fn abandoned(&self) {
        let _ = self.abandoned.subscribe().wait_for(|abandoned| *abandoned).await;
    }
}

/// Runs the plan to its end, or until ctrl-c.
///
/// # Errors
/// When it cannot even begin.
pub(super) fn run(plan: Plan) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(lead(Arc::new(plan)))
}

async fn lead(plan: Arc<Plan>) -> Result<Report, String> {
    let shared = Arc::new(Shared::new(plan.checks.unwrap_or(u64::MAX)));
    let mut hired = Vec::new();
    for number in 0..plan.threads {
        hired.push(hire(number, plan.clone(), shared.clone())?);
    }
    for crew in &mut hired {
        (&mut crew.ready).await.map_err(|_| "a thread failed".to_owned())??;
    }
    let mut signal = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let started = shared.clock.now();
    let counted_from = started.saturating_add(plan.warmup);
    let until = plan.duration.map_or(Micros::MAX, |duration| counted_from.saturating_add(duration));
    let timing = Timing { started, counted_from, until };
    let tallies = hired.into_iter().map(|Hired { begin, tally, .. }| {
        let _ = begin.send(timing);
        async { tally.await.map_err(|_| "a thread failed".to_owned())? }
    });
    let tallies = try_join_all(tallies);
    tokio::pin!(tallies);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = Watch::new(&plan, &shared, timing);
    let tallies = loop {
        tokio::select! {
            tallies = &mut tallies => break tallies?,
            _ = ticks.tick() => watch.tick(),
            _ = signal.recv() => watch.interrupt(),
        }
    };
    let mut tally = Tally::new()?;
    tallies.into_iter().for_each(|other| tally.merge(other));
    let end = watch.end(&tally);
    let complaint = shared.complaint.get().cloned();
    Ok(Report::new(&plan, tally, end.at.saturating_sub(counted_from), end.note, complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_that_says_anything_is_told() {
        let shared = Shared::new(1);
        for body in ["", "<html>", r#"{"status": 502}"#, r#"{"detail": "first"}"#, r#"{"detail": "second"}"#] {
            shared.note_complaint(502, body.as_bytes());
        }
        assert_eq!(shared.complaint.get().map(String::as_str), Some("first"));
    }
}
