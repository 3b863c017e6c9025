//! Notices that a file has changed, by looking from time to time.
//!
//! A look follows symbolic links and compares which file it is, its size and its times. So it sees a file that was
//! written, one that an editor renamed into place, and a ConfigMap of Kubernetes, which swaps the link of a folder;
//! also on network file systems, which tell nobody about changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Reloader;

/// How often it looks. What has changed is loaded at the next look, if it has not changed again: so a file is
/// rarely read while it is written.
const EVERY: Duration = Duration::from_millis(500);

/// Why it is loaded then, for the log.
pub(super) const WHY: &str = "a file has changed";

impl Reloader {
    /// Loads the configuration again whenever one of its files has changed, or could not be read the last time. Does
    /// not end.
    pub async fn watch(self: &Arc<Self>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changing = None;
        loop {
            ticks.tick().await;
            let looked = self.look_again().await;
            if looked == **self.watched.load() {
                changing = None;
            } else if changing.as_ref() == Some(&looked) {
                changing = None;
                // It has logged what is wrong.
                let _ = self.reload(WHY).await;
            } else {
                changing = Some(looked);
            }
        }
    }
}
