//! A batch: the requests for one key under one policy, decided together.

use std::sync::Arc;

use crate::limit::decision::Ruling;
use crate::limit::hold::Renewal;
use crate::limit::key::Fingerprint;
use crate::limit::lease::SoldEnd;
use crate::limit::log::max_entries;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::Rule;
use crate::store::redis::lane::refused_kinds::CallKind;
use crate::store::redis::protocol::call::{By, Call};
use crate::store::redis::protocol::log::PORTION;
use crate::store::redis::protocol::reply::NoVerdict;
use crate::store::redis::protocol::sources::ScriptId;
use crate::store::redis::request::KeyRequest;
use crate::store::{Done, Meta, Over, Taken, Work};

/// The most costs in one call. The server does nothing else meanwhile.
pub const COSTS: usize = 1000;

/// The most different costs in one call for a sliding log with one quota. For several quotas this
/// is divided by their number. For each cost, the server searches each quota's log for the instant
/// at which it fits. A search lasts up to 0.1 ms.
const SEARCHES: usize = 64;

/// The weight of each search after the first cost's, in costs of a check.
const SEARCH: usize = 16;

/// How many log entries weigh as much as one cost in a refund. A refund may move half of the log.
/// With 100,000 entries this lasts a fifth of a second.
const MOVED: usize = 10;

/// The requests for one key under one policy, which are decided together.
pub struct KeyBatch {
    pub requests: Vec<KeyRequest>,
    pub costs: Vec<u64>,
    /// One for each cost, or empty.
    metas: Vec<Meta>,
    /// The distinct costs, for a sliding log.
    different: Different,
}

/// Returns the most entries in all logs of a policy. Each entry costs at least one unit. Other
/// policies have none.
fn log_entries(policy: &Policy) -> usize {
    let logs = policy.quotas.iter().filter(|quota| matches!(quota.rule, Rule::SlidingLog(_)));
    let entries: u64 = logs.map(|quota| max_entries(quota).min(quota.limit.get())).sum();
    usize::try_from(entries).unwrap_or(usize::MAX)
}

impl KeyBatch {
    pub fn of(request: KeyRequest) -> Self {
        let different = Different::of(&request.policy);
        let mut batch = Self { costs: Vec::new(), metas: Vec::new(), requests: Vec::with_capacity(1), different };
        batch.push(request);
        batch
    }

    /// Returns the fingerprint of its key under its policy.
    pub fn key(&self) -> Fingerprint {
        self.requests[0].fingerprint
    }

    /// Returns what its callers ask for.
    pub fn kind(&self) -> CallKind {
        CallKind::of(&self.requests[0])
    }

    /// Returns the slot of its key.
    pub fn slot(&self) -> u16 {
        self.requests[0].tag.slot()
    }

    /// Whether a request may join. All requests of a call need the same limits and the same node.
    pub fn accepts(&self, request: &KeyRequest) -> bool {
        let first = &self.requests[0];
        Arc::ptr_eq(&first.policy, &request.policy)
            && first.asking == request.asking
            && matches!(first.work, Work::Take(_))
            && matches!(request.work, Work::Take(_))
            && self.costs.len() + request.work.costs().len() <= COSTS
            && self.different.has_room(request.work.costs())
    }

