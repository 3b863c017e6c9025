//! Writes a history step by step. The answers so far name the instants and the costs at which
//! something happens: ends of waits, starts, expiries, and what remains.

use tollgate::limit::decision::{Verdict, Wait};
use tollgate::limit::hold::{HoldState, Renewal};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Over, Work};

use super::engine::{Answered, timeout};
use super::file::{File, most_back};
use super::options::{Feature, Filter};
use super::step::{By, Number, Op, Part, Step};
use crate::support::dice::Dice;
use crate::support::steps::RECORDS_LIVE;

const SECOND: i64 = 1_000_000;

/// The kinds of operations.
const OPS: usize = 21;

/// An id that a history has used.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: Number,
    cost: u64,
    over: Over,
    waits: bool,
    file: usize,
    by: By,
    after: i64,
    /// When its place in line starts, us.
    start: i64,
}

/// The next step of a history.
pub struct Choices<'a> {
    dice: &'a mut Dice,
    filter: &'a Filter,
    files: &'a [File],
    after: i64,
    latest: i64,
    /// The earliest instant of which a record may be left.
    first: i64,
    file: usize,
    /// Whether nodes with different files are asked in turn.
    is_mixed: bool,
    is_overridden: bool,
    ids: Vec<Known>,
    reserved: Vec<Number>,
    bought: Vec<(Number, u64)>,
    next: Number,
    /// Instants at which something changes.
    edges: Vec<i64>,
    left: u64,
    /// A step that repeats a denied one when its wait ends.
    again: Option<Step>,
    /// Those who leave the line next.
    leaving: Vec<Number>,
    /// How often the history has each operation, and how often it stays at an instant, per cent.
    factors: [u64; OPS],
    still: i64,
}

impl<'a> Choices<'a> {
    pub fn new(dice: &'a mut Dice, filter: &'a Filter, files: &'a [File]) -> Self {
        let is_mixed = files.len() > 1 && dice.below(4) == 0;
        let factors = std::array::from_fn(|_| [0, 1, 1, 2, 6][dice.place(5)]);
        let still = [5, 22, 22, 50, 70][dice.place(5)];
        Self {
            dice,
            filter,
            files,
            after: 0,
            latest: 0,
            first: 0,
            file: 0,
            is_mixed,
            is_overridden: false,
            ids: Vec::new(),
            reserved: Vec::new(),
            bought: Vec::new(),
            next: 0,
            edges: Vec::new(),
            left: 1,
            again: None,
            leaving: Vec::new(),
            factors,
            still,
        }
    }

    /// The next step; none if the history would outlive its records.
    pub fn next(&mut self) -> Option<Step> {
        if let Some(again) = self.again.take().filter(|again| self.fits(again.after) && self.leaving.is_empty()) {
            self.after = again.after;
            self.latest = self.latest.max(self.after);
            return Some(again);
        }
        if let Some(id) = self.leaving.pop() {
            let by = if self.is_overridden { By::Override } else { By::Policy };
            let step = Step { after: self.after, file: self.file, by, op: Op::RefundId(id) };
            if self.leaving.is_empty() {
                self.again = self.next_in_line(&step);
            }
            return Some(step);
        }
        let changes = if self.is_mixed { 2 } else { 12 };
        if self.filter.has(Feature::Reload) && self.dice.below(changes) == 0 {
            self.file = self.dice.place(self.files.len());
        }
        if self.filter.has(Feature::Override) && self.dice.below(12) == 0 {
            self.is_overridden = !self.is_overridden;
        }
        let plans = self.files[self.file].plans.len();
        let by = match self.is_overridden {
            true => By::Override,
            false if plans > 0 && self.dice.below(5) < 2 => By::Plan(self.dice.place(plans)),
            false => By::Policy,
        };
        self.pass(by)?;
        let mut step = Step { after: self.after, file: self.file, by, op: Op::Look(1) };
        self.choose(&mut step);
        // A reset forgets the charges of its instant. No two calls of a store share it.
        self.after += i64::from(step.op == Op::Reset);
        self.latest = self.latest.max(self.after);
        Some(step)
    }

    fn fits(&self, after: i64) -> bool {
        after < self.first + RECORDS_LIVE.cast_signed() - 10 * SECOND
    }

