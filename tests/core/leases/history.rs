//! A random history of one key: a store, up to 8 nodes, and the calls between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tollgate::limit::decision::Verdict;
use tollgate::limit::lease::{Demand, Hand};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::receipt::{LeaseReceipt, Receipt};
use tollgate::limit::time::{Micros, micros};
use tollgate::prefilter::{Prefilter, Question};
use tollgate::store::{Done, Generations, Over, Subject, Taken, Work};

use super::judge::{Charge, Judge};
use super::shape::Shape;
use crate::support::dice::Dice;
use crate::support::steps::{START, subject};
use crate::support::timed::Timed;

pub(super) const NODES: usize = 8;

/// How far the store's clock steps back, us.
const BACK: Micros = 200_000;

const MAX_DENIAL: Duration = Duration::from_secs(60);

/// The share of a span by which clocks drift apart.
const DRIFT: i64 = 256;

/// Stores and caches of many histories, which have a key and a slot each.
pub(super) struct World {
    store: Timed,
    prefilters: Vec<(Prefilter, Arc<Generations>)>,
}

impl World {
    pub(super) fn new() -> Self {
        let prefilter = |_| {
            let generations = Arc::new(Generations::default());
            (Prefilter::new(1_000_000, MAX_DENIAL, generations.clone()), generations)
        };
        Self { store: Timed::new(1_000_000), prefilters: (0..NODES).map(prefilter).collect() }
    }
}

/// An event that each takes a share of the histories, since the judge accounts for it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    Refunds,
    Resets,
    Failovers,
    Steps,
}

/// The kinds of events of a history.
#[derive(Debug)]
struct Plan {
    trouble: Trouble,
    /// Ids, drains, reservations and their give-backs.
    others: bool,
    /// Some nodes do not lease.
    mixed: bool,
    /// Nodes buy any number of units.
    greedy: bool,
    /// Lost answers and returns, returns after the mark, nodes that die.
    losses: bool,
}

/// Counts of the events in all histories.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) histories: u64,
    pub(super) checks: u64,
    pub(super) paid: u64,
    pub(super) denied: u64,
    pub(super) prefiltered: u64,
    pub(super) leases: u64,
    pub(super) returned: u64,
    pub(super) refused: u64,
    pub(super) unusable: u64,
    pub(super) deaths: u64,
    pub(super) given_back: u64,
    pub(super) refunds: u64,
    pub(super) resets: u64,
    pub(super) failovers: u64,
    pub(super) steps: u64,
    /// Histories at whose end the store counts what was spent, and those with one exact number.
    pub(super) balanced: u64,
    pub(super) exact: u64,
}

impl Seen {
    pub(super) fn assert_enough(&self) {
        let Self { paid, denied, leases, returned, refused, prefiltered, balanced, .. } = self;
        let Self { unusable, deaths, given_back, refunds, resets, failovers, steps, .. } = self;
        let often = [paid, denied, leases, returned].into_iter().all(|count| *count > 3_000);
        let rare = [refused, unusable, deaths, given_back, refunds, resets, failovers, steps, prefiltered];
        // A bucket repays what is in hand, so it has no balance.
        assert!(often && rare.into_iter().all(|count| *count > 100), "the histories do too little: {self:?}");
        assert!(*balanced == 0 || *balanced > 100 && self.exact > 50, "the histories do too little: {self:?}");
    }
}

struct Node {
    leases: bool,
    /// A node that dies starts anew.
    life: usize,
    /// Its clock gains or loses this many 256ths.
    drift: i64,
    demand: Demand,
    remaining: u64,
    /// The place of the lease in hand.
    lease: Option<usize>,
    is_buying: bool,
    resets: u32,
}

struct Open {
    hand: Hand,
    /// As the hand has it, us.
    lasts: Micros,
    node: usize,
    sent: Micros,
    owner: u32,
    receipt: Box<LeaseReceipt>,
    charge: Charge,
    /// Whether its node has returned the rest, or has died.
    is_over: bool,
}

