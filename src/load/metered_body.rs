//! Meters the answers of a connection.
//!
//! A client can send requests without end and read nothing. Over HTTP/2 it grants no window. Over
//! HTTP/1 its socket stays full, which bounds the number of its answers but not their length. So
//! each answer reserves its bytes until the socket has the last of them. The reserved bytes plus
//! the new answer decide whether the node keeps the answer or returns 503.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::backlog::Backlog;
use super::{Budget, Load};

/// An answer is sent in pieces of this many bytes, so that its progress is visible.
const PIECE_BYTES: usize = 16 * 1024;

/// Approximate bytes that an unread answer takes besides its body: an HTTP/2 stream and its task.
const OVERHEAD_BYTES: usize = 4 * 1024;

/// HTTP/1 answers of up to so many bytes are not metered: the socket and hyper's buffer of 64 KiB
/// bound them.
const UNMETERED_BYTES: usize = 1024;

/// Bytes that a decision takes in the budget, at most.
pub(crate) const SHORT_ANSWER: usize = OVERHEAD_BYTES + UNMETERED_BYTES;

/// Marks an answer whose status says all.
#[derive(Debug, Clone, Copy)]
struct BodyOptional;

/// Notes that the status of `answer` says all. Without room its body is dropped.
pub(crate) fn make_body_optional(answer: &mut Response) {
    answer.extensions_mut().insert(BodyOptional);
}

/// The 503 that replaces an answer without room.
type Refuse = fn(&Load, &Response) -> Response;

/// Meters an answer. If there is no room for it, returns the one of `refuse` instead. A stream
/// keeps `held` until it ends.
pub(crate) fn metered(
    backlog: &Arc<Backlog>,
    version: Version,
    answer: Response,
    held: impl Send + 'static,
    refuse: Refuse,
) -> Response {
    let is_http2 = version == Version::HTTP_2;
    let (length, is_stream) = (length(&answer), is_stream(&answer));
    if !is_stream && (length == 0 || (!is_http2 && length <= UNMETERED_BYTES)) {
        return answer;
    }
    if is_http2 && answer.status() == StatusCode::SERVICE_UNAVAILABLE {
        return metered_refusal(backlog, answer);
    }
    let (reservation, fits) = Reservation::new(backlog, length);
    if fits {
        return match is_stream {
            true => reservation.attach_stream(answer, Box::new(held)),
            false => reservation.attach(answer),
        };
    }
    drop(reservation);
    if answer.extensions().get::<BodyOptional>().is_some() {
        return without_body(answer);
    }
    let is_refused = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
    let refusal = if is_refused { answer } else { refuse(backlog.holdings().load(), &answer) };
    if is_http2 { metered_refusal(backlog, refusal) } else { refusal }
}

/// Meters a refusal over HTTP/2, which takes nothing from other connections.
fn metered_refusal(backlog: &Arc<Backlog>, refusal: Response) -> Response {
    let length = length(&refusal);
    if !backlog.holdings().has_own_room(Budget::Unread, length + OVERHEAD_BYTES) {
        return without_body(refusal);
    }
    Reservation::new(backlog, length).0.attach(refusal)
}

/// The answer without its body. HTTP/2 sends header fields without a window, so it never waits.
fn without_body(mut answer: Response) -> Response {
    *answer.body_mut() = Body::empty();
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    answer
}

/// Whether the answer is longer than a decision, which has a few hundred bytes.
pub(crate) fn is_long(answer: &Response) -> bool {
    length(answer) > UNMETERED_BYTES
}

/// Length in bytes. A stream has at least the length of its first event.
fn length(answer: &Response) -> usize {
    let hint = answer.size_hint();
    usize::try_from(hint.upper().unwrap_or(hint.lower())).unwrap_or(usize::MAX)
}

/// Whether the answer is a stream of events, which has no length.
fn is_stream(answer: &Response) -> bool {
    answer.size_hint().upper().is_none()
}

/// The bytes of one answer in the budgets of its connection and of the node. All pieces share one
/// allocation, so all bytes count until the last piece is dropped.
#[derive(Debug)]
struct Reservation {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Reservation {
    /// Counts the bytes, and returns whether they fit.
    fn new(backlog: &Arc<Backlog>, length: usize) -> (Self, bool) {
        let bytes = length + OVERHEAD_BYTES;
        let fits = backlog.holdings().reserve(Budget::Unread, bytes);
        (Self { backlog: backlog.clone(), bytes }, fits)
    }