    /// Sets the clock.
    fn pass(&mut self, by: By) -> Option<()> {
        let policy = self.files[self.file].checks(by).clone();
        // A bucket fills within its window.
        let spans = || policy.quotas.iter().map(|quota| quota.window);
        let shortest = spans().min().unwrap_or(2_000_000).max(1000).cast_signed();
        let longest = spans().max().unwrap_or(2_000_000).cast_signed();
        let mut random = |most: i64| self.dice.below(most.max(1).cast_unsigned()).cast_signed();
        let is_still = random(100) < self.still;
        let kind = if is_still { 0 } else { 22 + random(78) };
        let gap = match kind {
            22..50 => random(shortest / 8),
            50..62 => random(2 * shortest),
            62..70 => random(longest.min(60 * SECOND) / 4),
            70..74 => random(2 * longest.min(100 * SECOND)),
            _ => 0,
        };
        let after = match kind {
            74..95 => self.edge(),
            95..98 if self.filter.has(Feature::Back) => {
                let most = most_back(self.files);
                let back = self.dice.below(most.cast_unsigned()).cast_signed();
                (self.after - back).max(self.latest - most)
            }
            98 if self.filter.has(Feature::Long) && self.dice.below(3) == 0 => return self.pass_beyond(),
            _ => self.after + gap,
        };
        if !self.fits(after) {
            return if self.filter.has(Feature::Long) && self.dice.below(2) == 0 { self.pass_beyond() } else { None };
        }
        self.after = after;
        self.latest = self.latest.max(after);
        self.first = self.first.min(after);
        Some(())
    }

    /// An instant at which something changes, or next to it.
    fn edge(&mut self) -> i64 {
        self.edges.retain(|edge| *edge > self.after + 1);
        self.edges.sort_unstable();
        self.edges.dedup();
        let near = self.edges.len().min(4);
        let Some(edge) = self.edges.get(self.dice.place(near.max(1))) else { return self.after };
        edge - i64::from(self.dice.below(3) == 0)
    }

    /// Passes until no record of an id is left.
    fn pass_beyond(&mut self) -> Option<()> {
        let of_policy = |policy: &std::sync::Arc<Policy>| {
            let longest = policy.quotas.iter().map(|quota| quota.window).max().unwrap_or(0);
            longest.clamp(300_000_000, 86_400_000_000) + policy.options.hold.map_or(0, |hold| hold.ttl)
        };
        let longest = self.files.iter().flat_map(File::all).map(of_policy).max().unwrap_or(0).cast_signed();
        let more = self.dice.below(4).cast_signed() * longest / 2;
        self.after = self.latest + longest + 2 * 3600 * SECOND + more;
        (self.latest, self.first) = (self.after, self.after);
        self.ids.clear();
        Some(())
    }

