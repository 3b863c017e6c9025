//! The requests that wait in a lane, merged by key.
//!
//! Requests for a key with calls in flight wait until those end. A hot key thus costs its primary
//! one call per round trip, however many callers ask. The more requests wait, the more each call
//! decides.

use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

use crate::limit::key::{Fingerprint, FingerprintState};
use crate::store::Work;
use crate::store::redis::lane::key_batch::KeyBatch;
use crate::store::redis::lane::metrics::ShardMetrics;
use crate::store::redis::protocol::reply::NoVerdict;
use crate::store::redis::request::KeyRequest;

/// The most requests that wait in a lane's channel, and the most in its queue. Further requests are
/// rejected at once. 256 callers fit, even if each sends a hundred requests.
pub const QUEUE: usize = 32_768;

/// The most weight of one pipeline, not counting its last batch; see [`KeyBatch::weight`]. The
/// server does nothing else meanwhile.
const WEIGHT: usize = 4096;

/// The number of keys whose memory an empty queue keeps.
const ROOM: usize = 1024;

/// The waiting requests, by key and policy.
#[derive(Default)]
pub struct Queue {
    /// An entry for each key with waiting requests or calls in flight.
    keys: HashMap<Fingerprint, KeyQueue, FingerprintState>,
    /// The keys in `keys` that may be sent, in the order in which they became ready.
    ready: VecDeque<Fingerprint>,
    /// The number of waiting requests.
    requests: usize,
    /// The number that the metrics show.
    noted: usize,
}

/// The waiting requests of one key.
#[derive(Default)]
struct KeyQueue {
    batches: SmallVec<[KeyBatch; 1]>,
    /// The index of the batch that accepts more requests.
    open: Option<usize>,
    is_in_flight: bool,
}

impl Queue {
    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Returns the number of keys that may be sent.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Queues a request. Returns whether it may be sent.
    pub fn add(&mut self, request: KeyRequest) -> bool {
        self.requests += 1;
        let key = request.fingerprint;
        let waiting = self.keys.entry(key).or_default();
        if waiting.batches.is_empty() && !waiting.is_in_flight {
            self.ready.push_back(key);
        }
        waiting.add(request);
        !waiting.is_in_flight
    }

    /// Dequeues the first batches with waiting callers, `most` at most. Marks their keys as in
    /// flight.
    pub fn dequeue(&mut self, most: usize) -> Vec<KeyBatch> {
        let (mut taken, mut weight) = (Vec::with_capacity(self.ready.len().min(most)), 0);
        while taken.len() < most
            && weight < WEIGHT
            && let Some(key) = self.ready.pop_front()
        {
            // Each ready key has an entry.
            let Some(waiting) = self.keys.get_mut(&key) else { continue };
            // Its first batches leave until the pipeline is full. The rest waits for their end.
            let before = taken.len();
            let mut batches = std::mem::take(&mut waiting.batches).into_iter();
            while taken.len() < most
                && weight < WEIGHT
                && let Some(mut batch) = batches.next()
            {
                // The open batch moves up by one, or leaves and is closed.
                waiting.open = waiting.open.and_then(|place| place.checked_sub(1));
                self.requests -= batch.requests.len();
                if batch.is_wanted() {
                    weight += batch.weight();
                    taken.push(batch);
                }
            }
            waiting.batches = batches.collect();
            waiting.is_in_flight = taken.len() > before;
            // No caller waits for these batches, and the entry is empty.
            if !waiting.is_in_flight {
                self.keys.remove(&key);
            }
        }
        taken
    }

    /// Notes that the calls of a key have ended, if it had any.
    pub fn release(&mut self, key: Fingerprint) {
        let Some(waiting) = self.keys.get_mut(&key).filter(|waiting| waiting.is_in_flight) else { return };
        waiting.is_in_flight = false;
        if !waiting.batches.is_empty() {
            return self.ready.push_back(key);
        }
        self.keys.remove(&key);
        if self.keys.is_empty() {
            self.keys.shrink_to(ROOM);
            self.ready.shrink_to(ROOM);
        }
    }

    /// Notes that all calls have ended.
    pub fn release_all(&mut self) {
        let in_flight: Vec<_> =
            self.keys.iter().filter(|(_, waiting)| waiting.is_in_flight).map(|(key, _)| *key).collect();
        in_flight.into_iter().for_each(|key| self.release(key));
    }

    /// Reports its length to the metrics.
    pub fn note(&mut self, metrics: &ShardMetrics) {
        if self.noted != self.requests {
            metrics.hold(self.noted, self.requests);
            self.noted = self.requests;
        }
    }

    /// Rejects all waiting requests. No calls are in flight by then.
    pub fn reject(&mut self, reason: &NoVerdict) {
        let empty = Self { noted: self.noted, ..Self::default() };
        let keys = std::mem::replace(self, empty).keys.into_values();
        keys.flat_map(|waiting| waiting.batches).for_each(|batch| batch.reject(reason));
    }
}

