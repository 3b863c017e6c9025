//! Searches for a history that a judge refuses, and shortens it.

use super::choices::Choices;
use super::engine::Runs;
use super::file::{files, most_back};
use super::options::Filter;
use super::step::History;
use super::trial::{Fault, Trial};
use crate::support::dice::Dice;

/// The most steps of a history.
const STEPS: usize = 60;

/// Writes the history of a seed while it runs. Returns it with the fault, if a judge finds one. The
/// variable `TOLLGATE_IGNORED` names faults that are no result, by judge and kind, so that a search
/// finds others.
pub async fn write<A: Runs, B: Runs>(
    trial: &mut Trial<'_, A, B>,
    seed: u64,
    filter: &Filter,
) -> (History, Option<Fault>) {
    let mut dice = Dice::new(seed);
    let filter = filter.some(&mut dice);
    let files = files(&mut dice, &filter);
    let mut choices = Choices::new(&mut dice, &filter, &files);
    let (mut steps, mut fault) = (Vec::new(), None);
    while let Some(step) = choices.next().filter(|_| steps.len() < STEPS && fault.is_none()) {
        match trial.step((&files, &step)).await {
            Ok(answered) => choices.note(&step, &answered),
            Err(found) => fault = Some(found),
        }
        steps.push(step);
    }
    if fault.is_none() {
        fault = trial.conclude(&files, steps.last()).await.err();
    }
    let ignored = std::env::var("TOLLGATE_IGNORED").unwrap_or_default();
    let is_ignored = |fault: &Fault| {
        let name = format!("{} {}", fault.judge, fault.what);
        ignored.split(',').any(|part| !part.is_empty() && name.starts_with(part))
    };
    (History { files, steps }, fault.filter(|fault| !is_ignored(fault)))
}

/// Runs a history as it is written.
pub async fn run<A: Runs, B: Runs>(trial: &mut Trial<'_, A, B>, history: &History) -> Option<Fault> {
    let (most, mut latest) = (most_back(&history.files), i64::MIN);
    for step in &history.steps {
        latest = latest.max(step.after);
        if step.after < latest - most {
            // Without some steps the clock steps back too far.
            return None;
        }
    }
    for step in &history.steps {
        if let Err(fault) = trial.step((&history.files, step)).await {
            return Some(fault);
        }
    }
    trial.conclude(&history.files, history.steps.last()).await.err()
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
