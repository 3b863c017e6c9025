//! The channel through which requests reach a driver.
//!
//! The channel has limited room. All requests that a caller sends at once enter in one piece. If
//! they entered singly, a driver on another core would send the first one without the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::sync::mpsc;

use crate::store::StoreError;
use crate::store::redis::request::KeyRequest;

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
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::store::redis::protocol::reply::NotExecuted;
    use crate::store::redis::request::tests::{Verdict, request};

    /// Creates a piece of `count` requests, and the receivers of their answers.
    fn piece(count: usize) -> (Piece, Vec<Verdict>) {
        (0..count).map(|_| request("key")).unzip()
    }

    fn answers(verdicts: &mut [Verdict]) -> Vec<Option<StoreError>> {
        let answer = |verdict: &mut Verdict| match verdict.try_recv() {
            Ok(Err(NotExecuted::Failed(error))) => Some(error),
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
        assert!(matches!(verdict.try_recv(), Ok(Err(NotExecuted::Failed(StoreError::Unreachable(_))))));
        assert!(sender.is_closed());
    }
}
