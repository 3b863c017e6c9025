//! The rate limit fields of an HTTP answer (`fields.rs`).

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::engine::Decision;
use crate::fields::{policy_items, push_policy, push_states, state_items, whole_seconds};
use crate::limit::decision::Wait;

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds the fields of `decision`. Without counters there are no quota fields.
pub(super) fn insert(decision: &Decision, headers: &mut HeaderMap) {
    if decision.binding.is_some() {
        insert_text(headers, RATELIMIT_POLICY, policy_items(&decision.policy));
        insert_text(headers, RATELIMIT, state_items(decision));
    }
    if !decision.allowed {
        insert_retry_after(decision.retry_after, headers);
    }
}

/// Adds the fields of decisions on one request. Several policies may have quotas of one name, so
/// the items of several decisions begin with the policy.
pub(super) fn insert_each(decisions: &[Decision], headers: &mut HeaderMap) {
    let (mut policies, mut states) = (Vec::new(), Vec::new());
    for decision in tightest(decisions) {
        let prefix = prefix(decision, decisions.len());
        push_policy(&decision.policy, &prefix, &mut policies);
        push_states(decision, &prefix, &mut states);
    }
    if !policies.is_empty() {
        insert_text(headers, RATELIMIT_POLICY, policies);
        insert_text(headers, RATELIMIT, states);
    }
}

/// The decisions with counters: for each policy the one that denies, else the one with the least
/// left. An item has its name once.
fn tightest(decisions: &[Decision]) -> Vec<&Decision> {
    let left = |decision: &Decision| (decision.allowed, decision.binding.map(|binding| binding.remaining));
    let mut shown: Vec<&Decision> = Vec::new();
    for decision in decisions.iter().filter(|decision| decision.binding.is_some()) {
        match shown.iter_mut().find(|other| other.policy.name == decision.policy.name) {
            Some(other) if left(decision) < left(other) => *other = decision,
            Some(_) => {}
            None => shown.push(decision),
        }
    }
    shown
}

/// The beginning of the items of a decision, if it is one of `number`.
pub(super) fn prefix(decision: &Decision, number: usize) -> String {
    if number == 1 { String::new() } else { format!("{}/", decision.policy.name) }
}

/// Adds the time until a denied cost fits, if it ever does.
pub(super) fn insert_retry_after(wait: Wait, headers: &mut HeaderMap) {
    if let Some(seconds) = whole_seconds(wait) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
}

fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: Vec<u8>) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::engine::{Binding, Reason, Source};
    use crate::limit::decision::{QuotaState, QuotaStates};
    use crate::limit::policy::{Algorithm, Policy};
    use crate::limit::quota::Quota;
    use crate::limit::time::Micros;

    pub(in crate::http) fn decision(
        quotas: &[(&str, u64, Micros)],
        states: &[(u64, Micros)],
        retry_after: Wait,
    ) -> Decision {
        let quota = |&(name, limit, window): &(&str, u64, Micros)| Quota {
            name: name.into(),
            limit: NonZeroU64::new(limit).unwrap(),
            window,
            rule: crate::limit::quota::Rule::default(),
        };
        let quotas = quotas.iter().map(quota).collect();
        let policy = Policy::new("p", Algorithm::SlidingWindow, quotas, Duration::from_millis(100));
        let state = |&(remaining, reset_after): &(u64, Micros)| QuotaState { remaining, reset_after };
        let quotas: QuotaStates = states.iter().map(state).collect();
        Decision {
            policy: Arc::new(policy),
            cost: 1,
            allowed: retry_after.is_none(),
            charged: 0,
            retry_after,
            binding: quotas.first().map(|first| Binding {
                quota: 0,
                remaining: first.remaining,
                reset_after: first.reset_after,
            }),
            quotas,
            source: Source::Store,
            reason: Reason::Ok,
            fallback: None,
            replayed: false,
            refunded: false,
            parts: None,
            start_after: None,
            places: None,
        }
    }

    fn fields(decision: &Decision) -> [Option<String>; 3] {
        let mut headers = HeaderMap::new();
        insert(decision, &mut headers);
        [RATELIMIT_POLICY, RATELIMIT, header::RETRY_AFTER]
            .map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
    }

    #[test]
    fn fields_are_written_as_the_draft_says() {
        const S: Micros = 1_000_000;
        let two: &[_] = &[("1s", 1000, S), ("10s", 5000, 10 * S)];
        let cases = [
            (
                decision(two, &[(0, 987_001), (3211, 9_800_000)], Wait::For(312_000)),
                [Some(r#""1s";q=1000;w=1, "10s";q=5000;w=10"#), Some(r#""1s";r=0;t=1, "10s";r=3211;t=1"#), Some("1")],
            ),
            (
                decision(&[("100ms", 1_000_000_000_000_000, S / 10)], &[(1_000_000_000_000_000, 0)], Wait::NONE),
                [Some(r#""100ms";q=999999999999999;w=1"#), Some(r#""100ms";r=999999999999999;t=0"#), None],
            ),
            (
                decision(&[("1500ms", 1, 3 * S / 2)], &[(0, S + 1)], Wait::For(S + 1)),
                [Some(r#""1500ms";q=1;w=2"#), Some(r#""1500ms";r=0;t=2"#), Some("2")],
            ),
            (
                decision(&[("1s", 1, S)], &[(1, 0)], Wait::Never),
                [Some(r#""1s";q=1;w=1"#), Some(r#""1s";r=1;t=0"#), None],
            ),
            // No counter was read, so there are no quota fields.
            (decision(two, &[], Wait::For(S)), [None, None, Some("1")]),
        ];
        for (decision, expected) in cases {
            assert_eq!(fields(&decision), expected.map(|field| field.map(str::to_owned)));
        }
    }

    #[test]
    fn known_denial_reports_its_one_quota() {
        let mut denial = decision(&[("1s", 10, 1_000_000), ("1m", 20, 60_000_000)], &[], Wait::For(2_100_000));
        denial.binding = Some(Binding { quota: 1, remaining: 0, reset_after: 59_000_001 });
        let expected = [r#""1s";q=10;w=1, "1m";q=20;w=60"#, r#""1m";r=0;t=3"#, "3"];
        assert_eq!(fields(&denial), expected.map(|field| Some(field.to_owned())));
    }
}