    fn choose(&mut self, step: &mut Step) {
        let policy = self.files[step.file].checks(step.by).clone();
        let present = self.files[step.file].present(step.by).clone();
        let (is_held, leases) = (policy.options.hold.is_some(), policy.options.lease.is_some());
        let is_bucket = policy.algorithm == Algorithm::TokenBucket && !policy.quotas.is_empty();
        let stands = self.ids.iter().any(|known| known.start > self.after);
        let has = |feature| self.filter.has(feature);
        let of = |is_chosen: bool, weight: u64| if is_chosen { weight } else { 0 };
        let weights: [u64; OPS] = [
            of(!is_held, 10),
            of(!is_held && has(Feature::Batch), 2),
            of(has(Feature::Look), 2),
            of(has(Feature::Usage), 3),
            of(!is_held && has(Feature::Drain), 3),
            of(has(Feature::Ids) || is_held, if is_held { 14 } else { 6 }),
            of(has(Feature::Drain) && (has(Feature::Ids) || is_held), 2),
            of(has(Feature::Ids) || is_held, 3),
            of(is_bucket && !leases && has(Feature::Waits), 9),
            of(has(Feature::All), 3),
            of(!is_held && has(Feature::Reserve), 3),
            of(has(Feature::Reserve) && !self.reserved.is_empty(), 3),
            of(has(Feature::Undo), 1),
            of(leases && has(Feature::Leases), 4),
            of(has(Feature::Leases) && !self.bought.is_empty(), 3),
            of(leases && has(Feature::Leases), 3),
            of(has(Feature::Settle) && !self.ids.is_empty(), if is_held || leases { 9 } else { 1 }),
            of(is_held && has(Feature::Renew), 3),
            of(has(Feature::Refund), 1),
            of(has(Feature::RefundId), if stands { 9 } else { 4 }),
            of(has(Feature::Reset) && self.dice.below(4) == 0, 2),
        ];
        let chosen: [u64; OPS] = std::array::from_fn(|kind| weights[kind] * self.factors[kind]);
        let weights = if chosen.iter().sum::<u64>() > 0 { chosen } else { weights };
        let mut number = self.dice.below(weights.iter().sum());
        let mut kind = 0;
        while number >= weights[kind] {
            number -= weights[kind];
            kind += 1;
        }
        let cost = self.cost(&policy);
        step.op = match kind {
            0 => Op::Take(vec![cost]),
            1 => {
                let count = 2 + self.dice.place(3);
                Op::Take((0..count).map(|_| self.cost(&policy)).collect())
            }
            2 => Op::Look(cost),
            3 => Op::Usage(cost),
            4 => Op::Drain(cost.max(1)),
            5 => self.check(step, cost, Over::Deny, is_held),
            6 => self.check(step, cost, Over::Drain, is_held),
            7 => self.again(cost),
            8 => self.wait(step, cost, is_held),
            9 => self.all(step, is_held),
            10 => {
                let number = self.new_number();
                self.reserved.push(number);
                Op::Reserve { number, cost: cost.max(1) }
            }
            11 => {
                let place = self.dice.place(self.reserved.len());
                Op::GiveBack(self.reserved.swap_remove(place))
            }
            12 => self.undo(step),
            13 => {
                let (number, units) = (self.new_number(), 1 + self.dice.below(9));
                self.bought.push((number, units));
                Op::Buy { number, costs: vec![cost], units }
            }
            14 => {
                let place = self.dice.place(self.bought.len());
                let (number, units) = self.bought.swap_remove(place);
                Op::Return { number, units: 1 + self.dice.below(units) }
            }
            15 => {
                let units = 1 + self.dice.below(9);
                let id = if self.dice.below(4) == 0 { self.id() } else { self.known(step, units, Over::Deny, false) };
                Op::Sell { id, units }
            }
            16 => {
                let known = self.any();
                let charge = known.map_or(1, |known| known.cost);
                let cost = (self.dice.below(4) > 0).then(|| self.dice.below(5) * charge / 3);
                Op::Settle { id: known.map_or(999, |known| known.id), cost }
            }
            17 => Op::Renew(self.id()),
            18 => Op::Refund(self.cost(&present)),
            19 => {
                let leaver = self.leaver();
                if leaver.is_some() && self.leaving.is_empty() && self.dice.below(2) == 0 {
                    self.again = self.next_in_line(step);
                }
                Op::RefundId(leaver.unwrap_or_else(|| self.id()))
            }
            _ => Op::Reset,
        };
    }

    fn cost(&mut self, policy: &Policy) -> u64 {
        let tightest = policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap_or(5);
        match self.dice.below(16) {
            0 => 0,
            1 => tightest + 1,
            2 => tightest,
            3..5 => self.left.clamp(1, tightest),
            5 => (self.left + 1).min(tightest),
            6..10 => 1 + self.dice.below(tightest.div_ceil(3)),
            10 => 1 + self.dice.below(tightest),
            _ => 1,
        }
    }

    fn new_number(&mut self) -> Number {
        self.next += 1;
        self.next
    }

    fn known(&mut self, step: &Step, cost: u64, over: Over, waits: bool) -> Number {
        let id = self.new_number();
        let Step { file, by, after, .. } = *step;
        self.ids.push(Known { id, cost, over, waits, file, by, after, start: 0 });
        id
    }

    /// One of the last ids, or any.
    fn any(&mut self) -> Option<Known> {
        let count = self.ids.len();
        let among = if self.dice.below(4) == 0 { count } else { count.min(4) };
        (among > 0).then(|| self.ids[count - 1 - self.dice.place(among)])
    }

