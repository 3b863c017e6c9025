//! Places in line, which are given back when their callers leave.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::check::{Check, Refund};
use crate::client::Client;
use crate::clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::hold::repeat;

/// Gives the place back when it is dropped.
pub(crate) struct Place {
    client: Client,
    refund: Option<Refund>,
    /// It may be dropped outside of the runtime.
    runtime: Handle,
}

impl Place {
    /// The place of a check, and its start. The node counts from an earlier instant, so no start
    /// comes before its place.
    pub async fn take(client: Client, check: Check) -> Result<(Self, Decision, Instant), Error> {
        let place = Self { refund: check.refund(), runtime: Handle::current(), client };
        let is_unnamed = check.is_retry_safe();
        let denial = match place.client.check(check).await {
            Ok(decision) if decision.allowed && is_unnamed && decision.hold.is_some() => {
                let policy = &decision.policy;
                return Err(Error::invalid(&format!(
                    "the policy \"{policy}\" has a `hold`, which the caller must settle: give the check an id"
                )));
            }
            Ok(decision) if decision.allowed && !decision.has_ended_hold() => {
                let start = clock::now() + Duration::from_millis(decision.start_in_ms.unwrap_or(0));
                return Ok((place, decision, start));
            }
            Ok(decision) => Error::Denied(decision.into()),
            // A node may have given a place, and its answer is lost.
            Err(error) if error.may_have_happened() => return Err(error),
            Err(error) => error,
        };
        place.keep();
        Err(denial)
    }

    /// The start has come, or there is no place.
    pub fn keep(mut self) {
        self.refund = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(refund) = self.refund.take() {
            let client = self.client.clone();
            let again = client.clone();
            let call = async move || again.refund(refund.clone()).await;
            self.runtime.spawn(repeat(client, "the refund of a place failed", Duration::ZERO, call));
        }
    }
}
