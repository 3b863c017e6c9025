//! Polls the files for changes.
//!
//! A look follows symbolic links and compares the file's identity, size and times. So it sees a
//! file that was written, and one that an editor renamed into place. It also sees a ConfigMap of
//! Kubernetes, which swaps the link of a folder. Polling works on network file systems too, which
//! report no changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::{ON_NODE, Reloader};
use crate::config::Watched;

/// The interval of the looks. A changed file is loaded at the look after the one that sees the
/// change, so within a second.
const EVERY: Duration = Duration::from_millis(500);

/// After this many looks a file that keeps growing or vanishing is loaded, too. A program that
/// writes a long file is usually done by then.
const MOST_LOOKS: u32 = 10;

/// The reason for the reload, for the log.
pub(super) const WHY: &str = "a file has changed";

impl Reloader {
    /// Reloads the configuration whenever one of its files has changed, or was unreadable the last
    /// time. Never returns, even without a file to reload.
    pub async fn watch(self: &Arc<Self>) {
        if !self.lasting {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The files at the last look, and the number of looks at which they differed from those in
        // force.
        let (mut changing, mut looks): (Option<Vec<Watched>>, u32) = (None, 0);
        loop {
            ticks.tick().await;
            let looked = self.look_again().await;
            if looked == **self.watched.load() {
                (changing, looks) = (None, 0);
            } else if changing.as_ref().is_some_and(|before| is_whole(&looked, before, looks)) {
                (changing, looks) = (None, 0);
                // `reload` logs the faults.
                let _ = self.reload(WHY, ON_NODE).await;
            } else {
                (changing, looks) = (Some(looked), looks + 1);
            }
        }
    }
}

/// Whether the changed files look complete: no program seems to write or replace one of them. A
/// file that never rests is thus loaded, too.
fn is_whole(now: &[Watched], before: &[Watched], looks: u32) -> bool {
    let is_under_way =
        |(now, before): (&Watched, &Watched)| now.has_grown(before) || now.is_unread() && !before.is_unread();
    now.len() == before.len() && (looks >= MOST_LOOKS || !now.iter().zip(before).any(is_under_way))
}
