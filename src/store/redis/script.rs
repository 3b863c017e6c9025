//! One call of the script: its arguments, and what its reply says.
//!
//! The script decides and charges; which verdicts that makes is derived here from the counts it decided by,
//! with the same arithmetic. When it sends its segments along, the whole decision is made once more by the
//! pure core, which also knows when a denied cost will fit.

use std::sync::Arc;

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use super::amend;
use super::check::{self, Declared, is_check};
use super::keys::{Tag, counter_width};
use super::log::{self, Page};
use super::sources::Script;
use super::told::{Quotas, Told};
use crate::limit::amend::{Receipt, charge, is_tentative, look};
use crate::limit::bucket::TokenBucket;
use crate::limit::decision::{decide, decide_roomy};
use crate::limit::fixed::FixedWindow;
use crate::limit::ledger::{Hole, Ledger};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::limit::window::{BUCKETS, Bucket, Grid, SlidingWindow};
use crate::store::{Done, Meta, Taken, Work};

/// Bytes before a segment's first counter: until when a reservation in it may be taken back, us.
const HEADER: usize = 8;

/// One piece of work for one key under one policy.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub tag: &'a Tag,
    pub policy: &'a Arc<Policy>,
    pub work: &'a Work,
    /// What the script is told to charge: of a [`Work::Take`] its costs, and those of others that were merged with it.
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
    Done(Done),
    /// TIME was not where the caller believed; nothing was decided.
    NotCovered {
        time: Micros,
    },
    /// Among others it could not be decided, and nothing was charged. Alone it is, or is told why not.
    Undecided,
    /// Not what the script answers.
    Malformed,
}

impl<'a> Call<'a> {
    /// A look at what is left.
    pub fn look(tag: &'a Tag, policy: &'a Arc<Policy>) -> Self {
        static LOOK: Work = Work::Look(0);
        Self { tag, policy, work: &LOOK, costs: &[0], metas: &[] }
    }