/// A call of a node.
struct Call {
    node: usize,
    life: usize,
    sent: Micros,
    work: Work,
    question: Question,
    owner: u32,
    resets: u32,
    /// The lease of a return.
    lease: Option<usize>,
    /// Whether its answer is lost.
    is_lost: bool,
    /// How long its answer takes, us.
    back: Micros,
}

enum Event {
    Arrive(Call),
    /// The answer, with the charge of a lease; none after the caller's patience.
    Answer(Box<Call>, Option<Box<(Done, Option<Charge>)>>),
    /// Half of a lease's time has passed. It began with so many units in hand.
    Half(usize, u64),
    End(usize),
}

pub(super) struct History<'a> {
    world: &'a World,
    plan: Plan,
    shape: Shape,
    dice: Dice,
    key: String,
    slot: u16,
    subjects: [Subject; 2],
    /// The true time, us.
    now: Micros,
    /// The store's clock minus the true time, us.
    offset: i64,
    /// The latest instant of the store's clock, us.
    latest: Micros,
    nodes: Vec<Node>,
    leases: Vec<Open>,
    events: Vec<(Micros, usize, Event)>,
    number: usize,
    /// The node of the latest event.
    turn: usize,
    steps: Vec<(Micros, usize, Work)>,
    judge: Judge,
    ids: Vec<(Arc<str>, u64, Over)>,
    /// The step that charged an id.
    charged: HashMap<Arc<str>, usize>,
    reserved: Vec<(Receipt, Micros, usize)>,
    failovers: usize,
    /// Whether units were lost.
    is_lossy: bool,
    seen: &'a mut Seen,
    told: Option<Vec<String>>,
}

impl<'a> History<'a> {
    /// A history with its own key and slot in a world. `tells` keeps an account of it.
    pub(super) fn new(world: &'a World, algorithm: Algorithm, seed: u64, seen: &'a mut Seen, tells: bool) -> Self {
        let mut dice = Dice::new(seed);
        (0..8).for_each(|_| _ = dice.number());
        let troubles =
            [Trouble::None, Trouble::None, Trouble::Refunds, Trouble::Resets, Trouble::Failovers, Trouble::Steps];
        let plan = Plan {
            trouble: *dice.one_of(&troubles),
            others: dice.below(3) == 0,
            mixed: dice.below(2) == 0,
            greedy: dice.below(2) == 0,
            losses: dice.below(3) == 0,
        };
        let shape = Shape::new(algorithm, &mut dice);
        let count = 1 + dice.place(NODES);
        let node = |place: usize, dice: &mut Dice| Node {
            leases: !plan.mixed || place.is_multiple_of(2),
            life: 0,
            drift: dice.below(3).cast_signed() - 1,
            demand: Demand::default(),
            remaining: 0,
            lease: None,
            is_buying: false,
            resets: 0,
        };
        let nodes = (0..count).map(|place| node(place, &mut dice)).collect();
        let judge = Judge::new(&shape.plain, shape.lease.span, plan.mixed);
        let key = format!("{algorithm:?} {seed}");
        let mut told = tells.then(Vec::new);
        if let Some(told) = &mut told {
            told.push(format!("{plan:?}, {count} nodes\n{}", shape.text));
        }
        Self {
            world,
            plan,
            subjects: subjects(&shape, &key),
            shape,
            dice,
            key,
            slot: u16::try_from(seed % 16_384).unwrap(),
            now: START,
            offset: 0,
            latest: START,
            nodes,
            leases: Vec::new(),
            events: Vec::new(),
            number: 0,
            turn: 0,
            steps: Vec::new(),
            judge,
            ids: Vec::new(),
            charged: HashMap::new(),
            reserved: Vec::new(),
            failovers: 0,
            is_lossy: false,
            seen,
            told,
        }
    }

