//! The random choices of a history: when something happens, and what.

use smallvec::smallvec;
use tollgate::limit::time::{Micros, micros};
use tollgate::store::Work;

use super::{DRIFT, History, Open, Trouble};

impl History<'_> {
    pub(super) fn event(&mut self) -> Result<(), String> {
        let (span, window) = (self.shape.lease.span, self.shape.window);
        let gap = match self.dice.below(16) {
            0..8 => self.dice.below(span / 12),
            8 => self.dice.below(span),
            9 => self.dice.below(window / 3),
            10 => self.dice.below(2 * window),
            11 | 12 => self.aim() - self.now,
            13 | 14 if self.plan.callers && self.dice.below(2) == 0 => return self.spend_as_caller(true),
            13 | 14 => return self.spend_late(),
            _ => {
                let expiry = self.expiry().max(self.now);
                self.pass_until(expiry)?;
                return self.saturate();
            }
        };
        self.pass_until(self.now + gap)?;
        if self.dice.below(2) == 0 {
            self.turn = self.dice.place(self.nodes.len());
        }
        let node = self.turn;
        match (self.dice.below(48), self.plan.trouble) {
            (0..4, Trouble::Refunds) => {
                let cost = self.cost();
                self.run_now(node, Work::Refund(cost))
            }
            (0..3, Trouble::Resets) => self.reset(node),
            (0..3, Trouble::Failovers) => self.fail_over(),
            (0..4, Trouble::Steps) => self.step_clock(),
            (4, _) if self.plan.losses => self.die(node),
            (5, _) => self.leave(node),
            (6..18, _) if self.plan.others => self.other(node),
            (18..26, _) if self.plan.callers => self.buy_as_caller(),
            (26..36, _) if self.plan.callers => self.spend_as_caller(false)?,
            (36..38, _) if self.plan.callers => self.leave_as_caller(),
            _ => {
                for _ in 0..=self.dice.below(2) {
                    let cost = self.cost();
                    self.check(node, cost)?;
                }
            }
        }
        Ok(())
    }

    /// An instant at which something changes: the next event, or the end of a mark.
    fn aim(&mut self) -> Micros {
        let due = self.events.iter().map(|(due, ..)| *due);
        let marks = self.leases.iter().map(|open| self.true_time(open.receipt.until));
        let all: Vec<Micros> = due.chain(marks).filter(|instant| *instant >= self.now).collect();
        if all.is_empty() { self.now } else { *self.dice.one_of(&all) + self.dice.below(2) }
    }

    /// Spends what is in hand of a late lease, about at its last instant by its node's clock.
    fn spend_late(&mut self) -> Result<(), String> {
        let places = 0..self.leases.len();
        let in_hand = places.rev().filter(|place| self.nodes[self.leases[*place].node].lease == Some(*place));
        let in_hand: Vec<usize> = in_hand.take(2).collect();
        if in_hand.is_empty() {
            let node = self.turn;
            return self.check(node, 1);
        }
        let Open { lasts, node, sent, .. } = self.leases[*self.dice.one_of(&in_hand)];
        let last = (sent + lasts).saturating_add_signed(-self.nodes[node].drift * lasts.cast_signed() / DRIFT);
        // A lease that is never used ends at half of its time.
        self.check(node, 1)?;
        let then = self.now.max(last - self.dice.below(3));
        self.pass_until(then)?;
        self.turn = node;
        let left = self.nodes[node].lease.map_or(1, |place| self.leases[place].hand.left());
        self.check(node, left.max(1))
    }

    /// Asks for whatever is left.
    fn saturate(&mut self) -> Result<(), String> {
        let mut cost = self.shape.limit / 2;
        while cost > 0 {
            let way = self.dice.below(3);
            self.pass_until(self.now + way)?;
            let node = self.dice.place(self.nodes.len());
            self.send(node, Work::Take(smallvec![cost]), None, way);
            cost /= 3;
        }
        Ok(())
    }

    /// About the instant at which the charge of a late lease leaves a window.
    fn expiry(&mut self) -> Micros {
        let late = self.dice.place(self.leases.len().min(3) + 1);
        let Some(open) = self.leases.len().checked_sub(late).and_then(|place| self.leases.get(place)) else {
            return self.now;
        };
        let window = self.dice.one_of(&self.shape.plain.quotas).window;
        let leaves = self.true_time(open.receipt.charge.at + window);
        match self.dice.below(2) {
            0 => leaves + self.dice.below(3),
            _ => (leaves + self.dice.below(3 * self.shape.lease.span)).saturating_sub(self.shape.lease.span),
        }
    }

    pub(super) fn cost(&mut self) -> u64 {
        match self.dice.below(8) {
            0..5 => 1 + self.dice.below(4),
            5 | 6 => 1 + self.dice.below(self.shape.limit / 8),
            _ => 1 + self.dice.below(self.shape.limit / 3),
        }
    }

    /// A way of a call, or of its answer, us.
    pub(super) fn way(&mut self) -> Micros {
        let (timeout, span) = (micros(self.shape.leased.timeout), self.shape.lease.span);
        match self.dice.below(16) {
            0..13 => self.dice.below(span.min(timeout) / 12),
            13 => self.dice.below(timeout / 2),
            14 => self.dice.below(timeout.max(span)),
            _ => (self.aim() - self.now).min(timeout),
        }
    }
}
