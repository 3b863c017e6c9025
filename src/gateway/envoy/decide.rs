//! Asks the engine about the counted descriptors of a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::timeout;

use super::RateLimitError;
use super::plan::{Action, Counted};
use crate::config::envoy::Counting;
use crate::engine::{Answer, Check, CheckError, Decision, Door, Engine, Refund};

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
        let refunding = engine.refund(&check.policy, &check.key, Refund::Cost(check.cost), Door::Envoy);
        let result = timeout(within, refunding).await.ok().and_then(Result::ok);
        (*place, Verdict { over: false, decision: result.map(|result| result.decision) })
    });
    join_all(refunded).await
}

/// Charges each descriptor for itself, those of one counter in order.
async fn each(engine: &Engine, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    let checks: Vec<Check> = counted.iter().map(|(_, counted)| counted.check.clone()).collect();
    let answers = engine.check_batch(&checks).await;
    counted
        .iter()
        .zip(answers)
        .map(|((place, counted), answer)| Ok((*place, verdict(counted, answer)?)))
        .collect()
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
    let look = |(_, counted): &Placed<'_>| Check { cost: 0, ..counted.check.clone() };
    let checks: Vec<Check> = counted.iter().map(look).collect();
    let answers = engine.check_batch(&checks).await;
    let verdict = |((place, counted), answer): (&Placed<'_>, Answer)| {
        let Verdict { over, decision } = verdict(counted, answer)?;
        let lacks = decision.as_ref().is_some_and(|decision| has_less_than(decision, counted.check.cost));
        Ok((*place, Verdict { over: over || lacks, decision }))
    };
    counted.iter().zip(answers).map(verdict).collect()
}

/// # Errors
/// The store failed under mode `error`, or a reload has removed the policy.
fn verdict(counted: &Counted, answer: Answer) -> Result<Verdict, RateLimitError> {
    match answer {
        Ok(decision) => {
            // Counters always allow a look.
            let nothing_left = counted.action == Action::Look && has_less_than(&decision, 1);
            Ok(Verdict { over: !decision.allowed || nothing_left, decision: Some(decision) })
        }
        // A client chooses this value, and no client may choose to be unlimited.
        Err(CheckError::InvalidKey(_)) => Ok(Verdict { over: true, decision: None }),
        Err(error) => Err(RateLimitError::Unavailable(error)),
    }
}

/// Whether less than `cost` remains, and that counts.
fn has_less_than(decision: &Decision, cost: u64) -> bool {
    !decision.policy.options.shadow && decision.binding.is_some_and(|binding| binding.remaining < cost)
}
