//! What a token bucket remembers so that a charge can be taken back exactly.
//!
//! Debts are repaid oldest first. So think of them as a line: each charge adds its debt at the end, and a front that
//! moves by what is repaid comes along it. What is right of the front is owed. A charge that is taken back leaves a
//! hole of what was still owed of it, and the front skips holes: those who come behind it are repaid sooner. Holes with
//! nothing owed between them are one, and one at the end is no more than a shorter line. So as many are kept as there
//! are runs of charges that were not taken back between some that were.
//!
//! A place on the line is told from where the front would be at an instant if it had never skipped anything. `shift` is
//! all that it skipped or will, so a charge that ends the line ends at the debt after it and `shift`; that, and the
//! instant, is what its [`Entry`](super::amend::Entry) keeps. Before `shift` grows too large it begins anew, and of
//! charges from before that `rebased` is to be taken. When that happens again, what was charged before the first time
//! counts as repaid. It is, if the front has since skipped as much as the bucket holds: a bucket of which 33 fit into
//! `MAX_SHIFT` is sure of that, since `shift` also has the holes, which are at most 32 times as much. From a larger one
//! less may be taken back of what was charged long before.
//!
//! Charges that can be taken back are numbered by the instant of the store, or one more than the last number. `born` is
//! the first number since the bucket was last full: a charge from before that is repaid, whatever its instant says.

use smallvec::SmallVec;

use super::bucket::Terms;
use super::time::Micros;

/// Holes remembered at most; beyond that the two with the least owed between them become one, in the place of the
/// first. Of what lies between them as much less can be taken back, and nothing more of anything.
const HOLES: usize = 32;

/// The most that `shift` is, fractions: with the largest debt on top it is still exact in the doubles of Lua.
const MAX_SHIFT: u64 = 1 << 52;

/// Of one key and one quota. Debts are in the fractions of `bucket.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Until when a reservation may be taken back, us.
    pub mark: Micros,
    pub born: u64,
    pub last: u64,
    /// The instant at which the holes lay as they are told, us.
    pub at: Micros,
    /// All that was skipped since `turned`, and all holes.
    pub shift: u64,
    /// The first number since `shift` began anew.
    pub turned: u64,
    /// What had been skipped then, since it had begun anew before.
    pub rebased: u64,
    /// In order; none at the front, none at the end.
    pub holes: SmallVec<[Hole; 0]>,
}

/// What was taken back from the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// What is owed before it.
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

    /// Moves the front to where it is at `now`. It never goes back.
    pub fn pass(&mut self, terms: Terms, now: Micros) {
        let repaid = terms.repaid.saturating_mul(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        self.advance(repaid);
    }

    /// Moves the front by so much that is owed; it skips the holes that it comes to.
    fn advance(&mut self, by: u64) {
        self.holes.retain(|hole| hole.behind > by);
        self.holes.iter_mut().for_each(|hole| hole.behind -= by);
    }

    /// From the front to the end of the charge `number`, which is at `place` if the front never skips anything; the
    /// holes between them are part of the way.
    pub fn distance(&self, number: u64, place: u64) -> u64 {
        let rebased = if number < self.turned { self.rebased } else { 0 };
        place.saturating_sub(self.skipped() + rebased)
    }

    /// Since `turned`.
    fn skipped(&self) -> u64 {
        self.shift - self.holes.iter().map(|hole| hole.debt).sum::<u64>()
    }

    /// Takes `debt` out of the line, `distance` from the front.
    pub fn cut(&mut self, distance: u64, debt: u64) {
        let (mut place, mut skipped, mut behind) = (0, 0, 0);
        while let Some(hole) = self.holes.get(place).filter(|hole| hole.behind + skipped < distance) {
            (place, skipped, behind) = (place + 1, skipped + hole.debt, hole.behind);
        }
        // Where two were made one, it may lie in a hole.
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

    /// Takes `debt` from what is owed longest.
    pub fn cut_oldest(&mut self, debt: u64) {
        self.advance(debt);
        self.skip(debt);
    }

    /// Ends the line at `owed`: a hole there is no hole.
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

    /// Makes one of holes with nothing owed between them, and of those with the least where there are too many.
    fn join(&mut self) {
        let gap = |pair: &[Hole]| pair[1].behind - pair[0].behind;
        while let Some((place, gap)) = self.holes.windows(2).map(gap).enumerate().min_by_key(|(_, gap)| *gap)
            && (gap == 0 || self.holes.len() > HOLES)
        {
            self.holes[place].debt += self.holes.remove(place + 1).debt;
        }
    }
}
