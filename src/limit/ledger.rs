//! The record that lets a token bucket refund a charge exactly.
//!
//! A bucket repays debts oldest first. The debts form a line, and each charge adds its debt at the
//! end. The front moves along the line as debt is repaid. The bucket owes everything after the
//! front. A refunded charge leaves a hole as large as its unpaid debt. The front skips holes, so
//! charges after a hole are repaid sooner. Holes with no debt between them merge. A hole at the end
//! only shortens the line. So there is at most one hole per run of refunded charges between other
//! charges.
//!
//! A position on the line is where a front that never skips would be at an instant. `shift` sums
//! all debt that the front has skipped or will skip. A charge at the end of the line ends at the
//! debt after it plus `shift`. Its [`Entry`](super::receipt::Entry) stores that sum, with the
//! instant. `shift` restarts before it grows too large, and `rebased` corrects the positions of
//! earlier charges. At the next restart, charges from before the first one count as repaid.
//!
//! This is exact if the front has since skipped as much as the bucket may owe: twice its capacity.
//! A bucket of which 66 fit into `MAX_SHIFT` guarantees that. Its holes, which `shift` includes,
//! hold at most 32 times that debt. A larger bucket may refund less of an old charge.
//!
//! The number of a refundable charge is the store's instant, or the last number plus one. `born` is
//! the first number since the bucket was last full. Earlier charges are repaid, whatever their
//! instants.

use smallvec::SmallVec;

use super::rate::Terms;
use super::time::Micros;

/// Maximum number of holes. Beyond it, the two holes with the least debt between them merge at the
/// place of the first. A refund of the debt between them then returns that much less, and no refund
/// returns more.
const HOLES: usize = 32;

/// Maximum of `shift`, in fractions. With the largest debt added, Lua's doubles still represent it
/// exactly.
const MAX_SHIFT: u64 = 1 << 52;

/// The ledger of one key and one quota. Debts are in the fractions of `bucket.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Until when a reservation may be refunded, us.
    pub mark: Micros,
    pub born: u64,
    pub last: u64,
    /// The instant to which the positions of the holes refer, us.
    pub at: Micros,
    /// All debt skipped since `turned`, plus all holes.
    pub shift: u64,
    /// The first number since `shift` restarted.
    pub turned: u64,
    /// The amount that the restart subtracted from `shift`.
    pub rebased: u64,
    /// In order; none at the front or the end.
    pub holes: SmallVec<[Hole; 0]>,
}

/// Refunded debt on the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Debt owed before the hole.
    pub behind: u64,
    pub debt: u64,
}

impl Ledger {
    /// The next number at `now`.
    pub fn number(&mut self, now: Micros) -> u64 {
        self.last = now.max(self.last + 1);
        if self.born == 0 {
            (self.born, self.at) = (self.last, now);
        }
        self.last
    }

    /// Moves the front to its place at `now`. The front never moves back.
    pub fn pass(&mut self, terms: Terms, now: Micros) {
        let repaid = terms.repaid.saturating_mul(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        self.advance(repaid);
    }

    /// Moves the front by an amount of owed debt. The front skips each hole that it reaches.
    fn advance(&mut self, by: u64) {
        self.holes.retain(|hole| hole.behind > by);
        self.holes.iter_mut().for_each(|hole| hole.behind -= by);
    }

    /// Distance from the front to the end of charge `number`, holes included. `place` is that end
    /// for a front that never skips.
    pub fn distance(&self, number: u64, place: u64) -> u64 {
        let rebased = if number < self.turned { self.rebased } else { 0 };
        place.saturating_sub(self.skipped() + rebased)
    }

    /// The debt skipped since `turned`.
    fn skipped(&self) -> u64 {
        self.shift - self.holes.iter().map(|hole| hole.debt).sum::<u64>()
    }

    /// Removes `debt` from the line at `distance` from the front.
    pub fn cut(&mut self, distance: u64, debt: u64) {
        let (mut place, mut skipped, mut behind) = (0, 0, 0);
        while let Some(hole) = self.holes.get(place).filter(|hole| hole.behind + skipped < distance) {
            (place, skipped, behind) = (place + 1, skipped + hole.debt, hole.behind);
        }
        // After a merge of two holes this place may lie inside a hole.
        behind = behind.max(distance.saturating_sub(skipped));
        self.holes
            .iter_mut()
            .skip(place)
            .for_each(|hole| hole.behind = behind.max(hole.behind.saturating_sub(debt)));
        self.holes.insert(place, Hole { behind, debt });
        self.join();
        self.skip(debt);
        self.advance(0);
    }

    /// Removes `debt` from the oldest debt.
    pub fn cut_oldest(&mut self, debt: u64) {
        self.advance(debt);
        self.skip(debt);
    }

    /// Ends the line at `owed` and drops the holes there.
    pub fn end(&mut self, owed: u64) {
        while let Some(hole) = self.holes.last().copied().filter(|hole| hole.behind >= owed) {
            self.holes.pop();
            self.shift -= hole.debt;
        }
    }

    fn skip(&mut self, debt: u64) {
        self.shift += debt;
        if self.shift > MAX_SHIFT {
            (self.born, self.turned, self.rebased) = (self.born.max(self.turned), self.last + 1, self.skipped());
            self.shift -= self.rebased;
        }
        while self.shift > MAX_SHIFT {
            let first = self.holes.remove(0);
            (self.shift, self.rebased) = (self.shift - first.debt, self.rebased + first.debt);
        }
    }

    /// Merges holes with no debt between them. Above the limit, merges the pair with the least debt
    /// between them.
    fn join(&mut self) {
        let gap = |pair: &[Hole]| pair[1].behind - pair[0].behind;
        while let Some((place, gap)) = self.holes.windows(2).map(gap).enumerate().min_by_key(|(_, gap)| *gap)
            && (gap == 0 || self.holes.len() > HOLES)
        {
            self.holes[place].debt += self.holes.remove(place + 1).debt;
        }
    }
}
