//! Notices that a file has changed, by looking from time to time.
//!
//! A look follows symbolic links and compares which file it is, its size and its times. So it sees a file that was
//! written, one that an editor renamed into place, and a ConfigMap of Kubernetes, which swaps the link of a folder;
//! also on network file systems, which tell nobody about changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Reloader;
use crate::config::Watched;

/// How often it looks. What has changed is loaded at the next look, if it has not changed again: so a file is
/// rarely read while it is written.
const EVERY: Duration = Duration::from_millis(500);

/// After how many looks it is loaded although it changes all the time, by other files that take its place: each of
/// those was whole before it did. One that is being written may not be.
const MOST_LOOKS: u32 = 10;

/// Why it is loaded then, for the log.
pub(super) const WHY: &str = "a file has changed";

impl Reloader {
    /// Loads the configuration again whenever one of its files has changed, or could not be read the last time. Does
    /// not end, also where there is nothing to load again.
    pub async fn watch(self: &Arc<Self>) {
        if !self.lasting {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // How they were at the last look, and at how many they differed from what is in force.
        let (mut changing, mut looks): (Option<Vec<Watched>>, u32) = (None, 0);
        loop {
            ticks.tick().await;
            let looked = self.look_again().await;
            if looked == **self.watched.load() {
                (changing, looks) = (None, 0);
            } else if changing.as_ref().is_some_and(|before| is_whole(&looked, before, looks)) {
                (changing, looks) = (None, 0);
                // It has logged what is wrong.
                let _ = self.reload(WHY).await;
            } else {
                (changing, looks) = (Some(looked), looks + 1);
            }
        }
    }
}

/// Whether nobody is writing files that have changed, as they are now and were at the look before, which was not the
/// first of so many.
fn is_whole(now: &[Watched], before: &[Watched], looks: u32) -> bool {
    let is_rested = |(now, before): (&Watched, &Watched)| {
        now == before || looks >= MOST_LOOKS && now.has_taken_the_place_of(before)
    };
    now.len() == before.len() && now.iter().zip(before).all(is_rested)
}