    fn attach(self, answer: Response) -> Response {
        answer.map(|body| Body::new(self.meter(body)))
    }

    fn attach_stream(self, answer: Response, held: Box<dyn Send>) -> Response {
        let backlog = self.backlog.clone();
        answer.map(|body| Body::new(MeteredStream { body, first: Some(self), event: None, backlog, _held: held }))
    }

    fn meter(self, body: Body) -> MeteredBody {
        let waiting = Waiting::new(self.backlog.clone());
        MeteredBody { body, rest: Bytes::new(), waiting: Some(waiting), reservation: Arc::new(self) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.backlog.holdings().release(Budget::Unread, self.bytes);
    }
}

/// A piece, or the rest of an answer, that waits since a look.
#[derive(Debug)]
struct Waiting {
    backlog: Arc<Backlog>,
    look: usize,
}

impl Waiting {
    fn new(backlog: Arc<Backlog>) -> Self {
        let look = backlog.begin_wait();
        Self { backlog, look }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.backlog.end_wait(self.look);
    }
}

/// The body of an answer. Its bytes count until the socket has all of them.
struct MeteredBody {
    body: Body,
    rest: Bytes,
    /// The wait of the bytes that HTTP has not requested yet.
    waiting: Option<Waiting>,
    reservation: Arc<Reservation>,
}

impl MeteredBody {
    fn piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        // The client has made progress, so the wait of the piece and of the rest restarts.
        let waiting = || Waiting::new(self.reservation.backlog.clone());
        let piece = Piece { bytes, _waiting: waiting(), _reservation: self.reservation.clone() };
        self.waiting = (!self.is_end_stream()).then(waiting);
        Bytes::from_owner(piece)
    }
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// A body of events, each of which is metered like an answer. Between two events nothing waits for
/// the client.
struct MeteredStream {
    body: Body,
    /// For the first event, which exists from the start.
    first: Option<Reservation>,
    event: Option<MeteredBody>,
    backlog: Arc<Backlog>,
    _held: Box<dyn Send>,
}

impl MeteredStream {
    /// The next piece of the current event.
    fn piece(&mut self) -> Option<Bytes> {
        let event = self.event.as_mut()?;
        let piece = event.piece();
        if event.is_end_stream() {
            self.event = None;
        }
        Some(piece)
    }
}

impl HttpBody for MeteredStream {
    type Data = Bytes;
    type Error = axum::Error;

    /// Ends the stream if an event has no room.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if let Some(piece) = self.piece() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            if data.is_empty() {
                continue;
            }
            let first = self.first.take().map(|reservation| (reservation, true));
            let (reservation, fits) = first.unwrap_or_else(|| Reservation::new(&self.backlog, data.len()));
            if !fits {
                return Poll::Ready(None);
            }
            let event = reservation.meter(Body::empty());
            self.event = Some(MeteredBody { rest: data, ..event });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.event.is_none() && self.body.is_end_stream()
    }
}

/// Bytes that HTTP has and the socket has not.
struct Piece {
    bytes: Bytes,
    _waiting: Waiting,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::load::{Holdings, Load};

    /// The share of each connection, and the most of one connection.
    const OWN_BYTES: usize = 64 * 1024;
    const MAX_CONNECTION_BYTES: usize = 32 * 1024 * 1024;

    /// A connection from an address of its own, with the right to check.
    fn backlog_of(load: &Load) -> Arc<Backlog> {
        let holdings = Holdings::new(load, None);
        holdings.note_rights(|| None);
        Arc::new(Backlog::new(holdings))
    }

    fn unread(backlog: &Backlog) -> usize {
        backlog.holdings().held(Budget::Unread)
    }

    fn metered(backlog: &Arc<Backlog>, answer: Response) -> Response {
        super::metered(backlog, Version::HTTP_2, answer, backlog.begin_request(), refuse)
    }

    fn refuse(load: &Load, _: &Response) -> Response {
        load.count_shed();
        let mut refusal = Response::new(Body::from(vec![b' '; 200]));
        *refusal.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        refusal
    }

