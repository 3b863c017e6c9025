use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep_until;

use crate::calls::Calls;
use crate::check::{Check, Refund};
use crate::clock;
use crate::coalesce::Coalescer;
use crate::decision::{AllAnswer, Decision, RefundAnswer, RenewAnswer, SettleAnswer, Usage};
use crate::denials::{Denials, Known};
use crate::error::{Error, Problem};
use crate::fake::{Fake, Fakes};
use crate::hold::{Hold, HoldName};
use crate::lessee::Lessee;
use crate::monitor::{Monitor, Stats};
use crate::node::Node;
use crate::options::{InvalidOptions, Options};
use crate::place::Place;

/// The life of an id beyond the deadline, for a node that reads the call late.
const MORE_LIFE: Duration = Duration::from_secs(10);

/// The longest wait that a node accepts.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

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
    denials: Denials,
    coalescer: Option<Arc<Coalescer>>,
    lessee: Arc<Lessee>,
    /// Has a permit for each charge or settle that may follow a response, and for calls of leases.
    pending: Arc<Semaphore>,
}

impl Client {
    /// Makes a client. It does not connect yet, and so it succeeds without a node.
    ///
    /// # Errors
    /// An option is invalid, or a file has no certificates.
    pub fn new(options: Options) -> Result<Self, InvalidOptions> {
        let nodes = options.connect()?.into_iter().map(Arc::new).collect();
        Ok(Self::of(&options, nodes, None))
    }

    /// A client for unit tests, without a node. Each check gets the next of `ends`, and the last one
    /// again and again. By default all checks are allowed. Policies always have a hold.
    pub fn fake(ends: impl IntoIterator<Item = Fake>) -> Self {
        let options = Options::default().coalesce(false).lease(false).denial_cache(Duration::ZERO);
        let nodes = options.connect().into_iter().flatten().map(Arc::new).collect();
        Self::of(&options, nodes, Some(Fakes::new(ends)))
    }

