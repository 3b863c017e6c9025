//! What is decided together: the asks of one key under one policy.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::ask::{Answer, Ask, Matter, Refusal};
use super::failure::{FOREIGN, FOREIGN_RECORD};
use super::log::{PORTION, Page};
use super::script::{By, Call, Reply, read_log};
use super::sources::Script;
use crate::limit::decision::Ruling;
use crate::limit::key::Fingerprint;
use crate::limit::log::max_entries;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::Rule;
use crate::limit::time::Micros;
use crate::store::{Done, Meta, StoreError, Taken, Work};

/// Costs in one call at most: the server does nothing else meanwhile.
pub const COSTS: usize = 1000;

/// Different costs in one call for a sliding log at most, if it has one quota; of several quotas as much fewer. When
/// each fits, the server finds out by a search of each quota's log, which takes up to 0.1 ms.
const SEARCHES: usize = 64;

/// What such a search weighs, behind that for the first cost, in costs of a check.
const SEARCH: usize = 16;

/// Of what a log holds, so many entries weigh as much as a cost when something is taken back, which may move half of
/// them: of 100,000 that took 0.2 s.
const MOVED: usize = 10;

/// Asks of one key under one policy, which are decided together.
pub struct Group {
    pub asks: Vec<Ask>,
    pub costs: Vec<u64>,
    /// One for each cost, or none at all.
    metas: Vec<Meta>,
    /// Those of the costs that differ, for a sliding log.
    different: Different,
}

/// The costs in a call that differ, as far as there is a bound for them.
struct Different {
    known: Vec<u64>,
    most: usize,
}

impl Different {
    fn of(policy: &Policy) -> Self {
        Self { known: Vec::new(), most: most_different(policy) }
    }

    fn has_room(&self, costs: &[u64]) -> bool {
        self.known.len() + costs.len() <= self.most
            || self.known.len() + costs.iter().filter(|cost| !self.known.contains(cost)).count() <= self.most
    }

    fn add(&mut self, costs: &[u64]) {
        for cost in costs.iter().filter(|_| self.most < usize::MAX) {
            if !self.known.contains(cost) {
                self.known.push(*cost);
            }
        }
    }
}

/// How many different costs one call for a policy may carry.
fn most_different(policy: &Policy) -> usize {
    match policy.algorithm {
        Algorithm::SlidingLog => (SEARCHES / policy.quotas.len().max(1)).max(1),
        Algorithm::SlidingWindow | Algorithm::FixedWindow | Algorithm::TokenBucket => usize::MAX,
    }
}

/// Entries that the logs of a policy may hold together, of which each costs a unit at least. Others have none.
fn log_entries(policy: &Policy) -> usize {
    let logs = policy.quotas.iter().filter(|quota| matches!(quota.rule, Rule::SlidingLog(_)));
    let entries: u64 = logs.map(|quota| max_entries(quota).min(quota.limit.get())).sum();
    usize::try_from(entries).unwrap_or(usize::MAX)
}

/// How many of the costs, from the first on, one call may carry.
pub fn first_part(policy: &Policy, costs: &[u64]) -> usize {
    let most = most_different(policy);
    if costs.len() <= most {
        return costs.len();
    }
    let mut known = Vec::with_capacity(most);
    let fits = |cost: &&u64| {
        let is_known = known.contains(*cost);
        if !is_known {
            known.push(**cost);
        }
        known.len() <= most
    };
    costs.iter().take_while(fits).count()
}

/// What a reply means for a group.
pub enum Outcome {
    Answered(Answer),
    /// TIME was not covered; this is it.
    Elsewhen(Micros),
    /// It was not executed among others, and is to be asked for by itself.
    Again,
    Refused(Refusal),
}

