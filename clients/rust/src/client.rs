use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::check::{Check, Refund};
use crate::clock;
use crate::coalesce::Coalescer;
use crate::connections::{Call, Failure, Reply};
use crate::decision::{AllAnswer, Decision, RefundAnswer, Usage};
use crate::error::{Error, Problem};
use crate::ids::Ids;
use crate::node::Node;
use crate::options::{InvalidOptions, Options};

/// The most charges after responses that wait at a time.
const MAX_PENDING: u32 = 100_000;

/// Calls the nodes of one Tollgate.
///
/// Clones share connections and calls. Make one client per process.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Vec<Node>,
    deadline: Duration,
    /// Absent if the client never repeats a call.
    ids: Option<Ids>,
    coalescer: Option<Coalescer>,
    /// Has a permit for each charge that may follow a response.
    pending: Semaphore,
}

impl Client {
    /// Makes a client. It does not connect yet, and so it succeeds without a node.
    ///
    /// # Errors
    /// An option is invalid, or a file has no certificates.
    pub fn new(options: Options) -> Result<Self, InvalidOptions> {
        let addresses = options.addresses()?;
        let authorization = options.authorization()?;
        let tls = options.tls(&addresses)?;
        let node = |address| Node::new(address, authorization.clone(), tls.clone());
        let shared = Shared {
            nodes: addresses.into_iter().map(node).collect(),
            deadline: options.deadline,
            ids: options.retry.then(Ids::new).transpose()?,
            coalescer: options.coalesce.then(Coalescer::default),
            pending: Semaphore::new(MAX_PENDING as usize),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks for one decision. Concurrent checks share a call, unless `coalesce` is off.
    ///
    /// A caller that drops the future may have charged the check all the same.
    ///
    /// # Errors
    /// [`Error::Problem`] if a node rejects the check, [`Error::Unavailable`] if none answers.
    pub async fn check(&self, mut check: Check) -> Result<Decision, Error> {
        self.identify(&mut check);
        match &self.shared.coalescer {
            Some(coalescer) => coalescer.check(self, check, self.until()).await,
            None => self.check_alone(&check).await,
        }
    }

    pub(crate) async fn check_alone(&self, check: &Check) -> Result<Decision, Error> {
        self.post("/v1/check", check, check.is_repeatable(), check.traceparent.as_deref()).await
    }

    /// Decides up to 1000 checks, each for itself. The results have the order of the checks.
    ///
    /// # Errors
    /// A node rejects the call as a whole, or none answers. A faulty check has its own problem.
    pub async fn check_batch(
        &self,
        checks: impl IntoIterator<Item = Check>,
    ) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
        let mut checks: Vec<Check> = checks.into_iter().collect();
        checks.iter_mut().for_each(|check| self.identify(check));
        self.post_batch(&checks.iter().collect::<Vec<_>>()).await
    }

    pub(crate) async fn post_batch(&self, checks: &[&Check]) -> Result<Vec<Result<Decision, Box<Problem>>>, Error> {
        let is_repeatable = checks.iter().all(|check| check.is_repeatable());
        let traceparent = checks.iter().find_map(|check| check.traceparent.as_deref());
        let reply = self.post_for_reply("/v1/check/batch", &Checks { checks }, is_repeatable, traceparent).await?;
        let results = results_of(&reply.body)?;
        if results.len() != checks.len() {
            return Err(Error::unavailable(format!("{} results for {} checks", results.len(), checks.len())));
        }
        Ok(results)
    }

    /// Charges up to 16 checks together, or none of them. The checks have no ids, and so the client
    /// never repeats the call.
    ///
    /// # Errors
    /// A node rejects a check, or none answers.
    pub async fn check_all(&self, checks: impl IntoIterator<Item = Check>) -> Result<AllAnswer, Error> {
        let checks: Vec<Check> = checks.into_iter().collect();
        let checks: Vec<&Check> = checks.iter().collect();
        let traceparent = checks.iter().find_map(|check| check.traceparent.as_deref());
        self.post("/v1/check/all", &Checks { checks: &checks }, false, traceparent).await
    }

    /// Gives units back. The client repeats a refund by id only: a second one gives back nothing.
    ///
    /// # Errors
    /// A node rejects the refund, or none answers.
    pub async fn refund(&self, refund: Refund) -> Result<RefundAnswer, Error> {
        self.post("/v1/refund", &refund, refund.id.is_some(), None).await
    }

    /// Returns the counts of the check's policy and key, and the decision that the check would get.
    /// It charges nothing. Without a cost, the decision is that of cost 0.
    ///
    /// # Errors
    /// A node rejects the call, or none answers.
    pub async fn usage(&self, check: Check) -> Result<Usage, Error> {
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

    /// Waits for charges that layers make after their responses, and closes idle connections. Each
    /// charge ends within the deadline. Call it after the server ended.
    pub async fn close(&self) {
        // The semaphore is never closed.
        let _all = self.shared.pending.acquire_many(MAX_PENDING).await;
        self.shared.nodes.iter().for_each(Node::close_idle);
    }

    pub(crate) fn coalescer(&self) -> Option<&Coalescer> {
        self.shared.coalescer.as_ref()
    }

    /// A place among the charges that [`Client::close`] waits for.
    pub(crate) fn pend(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.pending.try_acquire().ok()
    }

    /// The end of a call that begins now.
    pub(crate) fn until(&self) -> Instant {
        clock::now() + self.shared.deadline
    }

    /// Gives the check an id, so that the client may repeat it.
    fn identify(&self, check: &mut Check) {
        if let Some(ids) = &self.shared.ids
            && check.id.is_none()
            && check.charges()
        {
            check.id = Some(ids.next());
        }
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
        let is_repeatable = is_repeatable && self.shared.ids.is_some();
        let call = Call { method: Method::POST, target, body: Some(body), traceparent, is_repeatable };
        self.ask(&call).await
    }

    /// Calls the nodes in order until one answers. It never repeats a call that a node answered.
    async fn ask(&self, call: &Call<'_>) -> Result<Reply, Error> {
        let (until, nodes) = (self.until(), &self.shared.nodes);
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.shared.nodes)
            .field("deadline", &self.shared.deadline)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Checks<'a> {
    checks: &'a [&'a Check],
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