impl KeyQueue {
    /// A charge merges into the open batch of its key. Other work gets a batch of its own. A list
    /// of checks keeps its order, so a charge behind a check with an id or a drain starts a new
    /// batch.
    fn add(&mut self, request: KeyRequest) {
        match &request.work {
            Work::Take(_) => {
                let open = self.open.and_then(|place| self.batches.get_mut(place));
                if let Some(batch) = open.filter(|batch| batch.accepts(&request)) {
                    return batch.push(request);
                }
                self.open = Some(self.batches.len());
            }
            Work::Drain(_) | Work::Once { .. } | Work::Wait(_) => self.open = None,
            _ => {}
        }
        self.batches.push(KeyBatch::of(request));
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};
    use std::sync::Arc;
    use std::time::Duration;

    use smallvec::smallvec;
    use tokio::sync::oneshot;

    use super::*;
    use crate::limit::policy::{Algorithm, Policy};
    use crate::limit::quota::{Quota, Rule};
    use crate::store::Over;
    use crate::store::redis::request::tests::{Verdict, request};

    /// Queues requests for these keys in this order. Also returns the receivers of the answers.
    fn asked(keys: &[&str]) -> (Queue, Vec<Verdict>) {
        let mut queue = Queue::default();
        let verdicts = keys.iter().map(|key| put(&mut queue, key).1).collect();
        (queue, verdicts)
    }

    fn take() -> Work {
        Work::Take(smallvec![1])
    }

    fn look() -> Work {
        Work::Look(0)
    }

    fn put(queue: &mut Queue, key: &str) -> (bool, Verdict) {
        let (request, verdict) = request(key);
        (queue.add(request), verdict)
    }

    /// Returns the number of requests in each batch.
    fn sizes(batches: &[KeyBatch]) -> Vec<usize> {
        batches.iter().map(|batch| batch.requests.len()).collect()
    }

    #[test]
    fn requests_of_one_key_leave_together() {
        let (mut queue, _verdicts) = asked(&["a", "b", "a", "c", "b", "a"]);
        assert_eq!((queue.len(), queue.ready()), (6, 3));
        assert_eq!(sizes(&queue.dequeue(2)), [3, 2]);
        assert_eq!((queue.len(), queue.ready()), (1, 1));
        assert_eq!(sizes(&queue.dequeue(2)), [1]);
        assert_eq!((queue.len(), queue.ready()), (0, 0));
    }

    #[test]
    fn checks_wait_for_the_inflight_call_of_their_key() {
        let (mut queue, mut verdicts) = asked(&["a"]);
        let first = queue.dequeue(9);
        for _ in 0..3 {
            let (may_go, verdict) = put(&mut queue, "a");
            assert!(!may_go);
            verdicts.push(verdict);
        }
        assert!(put(&mut queue, "b").0);
        assert_eq!((queue.len(), queue.ready()), (4, 1));
        queue.release(first[0].key());
        // The calls of a key with several batches end together.
        queue.release(first[0].key());
        assert_eq!((queue.len(), queue.ready()), (4, 2));
        // No caller waits for the answer of b.
        assert_eq!(sizes(&queue.dequeue(9)), [3]);
        assert_eq!((queue.len(), queue.ready(), queue.keys.len()), (0, 0, 1));
        queue.release_all();
        assert!(queue.keys.is_empty());
    }

    #[test]
    fn work_of_a_key_that_does_not_merge_goes_by_itself() {
        let (mut queue, mut verdicts) = (Queue::default(), Vec::new());
        for work in [take(), look(), take(), look()] {
            let (request, verdict) = request("a");
            queue.add(KeyRequest { work, ..request });
            verdicts.push(verdict);
        }
        let (first, waits) = (queue.dequeue(2), queue.dequeue(2));
        assert_eq!((sizes(&first), sizes(&waits)), (vec![2, 1], vec![]), "no more of a key goes out than may");
        assert_eq!((queue.len(), queue.ready()), (1, 0));
        assert!(!put(&mut queue, "a").0);
        queue.release(first[0].key());
        assert_eq!(sizes(&queue.dequeue(9)), [1]);
    }

    #[test]
    fn order_behind_a_check_with_an_id_or_a_drain_is_kept() {
        let take = || Work::Take([1].into_iter().collect());
        let once = || Work::Once { id: "id".into(), cost: 1, over: Over::Deny };
        let (mut queue, mut verdicts) = (Queue::default(), Vec::new());
        for work in [take(), once(), take(), Work::Drain(1), take(), Work::Look(0), take(), once()] {
            let (request, verdict) = request("a");
            queue.add(KeyRequest { work, ..request });
            verdicts.push(verdict);
        }
        let order = queue.dequeue(9);
        assert_eq!(sizes(&order), [1, 1, 1, 1, 2, 1, 1]);
        let is_once = |batch: &KeyBatch| matches!(batch.requests[0].work, Work::Once { .. });
        assert!([1, 6].iter().all(|place: &usize| is_once(&order[*place])));
        assert!(matches!(order[3].requests[0].work, Work::Drain(1)));
    }

