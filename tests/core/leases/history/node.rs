//! A node of a history: it checks, buys and returns as the engine does.

use smallvec::smallvec;
use tollgate::limit::decision::Verdict;
use tollgate::limit::lease::Hand;
use tollgate::limit::receipt::LeaseReceipt;
use tollgate::limit::time::{Micros, micros};
use tollgate::store::{Done, Taken, Work};

use super::{Asked, Call, Charge, DRIFT, Event, History, Open};

impl History<'_> {
    pub(super) fn check(&mut self, node: usize, cost: u64) -> Result<(), String> {
        self.seen.checks += 1;
        if self.judges_denials() {
            let (policy, prefilter) = (self.policy(node).clone(), &self.world.prefilters[node].0);
            let fingerprint = self.subjects[0].fingerprint;
            if prefilter.denial(fingerprint, &policy, cost, self.now).is_some() {
                self.seen.prefiltered += 1;
                let look = self.world.store.at(self.instant());
                let done = look.run(&self.subjects[usize::from(self.nodes[node].leases)], &Work::Look(cost), &[]);
                self.tell(|_| format!("node {node}: denies {cost} by its pre-filter"));
                return match done.unwrap() {
                    Done::Taken(taken) if !taken.ruling.verdicts[0].allowed => Ok(()),
                    other => Err(format!("the pre-filter denies what the store allows: {other:?}")),
                };
            }
        }
        let units = if self.nodes[node].leases { self.ask(node, cost) } else { Asked::Buy(None) };
        match units {
            Asked::Paid => self.tell(|_| format!("node {node}: pays {cost} from its lease")),
            Asked::Buy(None) => self.call(node, Work::Take(smallvec![cost])),
            Asked::Buy(Some(units)) => {
                self.nodes[node].is_buying = true;
                let hold = self.shape.lease.hold(self.shape.leased.timeout);
                self.call(node, Work::Lease { costs: smallvec![cost, units], hold });
            }
        }
        Ok(())
    }

    /// As the engine asks a node's leases.
    fn ask(&mut self, node: usize, cost: u64) -> Asked {
        let lease = self.shape.lease;
        let (now, instant) = (self.now, self.instant());
        let demand = self.nodes[node].demand.add(lease.span, now, cost);
        if let Some(place) = self.nodes[node].lease {
            let open = &self.leases[place];
            let age = self.age(node, open.sent);
            if self.owner(node) != open.owner {
                self.end(place);
            } else if open.hand.spend(cost, age).is_some() {
                self.seen.paid += 1;
                self.judge.spend(instant, &open.charge, vec![cost; self.shape.plain.quotas.len()]);
                return Asked::Paid;
            } else if open.hand.is_open(age) {
                return Asked::Buy(None);
            }
            self.nodes[node].lease = None;
        }
        if self.nodes[node].is_buying {
            return Asked::Buy(None);
        }
        Asked::Buy(match self.plan.greedy {
            true => Some(1 + self.dice.below(self.shape.limit / 2)),
            false => lease.units(demand, self.nodes[node].remaining, cost),
        })
    }

    /// The time since an instant by a node's clock, us.
    fn age(&self, node: usize, since: Micros) -> Micros {
        let age = self.now - since;
        age.saturating_add_signed(self.nodes[node].drift * (age.cast_signed() / DRIFT))
    }

    fn owner(&self, node: usize) -> u32 {
        self.world.prefilters[node].1.owner(self.slot)
    }

    pub(super) fn call(&mut self, node: usize, work: Work) {
        let way = self.way();
        self.send(node, work, None, way);
    }

    pub(super) fn send(&mut self, node: usize, work: Work, lease: Option<usize>, way: Micros) {
        let call = Call {
            node,
            life: self.nodes[node].life,
            sent: self.now,
            work,
            question: self.world.prefilters[node].0.question(self.slot, self.now),
            owner: self.owner(node),
            resets: self.nodes[node].resets,
            lease,
            is_lost: self.plan.losses && self.dice.below(8) == 0,
            back: self.way(),
        };
        self.tell(|_| format!("node {node}: sends {:?}", call.work));
        self.at(self.now + way, Event::Arrive(call));
    }

    pub(super) fn answer(&mut self, call: &Call, answer: Option<(Done, Option<Charge>)>) {
        let (node, is_of_lease) = (call.node, matches!(call.work, Work::Lease { .. }));
        if call.life != self.nodes[node].life {
            return;
        }
        if is_of_lease {
            self.nodes[node].is_buying = false;
        }
        if matches!(call.work, Work::Reset(_)) {
            self.end_lease_of(node);
        }
        let Some((done, charge)) = answer else {
            self.is_lossy |= is_of_lease;
            return;
        };
        match done {
            Done::Taken(taken) => self.learn(call, &taken),
            Done::Refunded(taken, _) => self.note_remaining(node, &taken),
            Done::Leased(mut taken, receipt) => {
                let units = taken.ruling.verdicts.pop().unwrap();
                taken.tentative |= receipt.is_some();
                self.learn(call, &taken);
                if let Some((receipt, charge)) = receipt.zip(charge) {
                    self.open(call, receipt, charge, &units);
                }
            }
            _ => {}
        }
    }

    fn learn(&mut self, call: &Call, taken: &Taken) {
        self.note_remaining(call.node, taken);
        if self.now - call.sent < micros(self.shape.leased.timeout) {
            let (prefilter, policy) = (&self.world.prefilters[call.node].0, self.policy(call.node));
            prefilter.learn(self.subjects[0].fingerprint, policy, call.question, taken, self.now);
        }
    }

    fn note_remaining(&mut self, node: usize, taken: &Taken) {
        let quotas = taken.ruling.verdicts.last().map(|verdict| &verdict.quotas);
        self.nodes[node].remaining = quotas.into_iter().flatten().map(|quota| quota.remaining).min().unwrap_or(0);
    }

    /// As the engine holds what it has bought.
    fn open(&mut self, call: &Call, receipt: Box<LeaseReceipt>, charge: Charge, units: &Verdict) {
        let (node, place) = (call.node, self.leases.len());
        let resets = units.quotas.iter().map(|quota| quota.reset_after);
        let lasts = self.shape.leased.lease_lasts(self.shape.lease, resets);
        let hand = Hand::new(receipt.charge.cost, lasts);
        let (sent, owner) = (call.sent, call.owner);
        self.tell(|_| format!("node {node}: has bought {} for {lasts}", receipt.charge.cost));
        self.leases.push(Open { hand, lasts, node, sent, owner, receipt, charge, is_over: false });
        if call.resets != self.nodes[node].resets {
            return self.end(place);
        }
        self.nodes[node].lease = Some(place);
        let left = self.leases[place].hand.left();
        self.at(sent + lasts / 2, Event::Half(place, left));
    }

    /// Ends a lease and returns the rest, unless the slot has moved.
    pub(super) fn end(&mut self, place: usize) {
        let open = &mut self.leases[place];
        if open.is_over {
            return;
        }
        open.is_over = true;
        let (node, units) = (open.node, open.hand.end());
        let mut receipt = open.receipt.clone();
        if units == 0 {
            return;
        }
        if self.owner(node) != self.leases[place].owner {
            self.seen.unusable += 1;
            return;
        }
        if self.plan.losses && self.dice.below(8) == 0 {
            self.tell(|_| format!("node {node}: loses a return of {units}"));
            self.is_lossy = true;
            return;
        }
        let left = self.true_time(receipt.until).saturating_sub(self.now);
        receipt.charge.cost = units;
        let way = match self.dice.below(8) {
            0 => left,
            1 if self.plan.losses => left + 1,
            2 if self.plan.losses => left + self.dice.below(self.shape.window / 2),
            _ => self.way().min(left),
        };
        self.send(node, Work::Return(receipt), Some(place), way);
    }

    pub(super) fn end_lease_of(&mut self, node: usize) {
        self.nodes[node].resets += 1;
        if let Some(place) = self.nodes[node].lease.take() {
            self.end(place);
        }
    }

    pub(super) fn returned(&mut self, place: usize, call: &Call, given: u64) -> Result<(), String> {
        let Work::Return(receipt) = &call.work else { return Ok(()) };
        let (instant, units) = (self.instant(), receipt.charge.cost);
        if given > units || given > 0 && instant > receipt.until {
            return Err(format!("a return of {units} gives {given} at {instant}, {receipt:?}"));
        }
        self.judge.unsold(instant, &self.leases[place].charge, given);
        self.seen.returned += u64::from(given > 0);
        self.seen.refused += u64::from(instant > receipt.until);
        self.is_lossy |= given < units;
        Ok(())
    }
}