impl Outcome {
    pub fn of(reply: Reply) -> Self {
        match reply {
            Reply::Done(done) => Self::Answered(Answer::Done(done)),
            Reply::NotCovered { time } => Self::Elsewhen(time),
            Reply::Undecided => Self::Again,
            Reply::Foreign => Self::Refused(StoreError::Refused(FOREIGN.into()).into()),
            Reply::ForeignRecord => Self::Refused(StoreError::Refused(FOREIGN_RECORD.into()).into()),
            Reply::Malformed => malformed(),
        }
    }
}

impl Group {
    pub fn of(ask: Ask) -> Self {
        let different = Different::of(&ask.policy);
        let mut group = Self { costs: Vec::new(), metas: Vec::new(), asks: Vec::with_capacity(1), different };
        group.push(ask);
        group
    }

    /// Of its key under its policy.
    pub fn key(&self) -> Fingerprint {
        self.asks[0].fingerprint
    }

    /// Of its key.
    pub fn slot(&self) -> u16 {
        self.asks[0].tag.slot()
    }

    /// Only what is decided by the same limits and node may share a call.
    pub fn accepts(&self, ask: &Ask) -> bool {
        let first = &self.asks[0];
        Arc::ptr_eq(&first.policy, &ask.policy)
            && first.asking == ask.asking
            && first.matter.is_take()
            && ask.matter.is_take()
            && self.costs.len() + ask.matter.costs().len() <= COSTS
            && self.different.has_room(ask.matter.costs())
    }

    pub fn push(&mut self, ask: Ask) {
        self.add(&ask);
        self.asks.push(ask);
    }

