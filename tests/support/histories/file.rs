//! The limits of a file: those of the policy, of two plans and of an override.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::hold::{Hold, OnExpiry};
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Algorithm, Options, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::ticks::{STEP_BACK, Ticks};
use tollgate::limit::time::Micros;

use super::options::{Feature, Filter};
use super::step::By;
use crate::support::dice::Dice;
use crate::support::steps::{BACK, bucket, counters, has_distinct_rates, logs, policy_of, quota, span};

/// The names of the plans.
pub const PLANS: [&str; 2] = ["a", "b"];

/// The limits that a node has. Each is one object, by which the pre-filter knows it.
#[derive(Debug, Clone)]
pub struct File {
    pub policy: Arc<Policy>,
    pub plans: Vec<Arc<Policy>>,
    pub over: Arc<Policy>,
}

impl File {
    /// The policy with its plans and with the limits of an override.
    pub fn new(policy: Policy, plans: Vec<Policy>, over: Policy) -> Self {
        let plans: Vec<Arc<Policy>> = plans.into_iter().map(Arc::new).collect();
        let named: BTreeMap<Box<str>, _> =
            PLANS.iter().zip(&plans).map(|(name, plan)| ((*name).into(), plan.clone())).collect();
        let mut policy = policy;
        policy.options.plans = (!named.is_empty()).then(|| Arc::new(named));
        Self { policy: Arc::new(policy), plans, over: Arc::new(over) }
    }

    /// What counts a check.
    pub fn checks(&self, by: By) -> &Arc<Policy> {
        match by {
            By::Policy => &self.policy,
            By::Plan(plan) => self.plans.get(plan).unwrap_or(&self.policy),
            By::Override => &self.over,
        }
    }

