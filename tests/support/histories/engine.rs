//! Runs the steps of a history as the engine does, call by call.
//!
//! A function names the file of `src/engine` that it mirrors, if an operation is more than one call.

use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;
use tollgate::limit::decision::Wait;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::Quota;
use tollgate::limit::receipt::{LeaseReceipt, Receipt};
use tollgate::limit::time::{Micros, micros};
use tollgate::store::{Done, Id, Line, Meta, Over, Sale, StoreError, Subject, Waiting, Work};

use super::file::File;
use super::known::Known;
use super::step::{Number, Op, Part, Step, name};

/// A store at given instants.
pub trait Runs {
    async fn run(&self, now: Micros, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError>;
}

/// One call of the store, and its answer.
#[derive(Debug, Clone)]
pub struct Call {
    pub now: Micros,
    pub policy: Arc<Policy>,
    pub work: Work,
    pub done: Done,
    /// The number of a reservation or of a lease that its receipt undoes.
    pub number: Option<Number>,
}

/// The answer to a step.
#[derive(Debug, Clone, Default)]
pub struct Answered {
    pub calls: Vec<Call>,
    /// Of `/v1/check/all`: whether all are allowed, and the longest wait of those that are denied.
    pub all: Option<(bool, Wait)>,
    /// Why a call failed. No call may.
    pub failed: Option<String>,
}

/// What a node and its callers know of the key at one store.
#[derive(Debug, Default)]
pub struct Node {
    pub known: Known,
    /// The place of the file in force. A reload makes new policies, whose denials are not known.
    file: usize,
    charges: Vec<(Number, Policy, Receipt)>,
    leases: Vec<(Number, Arc<Policy>, LeaseReceipt)>,
}

/// One step at one store.
struct Running<'a, S> {
    store: &'a S,
    file: &'a File,
    key: &'a Arc<str>,
    now: Micros,
    calls: Vec<Call>,
    known: &'a Known,
    /// Whether the engine has the pre-filter learn from the answers.
    learns: bool,
    /// The logs of all files, which a reset forgets.
    logs: Box<[Quota]>,
    number: Option<Number>,
    failed: Option<String>,
}

/// Runs a step.
pub async fn perform<S: Runs>(store: &S, (files, step): (&[File], &Step), key: &Arc<str>, node: &mut Node) -> Answered {
    let Node { known, file, charges, leases } = node;
    if std::mem::replace(file, step.file) != step.file {
        *known = Known::default();
    }
    known.pass(step.now());
    let (file, calls) = (&files[step.file], Vec::new());
    let policies = files.iter().flat_map(|file| file.plans.iter().chain([&file.policy, &file.over]));
    let logs = policies
        .filter(|policy| policy.algorithm == Algorithm::SlidingLog)
        .flat_map(|policy| policy.quotas.clone());
    let mut run = Running {
        store,
        file,
        key,
        now: step.now(),
        calls,
        known,
        learns: true,
        logs: logs.collect(),
        number: None,
        failed: None,
    };
    let all = run.step(step, charges, leases).await;
    Answered { calls: run.calls, all, failed: run.failed }
}

/// The key under a policy.
pub fn subject(policy: &Arc<Policy>, key: &Arc<str>) -> Subject {
    static PRINTS: LazyLock<Fingerprinter> = LazyLock::new(Fingerprinter::default);
    let fingerprint = PRINTS.fingerprint(policy.counters(), key);
    Subject { policy: policy.clone(), key: key.clone(), fingerprint }
}

/// The costs of checks that a step asks for, with the policies that count them.
pub fn asked<'a>(files: &'a [File], step: &Step) -> Vec<(&'a Arc<Policy>, u64)> {
    let file = &files[step.file];
    let policy = file.checks(step.by);
    let costs: Vec<(&Arc<Policy>, u64)> = match &step.op {
        Op::Take(costs) | Op::Buy { costs, .. } => costs.iter().map(|cost| (policy, *cost)).collect(),
        Op::Look(cost) | Op::Usage(cost) | Op::Check { cost, .. } | Op::Wait { cost, .. } => vec![(policy, *cost)],
        Op::All { checks, .. } => checks.iter().map(|check| (file.checks(check.by), check.cost)).collect(),
        _ => Vec::new(),
    };
    costs.into_iter().filter(|(_, cost)| *cost > 0).collect()
}

