//! Asks the engine about the counted descriptors of a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::plan::{Action, Counted};
use super::{RateLimitError, Unavailable};
use crate::config::envoy::Counting;
use crate::engine::{AllOrNone, Answer, Check, CheckError, Decision, Door, Engine, HoldId, Over, Refund, StoreError};
use crate::limit::hold::HoldState;
use crate::limit::policy::Algorithm;
use crate::shares::CallerTurns;

/// The result for one counted descriptor.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    /// Whether the descriptor is over its limit.
    pub(super) over: bool,
    pub(super) is_quota: bool,
    /// None if the key does not match the policy's type, or a refund had no answer. Also if another
    /// call has settled the hold with another cost.
    pub(super) decision: Option<Decision>,
}

impl Verdict {
    /// A quota descriptor that may still pass.
    const OPEN_QUOTA: Self = Self { over: false, is_quota: true, decision: None };
}

/// Whether these verdicts deny the request: one without quota mode is over its limit, or all with
/// quota mode are.
pub(super) fn is_over<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> bool {
    let (mut quotas, mut over) = (0, 0);
    for verdict in verdicts {
        match verdict.is_quota {
            true => (quotas, over) = (quotas + 1, over + usize::from(verdict.over)),
            false if verdict.over => return true,
            false => {}
        }
    }
    quotas > 0 && quotas == over
}

/// A descriptor's place among the counted ones, and the check on it.
type Placed<'a> = (usize, &'a Counted);

/// One verdict for each of `counted`, in order.
pub(super) async fn decide<'a>(
    engine: &Arc<Engine>,
    turns: &CallerTurns,
    counting: Counting,
    counted: impl Iterator<Item = &'a Counted>,
    within: Duration,
) -> Result<Vec<Verdict>, RateLimitError> {
    let counted: Vec<Placed<'a>> = counted.enumerate().collect();
    let (ends, charges): (Vec<_>, Vec<_>) = counted
        .iter()
        .copied()
        .partition(|(_, counted)| matches!(counted.action, Action::Refund | Action::Settle(_)));
    let leaving = guard(opened(&charges), |opened| give_back(engine, opened, within));
    let charged = async {
        match counting {
            Counting::AllOrNone => all_or_none(engine, turns, &charges).await,
            Counting::Independent => each(engine, turns, &charges).await,
        }
    };
    let (refunded, settled, charged) =
        join3(refund(engine, turns, &ends, within), settle(engine, turns, &ends, within), charged).await;
    ScopeGuard::into_inner(leaving);
    let mut verdicts = charged?;
    verdicts.extend(refunded);
    verdicts.extend(settled?);
    verdicts.sort_by_key(|(place, _)| *place);
    Ok(verdicts.into_iter().map(|(_, verdict)| verdict).collect())
}

