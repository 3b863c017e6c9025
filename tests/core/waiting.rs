//! Checks that wait, against a naive model that keeps every place of the line.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::decision::Wait;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Quota, Rate};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Line, Subject, Waiting, Work};

use crate::support::steps::{START, policy_of, runner, subject};
use crate::support::timed::Timed;

/// A step of a history: the time since the last one, and the call.
type Timeline = Vec<(Micros, Call)>;

#[derive(Debug, Clone)]
enum Call {
    Check(u64),
    Wait {
        cost: u64,
        longest: Micros,
        has_id: bool,
    },
    /// Gives back the place of an earlier check, by its number from the last one on.
    Cancel(usize),
}

/// A bucket: units in each second, and its burst.
type Bucket = (u64, u64);

fn policy(buckets: &[Bucket]) -> Policy {
    let bucket = |(place, (units, burst)): (usize, &Bucket)| {
        let rate = Rate { units: (*units).try_into().unwrap(), per: 1_000_000 };
        Quota::bucket(format!("b{place}"), rate, (*burst).try_into().unwrap()).unwrap()
    };
    policy_of(Algorithm::TokenBucket, buckets.iter().enumerate().map(bucket).collect())
}

/// Every start, in the order of the store. A cancelled one has no cost.
#[derive(Debug, Default)]
struct Model {
    starts: Vec<(Micros, u64)>,
    /// The last place that somebody has.
    line: Micros,
    /// The places among the starts whose callers have left, though somebody stood behind them.
    left: Vec<usize>,
}

impl Model {
    /// The debt of a bucket at `at` in units x 10^6, if all charges begin at their starts.
    fn debt(&self, (units, _): Bucket, at: Micros) -> u64 {
        let (mut debt, mut since) = (0_u64, 0);
        for (start, cost) in self.starts.iter().filter(|(_, cost)| *cost > 0) {
            debt = debt.saturating_sub(units * (start - since)) + cost * 1_000_000;
            since = *start;
        }
        debt.saturating_sub(units * at.saturating_sub(since))
    }

