//! One call of the script: its arguments, and what its reply says.
//!
//! The script decides and charges; which verdicts that makes is derived here from the counts it decided by,
//! with the same arithmetic. When it sends its segments along, the whole decision is made once more by the
//! pure core, which also knows when a denied cost will fit.

use std::sync::LazyLock;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::keys::{Tag, counter_width, segments};
use crate::limit::decision::{decide, decide_roomy};
use crate::limit::policy::Policy;
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::limit::window::{BUCKETS, Bucket, Grid, SlidingWindow};
use crate::store::Taken;

/// The sliding window's script.
pub const WINDOW_SOURCE: &str = include_str!("window.lua");

/// The same with its SHA-1, by which servers know it.
static WINDOW: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(WINDOW_SOURCE));

/// How far the shard's clock may be from where the caller believes it, us: the segments sent cover that.
const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// Bytes before a segment's first counter.
const HEADER: usize = 8;

/// A list of costs for one key under one policy.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub tag: &'a Tag,
    pub policy: &'a Policy,
    pub costs: &'a [u64],
}

/// How the script is named to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `EVALSHA`, the usual way.
    Hash,
    /// `EVAL`, after a NOSCRIPT.
    Source,
}

/// What a reply says.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Taken(Taken),
    /// TIME was not where the caller believed; nothing was decided.
    NotCovered {
        time: Micros,
    },
    /// Not what the script answers.
    Malformed,
}

impl Call<'_> {
    /// The command, for a shard whose TIME is believed to be `now` (us). `time` is decided by instead of
    /// TIME; tests only.
    pub fn command(&self, by: By, now: Micros, time: Option<Micros>) -> Cmd {
        let (from, to) = (now.saturating_sub(TOLERANCE), now + TOLERANCE);
        let mut cmd = match by {
            By::Hash => redis::cmd("EVALSHA"),
            By::Source => redis::cmd("EVAL"),
        };
        cmd.arg(match by {
            By::Hash => WINDOW.get_hash(),
            By::Source => WINDOW_SOURCE,
        });
        let quotas = &self.policy.quotas;
        let sent = || quotas.iter().map(|quota| (quota, segments(Grid::new(quota.window), from, to)));
        let keys: u64 = sent().map(|(_, segments)| segments.end() - segments.start() + 1).sum();
        cmd.arg(keys);
        for (quota, segments) in sent() {
            for segment in segments {
                cmd.arg(self.tag.segment(&self.policy.name, quota, segment));
            }
        }
        cmd.arg(from).arg(to).arg(quotas.len());
        for quota in quotas {
            cmd.arg(Grid::new(quota.window).bucket()).arg(quota.limit.get());
        }
        for (cost, times) in runs(self.costs) {
            cmd.arg(cost).arg(times);
        }
        if let Some(time) = time {
            cmd.arg(time);
        }
        cmd
    }

    /// Reads the reply to the command.
    pub fn reply(&self, value: &Value) -> Reply {
        self.read(value).unwrap_or(Reply::Malformed)
    }

    fn read(&self, value: &Value) -> Option<Reply> {
        let Value::Array(values) = value else { return None };
        let (time, rest) = values.split_first()?;
        let time = unsigned(time)?;
        if rest.is_empty() {
            return Some(Reply::NotCovered { time });
        }
        let quotas = &self.policy.quotas;
        let (counted, segments) = rest.split_at_checked(quotas.len())?;
        let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
        let ruling = if segments.is_empty() {
            decide_roomy(self.policy, &counted, time, self.costs)
        } else {
            let (triples, []) = segments.as_chunks::<3>() else { return None };
            if triples.len() != quotas.len() {
                return None;
            }
            let history = |(quota, triple): (&crate::limit::quota::Quota, &[Value; 3])| {
                history(Grid::new(quota.window), counter_width(quota.limit.get()), time, triple)
            };
            let mut histories: Vec<SlidingWindow> = quotas.iter().zip(triples).map(history).collect::<Option<_>>()?;
            decide(self.policy, &mut histories, time, self.costs)
        };
        Some(Reply::Taken(Taken { ruling, at: time }))
    }
}

/// Equal costs side by side are sent once, with their number.
fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}

/// The previous, current and next segment as one history.
fn history(grid: Grid, width: usize, now: Micros, triple: &[Value; 3]) -> Option<SlidingWindow> {
    let current = grid.segment_at(now);
    let mut buckets = Vec::new();
    for (segment, value) in (current.saturating_sub(1)..).zip(triple) {
        match value {
            Value::Nil => {}
            Value::BulkString(bytes) => buckets.extend(buckets_of(segment, width, bytes.get(HEADER..)?)),
            _ => return None,
        }
    }
    Some(SlidingWindow::from_buckets(buckets))
}

/// The non-empty buckets of a segment from its running sums.
fn buckets_of(segment: u64, width: usize, sums: &[u8]) -> impl Iterator<Item = Bucket> {
    let sums = sums.chunks_exact(width).map(|sum| sum.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let with_previous = sums.scan(0, |previous, sum| Some((std::mem::replace(previous, sum), sum)));
    (segment * BUCKETS..)
        .zip(with_previous)
        .map(|(index, (previous, sum))| Bucket { index, count: sum.saturating_sub(previous) })
        .filter(|bucket| bucket.count > 0)
}

fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
