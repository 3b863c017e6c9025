//! Searches for a history that a judge refuses, and shortens it.

use std::sync::Arc;

use super::alike;
use super::choices::Choices;
use super::engine::{Answered, Receipts, Runs, perform};
use super::file::files;
use super::options::Filter;
use super::step::{History, Step};
use crate::support::dice::Dice;
use crate::support::unique;

/// The steps of a history, unless its records end before.
pub const STEPS: usize = 60;

/// The verdict of a judge.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The judge, and what it is about: a shortened history has the same.
    pub judge: &'static str,
    pub what: String,
    pub reason: String,
    /// The number of steps until it shows.
    pub steps: usize,
}

/// One key of a history at one or two stores.
pub struct Trial<'a, A, B> {
    memory: &'a A,
    redis: Option<&'a B>,
    key: Arc<str>,
    receipts: [Receipts; 2],
    steps: usize,
    pub calls: u64,
}

impl<'a, A: Runs, B: Runs> Trial<'a, A, B> {
    pub fn new(memory: &'a A, redis: Option<&'a B>) -> Self {
        Self { memory, redis, key: unique("history").into(), receipts: Default::default(), steps: 0, calls: 0 }
    }

    /// Runs the next step, and asks the judges.
    pub async fn step(&mut self, history: (&[super::file::File], &Step)) -> Result<Answered, Fault> {
        self.steps += 1;
        let [of_memory, of_redis] = &mut self.receipts;
        let answered = perform(self.memory, history, &self.key, of_memory).await;
        self.calls += answered.calls.len() as u64;
        if let Some(redis) = self.redis {
            let other = perform(redis, history, &self.key, of_redis).await;
            self.calls += other.calls.len() as u64;
            if let Some((what, reason)) = alike::difference(&answered, &other) {
                return Err(Fault { judge: "alike", what, reason, steps: self.steps });
            }
        }
        Ok(answered)
    }
}

/// Writes the history of a seed while it runs. Returns it with the fault, if a judge finds one.
pub async fn write<A: Runs, B: Runs>(
    trial: &mut Trial<'_, A, B>,
    seed: u64,
    filter: &Filter,
) -> (History, Option<Fault>) {
    let mut dice = Dice::new(seed);
    let files = files(&mut dice, filter);
    let mut choices = Choices::new(&mut dice, filter, &files);
    let (mut steps, mut fault) = (Vec::new(), None);
    while let Some(step) = choices.next().filter(|_| steps.len() < STEPS && fault.is_none()) {
        match trial.step((&files, &step)).await {
            Ok(answered) => choices.note(&step, &answered),
            Err(found) => fault = Some(found),
        }
        steps.push(step);
    }
    (History { files, steps }, fault)
}

/// Runs a history as it is written.
pub async fn run<A: Runs, B: Runs>(trial: &mut Trial<'_, A, B>, history: &History) -> Option<Fault> {
    for step in &history.steps {
        if let Err(fault) = trial.step((&history.files, step)).await {
            return Some(fault);
        }
    }
    None
}

/// The shortest history that the same judge still refuses, by leaving out steps.
pub async fn shortened(
    history: History,
    fault: Fault,
    mut fails: impl AsyncFnMut(&History) -> Option<Fault>,
) -> (History, Fault) {
    let (mut best, mut reason) = (history, fault);
    best.steps.truncate(reason.steps);
    let mut chunk = best.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut place = 0;
        let mut is_shorter = false;
        while place < best.steps.len() {
            let mut shorter = best.clone();
            shorter.steps.drain(place..(place + chunk).min(best.steps.len()));
            match fails(&shorter).await.filter(|fault| (fault.judge, &fault.what) == (reason.judge, &reason.what)) {
                Some(fault) => {
                    shorter.steps.truncate(fault.steps);
                    (best, reason, is_shorter) = (shorter, fault, true);
                }
                None => place += chunk,
            }
        }
        if !(is_shorter && chunk == 1) {
            chunk /= 2;
        }
    }
    (best, reason)
}

/// The history as text.
pub fn told(history: &History) -> String {
    let mut lines = Vec::new();
    for (number, file) in history.files.iter().enumerate() {
        if history.steps.iter().all(|step| step.file != number) {
            continue;
        }
        let options = |policy: &tollgate::limit::policy::Policy| {
            let quotas: Vec<String> = policy
                .quotas
                .iter()
                .map(|quota| format!("{} per {} us ({:?})", quota.limit, quota.window, quota.rule))
                .collect();
            format!(
                "{quotas:?} hold {:?} lease {:?} queue {:?}",
                policy.options.hold, policy.options.lease, policy.options.queue
            )
        };
        lines.push(format!("file {number}: policy   {}", options(&file.policy)));
        for (plan, policy) in file.plans.iter().enumerate() {
            lines.push(format!("        plan {plan}   {}", options(policy)));
        }
        lines.push(format!("        override {}", options(&file.over)));
    }
    lines.extend(
        history
            .steps
            .iter()
            .map(|step| format!("{:>12}  file {} {:?}  {:?}", step.after, step.file, step.by, step.op)),
    );
    lines.join("\n")
}
