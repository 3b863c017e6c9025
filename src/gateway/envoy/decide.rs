//! Asks the engine about the counted descriptors of a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::timeout;

use super::RateLimitError;
use super::plan::{Action, Counted};
use crate::config::envoy::Counting;
use crate::engine::{Answer, Check, CheckError, Decision, Door, Engine, Over, Refund};
use crate::limit::policy::Algorithm;

/// The result for one counted descriptor.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    /// Whether the descriptor denies the request.
    pub(super) over: bool,
    /// None if the key does not match the policy's type, or a refund had no answer.
    pub(super) decision: Option<Decision>,
}

/// A descriptor's place among the counted ones, and the check on it.
type Placed<'a> = (usize, &'a Counted);

/// One verdict for each of `counted`, in order.
pub(super) async fn decide<'a>(
    engine: &Arc<Engine>,
    counting: Counting,
    counted: impl Iterator<Item = &'a Counted>,
    within: Duration,
) -> Result<Vec<Verdict>, RateLimitError> {
    let counted: Vec<Placed<'a>> = counted.enumerate().collect();
    let (refunds, charges): (Vec<_>, Vec<_>) =
        counted.iter().copied().partition(|(_, counted)| counted.action == Action::Refund);
    let charged = async {
        match counting {
            Counting::AllOrNone => all_or_none(engine, &charges).await,
            Counting::Independent => each(engine, &charges).await,
        }
    };
    let (refunded, charged) = join(refund(engine, &refunds, within), charged).await;
    let mut verdicts = charged?;
    verdicts.extend(refunded);
    verdicts.sort_by_key(|(place, _)| *place);
    Ok(verdicts.into_iter().map(|(_, verdict)| verdict).collect())
}

type PlacedVerdicts = Vec<(usize, Verdict)>;

/// A failed refund is logged by the engine. The caller has no use for it: its request has ended.
async fn refund(engine: &Engine, refunds: &[Placed<'_>], within: Duration) -> PlacedVerdicts {
    let refunded = refunds.iter().map(async |(place, Counted { check, .. })| {
        let refunding = async {
            let refund = Refund::Cost(check.cost);
            let refunded = engine.refund(&check.policy, &check.key, refund, Door::Envoy).await?;
            match check.quotas {
                // The request's own limit, which the refund does not know.
                Some(_) => engine.look(&Check { cost: 0, ..check.clone() }).await,
                None => Ok(refunded.decision),
            }
        };
        let decision = timeout(within, refunding).await.ok().and_then(Result::ok);
        (*place, Verdict { over: false, decision })
    });
    join_all(refunded).await
}

/// Charges each descriptor for itself, those of one counter in order.
async fn each(engine: &Engine, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    let policies = engine.policies();
    // A drain takes a bucket into debt, and each denied request would deepen it.
    let may_owe = |check: &Check| {
        policies.by_name.get(&check.policy).is_none_or(|policy| policy.algorithm != Algorithm::TokenBucket)
    };
    let check = |(_, Counted { check, action, .. }): &Placed<'_>| match action {
        Action::Charge if !may_owe(check) => Check { over: Over::Deny, ..check.clone() },
        _ => check.clone(),
    };
    let checks: Vec<Check> = counted.iter().map(check).collect();
    let mut verdicts = verdicts(counted, engine.check_batch(&checks).await)?;
    let denied = counted
        .iter()
        .zip(&mut verdicts)
        .filter(|((_, counted), (_, verdict))| counted.action == Action::Look && verdict.over);
    join_all(denied.map(async |((_, counted), (_, verdict))| {
        // A look is of cost 0, which always fits. The wait is that for a unit.
        let unit = engine.look(&Check { cost: 1, ..counted.check.clone() }).await;
        if let Ok(decision) = unit
            && !decision.allowed
        {
            verdict.decision = Some(decision);
        }
    }))
    .await;
    Ok(verdicts)
}

fn verdicts(counted: &[Placed<'_>], answers: Vec<Answer>) -> Result<PlacedVerdicts, RateLimitError> {
    let verdict = |((place, counted), answer): (&Placed<'_>, Answer)| Ok((*place, verdict(counted, answer)?));
    counted.iter().zip(answers).map(verdict).collect()
}

/// Charges all descriptors or none, but for those with hits of their own.
async fn all_or_none(engine: &Arc<Engine>, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    let with = |action| counted.iter().copied().filter(|(_, counted)| counted.action == action).collect::<Vec<_>>();
    let (looks, together, alone) = (with(Action::Look), with(Action::Charge), with(Action::ChargeAlone));
    let mut verdicts = each(engine, &looks).await?;
    if verdicts.iter().any(|(_, verdict)| verdict.over) {
        verdicts.extend(peek(engine, &[together, alone].concat()).await?);
        return Ok(verdicts);
    }
    let (together, alone) = join(charge_together(engine, &together), each(engine, &alone)).await;
    verdicts.extend(together?);
    verdicts.extend(alone?);
    Ok(verdicts)
}

async fn charge_together(engine: &Arc<Engine>, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    if counted.is_empty() {
        return Ok(Vec::new());
    }
    let checks: Vec<Check> = counted.iter().map(|(_, counted)| counted.check.clone()).collect();
    match engine.check_all_or_none(&checks).await {
        Ok(multi) => counted
            .iter()
            .zip(multi.decisions)
            .map(|((place, counted), decision)| Ok((*place, verdict(counted, Ok(decision))?)))
            .collect(),
        Err(rejected) => counted
            .iter()
            .enumerate()
            .map(|(number, (place, counted))| {
                let error = rejected.iter().find(|(check, _)| *check == number).map(|(_, error)| error.clone());
                match error {
                    Some(error) => Ok((*place, verdict(counted, Err(error))?)),
                    None => Ok((*place, Verdict { over: false, decision: None })),
                }
            })
            .collect(),
    }
}

/// The verdicts that the descriptors would get, without a charge.
async fn peek(engine: &Engine, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    let answers = join_all(counted.iter().map(|(_, counted)| engine.look(&counted.check))).await;
    verdicts(counted, answers)
}

/// # Errors
/// The store failed under mode `error`, or a reload has removed the policy.
fn verdict(counted: &Counted, answer: Answer) -> Result<Verdict, RateLimitError> {
    match answer {
        Ok(decision) => {
            // Counters always allow a look.
            let is_empty = || decision.binding.is_some_and(|binding| binding.remaining == 0);
            let nothing_left = counted.action == Action::Look && !decision.policy.options.shadow && is_empty();
            Ok(Verdict { over: !decision.allowed || nothing_left, decision: Some(decision) })
        }
        // A client chooses this value, and no client may choose to be unlimited.
        Err(CheckError::InvalidKey(_)) => Ok(Verdict { over: true, decision: None }),
        Err(error) => Err(RateLimitError::Unavailable(error)),
    }
}