    fn of(options: &Options, nodes: Vec<Arc<Node>>, fakes: Option<Fakes>) -> Self {
        let (deadline, monitor) = (options.longest(), Arc::new(Monitor::new(options.on_decision.clone())));
        let calls = Arc::new(Calls { nodes, deadline, repeats: options.retry, monitor, fakes });
        let pending = Arc::new(Semaphore::new(MAX_PENDING as usize));
        let shared = Shared {
            lessee: Lessee::new(calls.clone(), pending.clone(), options.lease),
            denials: Denials::new(options.denial_cache),
            coalescer: options.coalesce.then(|| Arc::new(Coalescer::new(calls.clone()))),
            calls,
            pending,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Asks for one decision. Concurrent checks share a call, unless `coalesce` is off.
    ///
    /// A caller that drops the future may have charged the check all the same.
    ///
    /// # Errors
    /// [`Error::Problem`] if a node rejects the check, [`Error::Unavailable`] if none answers.
    pub async fn check(&self, check: Check) -> Result<Decision, Error> {
        let is_drain = check.is_drain();
        let answer = self.decide(check).await;
        match &answer {
            Ok(decision) if !is_drain => self.monitor().decided(decision),
            Ok(_) => {}
            Err(_) => self.monitor().failed(1),
        }
        answer
    }

    async fn decide(&self, mut check: Check) -> Result<Decision, Error> {
        let Shared { calls, coalescer, denials, lessee, .. } = &*self.shared;
        let sent = clock::now();
        let known = denials.of(&check, sent);
        if let Some(Known { decision, is_fresh: true }) = known {
            return Ok(decision);
        }
        if let Some(decision) = lessee.pay(&check) {
            return Ok(decision);
        }
        let is_leasable = check.is_leasable();
        self.identify(&mut check);
        let answer = match coalescer {
            Some(coalescer) => coalescer.check(check.clone()).await,
            None => calls.check(&check).await,
        };
        if let Ok(decision) = &answer {
            denials.learn(&check, decision, sent);
            lessee.learn(&check, is_leasable, decision);
        }
        match (answer, known) {
            // No node knows better, so the offender stays denied.
            (Err(Error::Unavailable(_)), Some(known)) => Ok(known.decision),
            (answer, _) => answer,
        }
    }

    /// Also asks if the caller leaves. Otherwise such requests would not count.
    pub(crate) async fn check_detached(&self, check: Check) -> Result<Decision, Error> {
        let known = match self.shared.denials.of(&check, clock::now()) {
            Some(Known { decision, is_fresh: true }) => Some(decision),
            _ => self.shared.lessee.pay(&check),
        };
        if let Some(decision) = known {
            self.monitor().decided(&decision);
            return Ok(decision);
        }
        let client = self.clone();
        let asked = tokio::spawn(async move { client.check(check).await });
        asked.await.unwrap_or_else(|end| Err(Error::unavailable(end)))
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
        let Shared { calls, denials, lessee, .. } = &*self.shared;
        let sent = clock::now();
        let paid = |check| Some(Known { decision: lessee.pay(check)?, is_fresh: true });
        let known: Vec<Option<Known>> =
            checks.iter().map(|check| denials.of(check, sent).or_else(|| paid(check))).collect();
        let leasable: Vec<bool> = checks.iter().map(Check::is_leasable).collect();
        checks.iter_mut().for_each(|check| self.identify(check));
        // Decisions that need no call do not travel.
        let is_open = |known: &Option<Known>| known.as_ref().is_none_or(|known| !known.is_fresh);
        let places: Vec<usize> = (0..checks.len()).filter(|place| is_open(&known[*place])).collect();
        let open: Vec<&Check> = places.iter().map(|place| &checks[*place]).collect();
        let answered = if open.is_empty() { Ok(Vec::new()) } else { calls.batch(&open).await };
        let answers = match answered {
            Ok(answers) => answers,
            Err(error) => {
                self.monitor().failed(open.len());
                if !matches!(error, Error::Unavailable(_)) || known.iter().any(Option::is_none) {
                    return Err(error);
                }
                Vec::new()
            }
        };
        for (place, answer) in places.iter().zip(&answers) {
            if let Ok(decision) = answer {
                denials.learn(&checks[*place], decision, sent);
                lessee.learn(&checks[*place], leasable[*place], decision);
            }
        }
        let mut answers = answers.into_iter();
        let results = known.into_iter().map(|known| match known {
            Some(Known { decision, is_fresh: true }) => Some(Ok(decision)),
            // Without a node, a denial that is not fresh still counts.
            known => answers.next().or_else(|| known.map(|known| Ok(known.decision))),
        });
        let results: Option<Vec<_>> = results.collect();
        let results = results.ok_or_else(|| Error::unavailable("the answer has too few results"))?;
        for (check, result) in checks.iter().zip(&results) {
            match result {
                Ok(decision) if !check.is_drain() => self.monitor().decided(decision),
                Ok(_) => {}
                Err(_) => self.monitor().failed(1),
            }
        }
        Ok(results)
    }

    /// Charges up to 16 checks together, or none of them. The client repeats this call only if each
    /// check has an id.
    ///
    /// # Errors
    /// A node rejects a check, or none answers.
    pub async fn check_all(&self, checks: impl IntoIterator<Item = Check>) -> Result<AllAnswer, Error> {
        let checks: Vec<Check> = checks.into_iter().collect();
        let answer = self.monitor().counted(self.shared.calls.all(&checks.iter().collect::<Vec<_>>()).await)?;
        answer.results.iter().for_each(|decision| self.monitor().decided(decision));
        Ok(answer)
    }

    /// Waits in line for at most `wait`, under a token bucket, and returns at the start of the check.
    ///
    /// A caller that drops the future gives its place back. A policy with a `hold` needs an id, which
    /// the caller settles.
    ///
    /// # Errors
    /// [`Error::Denied`] if no start lies within `wait`, or if the hold of the id has ended before.
    /// [`Error::Problem`] if `wait` is above one hour. Otherwise the errors of [`Client::check`].
    pub async fn acquire(&self, check: Check, wait: Duration) -> Result<Decision, Error> {
        if wait > LONGEST_WAIT {
            return Err(Error::invalid("`wait` must be at most 1 h"));
        }
        let mut check = check.once(true);
        check.wait_ms = u64::try_from(wait.as_millis()).ok();
        self.identify(&mut check);
        // The check goes on without its caller, and the place is given back then.
        let taken = tokio::spawn(Place::take(self.clone(), check));
        let (place, decision, start) = taken.await.unwrap_or_else(|end| Err(Error::unavailable(end)))?;
        sleep_until(start.into()).await;
        place.keep();
        Ok(decision)
    }

    /// Opens a hold of a check, which lasts until it is settled or dropped.
    ///
    /// The id is random, unless the check has one.
    ///
    /// # Errors
    /// [`Error::Denied`] if the check is denied, or if the hold of its id has ended before.
    /// [`Error::Problem`] if the policy has no hold, or a node rejects the check.
    /// [`Error::Unavailable`] if no node answers.
    pub async fn hold(&self, check: Check) -> Result<Hold, Error> {
        self.hold_all([check]).await
    }

    /// Opens a hold of each of up to 16 checks, or of none. Checks under policies without a hold only
    /// charge.
    ///
    /// # Errors
    /// As [`Client::hold`].
    pub async fn hold_all(&self, checks: impl IntoIterator<Item = Check>) -> Result<Hold, Error> {
        let mut checks: Vec<Check> = checks.into_iter().collect();
        checks.iter_mut().for_each(Check::set_hold_id);
        // The opening goes on without its caller, and the hold ends then.
        let opened = tokio::spawn(Hold::open(self.clone(), checks));
        opened.await.unwrap_or_else(|end| Err(Error::unavailable(end))).map(Hold::received)
    }

    /// Ends a hold. `cost` replaces its charge. Without a cost the charge stays.
    ///
    /// # Errors
    /// A node rejects the settle, or none answers.
    pub async fn settle(&self, name: &HoldName, cost: Option<u64>) -> Result<SettleAnswer, Error> {
        let answer = self.monitor().counted(self.shared.calls.settle(name, cost).await);
        self.shared.denials.forget(name.policy.as_deref(), &name.key);
        answer
    }

    /// Lets a hold last for the `ttl` of its policy from now on.
    ///
    /// # Errors
    /// A node rejects the renewal, or none answers.
    pub async fn renew(&self, name: &HoldName) -> Result<RenewAnswer, Error> {
        self.monitor().counted(self.shared.calls.renew(name).await)
    }

    /// Gives units back. The client repeats a refund by id only: a second one gives back nothing.
    ///
    /// # Errors
    /// A node rejects the refund, or none answers.
    pub async fn refund(&self, refund: Refund) -> Result<RefundAnswer, Error> {
        self.shared.denials.forget(refund.policy.as_deref(), &refund.key);
        let answer = self.monitor().counted(self.shared.calls.refund(&refund).await);
        // A check that came between may have learned the denial again.
        self.shared.denials.forget(refund.policy.as_deref(), &refund.key);
        answer
    }

    /// Returns the counts of the check's policy and key, and the decision that the check would get.
    /// It charges nothing. Without a cost, the decision is that of cost 0.
    ///
    /// # Errors
    /// A node rejects the call, or none answers.
    pub async fn usage(&self, check: Check) -> Result<Usage, Error> {
        self.monitor().counted(self.shared.calls.usage(&check).await)
    }

    /// Returns all leases. Waits for charges that layers make after their responses, and for settles
    /// of dropped holds.
    /// Then it closes idle connections. Each call ends within the deadline. Call it after the server
    /// ended.
    pub async fn close(&self) {
        self.shared.lessee.close();
        // The semaphore is never closed.
        let _all = self.shared.pending.acquire_many(MAX_PENDING).await;
        self.shared.calls.nodes.iter().for_each(|node| node.close());
    }

    /// A place among the charges that [`Client::close`] waits for.
    pub(crate) fn pend(&self) -> Option<OwnedSemaphorePermit> {
        self.shared.pending.clone().try_acquire_owned().ok()
    }

    /// The counts of decisions and failures, for metrics.
    pub fn stats(&self) -> Stats {
        self.monitor().stats()
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.shared.calls.monitor
    }

    /// Gives a check an id if its caller wants it to be charged once.
    fn identify(&self, check: &mut Check) {
        if check.once && check.id.is_none() && check.charges() {
            check.set_id(self.shared.calls.deadline + MORE_LIFE);
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
