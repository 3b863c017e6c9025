use std::fmt;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::calls::Calls;
use crate::check::{Check, Refund};
use crate::coalesce::Coalescer;
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
    calls: Arc<Calls>,
    /// Absent if the client never repeats a call.
    ids: Option<Ids>,
    coalescer: Option<Arc<Coalescer>>,
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
        let nodes = addresses.into_iter().map(node).collect();
        let calls = Arc::new(Calls { nodes, deadline: options.deadline, repeats: options.retry });
        let shared = Shared {
            ids: options.retry.then(Ids::new).transpose()?,
            coalescer: options.coalesce.then(|| Arc::new(Coalescer::new(calls.clone()))),
            calls,
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
            Some(coalescer) => coalescer.check(check).await,
            None => self.shared.calls.check(&check).await,
        }
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
        self.shared.calls.batch(&checks.iter().collect::<Vec<_>>()).await
    }

    /// Charges up to 16 checks together, or none of them. The checks have no ids, and so the client
    /// never repeats the call.
    ///
    /// # Errors
    /// A node rejects a check, or none answers.
    pub async fn check_all(&self, checks: impl IntoIterator<Item = Check>) -> Result<AllAnswer, Error> {
        let checks: Vec<Check> = checks.into_iter().collect();
        self.shared.calls.all(&checks.iter().collect::<Vec<_>>()).await
    }

    /// Gives units back. The client repeats a refund by id only: a second one gives back nothing.
    ///
    /// # Errors
    /// A node rejects the refund, or none answers.
    pub async fn refund(&self, refund: Refund) -> Result<RefundAnswer, Error> {
        self.shared.calls.refund(&refund).await
    }

    /// Returns the counts of the check's policy and key, and the decision that the check would get.
    /// It charges nothing. Without a cost, the decision is that of cost 0.
    ///
    /// # Errors
    /// A node rejects the call, or none answers.
    pub async fn usage(&self, check: Check) -> Result<Usage, Error> {
        self.shared.calls.usage(&check).await
    }

    /// Waits for charges that layers make after their responses, and closes idle connections. Each
    /// charge ends within the deadline. Call it after the server ended.
    pub async fn close(&self) {
        // The semaphore is never closed.
        let _all = self.shared.pending.acquire_many(MAX_PENDING).await;
        self.shared.calls.nodes.iter().for_each(Node::close_idle);
    }

    /// A place among the charges that [`Client::close`] waits for.
    pub(crate) fn pend(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.pending.try_acquire().ok()
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
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.shared.calls.nodes)
            .field("deadline", &self.shared.calls.deadline)
            .finish_non_exhaustive()
    }
}