    /// Runs so many events, then judges. Returns the account of a counter-example.
    pub(super) fn play(mut self, events: usize) -> Result<(), String> {
        self.seen.histories += 1;
        let mut result = Ok(());
        for _ in 0..events {
            result = self.event();
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| self.conclude());
        result.map_err(|error| {
            let told = self.told.take().unwrap_or_default();
            format!("{}\n{error}", told.join("\n"))
        })
    }

    fn tell(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.told.is_some() {
            let line = format!("{:>10} {:>10}  {}", self.now - START, self.instant() - START, line(self));
            self.told.iter_mut().for_each(|told| told.push(line.clone()));
        }
    }

    /// The store's clock, us.
    fn instant(&self) -> Micros {
        self.now.saturating_add_signed(self.offset)
    }

    fn policy(&self, node: usize) -> &Arc<Policy> {
        if self.nodes[node].leases { &self.shape.leased } else { &self.shape.plain }
    }

    /// Whether the pre-filter's denials are final: nothing lowers a count but what it knows of.
    fn judges_denials(&self) -> bool {
        matches!(self.plan.trouble, Trouble::None | Trouble::Steps) && !self.plan.others
    }

    fn at(&mut self, instant: Micros, event: Event) {
        self.number += 1;
        self.events.push((instant.max(self.now), self.number, event));
    }

    fn pass_until(&mut self, instant: Micros) -> Result<(), String> {
        while let Some(place) =
            (0..self.events.len()).min_by_key(|place| (self.events[*place].0, self.events[*place].1))
            && self.events[place].0 <= instant
        {
            let (due, _, event) = self.events.swap_remove(place);
            self.now = due;
            self.happen(event)?;
        }
        self.now = instant;
        Ok(())
    }