    /// The command, for a shard whose TIME is believed to be `now` (us). `time` is decided by instead of
    /// TIME; tests only.
    pub fn command(&self, by: By, now: Micros, time: Option<Micros>) -> Cmd {
        if self.is_check() {
            return check::command(std::slice::from_ref(self), Declared::Yes, by, now, time);
        }
        let mut cmd = named(by, Script::of(self.policy, self.work));
        let more_keys = amend::keys(self);
        match self.policy.algorithm {
            Algorithm::SlidingLog => log::arguments(self, &mut cmd, &more_keys),
            Algorithm::SlidingWindow | Algorithm::FixedWindow | Algorithm::TokenBucket => {
                let told = Told::of(self, now);
                cmd.arg(told.key_count() + more_keys.len());
                told.add_names(self, &mut cmd);
                cmd.arg(&more_keys[..]);
                match &told.quotas {
                    Quotas::Segments(_) => self.window_arguments(&mut cmd, told.bounds),
                    Quotas::Pairs(pairs) => self.pair_arguments(&mut cmd, pairs),
                }
                for (cost, times) in runs(self.costs) {
                    cmd.arg(cost).arg(times);
                }
            }
        }
        if let Some(time) = time {
            cmd.arg(time);
        }
        amend::arguments(self, &mut cmd);
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

    fn window_arguments(&self, cmd: &mut Cmd, (from, to): (Micros, Micros)) {
        cmd.arg(from).arg(to).arg(self.policy.quotas.len());
        for quota in &self.policy.quotas {
            cmd.arg(Grid::new(quota.window).bucket()).arg(quota.limit.get());
        }
    }

    fn pair_arguments(&self, cmd: &mut Cmd, pairs: &[[u64; 5]]) {
        cmd.arg(pairs.len());
        for (quota, numbers) in self.policy.quotas.iter().zip(pairs) {
            cmd.arg(&parameters(quota, *numbers));
        }
    }

    /// Whether one call may decide for it and for others by the same script.
    pub fn is_check(&self) -> bool {
        is_check(self.policy, self.work)
    }

    /// Reads the reply to the command.
    pub fn reply(&self, value: &Value) -> Reply {
        if self.is_check() {
            return check::replies(std::slice::from_ref(self), value).pop().unwrap_or(Reply::Malformed);
        }
        self.read(value).unwrap_or(Reply::Malformed)
    }

    fn read(&self, value: &Value) -> Option<Reply> {
        if let (Work::Once { cost, .. }, Value::Array(values)) = (self.work, value)
            && let [Value::BulkString(word), rest @ ..] = &values[..]
        {
            return amend::charged(self.policy, word, *cost, rest).map(Reply::Done);
        }
        let (time, rest) = opened(value)?;
        if rest.is_empty() {
            return Some(Reply::NotCovered { time });
        }
        Some(Reply::Done(match self.work {
            Work::Take(_) | Work::Look(_) | Work::Once { .. } => Done::Taken(self.taken(time, rest)?.0),
            Work::Reserve { .. } => {
                let (taken, receipt) = self.taken(time, rest)?;
                Done::Reserved(taken, receipt)
            }
            Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => {
                let (given, rest) = rest.split_first()?;
                let ruling = decide(self.policy, &mut self.states(time, rest)?, time, &[0]);
                Done::Refunded(Taken { ruling, at: time, tentative: false }, unsigned(given)?)
            }
        }))
    }

    /// The verdicts on the costs, and of a reservation that was made its receipt.
    pub(super) fn taken(&self, time: Micros, values: &[Value]) -> Option<(Taken, Option<Receipt>)> {
        let quotas = &self.policy.quotas;
        let mut rest = values;
        if self.policy.algorithm == Algorithm::SlidingWindow {
            let (counted, segments) = values.split_at_checked(quotas.len())?;
            if segments.is_empty() {
                let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
                let ruling = decide_roomy(self.policy, &counted, time, self.costs)?;
                let taken = Taken { ruling, at: time, tentative: false };
                let receipt = amend::roomy_receipt(self, &taken);
                return Some((taken, receipt));
            }
            rest = segments;
        }
        let mut states = self.states(time, rest)?;
        let tentative = is_tentative(self.policy, &states, time);
        let (ruling, receipt) = match self.work {
            Work::Look(cost) => (look(self.policy, &states, time, *cost), None),
            Work::Reserve { cost, hold } => charge(self.policy, &mut states, time, *cost, time + hold),
            _ => (decide(self.policy, &mut states, time, self.costs), None),
        };
        Some((Taken { ruling, at: time, tentative }, receipt))
    }

    /// The states that a reply holds: one for each quota.
    fn states(&self, time: Micros, values: &[Value]) -> Option<States> {
        match self.policy.algorithm {
            Algorithm::SlidingWindow => self.windows(time, values),
            Algorithm::FixedWindow | Algorithm::TokenBucket => self.pairs(values),
            Algorithm::SlidingLog => log::digests(self.policy, values),
        }
    }

    fn windows(&self, time: Micros, values: &[Value]) -> Option<States> {
        let (triples, []) = values.as_chunks::<3>() else { return None };
        let history = |(quota, triple): (&Quota, &[Value; 3])| {
            history(Grid::new(quota.window), counter_width(quota.limit.get()), time, triple).map(State::SlidingWindow)
        };
        self.each_quota(self.policy.quotas.iter().zip(triples).map(history))
    }

    fn pairs(&self, values: &[Value]) -> Option<States> {
        let quotas = &self.policy.quotas;
        let (pairs, tails) = values.split_at_checked(2 * quotas.len())?;
        let (pairs, []) = pairs.as_chunks::<2>() else { return None };
        let tails = tails.iter().map(Some).chain(std::iter::repeat(None));
        self.each_quota(quotas.iter().zip(pairs).zip(tails).map(|((quota, pair), tail)| pair_state(quota, pair, tail)))
    }

    fn each_quota(&self, states: impl Iterator<Item = Option<State>>) -> Option<States> {
        let states = states.collect::<Option<States>>()?;
        (states.len() == self.policy.quotas.len()).then_some(states)
    }
}

type States = SmallVec<[State; 3]>;

/// What `pair_head.lua` is told of a quota.
pub(super) fn parameters(quota: &Quota, [first, second, kind, edge, last]: [u64; 5]) -> [String; 3] {
    let third = match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(_)) => format!("{edge} {last}"),
        _ => kind.to_string(),
    };
    [first.to_string(), second.to_string(), third]
}

