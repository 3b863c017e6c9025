//! One call of the script: its arguments, and what its reply says.
//!
//! The script decides and charges; which verdicts that makes is derived here from the counts it decided by,
//! with the same arithmetic. When it sends its segments along, the whole decision is made once more by the
//! pure core, which also knows when a denied cost will fit.

use std::sync::LazyLock;

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use super::keys::{Tag, counter_width, segments};
use super::log::{self, Page};
use crate::limit::bucket::{Terms, TokenBucket};
use crate::limit::decision::{Ruling, decide, decide_roomy};
use crate::limit::fixed::FixedWindow;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::limit::window::{BUCKETS, Bucket, Grid, SlidingWindow};
use crate::store::{Meta, Taken};

/// The sources of all scripts: what a connection loads.
pub const SOURCES: [&str; 8] = [
    include_str!("window.lua"),
    concat!(include_str!("pair_head.lua"), include_str!("fixed.lua"), include_str!("pair.lua")),
    concat!(include_str!("pair_head.lua"), include_str!("bucket.lua"), include_str!("pair.lua")),
    include_str!("log.lua"),
    include_str!("log_read.lua"),
    include_str!("first_window.lua"),
    include_str!("first_window_back.lua"),
    include_str!("first_pair_back.lua"),
];

/// The place of the script that only reads a log.
const LOG_READ: usize = 4;

/// The places of those that charge first, and give back, while a slot moves.
pub(super) const FIRST_WINDOW: usize = 5;
pub(super) const FIRST_WINDOW_BACK: usize = 6;
pub(super) const FIRST_PAIR_BACK: usize = 7;

/// The same with their SHA-1, by which servers know them.
static SCRIPTS: LazyLock<[redis::Script; 8]> = LazyLock::new(|| SOURCES.map(redis::Script::new));

/// The place of an algorithm's script in both.
fn place(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::SlidingWindow => 0,
        Algorithm::FixedWindow => 1,
        Algorithm::TokenBucket => 2,
        Algorithm::SlidingLog => 3,
    }
}

/// How far the shard's clock may be from where the caller believes it, us: the segments sent cover that, and so do the
/// windows by the calendar.
const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// Bytes before a segment's first counter.
const HEADER: usize = 8;