    /// The first instant from `now` on at which the cost fits in each bucket, behind the line.
    fn fits_at(&self, buckets: &[Bucket], now: Micros, cost: u64) -> Option<Micros> {
        let open = now.max(self.line);
        let fits = |bucket: &Bucket| {
            let bearable = bucket.1.checked_sub(cost)? * 1_000_000;
            Some(open + self.debt(*bucket, open).saturating_sub(bearable).div_ceil(bucket.0))
        };
        buckets.iter().map(fits).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The caller of a place leaves. If nobody stands behind it, the line ends at the last place
    /// that somebody has. Returns whether it is free.
    fn leave(&mut self, place: usize, now: Micros) -> bool {
        self.left.push(place);
        while let Some(last) = self.starts.iter().rposition(|(_, cost)| *cost > 0) {
            if !self.left.contains(&last) || self.starts[last].0 <= now {
                break;
            }
            self.starts[last].1 = 0;
        }
        let held = self.starts.iter().filter(|(_, cost)| *cost > 0);
        self.line = held.map(|(at, _)| *at).max().unwrap_or(0);
        self.starts[place].1 == 0
    }

    /// No interval has more starts than burst + rate x t.
    fn never_over(&self, buckets: &[Bucket]) -> Result<(), TestCaseError> {
        for (units, burst) in buckets {
            let starts: Vec<_> = self.starts.iter().filter(|(_, cost)| *cost > 0).collect();
            for (first, (begin, _)) in starts.iter().enumerate() {
                let mut sum = 0;
                for (end, cost) in &starts[first..] {
                    sum += cost;
                    prop_assert!(sum * 1_000_000 <= burst * 1_000_000 + units * (end - begin), "{:?}", self.starts);
                }
            }
        }
        Ok(())
    }
}

fn calls() -> impl Strategy<Value = Timeline> {
    let cost = 1..6u64;
    let wait = (cost.clone(), prop_oneof![Just(50_000), Just(2_000_000), Just(600_000_000)], any::<bool>());
    let call = prop_oneof![
        3 => cost.clone().prop_map(Call::Check),
        6 => wait.prop_map(|(cost, longest, has_id)| Call::Wait { cost, longest, has_id }),
        3 => (0..4usize).prop_map(Call::Cancel),
    ];
    let gap = prop_oneof![3 => Just(0), 3 => 1..300_000u64, 1 => 1..5_000_000u64];
    prop::collection::vec((gap, call), 60)
}

fn buckets() -> impl Strategy<Value = Vec<Bucket>> {
    prop::collection::vec((1..50u64, 1..12u64), 1..4).prop_filter("alike", |buckets| {
        buckets
            .iter()
            .enumerate()
            .all(|(place, (units, _))| buckets[..place].iter().all(|(other, _)| other != units))
    })
}

fn equals_its_model(buckets: &[Bucket], calls: &Timeline) -> Result<usize, TestCaseError> {
    let (store, mut model, mut now) = (Timed::new(1000), Model::default(), START);
    let subject = subject(policy(buckets), "line");
    // The places that may be cancelled: the id, and the place among the starts.
    let (mut held, mut waited): (Vec<(Arc<str>, usize)>, usize) = (Vec::new(), 0);
    for (number, (gap, call)) in calls.iter().enumerate() {
        now += gap;
        let run = |work: &Work| store.at(now).run(&subject, work, &[]).unwrap();
        match call {
            Call::Check(cost) => {
                let fits_at = model.fits_at(buckets, now, *cost);
                let verdict = store.at(now).charge(&subject, &[*cost], &[]).unwrap().ruling.verdicts.remove(0);
                if verdict.allowed {
                    prop_assert_eq!(fits_at, Some(now), "{:?} at {}", call, number);
                    model.starts.push((now, *cost));
                } else {
                    let wait = fits_at.map_or(Wait::Never, |at| Wait::For(at - now));
                    prop_assert_eq!(verdict.retry_after, wait, "{:?} at {}", call, number);
                }
            }
            Call::Wait { cost, longest, has_id } => {
                let id: Option<Arc<str>> = has_id.then(|| format!("id-{number}").into());
                let line = Line { longest: *longest, queue: None };
                let work = Work::Wait(Box::new(Waiting { cost: *cost, line, id: id.clone().map(Into::into) }));
                let verdict = match run(&work) {
                    Done::Taken(taken) => taken.ruling.verdicts[0].clone(),
                    Done::Charged(charged) => charged.verdict,
                    other => panic!("{other:?}"),
                };
                let fits_at = model.fits_at(buckets, now, *cost);
                match verdict.allowed {
                    true => {
                        let (start, expected) = (now + verdict.start_after, fits_at.map(|at| Wait::For(at - now)));
                        let told = Wait::For(verdict.start_after);
                        prop_assert!(verdict.start_after <= *longest);
                        prop_assert_eq!(Some(told), expected, "at {}", number);
                        if let Some(id) = id {
                            held.push((id, model.starts.len()));
                        }
                        model.starts.push((start, *cost));
                        if start > now {
                            model.line = start;
                            waited += 1;
                        }
                    }
                    false => {
                        let wait = fits_at.map_or(Wait::Never, |at| Wait::For((at - now).saturating_sub(*longest)));
                        prop_assert_eq!(verdict.retry_after, wait, "at {}", number);
                    }
                }
            }
            Call::Cancel(back) => {
                let Some(place) = held.len().checked_sub(back + 1) else { continue };
                let (id, place) = held.remove(place);
                let (start, cost) = model.starts[place];
                if start <= now {
                    // Some of it is repaid by now; `refund_models.rs` has a model of that.
                    continue;
                }
                let Done::Refunded(_, given) = run(&Work::RefundOnce(id)) else { panic!("no refund") };
                prop_assert_eq!(given, if model.leave(place, now) { cost } else { 0 }, "at {}", number);
            }
        }
        prop_assert!(model.starts.iter().filter(|(_, cost)| *cost > 0).is_sorted_by_key(|(start, _)| *start));
    }
    model.never_over(buckets)?;
    Ok(waited)
}

#[test]
fn starts_match_a_naive_line() {
    let waited = std::cell::Cell::new(0);
    let property = |(buckets, calls): (Vec<Bucket>, Timeline)| {
        waited.set(waited.get() + equals_its_model(&buckets, &calls)?);
        Ok(())
    };
    runner(2000).run(&(buckets(), calls()), property).unwrap();
    println!("{} starts came later than their checks", waited.get());
    assert!(waited.get() > 10_000);
}

/// The rate of the reader and its burst count from the last place on, with that instant's debt.
#[test]
fn changed_rate_starts_nothing_before_the_last_place() {
    let (second, place) = (1_000_000, START + 3_000_000);
    for (units, burst) in [(1, 1), (1, 100), (100, 1), (100, 100), (7, 3)] {
        let store = Timed::new(10);
        let before = subject(policy(&[(1, 1)]), "line");
        let after = Subject { policy: Arc::new(policy(&[(units, burst)])), ..before.clone() };
        let wait = |longest| Work::Wait(Box::new(Waiting { cost: 1, line: Line { longest, queue: None }, id: None }));
        for start in 0..=3 {
            let Done::Taken(taken) = store.at(START).run(&before, &wait(10 * second), &[]).unwrap() else { panic!() };
            assert_eq!(taken.ruling.verdicts[0].start_after, start * second);
        }
        let check = |now| store.at(now).charge(&after, &[1], &[]).unwrap().ruling.verdicts.remove(0);
        for now in [START, START + second / 2, place - 1] {
            assert!(!check(now).allowed, "{units} per 1s and {burst}, {} us before", place - now);
        }
        let Wait::For(left) = check(place - 1).retry_after else { panic!() };
        assert!(check(place - 1 + left).allowed, "{units} per 1s and {burst}");
    }
}
