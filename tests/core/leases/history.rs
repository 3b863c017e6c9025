//! A random history of one key: a store, up to 8 nodes, and the calls between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::limit::decision::Verdict;
use tollgate::limit::lease::{Demand, Hand, Sold};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::receipt::{LeaseReceipt, Receipt};
use tollgate::limit::time::{Micros, micros};
use tollgate::prefilter::{Prefilter, Question};
use tollgate::store::{Done, Generations, Over, Subject, Work};

use self::caller::Bought;
use super::judge::{Charge, Judge};
use super::shape::Shape;
use crate::support::dice::Dice;
use crate::support::steps::{START, subject};
use crate::support::timed::Timed;

mod caller;
mod choices;
mod node;
mod trouble;

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
    /// Lost answers and returns, returns after the mark, nodes and callers that die.
    losses: bool,
    /// Callers buy, too.
    callers: bool,
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
    /// Sales to callers, their replays, spendings and settles, and the settles that came too late.
    pub(super) sold: u64,
    pub(super) replayed: u64,
    pub(super) spent_by_callers: u64,
    pub(super) settled: u64,
    pub(super) expired: u64,
}

impl Seen {
    pub(super) fn assert_enough(&self) {
        let Self { paid, denied, leases, returned, refused, prefiltered, balanced, .. } = self;
        let Self { unusable, deaths, given_back, refunds, resets, failovers, steps, .. } = self;
        let often = [paid, denied, leases, returned].into_iter().all(|count| *count > 3_000);
        let rare = [refused, unusable, deaths, given_back, refunds, resets, failovers, steps, prefiltered];
        let Self { sold, replayed, spent_by_callers, settled, expired, .. } = self;
        let of_callers = [sold, spent_by_callers, settled].into_iter().all(|count| *count > 1_000);
        assert!(of_callers && *replayed > 50 && *expired > 50, "the callers do too little: {self:?}");
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
    /// The purchase of a caller reaches the store, and so late its answer; none is lost.
    Sell {
        place: usize,
        sent: Micros,
        back: Option<Micros>,
    },
    Sold {
        place: usize,
        sent: Micros,
        sold: Option<Sold>,
        is_lost: bool,
    },
    /// The time of a caller's lease is over.
    Settle {
        place: usize,
    },
    /// The settle reaches the store.
    Settled {
        place: usize,
    },
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
    bought: Vec<Bought>,
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
            callers: dice.below(2) == 0,
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
            bought: Vec::new(),
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

    /// The true time at which the store's clock shows an instant, us.
    fn true_time(&self, instant: Micros) -> Micros {
        instant.saturating_add_signed(-self.offset)
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
            Event::Sell { place, sent, back } => self.sell(place, sent, back)?,
            Event::Sold { place, sent, sold, is_lost } => self.sold(place, sent, sold, is_lost),
            Event::Settle { place } => self.settle_as_caller(place),
            Event::Settled { place } => self.settled(place)?,
        }
        Ok(())
    }

    /// Runs a step of the store.
    fn run(&mut self, node: usize, work: Work) -> Result<Done, String> {
        self.run_as(self.nodes[node].leases, work, &format!("node {node}"))
    }

    /// The same for one that leases or does not.
    fn run_as(&mut self, leases: bool, work: Work, actor: &str) -> Result<Done, String> {
        let (instant, leased) = (self.instant(), usize::from(leases));
        let store = self.world.store.at(instant);
        let done = store.run(&self.subjects[leased], &work, &[]).map_err(|error| error.to_string())?;
        self.tell(|_| format!("{actor}: {work:?} is {}", told(&done)));
        self.judge.step();
        if matches!(work, Work::Reset(_)) {
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
