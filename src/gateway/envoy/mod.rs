//! Envoy's rate limit service, version 3.
//!
//! `plan.rs` turns each descriptor into a check, by the rule that `find.rs` finds and the key that
//! `key.rs` writes. `decide.rs` asks the
//! engine, `render.rs` writes the response, and `metadata.rs` its dynamic metadata. `xds/` follows
//! the control plane that sends the rules.
//! `serve/envoy.rs` is the listener.

mod counts;

mod decide;

pub mod messages;

pub mod find;

pub mod key;

mod plan;

mod render;

mod metadata;

pub mod xds;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::access::{Rejected, Token};
use crate::engine::{CheckError, Engine};
use crate::shares::CallerTurns;
use messages::{RateLimitRequest, RateLimitResponse};
use plan::Plan;

/// Why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateLimitError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unavailable(Unavailable),
    /// The caller's token is for other policies.
    #[error("{0}")]
    Rejected(Rejected),
}

/// Why a valid request has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The policy's `on_store_failure` is `error`, or a reload has removed the policy.
    #[error("{0}")]
    Check(CheckError),
    #[error("the control plane has sent no rules yet")]
    NoRules,
}

/// Decides a request within the deadline of the configuration, and within `left` if the caller
/// waits less. Without a configuration nothing is limited. `token` and `turns` are the caller's.
///
/// # Errors
/// The request is invalid, the token is for other policies, or the store fails under mode `error`.
pub async fn should_rate_limit(
    engine: &Arc<Engine>,
    request: &RateLimitRequest,
    left: Option<Duration>,
    token: Option<&Token>,
    turns: &CallerTurns,
) -> Result<RateLimitResponse, RateLimitError> {
    let answer = engine.timed(async {
        match once(engine, request, left, token, turns).await {
            // A reload has replaced the rules between the plan and the check.
            Err(RateLimitError::Unavailable(Unavailable::Check(CheckError::UnknownPolicy(_)))) => {
                once(engine, request, left, token, turns).await
            }
            decided => decided,
        }
    });
    answer.await.inspect_err(|error| match error {
        RateLimitError::Unavailable(Unavailable::Check(_)) => engine.reference().redis_errors.add(1),
        RateLimitError::Unavailable(Unavailable::NoRules)
        | RateLimitError::Invalid(_)
        | RateLimitError::Rejected(_) => engine.reference().service_errors.add(1),
    })
}

async fn once(
    engine: &Arc<Engine>,
    request: &RateLimitRequest,
    left: Option<Duration>,
    token: Option<&Token>,
    turns: &CallerTurns,
) -> Result<RateLimitResponse, RateLimitError> {
    let rules = engine.running().envoy.as_ref().map(|envoy| envoy.rules.clone());
    let Some(rules) = rules else { return Ok(RateLimitResponse::default()) };
    if rules.awaited {
        return Err(RateLimitError::Unavailable(Unavailable::NoRules));
    }
    let within = left.map_or(rules.deadline, |left| left.min(rules.deadline));
    let plan = Plan::new(&rules, &engine.policies(), request, within).map_err(RateLimitError::Invalid)?;
    if let Some(token) = token {
        let mut checks = plan.counted().map(|counted| &counted.check);
        let permitted = checks.try_for_each(|check| token.permit_check(&check.policy, check.plan.as_deref()));
        permitted.map_err(RateLimitError::Rejected)?;
    }
    let verdicts = decide::decide(engine, turns, rules.counting, plan.counted(), within).await?;
    counts::count(engine, &rules, &plan, &verdicts);
    let response = render::response(&plan, &verdicts, rules.headers);
    Ok(RateLimitResponse { dynamic_metadata: metadata::of(request, &plan, &verdicts), ..response })
}
