use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check::{Check, Refund};
use crate::clock;
use crate::decision::{AllAnswer, Decision, LeaseAnswer, RefundAnswer, RenewAnswer, SettleAnswer, Usage};
use crate::error::{Error, Problem};
use crate::fake::Fakes;
use crate::hold::HoldName;
use crate::monitor::Monitor;
use crate::node::{Call, Failure, Node};

/// The longest body that a node reads. It closes the connection of a longer one before the end.
const MAX_BODY: usize = 1 << 20;

/// The id of a lease of this client.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseName {
    pub policy: String,
    pub key: String,
    pub id: String,
}

impl LeaseName {
    pub fn of_key(&self) -> (&str, &str) {
        (&self.policy, &self.key)
    }
}

/// The units that were spent of a lease.
#[derive(Debug, Serialize)]
pub(crate) struct Settlement {
    #[serde(flatten)]
    pub name: LeaseName,
    pub cost: u64,
}

/// The answer of a node, of status 200.
struct Answer {
    node: Arc<Node>,
    body: Bytes,
}

/// The calls of the API.
#[derive(Debug)]
pub(crate) struct Calls {
    pub nodes: Vec<Arc<Node>>,
    pub deadline: Duration,
    /// Whether a call may be sent twice.
    pub repeats: bool,
    pub monitor: Arc<Monitor>,
    /// Answers in place of the nodes.
    pub fakes: Option<Fakes>,
}

impl Calls {
    pub async fn check(&self, check: &Check) -> Result<Decision, Error> {
        let traceparent = check.traceparent.as_deref();
        let again = check.is_retry_safe().then(|| body_of(&check.again())).transpose()?;
        let call = Call { again, ..self.post("/v1/check", check, traceparent)? };
        answer_of(&self.ask(&call).await?)
    }

    /// Decides checks, each for itself. There is a result for each.
    pub async fn batch(&self, checks: &[&Check]) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
        let again = checks.iter().any(|check| check.is_retry_safe()).then(|| {
            let again: Vec<Check> = checks.iter().map(|check| check.again()).collect();
            body_of(&Checks { checks: &again.iter().collect::<Vec<_>>() })
        });
        let again = again.transpose()?;
        let call = Call { again, ..self.post("/v1/check/batch", &Checks { checks }, traceparent(checks))? };
        let results = results_of(&self.ask(&call).await?)?;
        results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .for_each(|problem| self.monitor.heed(problem));
        if results.len() != checks.len() {
            return Err(Error::unavailable(format!("{} results for {} checks", results.len(), checks.len())));
        }
        Ok(results)
    }

    /// Charges all checks or none. Without an id in each, a second call might charge them twice.
    pub async fn all(&self, checks: &[&Check]) -> Result<AllAnswer, Error> {
        let call = self.post("/v1/check/all", &Checks { checks }, traceparent(checks))?;
        let is_repeatable = call.is_repeatable && checks.iter().all(|check| check.id.is_some());
        answer_of(&self.ask(&Call { is_repeatable, ..call }).await?)
    }

    pub async fn settle(&self, name: &HoldName, cost: Option<u64>) -> Result<SettleAnswer, Error> {
        #[derive(Serialize)]
        struct Settlement<'a> {
            #[serde(flatten)]
            name: &'a HoldName,
            #[serde(skip_serializing_if = "Option::is_none")]
            cost: Option<u64>,
        }
        answer_of(&self.ask(&self.post("/v1/settle", &Settlement { name, cost }, None)?).await?)
    }

    pub async fn lease(&self, name: &LeaseName, want: u64) -> Result<LeaseAnswer, Error> {
        #[derive(Serialize)]
        struct Purchase<'a> {
            #[serde(flatten)]
            name: &'a LeaseName,
            want: u64,
        }
        answer_of(&self.ask(&self.post("/v1/lease", &Purchase { name, want }, None)?).await?)
    }

    pub async fn settle_leases(&self, settlements: &[Settlement]) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Settlements<'a> {
            settlements: &'a [Settlement],
        }
        #[derive(serde::Deserialize)]
        struct Settled {
            #[serde(rename = "results")]
            _results: serde::de::IgnoredAny,
        }
        let answer = self.ask(&self.post("/v1/settle", &Settlements { settlements }, None)?).await?;
        answer_of::<Settled>(&answer).map(drop)
    }

    pub async fn renew(&self, name: &HoldName) -> Result<RenewAnswer, Error> {
        answer_of(&self.ask(&self.post("/v1/renew", name, None)?).await?)
    }

    /// Repeats a refund by id only: a second one gives back nothing.
    pub async fn refund(&self, refund: &Refund) -> Result<RefundAnswer, Error> {
        let call = self.post("/v1/refund", refund, None)?;
        let is_repeatable = call.is_repeatable && refund.id.is_some();
        answer_of(&self.ask(&Call { is_repeatable, ..call }).await?)
    }

    pub async fn usage(&self, check: &Check) -> Result<Usage, Error> {
        let target = usage_of(check);
        let traceparent = check.traceparent.as_deref();
        let method = Method::GET;
        let call = Call { method, target: &target, body: None, again: None, traceparent, is_repeatable: true };
        answer_of(&self.ask(&call).await?)
    }

    fn post<'a>(
        &self,
        target: &'a str,
        body: &impl Serialize,
        traceparent: Option<&'a str>,
    ) -> Result<Call<'a>, Error> {
        let (method, body) = (Method::POST, Some(body_of(body)?));
        Ok(Call { method, target, body, again: None, traceparent, is_repeatable: self.repeats })
    }

    /// Calls the nodes in order until one answers. It never repeats a call that a node answered.
    async fn ask(&self, call: &Call<'_>) -> Result<Answer, Error> {
        let (until, nodes) = (clock::now() + self.deadline, &self.nodes);
        if let (Some(fakes), [node, ..]) = (&self.fakes, &nodes[..]) {
            return Ok(Answer { node: node.clone(), body: fakes.answer(call)? });
        }
        let (mut last, mut again) = (None, false);
        for (place, node) in nodes.iter().enumerate() {
            if !node.admit(clock::now()) {
                continue;
            }
            let (began, share) = (clock::now(), share(until, &nodes[place + 1..], call));
            let failure = match node.ask(share, call, again).await {
                Ok(reply) if reply.status == StatusCode::OK => {
                    return Ok(Answer { node: node.clone(), body: reply.body });
                }
                Ok(reply) => {
                    let problem = Problem::of(reply.status, &reply.body).ok_or_else(|| no_node(node, reply.status))?;
                    self.monitor.heed(&problem);
                    return Err(Error::Problem(Box::new(problem)));
                }
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Deadline) {
                self.suspect(node.clone(), share.saturating_duration_since(began));
            }
            again = again || !matches!(failure, Failure::NotSent(_));
            let is_final = again && !call.is_repeatable;
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

    /// A silent node may only have waited for its store.
    fn suspect(&self, node: Arc<Node>, waited: Duration) {
        let monitor = self.monitor.clone();
        tokio::spawn(async move {
            if let Some(timeout) = node.timeout().await {
                monitor.about_timeout(waited, timeout);
            }
        });
    }
}

fn body_of(content: &impl Serialize) -> Result<Bytes, Error> {
    let body = serde_json::to_vec(content).map_err(Error::unavailable)?;
    if body.len() > MAX_BODY {
        return Err(Error::Problem(Box::new(Problem::too_large())));
    }
    Ok(body.into())
}

#[derive(Serialize)]
struct Checks<'a> {
    checks: &'a [&'a Check],
}