    pub fn push(&mut self, request: KeyRequest) {
        let (costs, metas) = (request.work.costs(), &request.metas[..]);
        if !metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
            self.metas.extend_from_slice(metas);
        }
        self.costs.extend_from_slice(costs);
        self.different.add(costs);
        if !self.metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
        }
        self.requests.push(request);
    }

    /// Drops the requests of callers that gave up. Returns whether any are left.
    pub fn is_wanted(&mut self) -> bool {
        if self.requests.iter().any(|request| request.reply_to.is_closed()) {
            self.costs.clear();
            self.metas.clear();
            self.different.known.clear();
            let requests = std::mem::take(&mut self.requests).into_iter();
            requests.filter(|request| !request.reply_to.is_closed()).for_each(|request| self.push(request));
        }
        !self.requests.is_empty()
    }

    /// Whether the batch may charge anything.
    pub fn may_charge(&self) -> bool {
        self.requests.iter().any(|request| request.work.may_charge())
    }

    /// Whether a caller still waits for its answer.
    pub fn is_awaited(&self) -> bool {
        self.requests.iter().any(|request| !request.reply_to.is_closed())
    }

    /// Whether it returns units of a lease. No denial was learned while they could be returned.
    pub fn is_return(&self) -> bool {
        matches!(self.requests[0].work, Work::Return(_))
    }

    /// Whether it buys or returns units of a lease.
    pub fn is_of_lease(&self) -> bool {
        matches!(self.requests[0].work, Work::Lease { .. } | Work::Return(_))
    }

    /// Whether this answer means that the server wrote something for the batch.
    pub fn was_written(&self, done: &Done) -> bool {
        match done {
            Done::Refunded(_, given) => *given > 0,
            Done::Charged(charged) => !charged.replayed,
            Done::Sold(_, sold) => sold.is_some_and(|sold| !sold.replayed),
            Done::Returned(_, end) => matches!(end, SoldEnd::Settled { replayed: false, .. }),
            Done::Settled(_, settlement) => settlement.is_some_and(|settlement| !settlement.replayed),
            Done::Renewed(renewal) => matches!(renewal, Renewal::Open(_)),
            Done::Taken(_) | Done::Reserved(..) | Done::Leased(..) => self.may_charge() && done.is_charge(),
            Done::Reused(_) | Done::Holds(..) | Done::Page(_) | Done::Ticks(..) => false,
        }
    }

    /// Returns the script that the batch may share with others, if any. A call behind ASKING has
    /// only one key.
    pub fn shared_script(&self) -> Option<ScriptId> {
        self.check().filter(|_| !self.requests[0].asking)?;
        self.script_in_order()
    }

    /// Returns the script that its call must not wait for, since calls of the key follow. A read
    /// may come late.
    pub fn script_in_order(&self) -> Option<ScriptId> {
        let reads = matches!(self.requests[0].work, Work::ReadLog(_) | Work::ReadTicks { .. } | Work::ReadHolds);
        (!reads).then(|| self.script_id())
    }

    pub fn script_id(&self) -> ScriptId {
        ScriptId::of(&self.requests[0].policy, &self.requests[0].work)
    }

    /// Returns the check of the batch, if it is one; see [`Call::is_check`].
    pub fn check(&self) -> Option<Call<'_>> {
        Some(self.call()).filter(Call::is_check)
    }

    /// Returns the call for the batch alone.
    pub fn call(&self) -> Call<'_> {
        let KeyRequest { tag, policy, work, .. } = &self.requests[0];
        Call { tag, policy, work, costs: &self.costs, metas: &self.metas }
    }

    /// Returns the load of its call on the server and the connection, in costs of a check.
    pub fn weight(&self) -> usize {
        let KeyRequest { policy, work, .. } = &self.requests[0];
        match work {
            Work::ReadLog(_) => log_entries(policy).clamp(1, PORTION),
            Work::GiveBack(_)
            | Work::Return(_)
            | Work::Refund(_)
            | Work::RefundOnce(_)
            | Work::Undo(_)
            | Work::Settle { .. } => (log_entries(policy) / MOVED).max(1),
            _ => {
                let more = self.different.known.len().saturating_sub(1) * policy.quotas.len();
                self.costs.len().max(more * SEARCH).max(1)
            }
        }
    }

    /// Returns the name of its command for traces.
    pub fn command(&self, by: By) -> &'static str {
        if matches!(self.requests[0].work, Work::ReadTicks { .. }) { "MGET" } else { by.command() }
    }

    /// Returns the name of the script for traces.
    pub fn script(&self) -> String {
        let KeyRequest { policy, work, .. } = &self.requests[0];
        let algorithm = policy.algorithm.name();
        match work {
            Work::Take(_) | Work::Look(_) => algorithm.to_owned(),
            Work::Drain(_) => format!("{algorithm} drain"),
            Work::Wait(_) => format!("{algorithm} wait"),
            Work::Once { over: Over::Deny, .. } => format!("{algorithm} once"),
            Work::Once { over: Over::Drain, .. } => format!("{algorithm} drain once"),
            Work::Reserve { .. } => format!("{algorithm} reserve"),
            Work::Lease { .. } => format!("{algorithm} lease"),
            Work::Sell(_) => format!("{algorithm} sale"),
            Work::GiveBack(_) | Work::Return(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset(_) => {
                format!("{algorithm} give back")
            }
            Work::Undo(_) => format!("{algorithm} undo"),
            Work::Settle { .. } => format!("{algorithm} settle"),
            Work::Renew(_) => format!("{algorithm} renew"),
            Work::ReadHolds => format!("{algorithm} holds"),
            Work::ReadLog(_) => format!("{algorithm} entries"),
            Work::ReadTicks { .. } => format!("{algorithm} ticks"),
        }
    }

    /// Passes each request its part of the answer.
    pub fn hand_out(mut self, done: Done, mut give: impl FnMut(KeyRequest, Done)) {
        if self.requests.len() == 1
            && let Some(request) = self.requests.pop()
        {
            return give(request, done);
        }
        let Done::Taken(Taken { ruling: Ruling { verdicts, closed }, at, tentative }) = done else { return };
        let mut verdicts = verdicts.into_iter();
        for request in self.requests {
            let verdicts = verdicts.by_ref().take(request.work.costs().len()).collect();
            let ruling = Ruling { verdicts, closed: closed.clone() };
            give(request, Done::Taken(Taken { ruling, at, tentative }));
        }
    }

    pub fn reject(self, reason: &NoVerdict) {
        for request in self.requests {
            request.reply_to.send(Err(reason.clone()));
        }
    }
}

/// Returns how many of the costs, from the first on, one call may carry.
pub fn first_part(policy: &Policy, costs: &[u64]) -> usize {
    let mut different = Different::of(policy);
    if costs.len() <= different.most {
        return costs.len();
    }
    let fits = |cost: &&[u64]| {
        let has_room = different.has_room(cost);
        different.add(cost);
        has_room
    };
    costs.chunks(1).take_while(fits).count()
}

/// The distinct costs of a call, as far as a limit applies to them.
struct Different {
    known: Vec<u64>,
    most: usize,
}

impl Different {
    fn of(policy: &Policy) -> Self {
        let most = match policy.algorithm {
            Algorithm::SlidingLog => (SEARCHES / policy.quotas.len().max(1)).max(1),
            _ => usize::MAX,
        };
        Self { known: Vec::new(), most }
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

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::*;
    use crate::store::redis::request::tests::request;

    #[test]
    fn calls_are_named_by_their_command() {
        let named = |work: Work| {
            let batch = KeyBatch::of(KeyRequest { work, ..request("a").0 });
            [By::Hash, By::Source].map(|by| {
                let command = batch.call().command(by, 1_000_000, None);
                assert_eq!(command.args_iter().next(), Some(Arg::Simple(by.command().as_bytes())));
                by.command()
            })
        };
        for work in [Work::Look(1), Work::ReadLog(0)] {
            assert_eq!(named(work), ["EVALSHA", "EVAL"]);
        }
    }
}
