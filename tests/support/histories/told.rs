//! Histories as text.

use tollgate::limit::policy::{Options, Policy};
use tollgate::limit::quota::{Quota, Rule};

use super::step::History;

/// The history as text.
pub fn told(history: &History) -> String {
    let mut lines = Vec::new();
    for (number, file) in history.files.iter().enumerate() {
        if history.steps.iter().all(|step| step.file != number) {
            continue;
        }
        let options = |policy: &Policy| {
            let quota = |quota: &Quota| match quota.rule {
                Rule::TokenBucket(rate) => format!("{} per {} us burst {}", rate.units, rate.per, quota.limit),
                rule => format!("{} per {} us {rule:?}", quota.limit, quota.window),
            };
            let quotas: Vec<String> = policy.quotas.iter().map(quota).collect();
            let Options { hold, lease, queue, .. } = &policy.options;
            let some =
                |name: &str, text: Option<String>| text.map_or_else(String::new, |text| format!(" {name} {text}"));
            let hold =
                some("hold", hold.map(|hold| format!("{} us {:?} {:?}", hold.ttl, hold.in_flight, hold.on_expiry)));
            let lease = some("lease", lease.map(|lease| lease.span.to_string()));
            format!("[{}]{hold}{lease}{}", quotas.join(", "), some("queue", queue.map(|queue| queue.to_string())))
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
