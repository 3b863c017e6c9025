use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;

use crate::check::Check;
use crate::error::Error;
use crate::layer::{Answered, LimitLayer};

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
                return limit.report(&Error::unavailable("too many charges after responses wait for a node"));
            };
            if let Some(check) = drain
                && let Err(error) = limit.client.check(check).await
            {
                limit.report(&error);
            }
            if let Some(refund) = refund
                && let Err(error) = limit.client.refund(refund).await
            {
                limit.report(&error);
            }
        });
    }
}