    /// One that still stands in line.
    fn leaver(&mut self) -> Option<Number> {
        let standing: Vec<Number> =
            self.ids.iter().filter(|known| known.start > self.after).map(|known| known.id).collect();
        if standing.len() > 2 && self.dice.below(2) == 0 {
            // Many leave at once: the oldest first, the newest first, or in any order.
            self.leaving.clone_from(&standing);
            match self.dice.below(3) {
                0 => self.leaving.reverse(),
                1 => {}
                _ => (0..standing.len()).for_each(|place| self.leaving.swap(place, self.dice.place(standing.len()))),
            }
            let stays = self.dice.place(3);
            self.leaving.drain(..stays.min(standing.len()));
        }
        match self.dice.below(4) {
            0 => None,
            1 => (!standing.is_empty()).then(|| *self.dice.one_of(&standing)),
            _ => standing.last().copied(),
        }
    }

    /// Sees where the line ends after a leave, and with a whole burst what the buckets still owe.
    fn next_in_line(&mut self, step: &Step) -> Option<Step> {
        let policy = self.files[step.file].checks(step.by).clone();
        let is_held = policy.options.hold.is_some();
        let burst = policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap_or(1);
        let cost = if self.dice.below(2) == 0 { 1 } else { burst };
        (policy.algorithm == Algorithm::TokenBucket)
            .then(|| Step { op: self.wait(step, cost, is_held), ..step.clone() })
    }

    fn id(&mut self) -> Number {
        self.any().map_or(999, |known| known.id)
    }

    fn check(&mut self, step: &Step, cost: u64, over: Over, is_held: bool) -> Op {
        // A check of cost 0 needs no id, and a drain charges something.
        let cost = if over == Over::Drain || !is_held { cost.max(1) } else { cost };
        let id = self.known(step, cost, over, false);
        let life = (self.dice.below(8) == 0).then_some(600_000_000);
        Op::Check { id, cost, over, life, repeated: false }
    }

    /// A repetition; sometimes with another cost, or in another way.
    fn again(&mut self, cost: u64) -> Op {
        let Some(known) = self.any() else { return Op::Look(cost) };
        let Known { id, cost: then, over, waits, .. } = known;
        let cost = if self.dice.below(6) == 0 { cost } else { then };
        let over = match (self.dice.below(10), over) {
            (0, Over::Deny) => Over::Drain,
            (0, Over::Drain) => Over::Deny,
            (_, over) => over,
        };
        match waits && self.dice.below(3) > 0 {
            true => Op::Wait { id: Some(id), cost, longest: 60_000_000 },
            false => Op::Check { id, cost, over, life: None, repeated: true },
        }
    }

    fn wait(&mut self, step: &Step, cost: u64, is_held: bool) -> Op {
        let cost = cost.max(1);
        let id = (is_held || self.filter.has(Feature::Ids) && self.dice.below(3) > 0)
            .then(|| self.known(step, cost, Over::Deny, true));
        Op::Wait { id, cost, longest: [50_000, 2_000_000, 60_000_000, 3_600_000_000][self.dice.place(4)] }
    }

    fn all(&mut self, step: &Step, is_held: bool) -> Op {
        let count = 1 + self.dice.place(3);
        let plans = self.files[step.file].plans.len();
        let mut checks = Vec::new();
        for _ in 0..count {
            let by = match step.by {
                By::Override => By::Override,
                _ if plans > 0 && self.dice.below(4) == 0 => By::Plan(self.dice.place(plans)),
                by => by,
            };
            let policy = self.files[step.file].checks(by).clone();
            let cost = self.cost(&policy).max(1);
            let own = Step { by, ..step.clone() };
            let has_id = is_held || self.filter.has(Feature::Ids) && self.dice.below(2) == 0;
            let id = has_id.then(|| self.known(&own, cost, Over::Deny, false));
            checks.push(Part { by, cost, id });
        }
        Op::All { checks, refused: self.dice.below(3) == 0 }
    }

    /// The engine undoes a charge of its own, soon and under the policy that charged.
    fn undo(&mut self, step: &mut Step) -> Op {
        let timeout = timeout(self.files[step.file].checks(step.by)).cast_signed();
        let after = self.after;
        let recent =
            self.ids.iter().rev().filter(|known| {
                known.over == Over::Deny && !known.waits && (0..timeout).contains(&(after - known.after))
            });
        let Some(known) = recent.take(3).last().copied() else { return Op::Look(1) };
        (step.file, step.by) = (known.file, known.by);
        Op::Undo(known.id)
    }