    #[test]
    fn takes_behind_other_work_merge_when_that_has_gone() {
        let (mut queue, mut verdicts) = (Queue::default(), Vec::new());
        for work in [look(), take()] {
            let (request, verdict) = request("a");
            queue.add(KeyRequest { work, ..request });
            verdicts.push(verdict);
        }
        let first = queue.dequeue(1);
        assert!(matches!(first[0].requests[0].work, Work::Look(0)));
        verdicts.push(put(&mut queue, "a").1);
        queue.release(first[0].key());
        assert_eq!(sizes(&queue.dequeue(9)), [2]);
    }

    #[test]
    fn unmergeable_requests_of_one_key_share_a_pipeline() {
        let (mut queue, mut verdicts) = (Queue::default(), Vec::new());
        for _ in 0..100 {
            let (request, verdict) = request("a");
            queue.add(KeyRequest { work: look(), ..request });
            verdicts.push(verdict);
        }
        assert_eq!(sizes(&queue.dequeue(512)), [1; 100]);
    }

    #[test]
    fn requests_of_gone_callers_are_left_out() {
        let (mut queue, _verdicts) = asked(&["b"]);
        let (kept, _kept_verdict) = request("a");
        for work in [look(), look(), look()] {
            queue.add(KeyRequest { work, ..request("a").0 });
        }
        queue.add(kept);
        assert_eq!(queue.len(), 5);
        assert_eq!(sizes(&queue.dequeue(1)), [1]);
        assert_eq!(sizes(&queue.dequeue(2)), [1], "the first two of a are wanted by nobody");
        assert_eq!((queue.len(), queue.ready()), (0, 0));
        let (mut queue, mut verdicts) = asked(&["a", "a", "a"]);
        verdicts.remove(1);
        let taken = queue.dequeue(9);
        assert_eq!((taken[0].requests.len(), taken[0].costs.len(), queue.len()), (2, 2, 0));
    }

    #[test]
    fn pipelines_bound_the_server_time() {
        let keys: Vec<String> = (0..6).flat_map(|key| std::iter::repeat_n(key.to_string(), 1500)).collect();
        let (mut queue, _verdicts) = asked(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(sizes(&queue.dequeue(512)), [1000, 500, 1000, 500, 1000, 500]);
        assert_eq!(sizes(&queue.dequeue(512)), [1000, 500, 1000, 500, 1000, 500]);
        assert_eq!((queue.len(), queue.ready()), (0, 0));
    }

    #[test]
    fn work_that_a_server_is_long_at_goes_out_a_few_at_a_time() {
        let log = |limit: u64| {
            let rule = Rule::SlidingLog(NonZeroU32::new(100_000).unwrap());
            let quota =
                Quota { name: "1h".into(), limit: NonZeroU64::new(limit).unwrap(), window: 3_600_000_000, rule };
            Arc::new(Policy::new("log", Algorithm::SlidingLog, vec![quota], Duration::from_secs(1)))
        };
        let together = |work: Work, limit: u64| {
            let (policy, mut queue, mut verdicts) = (log(limit), Queue::default(), Vec::new());
            for key in 0..600 {
                let (request, verdict) = request(&key.to_string());
                queue.add(KeyRequest { work: work.clone(), policy: policy.clone(), ..request });
                verdicts.push(verdict);
            }
            queue.dequeue(512).len()
        };
        // A portion of a log has at most 1000 metas. Each may be 280 bytes.
        assert_eq!(together(Work::ReadLog(0), 1_000_000), 5);
        assert_eq!(together(Work::ReadLog(0), 20), 205);
        // A refund may move half of the log.
        for work in [Work::Refund(1), Work::RefundOnce("id".into())] {
            assert_eq!([1_000_000, 10_000, 1000, 20].map(|limit| together(work.clone(), limit)), [1, 5, 41, 512]);
        }
        for work in [Work::Reset(Box::default()), look(), take()] {
            assert_eq!(together(work, 1_000_000), 512);
        }
        // Each different cost adds a search in the log.
        let costs: Vec<u64> = (1..=64).collect();
        assert_eq!([1, 2, 64].map(|count| together(Work::Take(costs[..count].into()), 1_000_000)), [512, 256, 5]);
    }

    #[test]
    fn requests_behind_lost_calls_are_released() {
        let (mut queue, mut verdicts) = asked(&["a", "b"]);
        let lost = queue.dequeue(9);
        verdicts.push(put(&mut queue, "a").1);
        verdicts.push(put(&mut queue, "c").1);
        drop(lost);
        queue.release_all();
        assert_eq!((queue.len(), queue.ready(), queue.keys.len()), (2, 2, 2));
        assert_eq!(sizes(&queue.dequeue(9)), [1, 1]);
    }

    #[test]
    fn waiting_requests_are_rejected() {
        let (mut queue, mut verdicts) = asked(&["a", "b", "a"]);
        queue.reject(&NoVerdict::TryAgain);
        assert_eq!((queue.len(), queue.ready()), (0, 0));
        let told: Vec<_> = verdicts.iter_mut().map(oneshot::Receiver::try_recv).collect();
        assert!(told.iter().all(|told| matches!(told, Ok(Err(NoVerdict::TryAgain)))), "{told:?}");
        verdicts.push(put(&mut queue, "a").1);
        assert_eq!(sizes(&queue.dequeue(9)), [1]);
    }
}
