//! Holds of the embedded store against a plain model.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use proptest::prelude::*;
use tollgate::limit::policy::Policy;

use crate::support::holds::{Gap, ModelOp, follows_model, model_histories};
use crate::support::steps::runner;
use crate::support::timed::Timed;

#[test]
fn embedded_store_agrees_with_model_over_ten_thousand_histories() {
    let count = AtomicUsize::new(0);
    let agrees = |(policy, steps): (Policy, Vec<(Gap, ModelOp)>)| -> Result<(), TestCaseError> {
        let memory = Timed::new(1000);
        count.fetch_add(1, Ordering::Relaxed);
        let run = async |now, subject: &_, work| memory.at(now).run(subject, &work, &[]).unwrap();
        follows_model(run, &policy, "k", &steps).now_or_never().unwrap()
    };
    runner(10_000).run(&model_histories(30), agrees).unwrap();
    assert!(count.into_inner() >= 10_000);
}