    /// Learns from the answer to a step.
    pub fn note(&mut self, step: &Step, answered: &Answered) {
        for call in &answered.calls {
            let mut after = |span: Micros| self.edges.push(step.after + span.cast_signed());
            let mut verdict = |verdict: &Verdict| {
                if let Wait::For(span @ 1..) = verdict.retry_after {
                    after(span);
                }
                after(verdict.start_after);
                verdict.quotas.iter().for_each(|quota| after(quota.reset_after));
                if let Some(places) = &verdict.places {
                    if let Some(HoldState::Open(left)) = places.hold {
                        after(left);
                    }
                    after(places.wait);
                }
            };
            match &call.done {
                Done::Taken(taken) | Done::Reserved(taken, _) | Done::Leased(taken, _) | Done::Sold(taken, _) => {
                    taken.ruling.verdicts.iter().for_each(&mut verdict);
                    let left = taken
                        .ruling
                        .verdicts
                        .last()
                        .and_then(|last| last.quotas.iter().map(|quota| quota.remaining).min());
                    self.left = left.unwrap_or(self.left);
                }
                Done::Charged(charged) => {
                    verdict(&charged.verdict);
                    let start = step.after + charged.verdict.start_after.cast_signed();
                    if let (Op::Wait { id: Some(id), .. }, false) = (&step.op, charged.replayed) {
                        let own = self.ids.iter_mut().filter(|known| known.id == *id);
                        own.for_each(|known| known.start = start);
                    }
                }
                Done::Renewed(Renewal::Open(left)) => after(*left),
                // What a give-back leaves may be charged next.
                Done::Refunded(taken, _) | Done::Settled(taken, _) | Done::Returned(taken, _) => {
                    let quotas = taken.ruling.verdicts.iter().flat_map(|verdict| &verdict.quotas);
                    self.left = quotas.map(|quota| quota.remaining).min().unwrap_or(self.left);
                }
                _ => {}
            }
        }
        self.follow(step);
        self.repeat(step, answered);
    }

    /// Others often stand behind a new place in line.
    fn follow(&mut self, step: &Step) {
        let is_new = |known: &Known| known.start > step.after && known.after == step.after;
        let is_place = matches!(step.op, Op::Wait { id: Some(_), .. }) && self.ids.last().is_some_and(is_new);
        if is_place && self.dice.below(2) == 0 {
            let is_held = self.files[step.file].checks(step.by).options.hold.is_some();
            let cost = 1 + self.dice.below(3);
            self.again = Some(Step { op: self.wait(step, cost, is_held), ..step.clone() });
        }
    }

    /// Some denied steps come again when their wait ends, or just before.
    fn repeat(&mut self, step: &Step, answered: &Answered) {
        let hold = self.files[step.file].checks(step.by).options.hold;
        if let (Op::Usage(cost), Some(hold)) = (&step.op, hold)
            && self.dice.below(3) == 0
        {
            // The state that was told denies nothing once the holds have expired.
            let after = step.after + hold.ttl.cast_signed();
            self.again = Some(Step { after, op: Op::Look(*cost), ..step.clone() });
            return;
        }
        let wait = match (&answered.all, answered.calls.last()) {
            (Some((false, wait)), _) => *wait,
            (None, Some(call))
                if matches!(call.work, Work::Take(_) | Work::Once { .. } | Work::Wait(_) | Work::Look(_)) =>
            {
                match &call.done {
                    Done::Taken(taken) if taken.ruling.verdicts.len() == 1 => taken.ruling.verdicts[0].retry_after,
                    _ => Wait::NONE,
                }
            }
            _ => Wait::NONE,
        };
        if let Wait::For(span @ 1..) = wait
            && self.dice.below(5) == 0
        {
            let early = if self.dice.below(3) == 0 { *self.dice.one_of(&[1, 1000]) } else { 0 };
            let early = early.min(span.cast_signed());
            self.again = Some(Step { after: step.after + span.cast_signed() - early, ..step.clone() });
        }
    }
}
