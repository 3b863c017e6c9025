//! A request to a lane, where its answer goes, and the channel to the lane's driver.
//!
//! The channel has limited room. All requests that a caller sends at once enter in one piece. If
//! they entered singly, a driver on another core would send the first one without the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};

use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::reply::NoVerdict;
use crate::store::{Done, Meta, StoreError, Work};
use crate::telemetry::traces::WaitingSpan;

/// The result of a request.
pub type Answer = Result<Done, NoVerdict>;

/// Work for one key. Requests are moved often, so rare fields are boxed.
#[derive(Debug)]
pub struct KeyRequest {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub work: Work,
    /// One for each cost, or none at all; only logs keep them.
    pub metas: SmallVec<[Meta; 1]>,
    /// Whether the request follows ASKING: the slot is about to move here.
    pub asking: bool,
    /// When its caller gives up, us by this node's clock.
    pub deadline: Micros,
    /// The trace of a check that is traced.
    pub trace: Option<Box<WaitingSpan>>,
    pub reply_to: ReplyTo,
}

/// The destination of an answer.
#[derive(Debug)]
pub enum ReplyTo {
    One(oneshot::Sender<Answer>),
    /// The caller of several requests, with the index of this one among them.
    Batch(mpsc::UnboundedSender<(usize, Answer)>, usize),
}

impl ReplyTo {
    /// Sends the answer. A caller that has gone needs none.
    pub fn send(self, answer: Answer) {
        match self {
            Self::One(caller) => _ = caller.send(answer),
            Self::Batch(caller, place) => _ = caller.send((place, answer)),
        }
    }

    /// Whether the caller has gone.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::One(caller) => caller.is_closed(),
            Self::Batch(caller, _) => caller.is_closed(),
        }
    }
}

/// Returns the error of a request that a lane dropped.
pub fn given_up() -> StoreError {
    StoreError::Unknown("its connection was given up".into())
}

/// Requests that enter together.
pub type Piece = SmallVec<[KeyRequest; 1]>;

/// The sending end.
#[derive(Debug)]
pub struct LaneSender {
    pieces: mpsc::UnboundedSender<Piece>,
    waiting: Arc<AtomicUsize>,
    room: usize,
}

/// The driver's end.
#[derive(Debug)]
pub struct LaneReceiver {
    pieces: mpsc::UnboundedReceiver<Piece>,
    waiting: Arc<AtomicUsize>,
}

/// Creates both ends of a channel with room for `room` requests.
pub fn channel(room: usize) -> (LaneSender, LaneReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (
        LaneSender { pieces: sender, waiting: waiting.clone(), room },
        LaneReceiver { pieces: receiver, waiting },
    )
}

impl LaneSender {
    /// Sends requests to the driver. Rejects those that exceed the room.
    pub fn send(&self, mut requests: Piece) {
        let room = self.room.saturating_sub(self.waiting.fetch_add(requests.len(), Ordering::Relaxed));
        if room < requests.len() {
            let over = requests.drain(room..);
            self.waiting.fetch_sub(over.len(), Ordering::Relaxed);
            over.for_each(|request| request.reply_to.send(Err(StoreError::QueueFull.into())));
        }
        if requests.is_empty() {
            return;
        }
        // The most important line of the store. Here a request leaves its caller's task for the
        // lane's task, and only its `reply_to` leads back.
        if let Err(mpsc::error::SendError(requests)) = self.pieces.send(requests) {
            let ended = || StoreError::Unreachable("the lane has ended".into());
            requests.into_iter().for_each(|request| request.reply_to.send(Err(ended().into())));
        }
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether the driver has ended.
    pub fn is_closed(&self) -> bool {
        self.pieces.is_closed()
    }
}

impl LaneReceiver {
    /// Returns the next piece, or none when all senders are gone.
    pub async fn recv(&mut self) -> Option<Piece> {
        let piece = self.pieces.recv().await?;
        Some(self.taken(piece))
    }

    /// Returns the next piece, if there is one.
    pub fn try_recv(&mut self) -> Option<Piece> {
        let piece = self.pieces.try_recv().ok()?;
        Some(self.taken(piece))
    }