/// The ids that these charges may leave a record of.
fn opened(charges: &[Placed<'_>]) -> Vec<Check> {
    let checks = charges.iter().map(|(_, counted)| &counted.check);
    checks.filter(|check| check.id.is_some()).cloned().collect()
}

/// Gives these charges back after a request whose caller has left before the answer. Envoy sends no
/// end of its stream. Each charge has been made, or never will be, once the deadline has passed
/// twice: a call of several keys unwinds meanwhile.
fn give_back(engine: &Arc<Engine>, opened: Vec<Check>, within: Duration) {
    let Some(runtime) = Handle::try_current().ok().filter(|_| !opened.is_empty()) else { return };
    let engine = engine.clone();
    runtime.spawn(async move {
        sleep(within * 2).await;
        for Check { policy, key, id, .. } in opened {
            let Some(id) = id else { continue };
            // The engine logs a failure, and the `ttl` of the hold ends it.
            let _ = engine.refund(&policy, &key, Refund::Id(id.name), Door::Envoy).await;
        }
    });
}

type PlacedVerdicts = Vec<(usize, Verdict)>;

/// A failed refund is logged by the engine. The caller has no use for it: its request has ended.
async fn refund(engine: &Engine, turns: &CallerTurns, ends: &[Placed<'_>], within: Duration) -> PlacedVerdicts {
    let refunds = ends.iter().copied().filter(|(_, counted)| counted.action == Action::Refund).collect();
    let verdict =
        |(place, counted): Placed<'_>, decision| (place, Verdict { over: false, is_quota: counted.is_quota, decision });
    let refund = async |placed: Placed<'_>| {
        let check = &placed.1.check;
        let refunding = async {
            let refund = check.id.as_ref().map_or(Refund::Cost(check.cost), |id| Refund::Id(id.name.clone()));
            let refunded = engine.refund(&check.policy, &check.key, refund, Door::Envoy).await?;
            match check.quotas {
                // The request's own limit, which the refund does not know.
                Some(_) => engine.look(&Check { cost: 0, ..check.clone() }).await,
                None => Ok(refunded.decision),
            }
        };
        verdict(placed, timeout(within, refunding).await.ok().and_then(Result::ok))
    };
    engine.in_turns(turns, within, refunds, refund, |placed| verdict(placed, None)).await
}

/// Ends holds: first those of known cost. So a descriptor without a cost ends a hold only if no other
/// one did.
///
/// # Errors
/// The store does not answer in time. The request may then be repeated.
async fn settle(
    engine: &Engine,
    turns: &CallerTurns,
    counted: &[Placed<'_>],
    within: Duration,
) -> Result<PlacedVerdicts, RateLimitError> {
    let late = || RateLimitError::Unavailable(Unavailable::Check(CheckError::StoreUnavailable(StoreError::Timeout)));
    let settle = async |(place, counted, cost): (usize, &Counted, Option<u64>)| {
        let Counted { check, is_quota, .. } = counted;
        let id = check.id.as_ref().map(|id| id.name.clone()).unwrap_or_default();
        let hold = HoldId { policy: check.policy.clone(), key: check.key.clone(), id };
        let decision = match engine.settle(&hold, cost, Door::Envoy).await {
            Ok(settled) => Some(settled.decision),
            Err(CheckError::SettledOtherwise | CheckError::InvalidKey(_)) => None,
            Err(error) => return Err(RateLimitError::Unavailable(Unavailable::Check(error))),
        };
        Ok((place, Verdict { over: false, is_quota: *is_quota, decision }))
    };
    let with_cost = async |has_cost: bool| {
        let settles = counted.iter().filter_map(|(place, counted)| match counted.action {
            Action::Settle(cost) if cost.is_some() == has_cost => Some((*place, *counted, cost)),
            _ => None,
        });
        let settled = engine.in_turns(turns, within, settles.collect(), settle, |_| Err(late())).await;
        settled.into_iter().collect::<Result<PlacedVerdicts, RateLimitError>>()
    };
    let both = async {
        let mut verdicts = with_cost(true).await?;
        verdicts.extend(with_cost(false).await?);
        Ok(verdicts)
    };
    timeout(within, both).await.unwrap_or_else(|_| Err(late()))
}

/// Charges each descriptor for itself, those of one counter in order.
async fn each(engine: &Engine, turns: &CallerTurns, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
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
    let mut verdicts = verdicts(counted, engine.check_batch(&checks, turns).await)?;
    let denied = counted
        .iter()
        .zip(&mut verdicts)
        .filter(|((_, counted), (_, verdict))| counted.action == Action::Look && verdict.over);
    // A look is of cost 0, which always fits. The wait is that for a unit.
    let unit = |counted: &Counted| Check { cost: 1, ..counted.check.clone() };
    let (looks, denied): (Vec<_>, Vec<_>) = denied.map(|((_, counted), (_, verdict))| (unit(counted), verdict)).unzip();
    for (verdict, decision) in denied.into_iter().zip(look(engine, turns, looks).await) {
        if let Ok(decision) = decision
            && !decision.allowed
        {
            verdict.decision = Some(decision);
        }
    }
    Ok(verdicts)
}

fn verdicts(counted: &[Placed<'_>], answers: Vec<Answer>) -> Result<PlacedVerdicts, RateLimitError> {
    let verdict = |((place, counted), answer): (&Placed<'_>, Answer)| Ok((*place, verdict(counted, answer)?));
    counted.iter().zip(answers).map(verdict).collect()
}

/// Charges all descriptors or none, but for those with hits of their own, which come first. Quota
/// descriptors count each for itself once the others fit.
async fn all_or_none(
    engine: &Arc<Engine>,
    turns: &CallerTurns,
    counted: &[Placed<'_>],
) -> Result<PlacedVerdicts, RateLimitError> {
    let with = |action| counted.iter().copied().filter(|(_, counted)| counted.action == action).collect::<Vec<_>>();
    let (looks, alone, together) = (with(Action::Look), with(Action::ChargeAlone), with(Action::Charge));
    let is_denied = |verdicts: &PlacedVerdicts, open: &[Placed<'_>]| {
        let may_pass = open.iter().any(|(_, counted)| counted.is_quota);
        let decided = verdicts.iter().map(|(_, verdict)| verdict);
        let open = may_pass.then_some(&Verdict::OPEN_QUOTA);
        is_over(decided.chain(open))
    };
    let mut verdicts = each(engine, turns, &looks).await?;
    let open = [&alone[..], &together].concat();
    if is_denied(&verdicts, &open) {
        verdicts.extend(peek(engine, turns, &open).await?);
        return Ok(verdicts);
    }
    verdicts.extend(each(engine, turns, &alone).await?);
    let of_quotas: PlacedVerdicts = verdicts.iter().filter(|(_, verdict)| verdict.is_quota).cloned().collect();
    if is_denied(&of_quotas, &together) {
        verdicts.extend(peek(engine, turns, &together).await?);
        return Ok(verdicts);
    }
    let has_passed = of_quotas.iter().any(|(_, verdict)| !verdict.over);
    let needs_one = !has_passed && counted.iter().any(|(_, counted)| counted.is_quota);
    let (quotas, all): (Vec<_>, Vec<_>) = together.into_iter().partition(|(_, counted)| counted.is_quota);
    verdicts.extend(match all.is_empty() {
        true => each(engine, turns, &quotas).await?,
        false => charge_together(engine, all, quotas, needs_one).await?,
    });
    Ok(verdicts)
}

/// Charges `all` and what fits of `quotas`, or nothing. If it `needs_one`, a quota must fit.
async fn charge_together(
    engine: &Arc<Engine>,
    all: Vec<Placed<'_>>,
    mut quotas: Vec<Placed<'_>>,
    needs_one: bool,
) -> Result<PlacedVerdicts, RateLimitError> {
    let checks = |of: &[Placed<'_>]| of.iter().map(|(_, counted)| counted.check.clone()).collect::<Vec<_>>();
    let required = checks(&all);
    let mut verdicts = PlacedVerdicts::new();
    // An invalid key among the quotas is over its limit, and the others are asked without it.
    loop {
        let optional = checks(&quotas);
        let counted = || all.iter().chain(&quotas);
        let call = AllOrNone { all: &required, optional: &optional, needs_one };
        let rejected = match engine.check_optional(call).await {
            Ok(multi) => {
                for ((place, counted), decision) in counted().zip(multi.decisions) {
                    verdicts.push((*place, verdict(counted, Ok(decision))?));
                }
                return Ok(verdicts);
            }
            Err(rejected) => rejected,
        };
        let mut errors = vec![None; counted().count()];
        rejected.into_iter().for_each(|(place, error)| errors[place] = Some(error));
        let is_optional = errors.iter().take(all.len()).all(Option::is_none);
        let mut left = Vec::new();
        for (number, ((place, counted), error)) in counted().zip(errors).enumerate() {
            match error {
                Some(error) => verdicts.push((*place, verdict(counted, Err(error))?)),
                None if is_optional && number >= all.len() => left.push((*place, *counted)),
                None if is_optional => {}
                None => verdicts.push((*place, Verdict { over: false, is_quota: counted.is_quota, decision: None })),
            }
        }
        if !is_optional {
            return Ok(verdicts);
        }
        quotas = left;
    }
}

/// The verdicts that the descriptors would get, without a charge.
async fn peek(engine: &Engine, turns: &CallerTurns, counted: &[Placed<'_>]) -> Result<PlacedVerdicts, RateLimitError> {
    let looks = counted.iter().map(|(_, counted)| counted.check.clone()).collect();
    verdicts(counted, look(engine, turns, looks).await)
}

/// The answers to checks, without a charge.
async fn look(engine: &Engine, turns: &CallerTurns, checks: Vec<Check>) -> Vec<Answer> {
    let limit = checks.iter().filter_map(|check| check.within).max().unwrap_or_default();
    let look = async |check: Check| engine.look(&check).await;
    engine
        .in_turns(turns, limit, checks, look, |_| Err(CheckError::StoreUnavailable(StoreError::Timeout)))
        .await
}

/// # Errors
/// The store failed under mode `error`, or a reload has removed the policy.
fn verdict(counted: &Counted, answer: Answer) -> Result<Verdict, RateLimitError> {
    let is_quota = counted.is_quota;
    match answer {
        Ok(decision) => {
            // Counters always allow a look.
            let is_empty = || decision.binding.is_some_and(|binding| binding.remaining == 0);
            let nothing_left = counted.action == Action::Look && !decision.policy.options.shadow && is_empty();
            // A request with the id of a hold that has ended would run without a place.
            let has_ended =
                matches!(decision.places.as_ref().and_then(|places| places.hold), Some(HoldState::Ended(_)))
                    && !decision.policy.options.shadow;
            let over = !decision.allowed || nothing_left || has_ended;
            Ok(Verdict { over, is_quota, decision: Some(decision) })
        }
        // A client chooses this value, and no client may choose to be unlimited.
        Err(CheckError::InvalidKey(_)) => Ok(Verdict { over: true, is_quota, decision: None }),
        Err(error) => Err(RateLimitError::Unavailable(Unavailable::Check(error))),
    }
}