/// A list of costs for one key under one policy.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub tag: &'a Tag,
    pub policy: &'a Policy,
    pub costs: &'a [u64],
    /// One for each cost, or none at all; only logs keep them.
    pub metas: &'a [Meta],
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
        let script = place(self.policy.algorithm);
        let mut cmd = named(by, script);
        match self.policy.algorithm {
            Algorithm::SlidingWindow => self.window_arguments(&mut cmd, now),
            Algorithm::FixedWindow | Algorithm::TokenBucket => self.pair_arguments(&mut cmd, now),
            Algorithm::SlidingLog => log::arguments(self.tag, self.policy, self.costs, self.metas, &mut cmd),
        }
        if self.policy.algorithm != Algorithm::SlidingLog {
            for (cost, times) in runs(self.costs) {
                cmd.arg(cost).arg(times);
            }
        }
        if let Some(time) = time {
            cmd.arg(time);
        }
        cmd
    }

    /// The keys that the command at `now` (us) declares.
    pub fn keys(&self, now: Micros) -> Vec<String> {
        let command = self.command(By::Hash, now, None);
        let simple = |argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        // Behind the command's name, the script and the number of keys.
        let mut arguments = command.args_iter().skip(2).map(simple);
        let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        arguments.take(count).collect()
    }

    fn window_arguments(&self, cmd: &mut Cmd, now: Micros) {
        let (from, to) = (now.saturating_sub(TOLERANCE), now + TOLERANCE);
        let quotas = &self.policy.quotas;
        let sent = || quotas.iter().map(|quota| (quota, segments(Grid::new(quota.window), from, to)));
        let keys: u64 = sent().map(|(_, segments)| segments.end() - segments.start() + 1).sum();
        cmd.arg(keys);
        for (quota, segments) in sent() {
            for segment in segments {
                cmd.arg(self.tag.segment(self.policy.counters(), quota, segment));
            }
        }
        cmd.arg(from).arg(to).arg(quotas.len());
        for quota in quotas {
            cmd.arg(Grid::new(quota.window).bucket()).arg(quota.limit.get());
        }
    }

    fn pair_arguments(&self, cmd: &mut Cmd, now: Micros) {
        let quotas = &self.policy.quotas;
        cmd.arg(quotas.len());
        for quota in quotas {
            cmd.arg(self.tag.state(self.policy.counters(), quota));
        }
        cmd.arg(quotas.len());
        for quota in quotas {
            let limit = quota.limit.get();
            match quota.rule {
                Rule::TokenBucket(rate) => {
                    let terms = Terms::of(rate);
                    cmd.arg(terms.repaid).arg(terms.price).arg(limit)
                }
                Rule::FixedWindow(Anchor::Calendar(calendar)) => {
                    let window = calendar.window(now.saturating_sub(TOLERANCE));
                    let next = calendar.window(window.end);
                    cmd.arg(window.start).arg(limit).arg(format!("{} {}", window.end, next.end))
                }
                Rule::FixedWindow(Anchor::Clock) => cmd.arg(quota.window).arg(limit).arg(1),
                _ => cmd.arg(quota.window).arg(limit).arg(0),
            };
        }
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
        let ruling = match self.policy.algorithm {
            Algorithm::SlidingWindow => self.window_ruling(time, rest)?,
            Algorithm::FixedWindow | Algorithm::TokenBucket => self.pair_ruling(time, rest)?,
            Algorithm::SlidingLog => {
                let mut states = log::digests(self.policy, rest)?;
                decide(self.policy, &mut states, time, self.costs)
            }
        };
        Some(Reply::Taken(Taken { ruling, at: time }))
    }

    fn window_ruling(&self, time: Micros, values: &[Value]) -> Option<Ruling> {
        let quotas = &self.policy.quotas;
        let (counted, segments) = values.split_at_checked(quotas.len())?;
        if segments.is_empty() {
            let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
            return Some(decide_roomy(self.policy, &counted, time, self.costs));
        }
        let (triples, []) = segments.as_chunks::<3>() else { return None };
        let history = |(quota, triple): (&Quota, &[Value; 3])| {
            history(Grid::new(quota.window), counter_width(quota.limit.get()), time, triple).map(State::SlidingWindow)
        };
        self.ruling(time, quotas.iter().zip(triples).map(history))
    }

    fn pair_ruling(&self, time: Micros, values: &[Value]) -> Option<Ruling> {
        let (pairs, []) = values.as_chunks::<2>() else { return None };
        let state = |(quota, [first, second]): (&Quota, &[Value; 2])| {
            let (first, second) = (unsigned(first)?, unsigned(second)?);
            Some(match quota.rule {
                Rule::TokenBucket(_) => State::TokenBucket(TokenBucket { at: first, debt: second }),
                _ => State::FixedWindow(FixedWindow { start: first, count: second }),
            })
        };
        self.ruling(time, self.policy.quotas.iter().zip(pairs).map(state))
    }

    /// The core's decision, from the states as the script found them: one for each quota.
    fn ruling(&self, time: Micros, states: impl Iterator<Item = Option<State>>) -> Option<Ruling> {
        let mut states = states.collect::<Option<SmallVec<[State; 3]>>>()?;
        let complete = states.len() == self.policy.quotas.len();
        complete.then(|| decide(self.policy, &mut states, time, self.costs))
    }
}

/// A call that reads portion `number` of what a log tells.
pub fn read_log(tag: &Tag, policy: &Policy, number: usize, by: By, time: Option<Micros>) -> Cmd {
    let mut cmd = named(by, LOG_READ);
    Page::arguments(tag, policy, number, &mut cmd);
    if let Some(time) = time {
        cmd.arg(time);
    }
    cmd
}

/// The beginning of a call.
pub(super) fn named(by: By, script: usize) -> Cmd {
    let mut cmd = match by {
        By::Hash => redis::cmd("EVALSHA"),
        By::Source => redis::cmd("EVAL"),
    };
    cmd.arg(match by {
        By::Hash => SCRIPTS[script].get_hash(),
        By::Source => SOURCES[script],
    });
    cmd
}

/// Equal costs side by side are sent once, with their number.
fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}

/// The previous, current and next segment as one history.
pub(super) fn history(grid: Grid, width: usize, now: Micros, triple: &[Value; 3]) -> Option<SlidingWindow> {
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

pub(super) fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
