use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check::{Check, Refund};
use crate::clock;
use crate::connections::{Call, Failure, Reply};
use crate::decision::{AllAnswer, Decision, RefundAnswer, Usage};
use crate::error::{Error, Problem};
use crate::node::Node;

/// The longest body that a node reads. It closes the connection of a longer one before the end.
const MAX_BODY: usize = 1 << 20;

/// The calls of the API.
#[derive(Debug)]
pub(crate) struct Calls {
    pub nodes: Vec<Node>,
    pub deadline: Duration,
    /// Whether a call may go to a second node.
    pub repeats: bool,
}

impl Calls {
    pub async fn check(&self, check: &Check) -> Result<Decision, Error> {
        self.post("/v1/check", check, check.is_repeatable(), check.traceparent.as_deref()).await
    }

    /// Decides checks, each for itself. There is a result for each.
    pub async fn batch(&self, checks: &[&Check]) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
        let is_repeatable = checks.iter().all(|check| check.is_repeatable());
        let reply = self
            .post_for_reply("/v1/check/batch", &Checks { checks }, is_repeatable, traceparent(checks))
            .await?;
        let results = results_of(&reply.body)?;
        if results.len() != checks.len() {
            return Err(Error::unavailable(format!("{} results for {} checks", results.len(), checks.len())));
        }
        Ok(results)
    }

    /// Charges all checks or none. They have no ids, so it never repeats the call.
    pub async fn all(&self, checks: &[&Check]) -> Result<AllAnswer, Error> {
        self.post("/v1/check/all", &Checks { checks }, false, traceparent(checks)).await
    }

    /// Repeats a refund by id only: a second one gives back nothing.
    pub async fn refund(&self, refund: &Refund) -> Result<RefundAnswer, Error> {
        self.post("/v1/refund", refund, refund.id.is_some(), None).await
    }

    pub async fn usage(&self, check: &Check) -> Result<Usage, Error> {
        let mut target = "/v1/usage?key=".to_owned();
        push_escaped(&mut target, &check.key);
        if let Some(policy) = &check.policy {
            target.push_str("&policy=");
            push_escaped(&mut target, policy);
        }
        if let Some(cost) = check.cost {
            target.push_str("&cost=");
            target.push_str(&cost.to_string());
        }
        let traceparent = check.traceparent.as_deref();
        let call = Call { method: Method::GET, target: &target, body: None, traceparent, is_repeatable: true };
        answer_of(&self.ask(&call).await?.body)
    }

    /// The end of a call that begins now.
    pub fn until(&self) -> Instant {
        clock::now() + self.deadline
    }

    async fn post<T: DeserializeOwned>(
        &self,
        target: &str,
        body: &impl Serialize,
        is_repeatable: bool,
        traceparent: Option<&str>,
    ) -> Result<T, Error> {
        answer_of(&self.post_for_reply(target, body, is_repeatable, traceparent).await?.body)
    }

    async fn post_for_reply(
        &self,
        target: &str,
        body: &impl Serialize,
        is_repeatable: bool,
        traceparent: Option<&str>,
    ) -> Result<Reply, Error> {
        let body = Bytes::from(serde_json::to_vec(body).map_err(Error::unavailable)?);
        if body.len() > MAX_BODY {
            return Err(Error::Problem(Box::new(Problem::too_large())));
        }
        let is_repeatable = is_repeatable && self.repeats;
        let call = Call { method: Method::POST, target, body: Some(body), traceparent, is_repeatable };
        self.ask(&call).await
    }

    /// Calls the nodes in order until one answers. It never repeats a call that a node answered.
    async fn ask(&self, call: &Call<'_>) -> Result<Reply, Error> {
        let (until, nodes) = (self.until(), &self.nodes);
        let mut last = None;
        for (place, node) in nodes.iter().enumerate() {
            if !node.admit(clock::now()) {
                continue;
            }
            let failure = match node.ask(share(until, &nodes[place + 1..], call), call).await {
                Ok(reply) if reply.status == StatusCode::OK => return Ok(reply),
                Ok(reply) => return Err(Error::Problem(Box::new(Problem::of(reply.status, &reply.body)))),
                Err(failure) => failure,
            };
            let is_final = !call.is_repeatable && !matches!(failure, Failure::NotSent(_));
            last = Some(failure);
            if is_final || clock::now() >= until {
                break;
            }
        }
        Err(match last {
            Some(failure) => Error::unavailable(failure),
            None => Error::unavailable("every node failed less than 500 ms ago"),
        })
    }
}

#[derive(Serialize)]
struct Checks<'a> {
    checks: &'a [&'a Check],
}

/// The trace of a call is that of its first check with one.
fn traceparent<'a>(checks: &[&'a Check]) -> Option<&'a str> {
    checks.iter().find_map(|check| check.traceparent.as_deref())
}

/// Ends an attempt so that each node that may follow has an equal part of the time. A call that
/// must not be repeated has no use for the next node.
fn share(until: Instant, rest: &[Node], call: &Call<'_>) -> Instant {
    let now = clock::now();
    let others = rest.iter().filter(|node| !node.is_avoided(now)).count();
    match u32::try_from(others) {
        Ok(others) if others > 0 && call.is_repeatable => now + until.saturating_duration_since(now) / (others + 1),
        _ => until,
    }
}

fn answer_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|cause| Error::unavailable(format!("the response is none of a node: {cause}")))
}

/// Most batches have decisions only. Their decoder needs a fraction of the time.
fn results_of(body: &[u8]) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
    #[derive(serde::Deserialize)]
    struct Decisions {
        results: Vec<Decision>,
    }
    #[derive(serde::Deserialize)]
    struct Mixed {
        results: Vec<Item>,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Item {
        Failed { error: Box<Problem> },
        Decided(Box<Decision>),
    }
    if let Ok(Decisions { results }) = serde_json::from_slice(body) {
        return Ok(results.into_iter().map(Ok).collect());
    }
    let Mixed { results } = answer_of(body)?;
    let result = |item| match item {
        Item::Failed { error } => Err(error),
        Item::Decided(decision) => Ok(*decision),
    };
    Ok(results.into_iter().map(result).collect())
}

fn push_escaped(target: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => target.push(byte.into()),
            _ => {
                const DIGITS: [char; 16] =
                    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
                target.extend(['%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
        }
    }
}