impl<S: Runs> Running<'_, S> {
    async fn call(&mut self, policy: &Arc<Policy>, work: Work) -> Done {
        let subject = subject(policy, self.key);
        let question = self.known.ask(&subject);
        let has_metas = !matches!(work, Work::Sell(_)) && (policy.keeps_metas() || policy.options.hold.is_some());
        let metas: SmallVec<[Meta; 1]> = match has_metas {
            true => work.costs().iter().map(|cost| (cost % 2 == 0).then(|| format!("cause-{cost}").into())).collect(),
            false => SmallVec::new(),
        };
        let done = self.store.run(self.now, &subject, &work, &metas).await.unwrap_or_else(|error| {
            self.failed = Some(format!("{work:?}: {error}"));
            Done::Reused(None)
        });
        if self.learns || work.takes_back() {
            self.known.note(&subject, question, &work, &done);
        }
        let number = self.number;
        self.calls.push(Call { now: self.now, policy: policy.clone(), work, done: done.clone(), number });
        done
    }

    async fn step(
        &mut self,
        step: &Step,
        charges: &mut Vec<(Number, Policy, Receipt)>,
        leases: &mut Vec<(Number, Arc<Policy>, LeaseReceipt)>,
    ) -> Option<(bool, Wait)> {
        let (checks, present) = (self.file.checks(step.by).clone(), self.file.present(step.by).clone());
        self.number = match &step.op {
            Op::Reserve { number, .. } | Op::GiveBack(number) | Op::Buy { number, .. } | Op::Return { number, .. } => {
                Some(*number)
            }
            _ => None,
        };
        match &step.op {
            Op::Take(costs) => _ = self.call(&checks, Work::Take(costs.as_slice().into())).await,
            Op::Look(cost) => _ = self.call(&checks, Work::Look(*cost)).await,
            Op::Usage(cost) => self.usage(&checks, *cost).await,
            Op::Drain(cost) => _ = self.call(&checks, Work::Drain(*cost)).await,
            Op::Check { id, cost, over, life, repeated } => {
                let id = Id { name: name(*id), life: *life, repeated: *repeated };
                self.call(&checks, Work::Once { id, cost: *cost, over: *over }).await;
            }
            Op::Wait { id, cost, longest } => {
                // Others are refused (`cannot_wait` in `alone.rs`).
                let may_wait = checks.algorithm == Algorithm::TokenBucket && checks.options.lease.is_none();
                if may_wait && !checks.quotas.is_empty() {
                    self.call(&checks, wait(&checks, *id, *cost, *longest)).await;
                }
            }
            Op::All { checks, refused } => {
                self.learns = false;
                return Some(self.all(checks, *refused).await);
            }
            Op::Reserve { number, cost } => {
                let hold = Work::hold(checks.timeout);
                if let Done::Reserved(_, Some(receipt)) = self.call(&checks, Work::Reserve { cost: *cost, hold }).await
                {
                    charges.push((*number, Policy::clone(&checks), receipt));
                }
            }
            Op::GiveBack(number) => {
                if let Some(place) = charges.iter().position(|(own, ..)| own == number) {
                    let (_, policy, receipt) = charges.remove(place);
                    self.call(&Arc::new(policy), Work::GiveBack(receipt)).await;
                }
            }
            Op::Undo(id) => _ = self.call(&checks, Work::Undo(name(*id))).await,
            Op::Buy { number, costs, units } => {
                let lease = checks.options.lease?;
                let costs = costs.iter().copied().chain([*units]).collect();
                let work = Work::Lease { costs, hold: lease.hold(checks.timeout) };
                if let Done::Leased(_, Some(receipt)) = self.call(&checks, work).await {
                    leases.push((*number, checks, LeaseReceipt::clone(&receipt)));
                }
            }
            Op::Return { number, units } => {
                if let Some(place) = leases.iter().position(|(own, ..)| own == number) {
                    let (_, policy, mut receipt) = leases.remove(place);
                    receipt.charge.cost = receipt.charge.cost.min(*units).max(1);
                    self.call(&policy, Work::Return(Box::new(receipt))).await;
                }
            }
            Op::Sell { id, units } => self.sell(&present, *id, *units).await,
            Op::Settle { id, cost } => self.settle(&present, *id, *cost).await,
            Op::Renew(id) => {
                if present.options.hold.is_some() {
                    self.call(&present, Work::Renew(name(*id))).await;
                }
            }
            Op::Refund(cost) => _ = self.call(&present, Work::Refund(*cost)).await,
            Op::RefundId(id) => {
                let policy = self.policy_of_charge(&present, *id, false).await;
                self.call(&policy, Work::RefundOnce(name(*id))).await;
            }
            Op::Reset => _ = self.call(&present, Work::Reset(self.logs.clone())).await,
        }
        None
    }

    /// Mirrors `usage.rs`.
    async fn usage(&mut self, policy: &Arc<Policy>, cost: u64) {
        let (is_held, is_counter) = (policy.options.hold.is_some(), policy.algorithm == Algorithm::SlidingCounter);
        if !is_counter || is_held {
            self.call(policy, Work::Look(cost)).await;
        }
        if is_held {
            self.call(policy, Work::ReadHolds).await;
        }
        if is_counter && !policy.quotas.is_empty() {
            self.call(policy, Work::ReadTicks { at: self.now, cost }).await;
        }
        if policy.keeps_metas() && !policy.quotas.is_empty() {
            self.call(policy, Work::ReadLog(0)).await;
        }
    }

    /// Mirrors `leases/callers.rs`: a sale of 0 units finds an earlier one.
    async fn sell(&mut self, policy: &Arc<Policy>, id: Number, units: u64) {
        let Some(lease) = policy.options.lease.filter(|lease| lease.callers.is_some()) else { return };
        let sale = |units| Work::Sell(Box::new(Sale::new(policy, lease, name(id), units)));
        let Done::Sold(_, None) = self.call(policy, sale(0)).await else { return };
        self.call(policy, sale(units)).await;
    }

    /// Mirrors `holds.rs`. The lease of a caller needs no policy of its charge.
    async fn settle(&mut self, present: &Arc<Policy>, id: Number, cost: Option<u64>) {
        let policy = match present.options.hold {
            Some(_) => self.policy_of_charge(present, id, cost.is_some()).await,
            None => present.clone(),
        };
        self.call(&policy, Work::Settle { id: name(id), cost }).await;
    }

    /// Mirrors `subject_of_charge` in `holds.rs`.
    async fn policy_of_charge(&mut self, present: &Arc<Policy>, id: Number, charges_more: bool) -> Arc<Policy> {
        let base = &self.file.policy;
        let by_limits = charges_more && counts_as(base, &present.quotas, true);
        let others: Vec<Arc<Policy>> = self.file.plans.iter().chain([base]).cloned().collect();
        let others: Vec<Arc<Policy>> =
            others.into_iter().filter(|other| !counts_as(other, &present.quotas, by_limits)).collect();
        if others.is_empty() {
            return present.clone();
        }
        let look = Work::Once { id: Id { repeated: true, ..name(id).into() }, cost: 0, over: Over::Deny };
        self.learns = false;
        let Done::Reused(Some(charged)) = self.call(present, look).await else { return present.clone() };
        let found = |by_limits| {
            let mut all = std::iter::once(present).chain(&others);
            all.find(|policy| counts_as(policy, &charged.quotas, by_limits)).cloned()
        };
        found(true).or_else(|| found(false)).unwrap_or_else(|| present.clone())
    }

    /// Mirrors `multi_check.rs`. Another key that refuses comes last.
    async fn all(&mut self, checks: &[Part], refused: bool) -> (bool, Wait) {
        let mut groups: Vec<(Arc<Policy>, Option<Number>, u64)> = Vec::new();
        for check in checks {
            let policy = self.file.checks(check.by).clone();
            let is_alike = |(of, id, _): &&mut (Arc<Policy>, Option<Number>, u64)| {
                id.is_none() && check.id.is_none() && Arc::ptr_eq(of, &policy)
            };
            match groups.iter_mut().find(is_alike) {
                Some((.., cost)) => *cost += check.cost,
                None => groups.push((policy, check.id, check.cost)),
            }
        }
        if let ([(policy, id, cost)], false) = (groups.as_slice(), refused) {
            let work = match id {
                Some(id) if *cost > 0 => once(*id, *cost),
                _ => Work::Take([*cost].as_slice().into()),
            };
            let done = self.call(policy, work).await;
            let denied = denied_for(&done);
            return (denied.is_none(), denied.unwrap_or(Wait::NONE));
        }
        self.reserve_all(&groups, refused).await
    }

    async fn reserve_all(&mut self, groups: &[(Arc<Policy>, Option<Number>, u64)], refused: bool) -> (bool, Wait) {
        let mut undo: Vec<(Arc<Policy>, Work, Number)> = Vec::new();
        let mut waits = Vec::new();
        let mut tried = 0;
        for (policy, id, cost) in groups {
            let work = match id {
                _ if *cost == 0 => Work::Look(0),
                Some(id) => once(*id, *cost),
                None => Work::Reserve { cost: *cost, hold: Work::hold(policy.timeout) },
            };
            tried += 1;
            // Numbers of one step, which no other operation has.
            let number = Number::MAX - tried as Number;
            self.number = Some(number);
            let done = self.call(policy, work).await;
            if let Some(wait) = denied_for(&done) {
                waits.push(wait);
                break;
            }
            match (&done, id) {
                (Done::Reserved(_, Some(receipt)), _) => {
                    undo.push((policy.clone(), Work::GiveBack(receipt.clone()), number));
                }
                (Done::Charged(charged), Some(id)) if !charged.replayed => {
                    undo.push((policy.clone(), Work::Undo(name(*id)), number));
                }
                _ => {}
            }
        }
        if !refused && waits.is_empty() {
            return (true, Wait::NONE);
        }
        for (policy, work, number) in undo {
            self.number = Some(number);
            self.call(&policy, work).await;
        }
        for (policy, _, cost) in &groups[tried..] {
            let done = self.call(policy, Work::Look(*cost)).await;
            waits.extend(denied_for(&done));
        }
        for (place, (policy, ..)) in groups.iter().enumerate() {
            let alike: Vec<_> = groups.iter().filter(|(other, ..)| Arc::ptr_eq(other, policy)).collect();
            let is_first = groups[..place].iter().all(|(other, ..)| !Arc::ptr_eq(other, policy));
            if is_first && alike.len() > 1 && !waits.is_empty() {
                let others = alike.iter().filter(|(.., cost)| *cost > 0).count().saturating_sub(1) as u64;
                let sum = alike.iter().map(|(.., cost)| cost).sum();
                match policy.with_fewer_places(others) {
                    Some(fewer) => waits.extend(denied_for(&self.call(&Arc::new(fewer), Work::Look(sum)).await)),
                    None => waits.push(Wait::Never),
                }
            }
        }
        (false, waits.into_iter().max().unwrap_or(Wait::NONE))
    }
}