    fn taken(&self, piece: Piece) -> Piece {
        self.waiting.fetch_sub(piece.len(), Ordering::Relaxed);
        piece
    }
}

#[cfg(test)]
pub mod tests {
    use std::num::NonZeroU64;
    use std::sync::OnceLock;
    use std::time::Duration;

    use smallvec::smallvec;

    use super::*;
    use crate::limit::key::Fingerprinter;
    use crate::limit::policy::Algorithm;
    use crate::limit::quota::{Quota, Rule};

    pub type Verdict = oneshot::Receiver<Answer>;

    /// Creates a request for a key under a shared policy, and the receiver of its answer.
    pub fn request(key: &str) -> (KeyRequest, Verdict) {
        static SHARED: OnceLock<(Arc<Policy>, Fingerprinter)> = OnceLock::new();
        let (policy, fingerprints) = SHARED.get_or_init(|| (Arc::new(policy()), Fingerprinter::default()));
        let (answer, verdict) = oneshot::channel();
        let request = KeyRequest {
            tag: Arc::new(Tag::new("ratelimit", key)),
            fingerprint: fingerprints.fingerprint(&policy.name, key),
            policy: policy.clone(),
            work: Work::Take(smallvec![1]),
            metas: SmallVec::new(),
            asking: false,
            deadline: 1_000_000,
            trace: None,
            reply_to: ReplyTo::One(answer),
        };
        (request, verdict)
    }

    fn policy() -> Policy {
        let limit = NonZeroU64::new(5).unwrap();
        let quota = Quota { name: "1s".into(), limit, window: 1_000_000, rule: Rule::SlidingWindow };
        Policy::new("p", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1))
    }

    /// Creates a piece of `count` requests, and the receivers of their answers.
    fn piece(count: usize) -> (Piece, Vec<Verdict>) {
        (0..count).map(|_| request("key")).unzip()
    }

    fn answers(verdicts: &mut [Verdict]) -> Vec<Option<StoreError>> {
        let answer = |verdict: &mut Verdict| match verdict.try_recv() {
            Ok(Err(NoVerdict::Failed(error))) => Some(error),
            _ => None,
        };
        verdicts.iter_mut().map(answer).collect()
    }

    #[test]
    fn requests_leave_in_the_pieces_of_their_arrival() {
        let (sender, mut receiver) = channel(9);
        let (pieces, _verdicts): (Vec<_>, Vec<_>) = [2, 1, 3].map(piece).into_iter().unzip();
        pieces.into_iter().for_each(|piece| sender.send(piece));
        assert_eq!(sender.waiting(), 6);
        let sizes: Vec<_> = std::iter::from_fn(|| receiver.try_recv()).map(|piece| piece.len()).collect();
        assert_eq!((sizes, sender.waiting()), (vec![2, 1, 3], 0));
    }

    #[test]
    fn requests_without_room_are_rejected() {
        let (sender, mut receiver) = channel(3);
        let (first, mut waiting) = piece(2);
        let (second, mut verdicts) = piece(3);
        sender.send(first);
        sender.send(second);
        let full = || Some(StoreError::QueueFull);
        assert_eq!((answers(&mut waiting), answers(&mut verdicts)), (vec![None, None], vec![None, full(), full()]));
        let (third, mut verdicts) = piece(1);
        sender.send(third);
        assert_eq!((answers(&mut verdicts), sender.waiting()), (vec![full()], 3));
        // Requests that the driver receives make room.
        assert_eq!(receiver.try_recv().map(|piece| piece.len()), Some(2));
        let (fourth, mut verdicts) = piece(3);
        sender.send(fourth);
        assert_eq!((answers(&mut verdicts), sender.waiting()), (vec![None, None, full()], 3));
    }

    #[test]
    fn nobody_waits_for_a_driver_that_has_ended() {
        let (sender, driver) = channel(3);
        drop(driver);
        let (request, mut verdict) = request("key");
        sender.send(smallvec![request]);
        assert!(matches!(verdict.try_recv(), Ok(Err(NoVerdict::Failed(StoreError::Unreachable(_))))));
        assert!(sender.is_closed());
    }
}
