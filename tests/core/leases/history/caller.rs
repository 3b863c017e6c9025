//! Callers of a history: they buy from nodes, and spend and settle by their own clocks.
//!
//! They buy any number of units, as one that a node does not bound. Purchases and settles are
//! repeated when their answers are lost.

use std::sync::Arc;

use tollgate::limit::lease::{Sold, SoldEnd};
use tollgate::limit::time::{Micros, micros};
use tollgate::store::{Done, Sale, Work};

use super::{Charge, DRIFT, Event, History};

/// A lease of a caller.
pub(super) struct Bought {
    id: Arc<str>,
    /// The units that it asks for.
    units: u64,
    /// Its clock gains or loses this many 256ths.
    drift: i64,
    /// The charge, once the store has made it.
    charge: Option<Charge>,
    /// Until when the store accepts the settle, us.
    until: Micros,
    hand: Option<InHand>,
    spent: u64,
    /// Whether it is settled, or its caller has died.
    is_over: bool,
    /// Whether a failover has lost the charge, or the store's clock has stepped. No caller notices
    /// it, so these units come on top, once.
    is_on_top: bool,
}

#[derive(Debug, Clone, Copy)]
struct InHand {
    left: u64,
    sent: Micros,
    lasts: Micros,
}

impl History<'_> {
    pub(super) fn buy_as_caller(&mut self) {
        let units = 1 + if self.plan.greedy { self.dice.below(self.shape.limit / 2) } else { self.dice.below(12) };
        let bought = Bought {
            id: format!("caller {}", self.bought.len()).into(),
            units,
            drift: self.dice.below(3).cast_signed() - 1,
            charge: None,
            until: 0,
            hand: None,
            spent: 0,
            is_over: false,
            is_on_top: false,
        };
        self.bought.push(bought);
        self.send_purchase(self.bought.len() - 1);
    }

    fn send_purchase(&mut self, place: usize) {
        let (sent, way, back) = (self.now, self.way(), self.way());
        let is_lost = self.plan.losses && self.dice.below(4) == 0;
        let back = (!is_lost).then_some(back);
        self.tell(|history| {
            format!("a caller asks for {} as {}", history.bought[place].units, history.bought[place].id)
        });
        self.at(sent + way, Event::Sell { place, sent, back });
    }

    /// The purchase reaches the store.
    pub(super) fn sell(&mut self, place: usize, sent: Micros, back: Option<Micros>) -> Result<(), String> {
        let Bought { id, units, .. } = &self.bought[place];
        let sale = Sale::new(&self.shape.leased, self.shape.lease, id.clone(), *units);
        let (step, hold, quotas) = (self.steps.len(), sale.hold, self.shape.plain.quotas.len());
        let done = self.run_as(true, Work::Sell(Box::new(sale)), "a caller")?;
        let Done::Sold(_, sold) = done else { return Err(format!("a sale is answered by {done:?}")) };
        let instant = self.instant();
        if let Some(Sold { units, replayed: false, .. }) = sold {
            self.seen.sold += 1;
            let bought = &mut self.bought[place];
            // After a failover the second sale of an id may be the first that the store knows.
            bought.is_on_top |= bought.charge.is_some();
            bought.charge = Some(self.judge.charge(step, instant, &vec![units; quotas], false));
            bought.until = instant + hold;
            // Its settle may have come before.
            self.is_lossy |= bought.is_over;
        }
        let answer = self.now + back.unwrap_or(micros(self.shape.leased.timeout));
        self.at(answer, Event::Sold { place, sent, sold: sold.filter(|_| back.is_some()), is_lost: back.is_none() });
        Ok(())
    }

    /// The answer reaches the caller, or not.
    pub(super) fn sold(&mut self, place: usize, sent: Micros, sold: Option<Sold>, is_lost: bool) {
        if self.bought[place].is_over || self.bought[place].hand.is_some() {
            return;
        }
        match sold {
            _ if is_lost && self.dice.below(3) > 0 => self.send_purchase(place),
            // The store may have sold it.
            _ if is_lost => self.settle_as_caller(place),
            None => self.bought[place].is_over = true,
            Some(Sold { units, left, replayed }) => {
                self.seen.replayed += u64::from(replayed);
                let lasts = left - left.div_ceil(DRIFT.cast_unsigned());
                self.bought[place].hand = Some(InHand { left: units, sent, lasts });
                self.tell(|history| format!("{} has {units} for {lasts}", history.bought[place].id));
                let end = self.last_instant(place);
                self.at(end, Event::Settle { place });
            }
        }
    }

    /// Spends units of a late lease, or all of them about at its last instant by its caller's clock.
    pub(super) fn spend_as_caller(&mut self, is_late: bool) -> Result<(), String> {
        let has_units = |bought: &&usize| {
            let Bought { hand, is_over, .. } = &self.bought[**bought];
            !is_over && hand.is_some_and(|hand| hand.left > 0)
        };
        let in_hand: Vec<usize> = (0..self.bought.len()).collect();
        let in_hand: Vec<usize> = in_hand.iter().rev().filter(has_units).take(3).copied().collect();
        if in_hand.is_empty() {
            self.buy_as_caller();
            return Ok(());
        }
        let place = *self.dice.one_of(&in_hand);
        let cost = if is_late { u64::MAX } else { self.cost() };
        if is_late {
            let last = self.last_instant(place);
            let then = self.now.max(last - self.dice.below(3));
            self.pass_until(then)?;
        }
        self.spend(place, cost);
        Ok(())
    }

    /// The true time at which the time of a lease in hand is over by its caller's clock, us.
    fn last_instant(&self, place: usize) -> Micros {
        let Bought { hand, drift, .. } = &self.bought[place];
        let (sent, lasts) = hand.map_or((self.now, 0), |hand| (hand.sent, hand.lasts));
        (sent + lasts).saturating_add_signed(-drift * lasts.cast_signed() / DRIFT)
    }

    fn spend(&mut self, place: usize, most: u64) {
        let (now, instant) = (self.now, self.instant());
        let bought = &mut self.bought[place];
        let Some(hand) = bought.hand.as_mut().filter(|_| !bought.is_over) else { return };
        let age = (now - hand.sent).cast_signed();
        let age = age + bought.drift * (age / DRIFT);
        let cost = hand.left.min(most);
        if age >= hand.lasts.cast_signed() || cost == 0 {
            return;
        }
        hand.left -= cost;
        bought.spent += cost;
        if let Some(charge) = bought.charge.as_ref().filter(|_| !bought.is_on_top) {
            self.seen.spent_by_callers += 1;
            self.judge.spend(instant, charge, vec![cost; self.shape.plain.quotas.len()]);
        }
        self.tell(|history| format!("{} spends {cost}", history.bought[place].id));
    }

    /// Settles, or dies without it.
    pub(super) fn leave_as_caller(&mut self) {
        let open: Vec<usize> = (0..self.bought.len()).filter(|place| !self.bought[*place].is_over).collect();
        if open.is_empty() {
            return;
        }
        let place = *self.dice.one_of(&open);
        if self.plan.losses && self.dice.below(3) == 0 {
            self.tell(|history| format!("{} dies", history.bought[place].id));
            self.seen.deaths += 1;
            (self.bought[place].is_over, self.is_lossy) = (true, true);
        } else {
            self.settle_as_caller(place);
        }
    }

    /// Sends the settle of a lease, and sometimes again.
    pub(super) fn settle_as_caller(&mut self, place: usize) {
        let bought = &mut self.bought[place];
        if std::mem::replace(&mut bought.is_over, true) {
            return;
        }
        let until = bought.until;
        let left = self.true_time(until).saturating_sub(self.now);
        let way = match self.dice.below(8) {
            0 => left,
            1 if self.plan.losses => left + 1,
            2 if self.plan.losses => left + self.dice.below(self.shape.window / 2),
            _ => self.way().min(left),
        };
        self.at(self.now + way, Event::Settled { place });
        if self.dice.below(4) == 0 {
            let again = way + self.way();
            self.at(self.now + again, Event::Settled { place });
        }
    }

    /// The settle reaches the store.
    pub(super) fn settled(&mut self, place: usize) -> Result<(), String> {
        let Bought { id, spent, .. } = &self.bought[place];
        let (id, spent) = (id.clone(), *spent);
        let done = self.run_as(true, Work::Settle { id, cost: Some(spent) }, "a caller")?;
        let Done::Returned(_, end) = done else { return Err(format!("a settle is answered by {done:?}")) };
        let (instant, bought) = (self.instant(), &self.bought[place]);
        let is_certain = !bought.is_on_top && self.failovers == 0;
        match (end, &bought.charge) {
            (SoldEnd::Settled { returned, replayed, .. }, Some(charge)) => {
                if is_certain && !replayed && (spent + returned > bought.units || instant >= bought.until) {
                    return Err(format!("a settle of {spent} of {} returns {returned} at {instant}", bought.units));
                }
                if !replayed {
                    self.judge.unsold(instant, charge, returned);
                    self.seen.settled += 1;
                    self.is_lossy |= spent + returned < bought.units;
                }
            }
            (SoldEnd::Expired, _) if is_certain && instant < bought.until => {
                return Err(format!("a settle at {instant} expires before {}", bought.until));
            }
            (SoldEnd::Expired, _) => {
                self.seen.expired += 1;
                self.is_lossy = true;
            }
            (SoldEnd::Unknown, charge) => self.is_lossy |= charge.is_some(),
            (SoldEnd::SettledOtherwise | SoldEnd::Exceeded(_), _) if !is_certain => self.is_lossy = true,
            (other, _) => return Err(format!("a settle of {spent} is answered by {other:?}")),
        }
        Ok(())
    }

    /// The store forgets the steps from this one on.
    pub(super) fn lose_sales(&mut self, kept: usize) {
        for bought in &mut self.bought {
            bought.is_on_top |= bought.charge.as_ref().is_some_and(|charge| charge.step >= kept);
        }
    }

    /// The units that callers have in hand when the store's clock steps come on top.
    pub(super) fn outdate_sales(&mut self) {
        self.bought.iter_mut().for_each(|bought| bought.is_on_top |= bought.charge.is_some());
    }
}