fn once(id: Number, cost: u64) -> Work {
    Work::Once { id: name(id).into(), cost, over: Over::Deny }
}

/// Mirrors `waiting_work` in `alone.rs`.
fn wait(policy: &Policy, id: Option<Number>, cost: u64, longest: Micros) -> Work {
    let line = Line { longest, queue: policy.options.queue };
    let id = id.map(|id| Id::from(name(id)));
    let id = id.map(|id| Id { life: Some(id.record_life(policy) + longest), ..id });
    Work::Wait(Box::new(Waiting { cost, line, id }))
}

/// The wait of a denial; none if the answer allows.
fn denied_for(done: &Done) -> Option<Wait> {
    let verdict = match done {
        Done::Taken(taken) | Done::Reserved(taken, _) => taken.ruling.verdicts.first()?,
        _ => return None,
    };
    (!verdict.allowed).then_some(verdict.retry_after)
}

fn counts_as(policy: &Policy, quotas: &[Quota], by_limits: bool) -> bool {
    let by_limits = by_limits || policy.algorithm == Algorithm::TokenBucket;
    let is_same =
        |(own, other): (&Quota, &Quota)| own.window == other.window && (!by_limits || own.limit == other.limit);
    policy.quotas.len() == quotas.len() && policy.quotas.iter().zip(quotas).all(is_same)
}

/// The policy's timeout, us.
pub fn timeout(policy: &Policy) -> Micros {
    micros(policy.timeout)
}