    /// What the other calls find, which name no plan.
    pub fn present(&self, by: By) -> &Arc<Policy> {
        match by {
            By::Override => &self.over,
            By::Policy | By::Plan(_) => &self.policy,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Policy>> {
        [&self.policy, &self.over].into_iter().chain(&self.plans)
    }
}

/// How far the clock may step back behind its latest instant, us: no sliding window admits too much
/// then (docs/guarantees.md, Clocks), and ticks count what was written.
pub fn most_back(files: &[File]) -> i64 {
    let policies = files.iter().flat_map(File::all);
    let shortest = policies.flat_map(|policy| &policy.quotas).map(|quota| quota.window).min();
    shortest.unwrap_or(BACK).min(2 * BACK).cast_signed() / 2
}

/// Whether token buckets have different rates by plan, by override or by file.
pub fn has_two_rates(files: &[File]) -> bool {
    let rates = |policy: &Policy| policy.quotas.iter().map(|quota| quota.rule).collect::<Vec<_>>();
    let mut all = files.iter().flat_map(File::all).filter(|policy| policy.algorithm == Algorithm::TokenBucket);
    let first = all.next().map(|policy| rates(policy));
    all.any(|policy| Some(rates(policy)) != first)
}

/// Whether the files have different algorithms. Another one begins anew (docs/guarantees.md, Changed
/// policies), and undoes no charge of the former one.
pub fn has_two_algorithms(files: &[File]) -> bool {
    let mut all = files.iter().flat_map(File::all).map(|policy| policy.algorithm);
    let first = all.next();
    all.any(|algorithm| Some(algorithm) != first)
}

/// Whether sliding counters keep their ticks for different times, by plan, by override or by file. A
/// longer window finds only the ticks that are still kept (docs/guarantees.md, Changed policies).
pub fn has_two_lives(files: &[File]) -> bool {
    let mut lives = files.iter().flat_map(File::all).filter_map(|policy| policy.ticks()).map(|ticks| ticks.life());
    let first = lives.next();
    lives.any(|life| Some(life) != first)
}

/// The forms of quotas that the files of one history have.
#[derive(Debug, Clone)]
enum Pool {
    Windows(Vec<Micros>),
    Fixed(Anchor, Vec<Micros>),
    Calendars(Vec<Calendar>),
    /// Units in each span.
    Rates(Vec<(u64, Micros)>),
    Logs(u32, Vec<Micros>),
    /// Windows in ticks.
    Counters(Ticks, Vec<u64>),
}

const WINDOWS: [Micros; 10] = [
    100_000,
    137_000,
    1_000_000,
    3_000_000,
    10_000_000,
    60_000_000,
    60_000_000,
    3_600_000_000,
    18_000_000_000,
    86_400_000_000,
];

impl Pool {
    fn new(algorithm: Algorithm, dice: &mut Dice, filter: &Filter) -> Self {
        let windows = |dice: &mut Dice| {
            let mut windows: Vec<Micros> = (0..4).map(|_| *dice.one_of(&WINDOWS)).collect();
            windows.sort_unstable();
            windows.dedup();
            windows
        };
        match algorithm {
            Algorithm::SlidingWindow => Self::Windows(windows(dice)),
            Algorithm::SlidingLog => Self::Logs([3, 8, 60, 10_000][dice.place(4)], windows(dice)),
            Algorithm::FixedWindow => match dice.below(5) {
                0 => {
                    let zone = *dice.one_of(&["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata"]);
                    Self::Calendars(
                        [Unit::Day, Unit::Week, Unit::Month].map(|unit| Calendar::new(unit, zone).unwrap()).into(),
                    )
                }
                1 | 2 => Self::Fixed(Anchor::Clock, windows(dice)),
                _ => Self::Fixed(Anchor::FirstHit, windows(dice)),
            },
            Algorithm::TokenBucket => {
                let spans = [100_000, 1_000_000, 1_000_000, 3_000_000, 60_000_000, 3_600_000_000];
                let count = if filter.has(Feature::Rates) { 4 } else { 1 };
                let rate = |dice: &mut Dice| ([1, 3, 7, 10, 40, 100, 1000][dice.place(7)], *dice.one_of(&spans));
                Self::Rates((0..count).map(|_| rate(dice)).collect())
            }
            Algorithm::SlidingCounter => {
                let tick = *dice.one_of(&[100_000, 137_000, 1_000_000, 1_000_000, 10_000_000, 3_600_000_000]);
                let ticks = Ticks::new(tick, dice.below(2) == 0, filter.has(Feature::Shared) && dice.below(4) == 0);
                let mut windows: Vec<u64> = (0..4).map(|_| *dice.one_of(&[1, 2, 3, 10, 60, 120])).collect();
                windows.sort_unstable();
                windows.dedup();
                Self::Counters(ticks, windows)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Windows(all) | Self::Fixed(_, all) | Self::Logs(_, all) => all.len(),
            Self::Calendars(all) => all.len(),
            Self::Rates(all) => all.len(),
            Self::Counters(_, all) => all.len(),
        }
    }

    /// Quotas of these forms with any limits.
    fn policy(&self, places: &[usize], dice: &mut Dice) -> Policy {
        let mut limit = || match dice.below(12) {
            0 => 1 + dice.below(2000),
            1 => (1 << 32) - 2 + dice.below(4),
            2..5 => 20 + dice.below(40),
            _ => 1 + dice.below(20),
        };
        let each = places.iter();
        match self {
            Self::Windows(all) => {
                let quotas = each.map(|place| quota(limit(), all[*place], Rule::SlidingWindow)).collect();
                policy_of(Algorithm::SlidingWindow, quotas)
            }
            Self::Fixed(anchor, all) => {
                let quotas = each.map(|place| quota(limit(), all[*place], Rule::FixedWindow(*anchor))).collect();
                policy_of(Algorithm::FixedWindow, quotas)
            }
            Self::Calendars(all) => {
                let of = |calendar: Calendar, limit| {
                    quota(limit, calendar.unit().nominal(), Rule::FixedWindow(Anchor::Calendar(calendar)))
                };
                policy_of(Algorithm::FixedWindow, each.map(|place| of(all[*place], limit())).collect())
            }
            Self::Rates(all) => {
                let quotas = each.map(|place| bucket(limit(), all[*place].0, all[*place].1)).collect();
                policy_of(Algorithm::TokenBucket, quotas)
            }
            Self::Logs(most, all) => logs(&each.map(|place| (limit(), all[*place])).collect::<Vec<_>>(), *most),
            Self::Counters(ticks, all) => {
                let quotas: Vec<_> = each.map(|place| (limit(), all[*place] * ticks.length())).collect();
                // Shared counters live as long as the longest window of the file.
                counters(&quotas, if ticks.shared { ticks.with_life(120) } else { *ticks })
            }
        }
    }
}

/// Writes the files of one history.
pub fn files(dice: &mut Dice, filter: &Filter) -> Vec<File> {
    // Only token buckets have lines and debts of other rates, so they come more often.
    let is_bucket = filter.algorithms().contains(&Algorithm::TokenBucket) && dice.below(4) == 0;
    let algorithm = if is_bucket { Algorithm::TokenBucket } else { *dice.one_of(filter.algorithms()) };
    let pool = Pool::new(algorithm, dice, filter);
    let hold = (filter.has(Feature::Holds) && dice.below(2) == 0).then(|| hold(dice, filter));
    let lease = filter.has(Feature::Leases) && hold.is_none() && dice.below(3) == 0;
    let queue = (filter.has(Feature::Queue) && dice.below(2) == 0).then(|| 1 + dice.below(60));
    let first = file(&pool, (hold, queue, lease), dice, filter);
    let mut files = vec![first];
    let count = if filter.has(Feature::Reload) { dice.below(3) } else { 0 };
    for _ in 0..count {
        // A reload changes the hold, the quotas, or both.
        let changes_hold = filter.has(Feature::HoldReload) && dice.below(2) == 0;
        let other = match (hold, changes_hold) {
            (Some(_), true) if dice.below(2) == 0 => None,
            (_, true) => Some(self::hold(dice, filter)),
            (hold, false) => hold,
        };
        let changes_quotas = dice.below(4) > 0;
        let next = match changes_quotas {
            true => file(&pool, (other, queue, lease && other.is_none()), dice, filter),
            false => held(&files[0], other),
        };
        files.push(next);
    }
    files
}

/// The same file with another hold.
fn held(file: &File, hold: Option<Hold>) -> File {
    // Other programs settle nothing, so shared counters have none.
    let hold = hold.filter(|_| file.policy.shared_ticks().is_none());
    let with = |policy: &Arc<Policy>| {
        let mut policy = Policy::clone(policy);
        let places = policy.options.hold.and_then(|hold| hold.in_flight);
        policy.options.plans = None;
        let is_bounded = policy.quotas.is_empty() || places.is_some();
        policy.options.hold = hold.map(|hold| Hold {
            in_flight: if is_bounded { places.or(hold.in_flight).or(NonZeroU64::new(3)) } else { hold.in_flight },
            ..hold
        });
        if policy.quotas.is_empty() && hold.is_none() {
            policy = policy_of(Algorithm::SlidingWindow, vec![quota(9, 10_000_000, Rule::SlidingWindow)]);
        }
        policy.options.lease = policy.options.lease.filter(|_| hold.is_none());
        policy
    };
    File::new(with(&file.policy), file.plans.iter().map(with).collect(), with(&file.over))
}

fn hold(dice: &mut Dice, filter: &Filter) -> Hold {
    let on_expiry = match filter.has(Feature::Release) && dice.below(2) == 0 {
        true => OnExpiry::Release,
        false => OnExpiry::Charge,
    };
    let in_flight = (dice.below(5) > 0).then(|| 1 + dice.below(5)).and_then(NonZeroU64::new);
    Hold { ttl: [1_000_000, 2_500_000, 10_000_000, 40_000_000][dice.place(4)], in_flight, on_expiry }
}

type Kind = (Option<Hold>, Option<u64>, bool);

fn file(pool: &Pool, (hold, queue, lease): Kind, dice: &mut Dice, filter: &Filter) -> File {
    let shared = matches!(pool, Pool::Counters(ticks, _) if ticks.shared);
    let hold = hold.filter(|_| !shared);
    let mut base = limits(pool, dice, filter);
    let has_places = hold.is_some_and(|hold| hold.in_flight.is_some());
    if has_places && filter.has(Feature::PlacesOnly) && dice.below(6) == 0 {
        base = policy_of(Algorithm::SlidingWindow, Vec::new());
    }
    base.options = Options { hold, queue, ..Options::default() };
    if lease && base.shared_ticks().is_none() && !base.quotas.is_empty() {
        // A configuration refuses what a clock that steps back would not count.
        let longest = base.ticks().map_or(Micros::MAX, |ticks| ticks.ahead() * ticks.length() - STEP_BACK);
        let shortest = base.quotas.iter().map(span).min().unwrap() / 8 * (1 + dice.below(8)) / 8;
        let lease = Lease { span: shortest.min(longest), nodes: NonZeroU64::MIN, callers: NonZeroU64::new(2) };
        base.options.lease = Some(lease).filter(|lease| lease.span > 0);
    }
    let other = |dice: &mut Dice| {
        let is_other = filter.has(Feature::Windows) || base.quotas.is_empty();
        let limits = match dice.below(3) {
            _ if base.quotas.is_empty() && (pool.len() == 0 || dice.below(3) == 0) => base.clone(),
            0 | 1 if is_other && base.algorithm == algorithm_of(pool) => limits(pool, dice, filter),
            _ => with_other_limits(&base, dice),
        };
        instead(&base, limits.quotas, dice)
    };
    let plans = if filter.has(Feature::Plans) { (0..PLANS.len()).map(|_| other(dice)).collect() } else { Vec::new() };
    let over = other(dice);
    File::new(base, plans, over)
}

fn algorithm_of(pool: &Pool) -> Algorithm {
    match pool {
        Pool::Windows(_) => Algorithm::SlidingWindow,
        Pool::Fixed(..) | Pool::Calendars(_) => Algorithm::FixedWindow,
        Pool::Rates(_) => Algorithm::TokenBucket,
        Pool::Logs(..) => Algorithm::SlidingLog,
        Pool::Counters(..) => Algorithm::SlidingCounter,
    }
}

/// One to three quotas of different forms.
fn limits(pool: &Pool, dice: &mut Dice, filter: &Filter) -> Policy {
    let most = if filter.has(Feature::Several) { 3 } else { 1 };
    loop {
        let count = 1 + dice.place(most).min(dice.place(most)).min(pool.len() - 1);
        let mut places: Vec<usize> = Vec::new();
        while places.len() < count {
            let place = dice.place(pool.len());
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let policy = pool.policy(&places, dice);
        let names: std::collections::BTreeSet<_> = policy.quotas.iter().map(|quota| &quota.name).collect();
        if has_distinct_names(names.len(), &policy)
            && (policy.algorithm != Algorithm::TokenBucket || has_distinct_rates(&policy))
        {
            return policy;
        }
    }
}

fn has_distinct_names(names: usize, policy: &Policy) -> bool {
    names == policy.quotas.len()
}

/// The same windows with other limits; for a token bucket another burst.
fn with_other_limits(policy: &Policy, dice: &mut Dice) -> Policy {
    let mut other = policy.clone();
    for quota in &mut other.quotas {
        let limit = (quota.limit.get() * (1 + dice.below(8)) / 4).max(1);
        match quota.rule {
            Rule::TokenBucket(rate) => {
                *quota = Quota { name: quota.name.clone(), ..bucket(limit, rate.units.get(), rate.per) }
            }
            _ => quota.limit = NonZeroU64::new(limit).unwrap(),
        }
    }
    other
}

/// The policy with the quotas of a plan or of an override, as `config::inline::instead` makes it.
fn instead(policy: &Policy, mut quotas: Vec<Quota>, dice: &mut Dice) -> Policy {
    let life = policy.ticks().map(Ticks::life);
    for quota in &mut quotas {
        if let (Rule::SlidingCounter(ticks), Some(life)) = (&mut quota.rule, life) {
            *ticks = ticks.with_life(life);
        }
    }
    let mut hold = policy.options.hold;
    if let Some(hold) = &mut hold
        && dice.below(2) == 0
    {
        hold.in_flight = NonZeroU64::new(1 + dice.below(5)).or(hold.in_flight);
    }
    let lease = policy.options.lease.filter(|lease| quotas.iter().all(|quota| lease.span <= span(quota) / 8));
    let options = Options { hold, lease, plans: None, ..policy.options.clone() };
    Policy { quotas, options, ..policy.clone() }
}
