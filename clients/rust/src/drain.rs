use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;

use crate::check::Check;
use crate::error::Error;
use crate::hold::Hold;
use crate::layer::{Answered, LimitLayer};

const DRAIN_FAILED: &str = "the drain after the response failed";

/// Charges the drain, and gives the charge back, when it is dropped: at the end of the body, or if
/// the caller leaves.
pub(crate) struct Drained {
    limit: Arc<LimitLayer>,
    request: Parts,
    check: Check,
    answered: Answered,
    /// The body may end outside of the runtime.
    runtime: Handle,
}

impl Drained {
    pub fn new(limit: Arc<LimitLayer>, request: Parts, check: Check) -> Self {
        Self { limit, request, check, answered: Answered::default(), runtime: Handle::current() }
    }

    pub fn answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.answered.status = Some(status);
        self.answered.headers = headers.clone();
    }

    pub fn count(&mut self, bytes: usize) {
        self.answered.bytes += bytes as u64;
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        let Self { limit, request, check, answered, .. } = self;
        let units = limit.drain.as_ref().map_or(0, |drain| drain(request, answered));
        let drain = (units > 0).then(|| check.after(units));
        let is_refunded = limit.refund.as_ref().is_some_and(|refund| refund(request, answered));
        let refund = Some(&*check).filter(|_| is_refunded).and_then(Check::refund);
        if drain.is_none() && refund.is_none() {
            return;
        }
        let limit = limit.clone();
        self.runtime.spawn(async move {
            let Some(_place) = limit.client.pend() else {
                let error = Error::unavailable("too many charges after responses wait for a node");
                return limit.report(DRAIN_FAILED, &error);
            };
            if let Some(check) = drain
                && let Err(error) = limit.client.check(check).await
            {
                limit.report(DRAIN_FAILED, &error);
            }
            if let Some(refund) = refund
                && let Err(error) = limit.client.refund(refund).await
            {
                limit.report("the refund after the response failed", &error);
            }
        });
    }
}

/// Settles the hold of a request when it is dropped: at the end of the body, or if the caller leaves.
pub(crate) struct Held {
    limit: Arc<LimitLayer>,
    hold: Option<Hold>,
    runtime: Handle,
}

impl Held {
    pub fn new(limit: Arc<LimitLayer>, hold: Hold) -> Self {
        Self { limit, hold: Some(hold), runtime: Handle::current() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        let (limit, place) = (self.limit.clone(), self.limit.client.pend());
        self.runtime.spawn(async move {
            let _place = place;
            if let Err(error) = hold.end().await {
                limit.report("the settle after the response failed", &error);
            }
        });
    }
}
