//! Notices of keys that cross a mark of their policy, for its receiver.
//!
//! ```text
//! decision   engine/marks.rs   the marks that a charge has crossed
//!            mod.rs            once for each key, mark and window; a queue that no check waits for
//!            queue.rs          the same for each receiver; policies share both
//!            receiver.rs       one POST for each notice, until the receiver takes it
//!            bounded.rs        an answer without end
//! ```
//!
//! The id is a hash of policy, key, quota, mark and window. So every node and every repetition sends
//! the same one, and receivers drop what they know.

mod queue;

mod bounded;

mod receiver;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use moka::sync::Cache;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::limit::notify::Notify;
use crate::limit::quota::{Quota, Rule};
use crate::limit::time::{MICROS_PER_SECOND, Micros};

use queue::Queue;
use receiver::{Client, client, deliver};

/// Ids that a node remembers, so that it sends no notice twice.
const KNOWN: u64 = 65_536;

/// Ends of fixed windows within this time are the same one, us: nodes read the end from their own
/// clocks.
const SAME_END: Micros = 3_600 * MICROS_PER_SECOND;

/// A key has crossed a mark of a quota.
#[derive(Debug, Clone)]
pub struct Notice {
    pub id: String,
    pub policy: String,
    /// As it is counted.
    pub key: Arc<str>,
    pub quota: String,
    /// The crossed part of the limit, in percent.
    pub mark: u8,
    pub limit: u64,
    pub remaining: u64,
    /// By the clock of this node, us since the Unix epoch.
    pub at: Micros,
    pub to: Arc<Notify>,
}

named! {
    /// The end of a notice.
    pub enum Fate {
        /// The receiver has taken it.
        Sent = "sent",
        /// The receiver has rejected it, or did not take it in time.
        Failed = "failed",
        /// Too many notices waited.
        Dropped = "dropped",
    }
}

/// The notices of a node.
#[derive(Debug)]
pub struct Notices {
    /// The notices that wait for the audit.
    queue: Arc<Queue>,
    known: Cache<u128, ()>,
    state: Arc<State>,
}

/// The counts of notices.
#[derive(Debug)]
struct State {
    ended: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// Notices without a fate yet.
    waiting: watch::Sender<usize>,
}

impl Default for Notices {
    fn default() -> Self {
        let state = State { ended: Mutex::default(), waiting: watch::channel(0).0 };
        Self { queue: Arc::default(), known: Cache::new(KNOWN), state: Arc::new(state) }
    }
}

/// A mark that a key has crossed at an instant, us.
#[derive(Debug, Clone, Copy)]
pub struct Crossing<'a> {
    pub policy: &'a str,
    pub key: &'a Arc<str>,
    pub quota: &'a Quota,
    pub remaining: u64,
    pub reset_after: Micros,
    pub mark: u8,
    pub at: Micros,
}

