//! Counts by the names of envoyproxy/ratelimit.

use super::Engine;
use crate::telemetry::reference::ReferenceCounts;

impl Engine {
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
}
