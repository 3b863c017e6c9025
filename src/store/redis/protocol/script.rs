//! One call of the script: its arguments and its reply.
//!
//! The script decides and charges. This module derives the verdicts from the counts behind the
//! decision, with the same arithmetic. If the reply contains the state, the pure core repeats the
//! whole decision. The core also computes when a denied cost fits. `states.rs` reads the bytes of a
//! reply.

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use super::call::{By, Call, runs};
use super::check::{self, Declared};
use super::quota_args::{QuotaArgs, Quotas};
use super::reply::{Reply, is_corrupt, opened, unsigned};
use super::sources::{ScriptId, begin};
use super::states::states;
use super::windows::window_kind;
use super::{counters, idempotency, log, refunds};
use crate::limit::counter::Ticks;
use crate::limit::decision::decide;
use crate::limit::policy::Algorithm;
use crate::limit::time::Micros;
use crate::store::{Done, Taken, Work};

impl Call<'_> {
    /// Builds the command for a shard whose expected TIME is `now`, us. Tests replace TIME by
    /// `time`.
    pub fn command(&self, by: By, now: Micros, time: Option<Micros>) -> Cmd {
        if self.is_check() {
            return check::command(std::slice::from_ref(self), Declared::Yes, by, now, time);
        }
        if let Some(ticks) = Ticks::of(self.policy) {
            return counters::command(self, ticks, by, now, time);
        }
        let mut cmd = begin(by, ScriptId::of(self.policy, self.work));
        if let Work::ReadLog(number) = self.work {
            log::page_arguments(self, *number, &mut cmd);
            cmd.arg(time);
            return cmd;
        }
        let more_keys: SmallVec<[String; 2]> = idempotency::key(self).into_iter().chain(refunds::key(self)).collect();
        match self.policy.algorithm {
            Algorithm::SlidingLog => log::arguments(self, &mut cmd, &more_keys),
            _ => {
                let told = QuotaArgs::of(self.policy, now);
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
        idempotency::arguments(self, &mut cmd);
        refunds::arguments(self, &mut cmd);
        cmd
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

    fn window_arguments(&self, cmd: &mut Cmd) {
        cmd.arg(self.policy.quotas.len());
        for quota in &self.policy.quotas {
            cmd.arg(window_kind(quota)).arg(quota.limit.get());
        }
    }

    /// Reads the reply to the command.
    pub fn reply(&self, value: &Value) -> Reply {
        if self.is_check() {
            return check::replies(std::slice::from_ref(self), value).pop().unwrap_or_else(Reply::malformed);
        }
        self.read(value).unwrap_or_else(Reply::malformed)
    }

    fn read(&self, value: &Value) -> Option<Reply> {
        if let Work::ReadLog(_) = self.work {
            // The call only reads, so nothing was charged.
            return Some(log::page(value).map_or_else(Reply::corrupt_state, |page| Reply::Done(Done::Page(page))));
        }
        if let (Work::Once { cost, .. }, Value::Array(values)) = (self.work, value)
            && let [Value::BulkString(word), rest @ ..] = &values[..]
        {
            let charged = idempotency::charged(self.policy, word, *cost, rest).map(Reply::Done);
            // Another program may have written the record.
            return charged.or_else(|| (word == b"replayed").then(Reply::corrupt_record));
        }
        if let (Work::ReadTicks(at), Some(ticks)) = (self.work, Ticks::of(self.policy)) {
            return counters::read_reply(self.policy, ticks, *at, value);
        }
        let (time, rest) = opened(value)?;
        if rest.is_empty() {
            return Some(Reply::OutsideTimeBounds(time));
        }
        if is_corrupt(&rest[0]) {
            return Some(Reply::corrupt_state());
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
            Work::ReadLog(_) | Work::ReadTicks(_) => return None,
        }))
    }
}
