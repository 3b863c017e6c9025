//! One key of a history at one or two stores, with its judges.

use std::sync::Arc;

use tollgate::store::Done;

use super::book::Book;
use super::engine::{Answered, Node, Runs, asked, perform, subject};
use super::exact_log::Log;
use super::file::{File, has_two_algorithms, has_two_lives, has_two_rates};
use super::step::{By, Op, Step};
use super::waits::Waits;
use super::{alike, bucket_ledger, ledger, line};
use crate::support::unique;

/// The verdict of a judge.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The judge, and what it is about: a shortened history has the same.
    pub judge: &'static str,
    pub what: String,
    pub reason: String,
    /// The number of steps until it shows.
    pub steps: usize,
}

/// One key of a history at one or two stores.
pub struct Trial<'a, A, B> {
    memory: &'a A,
    redis: Option<&'a B>,
    key: Arc<str>,
    nodes: [Node; 2],
    steps: usize,
    pub calls: u64,
    book: Book,
    log: Log,
    waits: Waits,
    /// Give-backs, each of which a bucket rounds up.
    refunds: u64,
}

impl<'a, A: Runs, B: Runs> Trial<'a, A, B> {
    pub fn new(memory: &'a A, redis: Option<&'a B>) -> Self {
        let (nodes, steps, calls, book, log, waits) = Default::default();
        Self { memory, redis, key: unique("history").into(), nodes, steps, calls, book, log, waits, refunds: 0 }
    }

    /// Runs the next step, and asks the judges.
    pub async fn step(&mut self, history: (&[File], &Step)) -> Result<Answered, Fault> {
        self.steps += 1;
        self.look_behind_denials(history).await?;
        let answered = self.perform(history).await?;
        self.judge(history.1, &answered, history.0)?;
        Ok(answered)
    }

    async fn perform(&mut self, history: (&[File], &Step)) -> Result<Answered, Fault> {
        let [of_memory, of_redis] = &mut self.nodes;
        let answered = perform(self.memory, history, &self.key, of_memory).await;
        self.calls += answered.calls.len() as u64;
        if let Some(reason) = &answered.failed {
            return Err(self.fault("error", "embedded", reason.clone()));
        }
        if let Some(redis) = self.redis {
            let other = perform(redis, history, &self.key, of_redis).await;
            self.calls += other.calls.len() as u64;
            if let Some(reason) = other.failed {
                return Err(self.fault("error", "redis", reason));
            }
            if let Some((what, reason)) = alike::difference(&answered, &other) {
                return Err(self.fault("alike", &what, reason));
            }
        }
        Ok(answered)
    }

    /// Asks the stores where a node would deny without them.
    async fn look_behind_denials(&mut self, (files, step): (&[File], &Step)) -> Result<(), Fault> {
        if has_two_rates(files) || has_two_lives(files) {
            // Under different rates or windows a denial may be known for too long (docs/guarantees.md).
            return Ok(());
        }
        for (policy, cost) in asked(files, step) {
            let subject = subject(policy, &self.key);
            self.nodes.iter_mut().for_each(|node| node.known.pass(step.now()));
            if self.nodes.iter().all(|node| !node.known.denies(&subject, cost)) {
                continue;
            }
            let by = (0..3).map(|plan| if plan == 2 { By::Override } else { By::Plan(plan) });
            let by = by.chain([By::Policy]).find(|by| Arc::ptr_eq(files[step.file].checks(*by), policy));
            let look = Step { by: by.unwrap_or(step.by), op: Op::Look(cost), ..step.clone() };
            let answered = self.perform((files, &look)).await?;
            let is_allowed = |done: &Done| matches!(done, Done::Taken(taken) if taken.ruling.verdicts[0].allowed);
            self.judge(&look, &answered, files)?;
            if answered.calls.iter().any(|call| is_allowed(&call.done)) {
                return Err(self.fault("prefilter", "unsound", format!("a known denial of {cost} would be allowed")));
            }
        }
        Ok(())
    }

    /// Looks at the counts under all limits, at the instant of the last step.
    pub async fn conclude(&mut self, files: &[File], last: Option<&Step>) -> Result<(), Fault> {
        let Some(last) = last else { return Ok(()) };
        for file in 0..files.len() {
            let plans = (0..files[file].plans.len()).map(By::Plan);
            for by in plans.chain([By::Policy, By::Override]) {
                let look = Step { after: last.after, file, by, op: Op::Look(0) };
                let answered = self.perform((files, &look)).await?;
                self.judge(&look, &answered, files)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, step: &Step, answered: &Answered, files: &[File]) -> Result<(), Fault> {
        let is_one_rate = !has_two_rates(files);
        if has_two_lives(files) || has_two_algorithms(files) {
            return Ok(());
        }
        for call in &answered.calls {
            let wrong = |(what, reason): ledger::Wrong| self.fault("ledger", what, reason);
            ledger::before(&self.book, call).map_err(wrong)?;
            if is_one_rate {
                bucket_ledger::before(&self.book, call).map_err(wrong)?;
            }
            let line = line::before(&self.book, call, is_one_rate);
            line.map_err(|(what, reason)| self.fault("line", what, reason))?;
            let made = self.book.note(call);
            let gives_back = matches!(call.done, Done::Refunded(_, 1..) | Done::Settled(..) | Done::Returned(..));
            self.refunds += u64::from(gives_back);
            let wrong = |(what, reason): ledger::Wrong| self.fault("ledger", what, reason);
            ledger::after(&self.book, call).map_err(wrong)?;
            if is_one_rate {
                bucket_ledger::after(&self.book, call, self.refunds).map_err(wrong)?;
            }
            let over = self.log.note(&self.book, call, made);
            over.map_err(|reason| self.fault("log", "over", reason))?;
        }
        if !is_one_rate {
            // The debt of another rate may take the place of one that is repaid (docs/guarantees.md,
            // Changed rates).
            return Ok(());
        }
        let waits = self.waits.note(step, answered, self.book.stepped_back);
        waits.map_err(|reason| self.fault("waits", "inexact", reason))
    }

    fn fault(&self, judge: &'static str, what: &str, reason: String) -> Fault {
        Fault { judge, what: what.into(), reason, steps: self.steps }
    }
}