    fn event(&mut self) -> Result<(), String> {
        let (span, window) = (self.shape.lease.span, self.shape.window);
        let gap = match self.dice.below(16) {
            0..8 => self.dice.below(span / 12),
            8 => self.dice.below(span),
            9 => self.dice.below(window / 3),
            10 => self.dice.below(2 * window),
            11 | 12 => self.aim() - self.now,
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

    /// The true time at which the store's clock shows an instant, us.
    fn true_time(&self, instant: Micros) -> Micros {
        instant.saturating_add_signed(-self.offset)
    }

    fn cost(&mut self) -> u64 {
        match self.dice.below(8) {
            0..5 => 1 + self.dice.below(4),
            5 | 6 => 1 + self.dice.below(self.shape.limit / 8),
            _ => 1 + self.dice.below(self.shape.limit / 3),
        }
    }

    /// A way of a call, or of its answer, us.
    fn way(&mut self) -> Micros {
        let (timeout, span) = (micros(self.shape.leased.timeout), self.shape.lease.span);
        match self.dice.below(16) {
            0..13 => self.dice.below(span.min(timeout) / 12),
            13 => self.dice.below(timeout / 2),
            14 => self.dice.below(timeout.max(span)),
            _ => (self.aim() - self.now).min(timeout),
        }
    }

    fn check(&mut self, node: usize, cost: u64) -> Result<(), String> {
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

    fn call(&mut self, node: usize, work: Work) {
        let way = self.way();
        self.send(node, work, None, way);
    }

    fn send(&mut self, node: usize, work: Work, lease: Option<usize>, way: Micros) {
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

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive(call) => {
                let step = self.steps.len();
                let done = self.run(call.node, call.work.clone())?;
                let charge = self.charged_by(step, &done);
                if let (Some(place), Done::Refunded(_, given)) = (call.lease, &done) {
                    self.returned(place, &call, *given)?;
                }
                let patience = match call.work {
                    Work::Lease { hold, .. } => hold,
                    _ => micros(self.shape.leased.timeout),
                };
                let (answered, latest) = (self.now + call.back, call.sent + patience);
                let answer = (!call.is_lost && answered < latest).then(|| Box::new((done, charge)));
                self.at(if answer.is_some() { answered } else { latest }, Event::Answer(Box::new(call), answer));
            }
            Event::Answer(call, answer) => self.answer(&call, answer.map(|answer| *answer)),
            Event::Half(place, before) => {
                let open = &self.leases[place];
                if !open.is_over && open.hand.left() == before {
                    self.end(place);
                } else if !open.is_over {
                    let end = open.sent + open.lasts;
                    let late = if self.dice.below(8) == 0 { self.way() } else { 0 };
                    self.at(end + late, Event::End(place));
                }
            }
            Event::End(place) => self.end(place),
        }
        Ok(())
    }

    fn answer(&mut self, call: &Call, answer: Option<(Done, Option<Charge>)>) {
        let (node, is_of_lease) = (call.node, matches!(call.work, Work::Lease { .. }));
        if call.life != self.nodes[node].life {
            return;
        }
        if is_of_lease {
            self.nodes[node].is_buying = false;
        }
        if call.work == Work::Reset {
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
    fn end(&mut self, place: usize) {
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

    fn end_lease_of(&mut self, node: usize) {
        self.nodes[node].resets += 1;
        if let Some(place) = self.nodes[node].lease.take() {
            self.end(place);
        }
    }

    fn returned(&mut self, place: usize, call: &Call, given: u64) -> Result<(), String> {
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

    /// The node ends: it returns what it has. Another takes its place.
    fn leave(&mut self, node: usize) {
        self.end_lease_of(node);
    }

    fn die(&mut self, node: usize) {
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

    fn reset(&mut self, node: usize) {
        self.seen.resets += 1;
        self.end_lease_of(node);
        self.call(node, Work::Reset);
    }

    /// The store's clock steps. All nodes notice it, so that leases end.
    fn step_clock(&mut self) {
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
        self.move_slot();
        self.tell(|_| format!("the store's clock steps by {step}"));
    }

    fn move_slot(&self) {
        self.world.prefilters.iter().for_each(|(_, generations)| generations.moved(self.slot));
    }

    /// The store loses its latest steps. Returns on their way are lost with the connection.
    fn fail_over(&mut self) {
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
        self.charged.retain(|_, step| *step < kept);
        self.reserved.retain(|(_, _, step)| *step < kept);
        self.events
            .retain(|(_, _, event)| !matches!(event, Event::Arrive(Call { work: Work::Return(_), .. })));
        self.move_slot();
        self.tell(|_| format!("the store keeps {kept} steps"));
    }

    /// An operation that buys nothing.
    fn other(&mut self, node: usize) {
        let (cost, hold) = (self.cost(), Work::hold(self.shape.leased.timeout));
        let over = if self.dice.below(2) == 0 { Over::Drain } else { Over::Deny };
        let work = match self.dice.below(8) {
            0 => Work::Drain(cost),
            1 | 2 => {
                let id: Arc<str> = self.ids.len().to_string().into();
                self.ids.push((id.clone(), cost, over));
                Work::Once { id, cost, over }
            }
            3 if !self.ids.is_empty() => {
                let (id, cost, over) = self.dice.one_of(&self.ids).clone();
                Work::Once { id, cost, over }
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

    fn run_now(&mut self, node: usize, work: Work) {
        let step = self.steps.len();
        let done = self.run(node, work.clone()).unwrap();
        self.charged_by(step, &done);
        match (work, done) {
            (Work::Refund(cost), Done::Refunded(_, given)) => {
                self.seen.refunds += u64::from(given > 0);
                self.judge.refund(step, self.instant(), cost, given);
            }
            (Work::Once { id, .. }, Done::Charged(charged)) if !charged.replayed => _ = self.charged.insert(id, step),
            (_, Done::Reserved(_, Some(receipt))) => self.reserved.push((receipt, self.now, step)),
            _ => {}
        }
    }

    /// Runs a step of the store.
    fn run(&mut self, node: usize, work: Work) -> Result<Done, String> {
        let (instant, leased) = (self.instant(), usize::from(self.nodes[node].leases));
        let store = self.world.store.at(instant);
        let done = store.run(&self.subjects[leased], &work, &[]).map_err(|error| error.to_string())?;
        self.tell(|_| format!("node {node}: {work:?} is {}", told(&done)));
        self.judge.step();
        if work == Work::Reset {
            self.judge.reset();
        }
        self.steps.push((instant, leased, work));
        Ok(done)
    }

    /// Notes what a step has charged. Returns the charge of a lease.
    fn charged_by(&mut self, step: usize, done: &Done) -> Option<Charge> {
        let (instant, quotas) = (self.instant(), self.shape.plain.quotas.len());
        let mut direct = |verdict: &Verdict| {
            if verdict.charged() > 0 {
                let parts: Vec<u64> = (0..quotas).map(|place| verdict.part(place)).collect();
                let charge = self.judge.charge(step, instant, &parts, !verdict.allowed);
                self.judge.spend(instant, &charge, parts);
            }
        };
        match done {
            Done::Taken(taken) | Done::Reserved(taken, _) => {
                self.seen.denied += u64::from(!taken.ruling.verdicts[0].allowed);
                direct(&taken.ruling.verdicts[0]);
            }
            Done::Charged(charged) if !charged.replayed => direct(&charged.verdict),
            Done::Leased(taken, receipt) => {
                self.seen.denied += u64::from(!taken.ruling.verdicts[0].allowed);
                direct(&taken.ruling.verdicts[0]);
                let units = receipt.as_ref()?.charge.cost;
                self.seen.leases += 1;
                return Some(self.judge.charge(step, instant, &vec![units; quotas], false));
            }
            _ => {}
        }
        None
    }

    fn conclude(&mut self) -> Result<(), String> {
        while let Some(due) = self.events.iter().map(|(due, ..)| *due).max() {
            self.pass_until(due)?;
        }
        self.judge.verdict()?;
        let is_bucket = self.shape.plain.algorithm == Algorithm::TokenBucket;
        if self.plan.trouble != Trouble::None || self.is_lossy || self.shape.is_bounded || is_bucket {
            return Ok(());
        }
        let store = self.world.store.at(self.instant());
        let look = store.run(&self.subjects[0], &Work::Look(0), &[]).unwrap().taken().unwrap();
        self.seen.balanced += 1;
        for (place, quota) in self.shape.plain.quotas.iter().enumerate() {
            let counted = quota.limit.get() - look.ruling.verdicts[0].quotas[place].remaining;
            let (least, most) = self.judge.counted(place, self.instant());
            if counted < least || counted > most {
                return Err(format!("{quota} counts {counted} at the end, and {least} to {most} are spent"));
            }
            self.seen.exact += u64::from(place == 0 && least == most && least > 0);
        }
        Ok(())
    }
}

enum Asked {
    Paid,
    /// By the store, which also sells units.
    Buy(Option<u64>),
}

/// One key under the policy without leases, and under the other.
fn subjects(shape: &Shape, key: &str) -> [Subject; 2] {
    let plain = subject(shape.plain.clone(), key);
    [plain.clone(), Subject { policy: shape.leased.clone(), ..plain }]
}

/// A result in short.
fn told(done: &Done) -> String {
    match done {
        Done::Taken(taken) | Done::Reserved(taken, _) | Done::Leased(taken, _) => {
            let verdict = |verdict: &Verdict| {
                let left: Vec<u64> = verdict.quotas.iter().map(|quota| quota.remaining).collect();
                format!("{} allowed {} {left:?}", verdict.charged(), verdict.allowed)
            };
            let all: Vec<String> = taken.ruling.verdicts.iter().map(verdict).collect();
            format!("{all:?}, tentative {}", taken.tentative)
        }
        Done::Refunded(_, given) => format!("{given} taken back"),
        Done::Charged(charged) => format!("{}, replayed {}", charged.verdict.charged(), charged.replayed),
        other => format!("{other:?}"),
    }
}
