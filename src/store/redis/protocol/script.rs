//! One call of the script: its arguments and its reply.
//!
//! The script decides and charges. This module derives the verdicts from the counts behind the
//! decision, with the same arithmetic. If the reply contains the state, the pure core repeats the
//! whole decision. The core also computes when a denied cost fits. `states.rs` reads the bytes of a
//! reply.

use std::sync::Arc;

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use crate::limit::amend::{Receipt, charge, is_tentative};
use crate::limit::decision::{decide, decide_roomy, look};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::Micros;
use crate::store::redis::protocol::amend;
use crate::store::redis::protocol::check::{self, Declared, is_check};
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::log::{self, Page};
use crate::store::redis::protocol::quota_args::{Quotas, Told};
use crate::store::redis::protocol::sources::Script;
use crate::store::redis::protocol::states::{states, window_kind};
use crate::store::{Done, Meta, Taken, Work};

/// One piece of work for one key under one policy.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub tag: &'a Tag,
    pub policy: &'a Arc<Policy>,
    pub work: &'a Work,
    /// The costs to charge: those of a [`Work::Take`] and of the requests merged with it.
    pub costs: &'a [u64],
    /// One for each cost, or none at all; only logs keep them.
    pub metas: &'a [Meta],
}

/// How a call names the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `EVALSHA`, the usual way.
    Hash,
    /// `EVAL`, after a NOSCRIPT.
    Source,
}

impl By {
    /// Returns the name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Hash => "EVALSHA",
            Self::Source => "EVAL",
        }
    }
}

/// The content of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done(Done),
    /// TIME was outside the bounds; nothing was decided.
    NotCovered {
        time: Micros,
    },
    /// The shared call could not decide it and charged nothing. A call of its own decides it or
    /// returns the reason.
    Undecided,
    /// The value at the key is corrupt; nothing was charged.
    Foreign,
    /// The record of the id is corrupt; nothing was charged.
    ForeignRecord,
    /// The script makes no reply of this form.
    Malformed,
}

/// Whether this value replaces counts, because the value at the key is corrupt.
pub(in crate::store::redis) fn is_foreign(value: &Value) -> bool {
    matches!(value, Value::BulkString(said) if said.is_empty())
}

impl<'a> Call<'a> {
    /// Builds a peek at the remaining quotas.
    pub fn look(tag: &'a Tag, policy: &'a Arc<Policy>) -> Self {
        static LOOK: Work = Work::Look(0);
        Self { tag, policy, work: &LOOK, costs: &[0], metas: &[] }
    }

    /// Builds the command for a shard whose expected TIME is `now`, us. Tests replace TIME by
    /// `time`.
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
                cmd.arg(1 + more_keys.len()).arg(self.tag.counts(self.policy)).arg(&more_keys[..]);
                match &told.quotas {
                    Quotas::Windows => self.window_arguments(&mut cmd),
                    Quotas::Pairs(pairs) => {
                        cmd.arg(told.bounds.0).arg(told.bounds.1).arg(pairs.len());
                        pairs.iter().for_each(|numbers| _ = cmd.arg(&numbers[..]));
                    }
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

    /// Returns the keys that the command declares, whenever it is sent.
    pub fn keys(&self) -> Vec<String> {
        let command = self.command(By::Hash, 0, None);
        let simple = |argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        // The keys follow the command's name, the script and the number of keys.
        let mut arguments = command.args_iter().skip(2).map(simple);
        let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        arguments.take(count).collect()
    }

    fn window_arguments(&self, cmd: &mut Cmd) {
        cmd.arg(self.policy.quotas.len());
        for quota in &self.policy.quotas {
            cmd.arg(window_kind(quota)).arg(quota.limit.get());
        }
    }

    /// Whether one call may decide it together with others by the same script.
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
            let charged = amend::charged(self.policy, word, *cost, rest).map(Reply::Done);
            // Another program may have written the record.
            return charged.or_else(|| (word == b"replayed").then_some(Reply::ForeignRecord));
        }
        let (time, rest) = opened(value)?;
        if rest.is_empty() {
            return Some(Reply::NotCovered { time });
        }
        if is_foreign(&rest[0]) {
            return Some(Reply::Foreign);
        }
        Some(Reply::Done(match self.work {
            Work::Take(_) | Work::Look(_) | Work::Once { .. } => Done::Taken(self.taken(time, rest)?.0),
            Work::Reserve { .. } => {
                let (taken, receipt) = self.taken(time, rest)?;
                Done::Reserved(taken, receipt)
            }
            Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => {
                let (given, rest) = rest.split_first()?;
                let ruling = decide(self.policy, &mut states(self.policy, time, rest)?, time, &[0]);
                Done::Refunded(Taken { ruling, at: time, tentative: false }, unsigned(given)?)
            }
        }))
    }

    /// Returns the verdicts on the costs, and the receipt of a reservation that was made.
    pub(in crate::store::redis) fn taken(&self, time: Micros, values: &[Value]) -> Option<(Taken, Option<Receipt>)> {
        let quotas = &self.policy.quotas;
        let mut rest = values;
        if self.policy.algorithm == Algorithm::SlidingWindow {
            let (counted, state) = values.split_at_checked(quotas.len())?;
            if state.is_empty() {
                let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
                let ruling = decide_roomy(self.policy, &counted, time, self.costs)?;
                let taken = Taken { ruling, at: time, tentative: false };
                let receipt = amend::roomy_receipt(self, &taken);
                return Some((taken, receipt));
            }
            rest = state;
        }
        let mut states = states(self.policy, time, rest)?;
        let tentative = is_tentative(self.policy, &states, time);
        let (ruling, receipt) = match self.work {
            Work::Look(cost) => (look(self.policy, &states, time, *cost), None),
            Work::Reserve { cost, hold } => charge(self.policy, &mut states, time, *cost, time + hold),
            _ => (decide(self.policy, &mut states, time, self.costs), None),
        };
        Some((Taken { ruling, at: time, tentative }, receipt))
    }
}

/// Builds a call that reads portion `number` of a log.
pub fn read_log(tag: &Tag, policy: &Policy, number: usize, by: By, time: Option<Micros>) -> Cmd {
    let mut cmd = named(by, Script::LOG_READ);
    Page::arguments(tag, policy, number, &mut cmd);
    if let Some(time) = time {
        cmd.arg(time);
    }
    cmd
}

/// The room that most calls need, so that they are written without growing.
const ARGUMENTS: usize = 16;
const BYTES: usize = 512;

/// Begins a call.
pub(in crate::store::redis) fn named(by: By, script: Script) -> Cmd {
    let mut cmd = Cmd::with_capacity(ARGUMENTS, BYTES);
    cmd.arg(by.command()).arg(match by {
        By::Hash => script.hash(),
        By::Source => script.source(),
    });
    cmd
}

/// Merges equal adjacent costs, which are sent once with their number.
pub(in crate::store::redis) fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}

/// Splits a reply into TIME, which begins every decision, and the rest.
pub(in crate::store::redis) fn opened(value: &Value) -> Option<(Micros, &[Value])> {
    let Value::Array(values) = value else { return None };
    let (time, rest) = values.split_first()?;
    Some((unsigned(time)?, rest))
}

/// Scripts keep their numbers where doubles are exact. A larger number is none of theirs.
pub(in crate::store::redis) const EXACT: u64 = 1 << 53;

pub(in crate::store::redis) fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok().filter(|number| *number <= EXACT),
        _ => None,
    }
}
