//! The sliding window of both stores against a log that keeps everything.

use std::sync::Arc;

use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::Policy;
use tollgate::store::Subject;

use crate::support::exact_log::{Log, judge};
use crate::support::redis::timed_store;
use crate::support::steps::{Step, histories, policies, runner, with_limits};
use crate::support::timed::{Timed, in_time};
use crate::support::unique;

#[test]
fn both_stores_are_never_over_and_barely_under() {
    let (runtime, redis) = timed_store();
    let memory = Timed::new(1_000_000);
    let fingerprinter = Fingerprinter::default();
    let judged = |policy: &Policy, steps: &[Step]| {
        let key: Arc<str> = unique("property").into();
        let fingerprint = fingerprinter.fingerprint(&policy.name, &key);
        let (mut of_memory, mut of_redis) = (Log::default(), Log::default());
        for step in steps {
            let policy = Arc::new(with_limits(policy, step.quarters));
            let subject = Subject { policy: policy.clone(), key: key.clone(), fingerprint };
            let taken = memory.at(step.now).charge(&subject, &step.costs, &[]).unwrap();
            let seen = taken.ruling.verdicts.iter().map(|verdict| (verdict.cost, verdict.allowed));
            judge(&policy, &mut of_memory, step.now, seen)?;
            let taken = runtime.block_on(redis.at(step.now).charge(&subject, &step.costs, &[])).unwrap();
            let seen = taken.ruling.verdicts.iter().map(|verdict| (verdict.cost, verdict.allowed));
            judge(&policy, &mut of_redis, step.now, seen)?;
        }
        Ok(())
    };
    let property = |(policy, steps): (Policy, Vec<Step>)| in_time(|| judged(&policy, &steps));
    runner(100).run(&histories(policies(), 60), property).unwrap();
}
