//! Troubles of nodes and of the store, and operations beside checks.

use std::sync::Arc;

use tollgate::limit::lease::Demand;
use tollgate::store::{Done, Over, Work};

use super::{BACK, Call, Event, History, subjects};

impl History<'_> {
    /// The node ends: it returns what it has. Another takes its place.
    pub(super) fn leave(&mut self, node: usize) {
        self.end_lease_of(node);
    }

    pub(super) fn die(&mut self, node: usize) {
        self.tell(|_| format!("node {node}: dies"));
        self.seen.deaths += 1;
        self.is_lossy = true;
        let places: Vec<usize> = (0..self.leases.len()).filter(|place| self.leases[*place].node == node).collect();
        for place in places {
            self.leases[place].hand.end();
            self.leases[place].is_over = true;
        }
        let anew = &mut self.nodes[node];
        (anew.life, anew.lease, anew.is_buying, anew.remaining) = (anew.life + 1, None, false, 0);
        anew.demand = Demand::default();
    }

    pub(super) fn reset(&mut self, node: usize) {
        self.seen.resets += 1;
        self.end_lease_of(node);
        self.call(node, Work::Reset(Box::default()));
    }

    /// The store's clock steps. All nodes notice it, so that leases end.
    pub(super) fn step_clock(&mut self) {
        self.seen.steps += 1;
        self.latest = self.latest.max(self.instant());
        // A window counts at most its own length ahead, and a lease is ahead by its span.
        let most = BACK.min(self.shape.window - self.shape.lease.span);
        let step = match self.dice.below(2) {
            0 => self.dice.below(2 * self.shape.window).cast_signed(),
            _ => {
                let least = self.latest - most;
                -self.dice.below(self.instant().saturating_sub(least) + 1).cast_signed()
            }
        };
        self.offset += step;
        self.outdate_sales();
        self.move_slot();
        self.tell(|_| format!("the store's clock steps by {step}"));
    }

    fn move_slot(&self) {
        self.world.prefilters.iter().for_each(|(_, generations)| generations.moved(self.slot));
    }

    /// The store loses its latest steps. Returns on their way are lost with the connection.
    pub(super) fn fail_over(&mut self) {
        self.seen.failovers += 1;
        let kept = match self.dice.below(3) {
            0 => 0,
            _ => self.steps.len() - self.dice.place(self.steps.len().min(12) + 1),
        };
        self.failovers += 1;
        let key = format!("{} {}", self.key, self.failovers);
        self.subjects = subjects(&self.shape, &key);
        self.steps.truncate(kept);
        for (at, leased, work) in &self.steps {
            self.world.store.at(*at).run(&self.subjects[*leased], work, &[]).unwrap();
        }
        self.judge.lose(kept);
        self.lose_sales(kept);
        self.charged.retain(|_, step| *step < kept);
        self.reserved.retain(|(_, _, step)| *step < kept);
        self.events
            .retain(|(_, _, event)| !matches!(event, Event::Arrive(Call { work: Work::Return(_), .. })));
        self.move_slot();
        self.tell(|_| format!("the store keeps {kept} steps"));
    }

    /// An operation that buys nothing.
    pub(super) fn other(&mut self, node: usize) {
        let (cost, hold) = (self.cost(), Work::hold(self.shape.leased.timeout));
        let over = if self.dice.below(2) == 0 { Over::Drain } else { Over::Deny };
        let work = match self.dice.below(8) {
            0 => Work::Drain(cost),
            1 | 2 => {
                let id: Arc<str> = self.ids.len().to_string().into();
                self.ids.push((id.clone(), cost, over));
                Work::Once { id: id.into(), cost, over }
            }
            3 if !self.ids.is_empty() => {
                let (id, cost, over) = self.dice.one_of(&self.ids).clone();
                Work::Once { id: id.into(), cost, over }
            }
            4 if !self.ids.is_empty() => Work::RefundOnce(self.dice.one_of(&self.ids).0.clone()),
            5 if !self.reserved.is_empty() => {
                let (receipt, made, step) = self.reserved.remove(self.dice.place(self.reserved.len()));
                if self.now > made + hold {
                    return;
                }
                return self.give_back(node, Work::GiveBack(receipt), step);
            }
            _ => Work::Reserve { cost, hold },
        };
        match &work {
            Work::RefundOnce(id) => match self.charged.get(id).copied() {
                Some(step) => self.give_back(node, work, step),
                None => self.run_now(node, work),
            },
            _ => self.run_now(node, work),
        }
    }

    fn give_back(&mut self, node: usize, work: Work, charged: usize) {
        let done = self.run(node, work).unwrap();
        if matches!(done, Done::Refunded(_, 1..)) {
            self.seen.given_back += 1;
            self.judge.given_back(self.instant(), charged);
        }
    }

    pub(super) fn run_now(&mut self, node: usize, work: Work) {
        let step = self.steps.len();
        let done = self.run(node, work.clone()).unwrap();
        self.charged_by(step, &done);
        match (work, done) {
            (Work::Refund(cost), Done::Refunded(_, given)) => {
                self.seen.refunds += u64::from(given > 0);
                self.judge.refund(step, self.instant(), cost, given);
            }
            (Work::Once { id, .. }, Done::Charged(charged)) if !charged.replayed => {
                _ = self.charged.insert(id.name, step)
            }
            (_, Done::Reserved(_, Some(receipt))) => self.reserved.push((receipt, self.now, step)),
            _ => {}
        }
    }
}