    fn add(&mut self, ask: &Ask) {
        let (costs, metas) = (ask.matter.costs(), ask.matter.metas());
        if !metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
            self.metas.extend_from_slice(metas);
        }
        self.costs.extend_from_slice(costs);
        self.different.add(costs);
        if !self.metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
        }
    }

    /// Leaves out who has given up meanwhile; whether anybody is left.
    pub fn is_wanted(&mut self) -> bool {
        if self.asks.iter().any(|ask| ask.answer.is_closed()) {
            self.asks.retain(|ask| !ask.answer.is_closed());
            self.costs.clear();
            self.metas.clear();
            self.different.known.clear();
            let asks = std::mem::take(&mut self.asks);
            asks.into_iter().for_each(|ask| self.push(ask));
        }
        !self.asks.is_empty()
    }

    /// Whether anything may be charged for it.
    pub fn may_charge(&self) -> bool {
        self.asks.iter().any(|ask| ask.matter.may_charge())
    }

    /// Whether the server has written for it, that was answered so.
    pub fn was_written(&self, answer: &Answer) -> bool {
        let Answer::Done(done) = answer else { return false };
        match done {
            Done::Refunded(_, given) => *given > 0,
            Done::Charged(charged) => !charged.replayed,
            Done::Taken(_) | Done::Reserved(..) => self.may_charge() && done.is_charge(),
            Done::Reused => false,
        }
    }

    /// The script by which it may share a call with others, if any: nothing is sent behind ASKING but one key.
    pub fn shared_script(&self) -> Option<Script> {
        self.check().filter(|_| !self.asks[0].asking)?;
        self.script_of_work()
    }

    /// The script of its work, if it is work.
    pub fn script_of_work(&self) -> Option<Script> {
        let first = &self.asks[0];
        match &first.matter {
            Matter::Work { work, .. } => Some(Script::of(&first.policy, work)),
            Matter::Page(_) => None,
        }
    }

    /// The check that it is, if it is one; see [`Call::is_check`].
    pub fn check(&self) -> Option<Call<'_>> {
        match &self.asks[0].matter {
            Matter::Work { work, .. } => Some(self.call(work)).filter(Call::is_check),
            Matter::Page(_) => None,
        }
    }

    fn call<'a>(&'a self, work: &'a Work) -> Call<'a> {
        let Ask { tag, policy, .. } = &self.asks[0];
        Call { tag, policy, work, costs: &self.costs, metas: &self.metas }
    }

    /// See [`Call::command`].
    pub fn command(&self, by: By, now: Micros, time: Option<Micros>) -> Cmd {
        let Ask { tag, policy, matter, .. } = &self.asks[0];
        match matter {
            Matter::Work { work, .. } => self.call(work).command(by, now, time),
            Matter::Page(number) => read_log(tag, policy, *number, by, time),
        }
    }

    /// How many checks it carries: a refund, for one, is none.
    pub fn checks(&self) -> usize {
        self.costs.len()
    }

    /// How long its call keeps the server and the line, in costs of a check.
    pub fn weight(&self) -> usize {
        let Ask { policy, matter, .. } = &self.asks[0];
        match matter {
            Matter::Page(_) => log_entries(policy).clamp(1, PORTION),
            Matter::Work { work: Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_), .. } => {
                (log_entries(policy) / MOVED).max(1)
            }
            Matter::Work { .. } => {
                let more = self.different.known.len().saturating_sub(1) * policy.quotas.len();
                self.costs.len().max(more * SEARCH).max(1)
            }
        }
    }

    /// What a person calls the script.
    pub fn script(&self) -> String {
        let Ask { policy, matter, .. } = &self.asks[0];
        let algorithm = policy.algorithm.name();
        match matter {
            Matter::Page(_) => format!("{algorithm} entries"),
            Matter::Work { work, .. } => match work {
                Work::Take(_) | Work::Look(_) => algorithm.to_owned(),
                Work::Once { .. } => format!("{algorithm} once"),
                Work::Reserve { .. } => format!("{algorithm} reserve"),
                Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => {
                    format!("{algorithm} give back")
                }
            },
        }
    }

    pub fn outcome(&self, reply: &Value) -> Outcome {
        match &self.asks[0].matter {
            Matter::Work { work, .. } => Outcome::of(self.call(work).reply(reply)),
            Matter::Page(_) => {
                // It only reads, so nothing was charged.
                let corrupt = || Outcome::Refused(StoreError::Refused(FOREIGN.into()).into());
                Page::read(reply).map_or_else(corrupt, |page| Outcome::Answered(Answer::Page(page)))
            }
        }
    }

    /// Gives each ask with its part of the answer.
    pub fn hand_out(mut self, answer: Answer, mut give: impl FnMut(Ask, Answer)) {
        if self.asks.len() == 1
            && let Some(ask) = self.asks.pop()
        {
            return give(ask, answer);
        }
        let Answer::Done(done) = answer else { return };
        let Done::Taken(Taken { ruling: Ruling { verdicts, closed }, at, tentative }) = done else { return };
        let mut verdicts = verdicts.into_iter();
        for ask in self.asks {
            let verdicts = verdicts.by_ref().take(ask.matter.costs().len()).collect();
            let ruling = Ruling { verdicts, closed: closed.clone() };
            give(ask, Answer::Done(Done::Taken(Taken { ruling, at, tentative })));
        }
    }

    pub fn refuse(self, refusal: &Refusal) {
        for ask in self.asks {
            ask.answer.send(Err(refusal.clone()));
        }
    }
}

fn malformed() -> Outcome {
    Outcome::Refused(StoreError::Unknown("the script's reply is not one that it makes".into()).into())
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::super::ask::tests::ask;
    use super::*;

    #[test]
    fn a_call_is_named_by_its_command() {
        let named = |matter: Matter| {
            let group = Group::of(Ask { matter, ..ask("a").0 });
            [By::Hash, By::Source].map(|by| {
                let command = group.command(by, 1_000_000, None);
                assert_eq!(command.args_iter().next(), Some(Arg::Simple(by.command().as_bytes())));
                by.command()
            })
        };
        for matter in [Matter::take(&[1], &[]), Matter::Page(0)] {
            assert_eq!(named(matter), ["EVALSHA", "EVAL"]);
        }
    }
}
