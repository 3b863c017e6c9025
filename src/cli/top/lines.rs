//! `--json`: a line each second, for programs.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::feed::News;
use super::fleet::{Fleet, NodeRow, ShardRow, Span};
use super::snapshot::{Checks, Denied};
use crate::cli::{print_to_reader, shown};

const SECOND: Duration = Duration::from_secs(1);

/// The sum of all nodes. Absent members are not known.
#[derive(Debug, Serialize)]
struct Sum {
    /// The newest second.
    at: u64,
    nodes: Vec<NodeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<u64>,
    /// The checks since the line before.
    checks: Vec<Checks>,
    top: Vec<Denied>,
    shards: Vec<ShardRow>,
}

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
    let checks = fleet.take_fresh();
    let sum = fleet.sum(&Span { minutes: 1, policy: None });
    let super::fleet::Sum { at, nodes, p50_us, p99_us, top, shards, .. } = sum;
    let sum = Sum { at, nodes, p50_us, p99_us, checks, top, shards };
    serde_json::to_string(&sum).map_err(|error| error.to_string())
}
