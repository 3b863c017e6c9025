//! The windows of logs that overrides, lists and former files have brought. In Redis each has a key
//! of its own, which a reset must name, also when the override has ended.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Engine;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::Quota;

/// The most windows of a policy. A reset forgets the counts of these.
const MOST: usize = 64;

/// By the names of policies.
#[derive(Debug, Default)]
pub(super) struct KnownLogs(Mutex<HashMap<String, Vec<Quota>>>);

impl KnownLogs {
    /// Notes the logs of a policy that may go.
    pub(super) fn note(&self, policy: &Policy) {
        if policy.algorithm != Algorithm::SlidingLog {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let windows = known.entry(policy.name.clone()).or_default();
        for quota in &policy.quotas {
            if windows.len() < MOST && windows.iter().all(|window| window.window != quota.window) {
                windows.push(quota.clone());
            }
        }
    }

    fn of(&self, policy: &str) -> Vec<Quota> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(policy).cloned().unwrap_or_default()
    }
}

impl Engine {
    /// The quotas of all logs that a policy may have for a key: its own, and those of its plans, lists
    /// and overrides. None under another algorithm.
    pub(super) fn logs_of(&self, policy: &str) -> Box<[Quota]> {
        let running = self.running.load();
        let base = running.policies.by_name.get(policy).filter(|base| base.algorithm == Algorithm::SlidingLog);
        let Some(base) = base else { return Box::default() };
        let plans = base.options.plans.iter().flat_map(|plans| plans.values());
        let quotas = plans.chain([base]).flat_map(|policy| &policy.quotas).cloned();
        quotas.chain(self.known_logs.of(policy)).collect()
    }
}
