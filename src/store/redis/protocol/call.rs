//! One call of a script: its work, its arguments and its reply.
//!
//! The script decides and charges. This module derives the verdicts from the counts behind the
//! decision, with the same arithmetic. If the reply contains the state, the pure core repeats the
//! whole decision. The core also computes when a denied cost fits.

use std::slice;
use std::sync::Arc;

use redis::{Arg, Cmd, Value};

use super::check::{self, Declared, states};
use super::keys::Tag;
use super::reply::{Reply, is_corrupt, opened, unsigned};
use super::sources::{ScriptId, begin};
use super::{counters, holds, log, operations, sales};
use crate::limit::decision::decide;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::store::{Done, Meta, Taken, Work};

/// How far the shard's clock may differ from the caller's estimate, us. TIME decides, and the
/// caller knows it only roughly. A call therefore carries every calendar window that TIME may
/// choose. Outside these bounds, the script decides nothing.
pub const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

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
    /// `EVAL`, after a NOSCRIPT or a refused `EVALSHA`.
    Source,
    /// `SCRIPT LOAD` and then `EVALSHA`, after a refused `EVAL`.
    Load,
}

impl By {
    /// Returns the name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Hash | Self::Load => "EVALSHA",
            Self::Source => "EVAL",
        }
    }
}

impl<'a> Call<'a> {
    /// Builds a peek at the remaining quotas.
    pub fn look(tag: &'a Tag, policy: &'a Arc<Policy>) -> Self {
        static LOOK: Work = Work::Look(0);
        Self { tag, policy, work: &LOOK, costs: &[0], metas: &[] }
    }

    /// Whether one call may decide it together with others by the same script.
    pub fn is_check(&self) -> bool {
        is_check(self.policy, self.work)
    }
}

impl Call<'_> {
    /// Builds the command for a shard whose expected TIME is `now`, us. Tests replace TIME by
    /// `time`.
    pub fn command(&self, by: By, now: Micros, time: Option<Micros>) -> Cmd {
        if let Some(ticks) = self.policy.ticks() {
            return counters::command(self, ticks, by, now, time);
        }
        if self.policy.algorithm != Algorithm::SlidingLog {
            return check::command(slice::from_ref(self), Declared::Yes, by, now, time);
        }
        let mut cmd = begin(by, ScriptId::of(self.policy, self.work));
        match self.work {
            Work::ReadLog(number) => log::page_arguments(self, *number, &mut cmd),
            _ => log::arguments(self, &mut cmd, &operations::keys(self)),
        }
        cmd.arg(time);
        operations::arguments(self, &mut cmd, time);
        cmd
    }

    /// Returns the keys of a check of `policy` that a shard with the expected TIME `now`, us,
    /// decides.
    pub fn keys_of_check(tag: &Tag, policy: &Arc<Policy>, now: Micros) -> Vec<String> {
        let check = Call { costs: &[1], metas: &[Some("".into())], ..Call::look(tag, policy) };
        check.keys_at(now)
    }

    /// Returns the keys that the command declares for a shard whose expected TIME is `now`, us.
    pub fn keys_at(&self, now: Micros) -> Vec<String> {
        let command = self.command(By::Hash, now, None);
        let simple = |argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        // The keys follow the command's name, the script and the number of keys.
        let mut arguments = command.args_iter().skip(2).map(simple);
        let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        arguments.take(count).collect()
    }

    /// Reads the reply to the command.
    pub fn reply(&self, value: &Value) -> Reply {
        self.read(value).unwrap_or_else(Reply::malformed)
    }

    fn read(&self, value: &Value) -> Option<Reply> {
        if let Work::ReadLog(_) = self.work {
            // The call only reads, so nothing was charged.
            return Some(log::page(value).map_or_else(Reply::corrupt_state, |page| Reply::Done(Done::Page(page))));
        }
        if self.work.is_held(self.policy) && !matches!(self.work, Work::ReadTicks { .. }) {
            return holds::read(self, value);
        }
        if self.work.is_of_caller(self.policy) {
            return sales::read(self, value);
        }
        if let Value::Array(values) = value
            && let Some(charged) = operations::recorded_reply(self, values)
        {
            return Some(charged);
        }
        if let (Work::ReadTicks { at, cost }, Some(ticks)) = (self.work, self.policy.ticks()) {
            return counters::read_reply(self.policy, ticks, (*at, *cost), value);
        }
        if !self.work.takes_back() {
            return check::replies(slice::from_ref(self), value).pop();
        }
        let (time, rest) = opened(value)?;
        let Some((given, rest)) = rest.split_first() else { return Some(Reply::OutsideTimeBounds(time)) };
        if is_corrupt(given) {
            return Some(Reply::corrupt_state());
        }
        let ruling = decide(self.policy, &mut states(self.policy, time, rest)?, time, &[0]);
        let now = Taken { ruling, at: time, tentative: false };
        Some(Reply::Done(Done::Refunded(now, unsigned(given)?)))
    }
}

/// Whether a shared call may decide this work under this policy.
pub fn is_check(policy: &Policy, work: &Work) -> bool {
    let is_shared = !matches!(policy.algorithm, Algorithm::SlidingLog | Algorithm::SlidingCounter);
    is_shared && policy.options.hold.is_none() && matches!(work, Work::Take(_) | Work::Look(_))
}

/// Merges equal adjacent costs, which are sent once with their number.
pub fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}