    /// Connections that leave nothing of the pool: each takes all that it gets.
    fn fill(load: &Load, has_rights: bool) -> Vec<Arc<Holdings>> {
        const STEP: usize = 1024;
        let connections = (0..24).map(|_| {
            let holdings = Holdings::new(load, None);
            if has_rights {
                holdings.note_rights(|| None);
            }
            while holdings.has_room(Budget::Unread, STEP) {
                holdings.reserve(Budget::Unread, STEP);
            }
            holdings
        });
        connections.collect()
    }

    fn answer(length: usize) -> Response {
        Response::new(Body::from(vec![b' '; length]))
    }

    /// The piece that HTTP/2 gets from one poll.
    async fn first_piece(answer: &mut Response) -> Bytes {
        let frame = poll_fn(|cx| Pin::new(answer.body_mut()).poll_frame(cx)).await;
        frame.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn an_answer_counts_as_a_whole_until_its_last_piece_is_gone() {
        for length in [1, 300, PIECE_BYTES, PIECE_BYTES + 1, 10 * PIECE_BYTES] {
            let load = Load::default();
            let backlog = backlog_of(&load);
            let mut answer = metered(&backlog, answer(length));
            let mut kept = Vec::new();
            while !answer.body().is_end_stream() {
                assert!(unread(&backlog) >= length, "{length}");
                kept.push(first_piece(&mut answer).await);
            }
            assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), length);
            drop(answer);
            assert!(unread(&backlog) >= length, "{length}");
            drop(kept);
            assert_eq!(unread(&backlog), 0);
        }
    }

    #[tokio::test]
    async fn only_an_unread_piece_becomes_overdue() {
        let backlog = backlog_of(&Load::default());
        let mut short = metered(&backlog, answer(300));
        let kept = first_piece(&mut short).await;
        assert_eq!([(); 3].map(|()| backlog.is_overdue()), [false, false, true]);
        drop((short, kept));
        assert_eq!([(); 5].map(|()| backlog.is_overdue()), [false; 5]);
        // The wait of the rest restarts with each piece.
        let mut long = metered(&backlog, answer(10 * PIECE_BYTES));
        for _ in 0..9 {
            let piece = first_piece(&mut long).await;
            assert_eq!([backlog.is_overdue(), backlog.is_overdue()], [false; 2]);
            drop(piece);
        }
        assert!(backlog.is_overdue());
    }

    #[test]
    fn held_bytes_plus_the_new_answer_decide() {
        const LONG: usize = 1024 * 1024;
        let load = Load::default();
        let backlog = backlog_of(&load);
        let mut kept: Vec<_> = std::iter::repeat_with(|| metered(&backlog, answer(LONG)))
            .take_while(|answer| answer.status() == 200)
            .take(100)
            .collect();
        assert_eq!(kept.len(), 31, "32 MiB hold 31 answers and their overhead");
        assert_eq!(load.shed_total(), 1);
        assert_eq!(metered(&backlog, answer(LONG)).status(), StatusCode::SERVICE_UNAVAILABLE);
        kept.pop();
        assert_eq!(metered(&backlog, answer(LONG)).status(), StatusCode::OK);
    }

    #[test]
    fn a_full_node_leaves_each_connection_its_share() {
        let load = Load::default();
        let others = fill(&load, true);
        assert!(others.iter().all(|other| !Backlog::new(other.clone()).has_room()));
        let backlog = backlog_of(&load);
        let first = metered(&backlog, answer(OWN_BYTES - OVERHEAD_BYTES));
        let second = metered(&backlog, answer(OWN_BYTES - OVERHEAD_BYTES));
        assert_eq!([first, second].map(|answer| answer.status()), [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]);
    }

    #[test]
    fn a_refusal_without_room_has_no_body() {
        let load = Load::default();
        let _full = fill(&load, true);
        let backlog = backlog_of(&load);
        let refusals: Vec<_> = (0..200).map(|_| metered(&backlog, answer(OWN_BYTES))).collect();
        assert!(refusals.iter().all(|refusal| refusal.status() == StatusCode::SERVICE_UNAVAILABLE));
        assert!(refusals[0].body().size_hint().lower() > 0);
        assert!(refusals[199].body().is_end_stream());
        assert!(unread(&backlog) <= OWN_BYTES);
    }

    #[test]
    fn an_answer_whose_status_says_all_loses_its_body_alone() {
        let load = Load::default();
        let backlog = Arc::new(Backlog::new(Holdings::new(&load, None)));
        let _full = fill(&load, false);
        let health = || {
            let mut health = answer(300);
            make_body_optional(&mut health);
            metered(&backlog, health)
        };
        let answers: Vec<_> = (0..200).map(|_| health()).collect();
        assert!(answers.iter().all(|answer| answer.status() == StatusCode::OK));
        assert!(!answers[0].body().is_end_stream() && answers[199].body().is_end_stream());
        assert!(unread(&backlog) < OWN_BYTES + OVERHEAD_BYTES);
        assert_eq!(metered(&backlog_of(&load), answer(1024 * 1024)).status(), StatusCode::OK, "callers with rights");
    }

    #[test]
    fn http1_answers_are_metered_when_they_are_long() {
        let load = Load::default();
        let backlog = backlog_of(&load);
        let _short = super::metered(&backlog, Version::HTTP_11, answer(UNMETERED_BYTES), (), refuse);
        assert_eq!(unread(&backlog), 0);
        let _long = super::metered(&backlog, Version::HTTP_11, answer(UNMETERED_BYTES + 1), (), refuse);
        assert_eq!(unread(&backlog), OVERHEAD_BYTES + UNMETERED_BYTES + 1);
    }

    /// A stream whose first event has 300 bytes.
    struct Events(Body);

    impl HttpBody for Events {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(300);
            hint
        }
    }

    fn stream(lengths: &[usize]) -> Response {
        let events: Vec<_> = lengths.iter().map(|length| Ok::<_, axum::Error>(vec![b' '; *length])).collect();
        Response::new(Body::new(Events(Body::from_stream(futures_util::stream::iter(events)))))
    }

    #[tokio::test]
    async fn events_of_a_stream_count_one_by_one() {
        let load = Load::default();
        let backlog = backlog_of(&load);
        let mut answer = metered(&backlog, stream(&[300, 2 * PIECE_BYTES, 2 * MAX_CONNECTION_BYTES, 7]));
        // The first event counts, even if the client never asks for it.
        assert_eq!(unread(&backlog), 300 + OVERHEAD_BYTES);
        let short = first_piece(&mut answer).await;
        assert_eq!((short.len(), unread(&backlog)), (300, 300 + OVERHEAD_BYTES));
        drop(short);
        // A stream between two events is no overdue client, and its connection is not idle.
        backlog.was_idle();
        assert_eq!((unread(&backlog), backlog.was_idle()), (0, false));
        assert_eq!([(); 5].map(|()| backlog.is_overdue()), [false; 5]);
        let half = first_piece(&mut answer).await;
        assert_eq!((half.len(), unread(&backlog)), (PIECE_BYTES, 2 * PIECE_BYTES + OVERHEAD_BYTES));
        assert_eq!([(); 3].map(|()| backlog.is_overdue()), [false, false, true]);
        drop((half, first_piece(&mut answer).await));
        assert_eq!(unread(&backlog), 0);
        // An event without room ends the stream.
        assert!(poll_fn(|cx| Pin::new(answer.body_mut()).poll_frame(cx)).await.is_none());
        drop(answer);
        assert_eq!(unread(&backlog), 0);
    }

    #[test]
    fn stream_without_room_is_refused() {
        let load = Load::default();
        let _full = fill(&load, true);
        let backlog = backlog_of(&load);
        let streams: Vec<_> = (0..20).map(|_| metered(&backlog, stream(&[300])).status()).collect();
        assert_eq!((streams[0], streams[19]), (StatusCode::OK, StatusCode::OK));
        let kept: Vec<_> = (0..20).map(|_| metered(&backlog, stream(&[300]))).collect();
        assert_eq!(kept[19].status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn http2_is_idle_when_no_request_was_open_since_the_last_look() {
        let backlog = backlog_of(&Load::default());
        assert!(backlog.was_idle());
        let open = backlog.begin_request();
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false; 2]);
        let answer = metered(&backlog, answer(1));
        drop(open);
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false; 2]);
        drop(answer);
        assert!(backlog.was_idle());
        drop(backlog.begin_request());
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false, true]);
    }
}
