//! Requests as they arrive: their header fields and bodies count before they are whole.
//!
//! HTTP/1 has one request at a time for a connection, so only long bodies count. Over HTTP/2 one
//! byte may refer to an earlier field, so fields take a hundred times the bytes sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Request, Version};

use super::LIGHT;
use super::holdings::{Budget, Holdings};

/// The most header fields of a request. Over HTTP/1 hyper has the same limit.
const MAX_FIELDS: usize = 100;

/// Approximate bytes of a request over HTTP/2 besides its fields: its stream and its task.
const STREAM_BYTES: usize = 3 * 1024;

/// Approximate bytes of a field besides its value. The map of fields grows by doubling.
const FIELD_BYTES: usize = 200;

/// The reason to reject a request before it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// 431.
    TooManyFields,
    /// 503: a budget has no room.
    Overloaded,
}

/// A request that has begun to arrive. It counts until this value and its body drop.
#[derive(Debug)]
pub struct Arrival {
    holdings: Arc<Holdings>,
    /// Bytes of the fields and the stream. 0 over HTTP/1.
    head: usize,
    /// Bytes of the body so far.
    body: AtomicUsize,
    is_whole: AtomicBool,
}

impl Arrival {
    /// Bytes of the fields and the stream. 0 over HTTP/1.
    pub fn head(&self) -> usize {
        self.head
    }

    /// Begins to count a request. The fields of a rejected one are dropped at once.
    ///
    /// # Errors
    /// The request has too many fields, or there is no room for it.
    pub fn begin(
        holdings: &Arc<Holdings>,
        request: Request<Incoming>,
    ) -> Result<(Option<Arc<Self>>, Request<ArrivingBody>), Unfit> {
        let is_http2 = request.version() == Version::HTTP_2;
        let is_light = request.body().size_hint().upper().is_some_and(|length| length <= LIGHT as u64);
        let arrival = if is_http2 {
            Some(Self::of_head(
                holdings,
                request.headers(),
                request.uri().path().len(),
                request.body().is_end_stream(),
            )?)
        } else {
            (!is_light).then(|| Arc::new(Self::new(holdings, 0, false)))
        };
        let kept = arrival.clone();
        Ok((arrival, request.map(|body| ArrivingBody { body, arrival: kept })))
    }

    fn of_head(holdings: &Arc<Holdings>, headers: &HeaderMap, path: usize, is_whole: bool) -> Result<Arc<Self>, Unfit> {
        if headers.len() > MAX_FIELDS {
            return Err(Unfit::TooManyFields);
        }
        let values: usize = headers.values().map(|value| value.len()).sum();
        let bytes = STREAM_BYTES + headers.len() * FIELD_BYTES + values + path;
        let arrival = Self::new(holdings, bytes, is_whole);
        // After a failure the drop reverts it.
        match holdings.reserve(arrival.budget(), bytes) {
            true => Ok(Arc::new(arrival)),
            false => {
                holdings.load().count_shed();
                Err(Unfit::Overloaded)
            }
        }
    }

    fn new(holdings: &Arc<Holdings>, head: usize, is_whole: bool) -> Self {
        Self { holdings: holdings.clone(), head, body: AtomicUsize::new(0), is_whole: AtomicBool::new(is_whole) }
    }

    /// The budget that the head is in.
    fn budget(&self) -> Budget {
        if self.is_whole.load(Ordering::Relaxed) { Budget::Calls } else { Budget::Arriving }
    }

    /// Counts the next bytes of the body, and returns whether they fit.
    fn has_room(&self, bytes: usize) -> bool {
        self.body.fetch_add(bytes, Ordering::Relaxed);
        self.holdings.reserve(Budget::Bodies, bytes)
    }

    /// Counts the request as a call in flight from now on, and returns whether it fits.
    fn end(&self) -> bool {
        if self.head == 0 || self.is_whole.swap(true, Ordering::Relaxed) {
            return true;
        }
        self.holdings.release(Budget::Arriving, self.head);
        self.holdings.reserve(Budget::Calls, self.head)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if self.head > 0 {
            self.holdings.release(self.budget(), self.head);
        }
        let body = *self.body.get_mut();
        if body > 0 {
            self.holdings.release(Budget::Bodies, body);
        }
    }
}

/// The body of a request that counts as it arrives.
#[derive(Debug)]
pub struct ArrivingBody {
    body: Incoming,
    arrival: Option<Arc<Arrival>>,
}

impl ArrivingBody {
    /// The body, whose bytes no longer count: its reader drops them.
    pub fn uncounted(self) -> Incoming {
        self.body
    }
}

/// The reason why a body has no next piece.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// A budget has no room for the body, or for the call that it completes.
    #[error("the node has too many calls")]
    NoRoom,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

impl Body for ArrivingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, arrival } = &mut *self;
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx)).transpose()?;
        if let Some(arrival) = arrival {
            let bytes = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
            let has_room = bytes == 0 || arrival.has_room(bytes);
            let is_last = frame.is_none() || body.is_end_stream();
            if !has_room || is_last && !arrival.end() {
                arrival.holdings.load().count_shed();
                return Poll::Ready(Some(Err(BodyError::NoRoom)));
            }
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
