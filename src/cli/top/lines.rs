//! `--json`: a line each second, for programs.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::feed::News;
use super::fleet::{Fleet, Span, Sum};
use crate::cli::{print_to_reader, shown};

const SECOND: Duration = Duration::from_secs(1);

/// Prints `most` lines, or lines until the process ends or nobody reads them.
///
/// # Errors
/// When the output fails.
pub(super) async fn write(
    fleet: &mut Fleet,
    news: &mut mpsc::Receiver<(usize, News)>,
    most: Option<u64>,
) -> Result<(), String> {
    let mut left = most;
    let mut ticks = interval(SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once.
    ticks.tick().await;
    while left != Some(0) {
        tokio::select! {
            biased;
            Some((place, new)) = news.recv() => fleet.note(place, new),
            _ = ticks.tick() => {
                if !print_to_reader(&shown::json(&(line(fleet)? + "\n")))? {
                    break;
                }
                left = left.map(|left| left - 1);
            }
        }
    }
    Ok(())
}

fn line(fleet: &mut Fleet) -> Result<String, String> {
    let sum = Sum { checks: fleet.take_fresh(), ..fleet.sum(&Span { minutes: 1, policy: None }) };
    serde_json::to_string(&sum).map_err(|error| error.to_string())
}