impl Crossing<'_> {
    /// The number of the window in which it happened, the same on all nodes.
    fn window(&self) -> u64 {
        let window = self.quota.window.max(1);
        match self.quota.rule {
            Rule::FixedWindow(_) => {
                let step = window.min(SAME_END);
                (self.at + self.reset_after + step / 2) / step
            }
            _ => self.at / window,
        }
    }

    fn id(&self) -> u128 {
        let mut hash = blake3::Hasher::new();
        for text in [self.policy, self.key, &self.quota.name] {
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        hash.update(&[self.mark]).update(&self.window().to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        u128::from_be_bytes(id)
    }
}

impl Notices {
    /// Queues a notice, unless this node has queued it before. Never waits.
    pub fn crossed(&self, crossing: Crossing<'_>, to: &Arc<Notify>) {
        let id = crossing.id();
        if !self.known.entry(id).or_insert(()).is_fresh() {
            return;
        }
        let Crossing { policy, key, quota, remaining, mark, at, .. } = crossing;
        let notice = Notice {
            id: format!("{id:032x}"),
            policy: policy.to_owned(),
            key: key.clone(),
            quota: quota.name.clone(),
            mark,
            limit: quota.limit.get(),
            remaining,
            at,
            to: to.clone(),
        };
        self.state.waiting.send_modify(|waiting| *waiting += 1);
        if let Err(notice) = self.queue.push(notice) {
            // A later crossing of the same mark may find room.
            self.known.invalidate(&id);
            self.state.ended(&notice, Fate::Dropped);
        }
    }

    /// The delivery of these notices. There is one.
    pub fn delivery(&self) -> Delivery {
        let (queue, state) = (self.queue.clone(), self.state.clone());
        Delivery { queue, receivers: HashMap::new(), tasks: JoinSet::new(), client: None, state }
    }

    /// Waits until every notice has its fate.
    pub async fn ended(&self) {
        // The sender is here, so the channel never closes.
        let _ = self.state.waiting.subscribe().wait_for(|waiting| *waiting == 0).await;
    }

    /// The number of notices by policy and fate.
    pub fn counts(&self) -> BTreeMap<(String, &'static str), u64> {
        self.state.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Hands queued notices to the tasks of their receivers.
#[derive(Debug)]
pub struct Delivery {
    queue: Arc<Queue>,
    /// The notices that wait for a receiver, by URL.
    receivers: HashMap<String, Arc<Queue>>,
    /// One task for each receiver.
    tasks: JoinSet<()>,
    client: Option<Client>,
    state: Arc<State>,
}

impl Delivery {
    /// The next notice.
    pub async fn next(&self) -> Notice {
        self.queue.pop().await
    }

    /// Hands a notice to the task of its receiver, which the first one starts.
    pub async fn send(&mut self, notice: Notice) {
        if self.client.is_none() {
            // It reads the authorities of the machine.
            self.client = tokio::task::spawn_blocking(client).await.ok().flatten();
        }
        let Some(client) = &self.client else { return self.state.ended(&notice, Fate::Failed) };
        let start = || {
            let queue = Arc::<Queue>::default();
            self.tasks.spawn(deliver(client.clone(), queue.clone(), self.state.clone()));
            queue
        };
        let queue = self.receivers.entry(notice.to.url.clone()).or_insert_with(start);
        if let Err(notice) = queue.push(notice) {
            self.state.ended(&notice, Fate::Dropped);
        }
    }
}

impl State {
    fn ended(&self, notice: &Notice, fate: Fate) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended.entry((notice.policy.clone(), fate.name())).or_default() += 1;
        self.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

/// The body of a notice.
#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    policy: &'a str,
    key: &'a str,
    quota: &'a str,
    mark: u8,
    limit: u64,
    remaining: u64,
    at: String,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::limit::quota::Anchor;

    const MINUTE: Micros = 60 * MICROS_PER_SECOND;

    fn quota(rule: Rule, window: Micros) -> Quota {
        let limit = NonZeroU64::new(10).unwrap();
        Quota { name: "q".to_owned(), limit, window, rule }
    }

    #[test]
    fn an_id_belongs_to_a_window() {
        let key: Arc<str> = "k".into();
        let fixed = quota(Rule::FixedWindow(Anchor::FirstHit), MINUTE);
        let sliding = quota(Rule::SlidingWindow, MINUTE);
        let id = |quota: &Quota, at, reset_after| {
            Crossing { policy: "p", key: &key, quota, remaining: 2, reset_after, mark: 80, at }.id()
        };
        let start = 1_000 * MINUTE;
        // Another node sees the same end by a clock that is 5 s off.
        assert_eq!(
            id(&fixed, start, 40 * MICROS_PER_SECOND),
            id(&fixed, start + 5 * MICROS_PER_SECOND, 40 * MICROS_PER_SECOND)
        );
        assert_ne!(id(&fixed, start, 40 * MICROS_PER_SECOND), id(&fixed, start + MINUTE, 40 * MICROS_PER_SECOND));
        assert_eq!(id(&sliding, start, 7), id(&sliding, start + MINUTE - 1, 9));
        assert_ne!(id(&sliding, start, 7), id(&sliding, start + MINUTE, 7));
    }
}