/// A state that is a pair of numbers, and where charges may be taken back, a tail.
fn pair_state(quota: &Quota, [first, second]: &[Value; 2], tail: Option<&Value>) -> Option<State> {
    let (first, second) = (unsigned(first)?, unsigned(second)?);
    let tail = match tail {
        None => &[][..],
        Some(Value::BulkString(bytes)) => bytes.as_slice(),
        Some(_) => return None,
    };
    let (numbers, []) = tail.as_chunks::<8>() else { return None };
    let numbers: SmallVec<[u64; 8]> = numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
    if numbers.iter().any(|number| *number > EXACT) {
        return None;
    }
    Some(match quota.rule {
        Rule::TokenBucket(_) => {
            let ledger = if numbers.is_empty() { None } else { Some(Box::new(ledger(&numbers)?)) };
            State::TokenBucket(TokenBucket { at: first, debt: second, ledger })
        }
        _ => {
            let mark = numbers.first().copied().unwrap_or(0);
            State::FixedWindow(FixedWindow { start: first, count: second, mark })
        }
    })
}

fn ledger(numbers: &[u64]) -> Option<Ledger> {
    let ([mark, born, last, at, shift, turned, rebased], holes) = numbers.split_first_chunk()?;
    let (holes, []) = holes.as_chunks::<2>() else { return None };
    let holes = holes.iter().map(|[behind, debt]| Hole { behind: *behind, debt: *debt }).collect();
    let (mark, born, last) = (*mark, *born, *last);
    Some(Ledger { mark, born, last, at: *at, shift: *shift, turned: *turned, rebased: *rebased, holes })
}

/// A call that reads portion `number` of what a log tells.
pub fn read_log(tag: &Tag, policy: &Policy, number: usize, by: By, time: Option<Micros>) -> Cmd {
    let mut cmd = named(by, Script::LOG_READ);
    Page::arguments(tag, policy, number, &mut cmd);
    if let Some(time) = time {
        cmd.arg(time);
    }
    cmd
}

/// Room for what most calls need, so that they are written without growing.
const ARGUMENTS: usize = 16;
const BYTES: usize = 512;

/// The beginning of a call.
pub(super) fn named(by: By, script: Script) -> Cmd {
    let mut cmd = Cmd::with_capacity(ARGUMENTS, BYTES);
    match by {
        By::Hash => cmd.arg("EVALSHA").arg(script.hash()),
        By::Source => cmd.arg("EVAL").arg(script.source()),
    };
    cmd
}

/// Equal costs side by side are sent once, with their number.
pub(super) fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}

/// TIME, which every decision begins with, and what follows it.
pub(super) fn opened(value: &Value) -> Option<(Micros, &[Value])> {
    let Value::Array(values) = value else { return None };
    let (time, rest) = values.split_first()?;
    Some((unsigned(time)?, rest))
}

/// The previous, current and next segment as one history.
pub(super) fn history(grid: Grid, width: usize, now: Micros, triple: &[Value; 3]) -> Option<SlidingWindow> {
    let current = grid.segment_at(now);
    let (mut buckets, mut marks) = (Vec::new(), SmallVec::<[(u64, Micros); 3]>::new());
    for (segment, value) in (current.saturating_sub(1)..).zip(triple) {
        match value {
            Value::Nil => {}
            Value::BulkString(bytes) => {
                let (header, sums) = bytes.split_first_chunk::<HEADER>()?;
                let mark = Micros::from_be_bytes(*header);
                let before = buckets.len();
                buckets.extend(buckets_of(segment, width, sums));
                if mark > EXACT || buckets[before..].iter().any(|bucket| bucket.count > EXACT) {
                    return None;
                }
                marks.push((segment, mark));
            }
            _ => return None,
        }
    }
    let mut history = SlidingWindow::from_buckets(buckets);
    marks
        .into_iter()
        .filter(|(_, mark)| *mark > 0)
        .for_each(|(segment, mark)| history.mark(segment, mark));
    Some(history)
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

/// Scripts keep their numbers where doubles are exact; a larger one is none of theirs.
pub(super) const EXACT: u64 = 1 << 53;

pub(super) fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok().filter(|number| *number <= EXACT),
        _ => None,
    }
}
