//! The path of a check.
//!
//! ```text
//! check                 one check                 check.rs
//! check_alone           id, drain, wait, look     alone.rs
//! check_batch           many keys, or many of one batch.rs
//! check_all_or_none     many keys at once         multi_check.rs
//!
//! resolve               policy and key            check.rs
//! decide_locally        list, pre-filter          check.rs
//! decide_without_store  the same, units in hand   leases.rs
//! call_store            and learn                 check.rs
//! fall_back             on_store_failure          check.rs, fallback.rs
//! ```

use std::borrow::Cow;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::{Policies, Running};
use crate::limit::key::Fingerprinter;
use crate::limit::policy::Policy;
use crate::notices::Notices;
use crate::overrides::{Applied, Overrides};
pub use crate::overrides::{Kind, Note};
use crate::prefilter::Prefilter;
use crate::shares::Turns;
use crate::store::Store;
use crate::telemetry::reference::ReferenceCounts;

mod check;

mod alone;

mod batch;

mod turns;

mod multi_check;

mod refunds;

mod known_logs;

mod held;

mod holds;

mod leases;

mod usage;

pub mod fallback;

mod decision;

mod answer;

mod inline;

pub mod reload_policies;

pub mod tally;

mod denials;

mod marks;

mod observed;

pub mod snapshot;

mod metrics;

pub use crate::access::Door;
pub use crate::config::inline::{Limits, QuotaFault, QuotaSpec};
pub use crate::store::{
    Health, History, Id, Meta, OpenHold, Over, Place, ServerInfo, ServerWatch, Servers, ShardHealth, StoreError,
};
pub use answer::{Answer, CheckError};
pub use check::{Check, MAX_ID_BYTES};
pub use decision::{Binding, Bound, Cause, Decision, Fallback, Reason, Source};
pub use held::HeldKey;
pub use holds::{HoldId, SettleResult};
pub use inline::OwnQuotas;
pub use leases::{LeaseCounts, LeaseOrder, LeaseResult, Leases};
pub use multi_check::{AllOrNone, MultiCheck, RejectedCheck};
pub use refunds::{Refund, RefundResult};
pub use reload_policies::Changes;
pub use usage::{TickCounts, Usage};

use fallback::FallbackStore;
use inline::InlinePolicies;
use known_logs::KnownLogs;
use observed::Observed;
use tally::Tally;

/// A normalised key, and how its policy applies to it.
pub type Explained<'a> = (Cow<'a, str>, Applied<'a>);

/// Answers checks. Each node has one engine, and all listeners share it.
#[derive(Debug)]
pub struct Engine {
    running: ArcSwap<Running>,
    inline: InlinePolicies,
    fingerprinter: Fingerprinter,
    prefilter: Prefilter,
    store: Store,
    fallback: FallbackStore,
    leases: Leases,
    /// Turns to read the history of a log.
    histories: Turns,
    /// Running multi-key calls. Each has a receiver.
    inflight_multi_key: watch::Sender<()>,
    tally: Tally,
    notices: Notices,
    /// The limits that operators change at run time.
    overrides: Arc<Overrides>,
    known_logs: KnownLogs,
    reference: ReferenceCounts,
    /// The last 15 minutes, for operators.
    observed: Mutex<Observed>,
    clock: Clock,
    /// For tasks that outlive a check.
    this: Weak<Self>,
}

impl Engine {
    pub fn new(
        running: impl Into<Running>,
        prefilter: Prefilter,
        store: Store,
        fallback: FallbackStore,
        clock: Clock,
    ) -> Arc<Self> {
        let (running, tally) = (running.into(), Tally::default());
        tally.know(running.policies.by_name.keys().map(String::as_str));
        let fingerprinter = Fingerprinter::default();
        let engine = Arc::new_cyclic(|this| Self {
            leases: Leases::new(prefilter.generations()),
            running: ArcSwap::from_pointee(running),
            inline: InlinePolicies::default(),
            overrides: Arc::new(Overrides::new(fingerprinter.clone())),
            known_logs: KnownLogs::default(),
            fingerprinter,
            prefilter,
            store,
            fallback,
            histories: Turns::new(usage::AT_ONCE, usage::MAX_WAITING),
            inflight_multi_key: watch::Sender::default(),
            tally,
            notices: Notices::default(),
            reference: ReferenceCounts::default(),
            observed: Mutex::default(),
            clock,
            this: this.clone(),
        });
        engine.divide_stores();
        engine
    }

    /// The policies in force.
    pub fn policies(&self) -> Arc<Policies> {
        self.running.load().policies.clone()
    }

    /// The configuration in force.
    pub fn running(&self) -> Guard<Arc<Running>> {
        self.running.load()
    }

    /// The limits that operators change at run time.
    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// Adds an entry to the audit.
    pub async fn note(&self, note: Note) {
        self.overrides.note(note).await;
    }

    /// Keeps the overrides up to date. Never returns.
    pub async fn keep_overrides(self: &Arc<Self>) {
        let engine = self.clone();
        self.overrides.keep(move || engine.policies()).await;
    }

    /// The place of a normalised key's counts under a policy; none in the embedded store.
    pub fn place(&self, policy: &Arc<Policy>, key: &str) -> Option<Place> {
        Some(self.store.redis()?.place(policy, key))
    }

    /// Asks the servers of the store about themselves every few seconds, as long as the watch
    /// exists. None for the embedded store.
    pub fn watch_servers(&self) -> Option<ServerWatch> {
        Some(self.store.redis()?.watch_servers())
    }

    /// The counts of Envoy's requests by the names of the reference.
    pub fn reference(&self) -> &ReferenceCounts {
        &self.reference
    }

    /// The result of `answering`. Its duration is a response time of the reference.
    pub async fn timed<T>(&self, answering: impl Future<Output = T>) -> T {
        let since = self.clock.now();
        let answer = answering.await;
        self.reference.response_time.observe(self.clock.now().saturating_sub(since), 1);
        answer
    }

    /// The state of the store's parts.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Drops expired state, and lets the clocks of embedded stores follow the wall clock. Called
    /// periodically.
    pub fn sweep(&self) {
        // Both stores share one clock, and the first call moves it.
        if self.store.follow() | self.fallback.memory.follow() {
            self.prefilter.forget_all();
        }
        self.store.sweep();
        self.prefilter.sweep(self.clock.now());
        self.fallback.memory.sweep();
        self.leases.sweep(self.clock.now());
    }
}
