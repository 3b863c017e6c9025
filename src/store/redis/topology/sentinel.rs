//! Follows the primary that a majority of the sentinels names.
//!
//! One task asks all sentinels each second, and at once when a sentinel announces a switch or a
//! lane looks wrong. No sentinel delays the others. Without a majority the known primary stays.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::config::Credentials;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::connect::sentinel::Sentinel;
use crate::store::redis::lane::Lane;
use crate::store::redis::lane::shared::Shared;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::{Failure, MOST_TEXT, cleaned};
use crate::store::redis::protocol::sentinel::{Ballot, Named, Vote};
use crate::store::redis::topology::current::Topology;
use crate::store::redis::topology::table::Layout;

/// The interval of questions while nothing looks wrong.
const EVERY: Duration = Duration::from_secs(1);

/// The interval while the primary is unreachable, or no majority names one.
const WHILE_DOWN: Duration = Duration::from_millis(50);

/// The pause before a sentinel is asked again: after an answer, and after a failure.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];

/// How long a majority may be missing before the log reports it, us. Most failovers take less.
const DOUBTED: Micros = MICROS_PER_SECOND;

/// The sentinels and the name of their master.
#[derive(Debug)]
pub struct Sentinels {
    pub master: String,
    pub nodes: Vec<Address>,
    pub credentials: Credentials,
}

/// The task that follows the sentinels. It ends with the store.
struct Watcher {
    topology: Weak<Topology>,
    shared: Arc<Shared>,
    sentinels: Arc<Sentinels>,
    ballot: Ballot,
    /// The sentinels that are not being asked.
    idle: Vec<Idle>,
    asked: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// Which of those that are being asked must be asked again.
    again: Vec<bool>,
    is_well: bool,
    /// Since when no majority has named the primary, us, and whether the log reports that.
    doubted: Option<(Micros, bool)>,
}

/// A sentinel that is not being asked, its place, and the pause before the next question.
type Idle = (usize, Sentinel, Duration);

/// The place of a sentinel, the sentinel and its answer.
type Answered = (usize, Sentinel, Result<Named, Failure>);

/// Starts the task.
pub fn start(topology: &Arc<Topology>, sentinels: Sentinels) {
    let nodes = sentinels.nodes.iter().cloned().enumerate();
    let sentinel = |address| Sentinel::new(address, topology.shared.clock.clone());
    let idle: Vec<Idle> = nodes.map(|(place, address)| (place, sentinel(address), Duration::ZERO)).collect();
    let watcher = Watcher {
        topology: Arc::downgrade(topology),
        shared: topology.shared.clone(),
        ballot: Ballot::new(idle.len()),
        again: vec![false; idle.len()],
        idle,
        asked: FuturesUnordered::new(),
        sentinels: Arc::new(sentinels),
        is_well: false,
        doubted: None,
    };
    tokio::spawn(watcher.run());
}

impl Watcher {
    async fn run(mut self) {
        let shared = self.shared.clone();
        let tick = sleep(Duration::ZERO);
        tokio::pin!(tick);
        loop {
            tokio::select! {
                Some(answered) = self.asked.next() => {
                    let was_well = self.is_well;
                    if self.note(answered).is_none() {
                        return;
                    }
                    if was_well && !self.is_well {
                        tick.set(sleep(WHILE_DOWN));
                    }
                    continue;
                }
                () = shared.refresh.notified() => {}
                () = &mut tick => if self.topology.strong_count() == 0 { return },
            }
            self.ask_all();
            tick.set(sleep(if self.is_well { EVERY } else { WHILE_DOWN }));
        }
    }

    /// Asks all sentinels. An answer that is under way may be older than the reason to ask.
    fn ask_all(&mut self) {
        self.again.fill(true);
        std::mem::take(&mut self.idle).into_iter().for_each(|idle| self.ask(idle));
    }

    fn ask(&mut self, (place, mut sentinel, pause): Idle) {
        self.again[place] = false;
        let (sentinels, shared) = (self.sentinels.clone(), self.shared.clone());
        let wake = move || shared.request_refresh();
        self.asked.push(Box::pin(async move {
            sleep(pause).await;
            let answer = sentinel.primary(&sentinels.master, &sentinels.credentials, wake).await;
            (place, sentinel, answer)
        }));
    }

    /// Counts the votes after one answer. Returns none when the store is gone.
    fn note(&mut self, (place, sentinel, answer): Answered) -> Option<()> {
        let topology = self.topology.upgrade()?;
        if let Err(failure) = &answer {
            topology.trouble.store(Some(Arc::new((sentinel.address.clone(), failure.clone()))));
        }
        let idle = (place, sentinel, PAUSE[usize::from(answer.is_err())]);
        match self.again[place] {
            true => self.ask(idle),
            false => self.idle.push(idle),
        }
        let vote = self.ballot.enter(place, answer.ok());
        if let Vote::Elected(named) = &vote {
            follow(&topology, named);
        }
        let reason = self.reason(&topology, &vote);
        self.is_well = reason.is_none() && topology.table.load().primaries().all(|lane| lane.shard().is_well());
        self.log(&topology, reason.as_deref());
        topology.doubt.store(reason.map(Arc::new));
        Some(())
    }

    /// Why the known primary may be the wrong one.
    fn reason(&self, topology: &Topology, vote: &Vote) -> Option<String> {
        let all = self.ballot.sentinels();
        let reason = match vote {
            Vote::Confirmed | Vote::Elected(_) => return None,
            Vote::Outdated(Named { epoch, primary }) => format!(
                "a majority of the sentinels names {primary} under epoch {epoch}, which is lower than a former one: \
                 restart the node if that is right"
            ),
            Vote::NoMajority(answering) => {
                let trouble = topology.trouble.load();
                let last = trouble.as_ref().filter(|_| *answering < all).map(|why| format!(": {}: {}", why.0, why.1));
                let last = last.unwrap_or_default();
                format!("no majority of the {all} sentinels names one primary, {answering} answer{last}")
            }
        };
        Some(cleaned(&reason, MOST_TEXT))
    }

    fn log(&mut self, topology: &Topology, reason: Option<&str>) {
        let now = topology.shared.clock.now();
        match (reason, self.doubted) {
            (None, Some((_, true))) => tracing::info!("a majority of the sentinels names the primary again"),
            (Some(reason), Some((since, false))) if now >= since + DOUBTED => {
                let has_primary = *topology.known.borrow();
                tracing::warn!(
                    reason,
                    has_primary,
                    "the sentinels name no primary that this node can follow; a known one stays"
                );
                self.doubted = Some((since, true));
            }
            (Some(_), None) => self.doubted = Some((now, false)),
            _ => {}
        }
        if reason.is_none() {
            self.doubted = None;
        }
    }
}

/// Sends all checks to another primary from now on. The connections to others close.
fn follow(topology: &Topology, Named { epoch, primary }: &Named) {
    let old = topology.table.load_full();
    if let Some(suppressed) = topology.may_log_change() {
        tracing::info!(%primary, epoch, suppressed, "a majority of the sentinels names this primary");
    }
    topology.learn(Layout::Single, &[(0, SLOTS - 1, primary.clone())], BTreeSet::new());
    old.lanes.iter().filter(|lane| lane.address() != primary).for_each(Lane::close);
}
