//! Both stores give the same windows and buckets where clocks step.

use tollgate::limit::policy::Algorithm;
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::store::{Done, Work};

use crate::support::redis::timed_store;
use crate::support::steps::{START, bucket, policy_of, subject};
use crate::support::timed::Timed;
use crate::support::unique;

/// Fault 6 and rows 6 and 9: a window fixes its end when it begins. Neither hits nor denials move
/// it.
#[test]
fn hits_and_denials_never_extend_a_window() {
    let (runtime, redis) = timed_store();
    let memory = Timed::new(10);
    for anchor in [Anchor::Clock, Anchor::FirstHit] {
        let quota = crate::support::steps::quota(3, 10_000_000, Rule::FixedWindow(anchor));
        let policy = policy_of(Algorithm::FixedWindow, vec![quota]);
        let subject = subject(policy, &unique("prolong"));
        let start = START / 10_000_000 * 10_000_000;
        for second in 0..10 {
            let now = start + second * 1_000_000;
            let here = memory.at(now).charge(&subject, &[1], &[]).unwrap();
            let there = runtime.block_on(redis.at(now).charge(&subject, &[1], &[])).unwrap();
            assert_eq!(here, there);
            let verdict = &here.ruling.verdicts[0];
            assert_eq!(verdict.allowed, second < 3);
            assert_eq!(verdict.quotas[0].reset_after, start + 10_000_000 - now, "{anchor:?}");
        }
        assert!(memory.at(start + 10_000_000).charge(&subject, &[1], &[]).unwrap().ruling.verdicts[0].allowed);
    }
}

/// The debt then exceeds its maximum. A refund must not write such a debt.
#[test]
fn refund_after_clock_step_back_leaves_readable_bucket() {
    let (runtime, redis) = timed_store();
    let memory = Timed::new(10);
    let policy = policy_of(Algorithm::TokenBucket, vec![bucket(1_000_000_000, 1_000_000_000_000, 1_000_000)]);
    let subject = subject(policy, &unique("far"));
    let later = START + 3 * 3_600_000_000;
    let run = |work: Work, now| {
        let here = memory.at(now).run(&subject, &work, &[]).unwrap();
        let there = runtime.block_on(redis.at(now).run(&subject, work.clone(), &[])).unwrap();
        match (here, there) {
            (Done::Refunded(here, given), Done::Refunded(there, same)) => {
                assert_eq!((&here.ruling.verdicts, given), (&there.ruling.verdicts, same));
                given
            }
            (here, there) => {
                assert_eq!(here, there);
                u64::from(here.is_charge())
            }
        }
    };
    assert_eq!(run(Work::Take([1_000_000_000].into_iter().collect()), later), 1);
    assert_eq!(run(Work::Refund(1), START), 1);
    assert_eq!(run(Work::Take([1].into_iter().collect()), START), 0);
    assert_eq!(run(Work::Take([2].into_iter().collect()), later), 0, "only one was taken back");
    assert_eq!(run(Work::Take([1].into_iter().collect()), later), 1);
}