/// The path and query for the counts of a check.
fn usage_of(check: &Check) -> String {
    let path = "/v1/usage?";
    let mut query = form_urlencoded::Serializer::for_suffix(path.to_owned(), path.len());
    query.append_pair("key", &check.key);
    if let Some(policy) = &check.policy {
        query.append_pair("policy", policy);
    }
    if let Some(cost) = check.cost {
        query.append_pair("cost", &cost.to_string());
    }
    query.finish()
}

/// The trace of a call is that of its first check with one.
fn traceparent<'a>(checks: &[&'a Check]) -> Option<&'a str> {
    checks.iter().find_map(|check| check.traceparent.as_deref())
}

/// Ends an attempt so that each node that may follow has an equal part of the time. A call that
/// must not be repeated has no use for the next node.
fn share(until: Instant, rest: &[Arc<Node>], call: &Call<'_>) -> Instant {
    let now = clock::now();
    let others = rest.iter().filter(|node| !node.is_avoided(now)).count();
    match u32::try_from(others) {
        Ok(others) if others > 0 && call.is_repeatable => now + until.saturating_duration_since(now) / (others + 1),
        _ => until,
    }
}

fn answer_of<T: DeserializeOwned>(answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|_| no_node(&answer.node, StatusCode::OK))
}

/// Another program than a node has answered.
fn no_node(node: &Node, status: StatusCode) -> Error {
    let (url, status) = (node.url(), status.as_u16());
    Error::unavailable(format!("{url} is no node of Tollgate: it answered {status} without a decision"))
}

/// Most batches have decisions only. Their decoder needs a fraction of the time.
fn results_of(answer: &Answer) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
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
    if let Ok(Decisions { results }) = serde_json::from_slice(&answer.body) {
        return Ok(results.into_iter().map(Ok).collect());
    }
    let Mixed { results } = answer_of(answer)?;
    let result = |item| match item {
        Item::Failed { error } => Err(error),
        Item::Decided(decision) => Ok(*decision),
    };
    Ok(results.into_iter().map(result).collect())
}
