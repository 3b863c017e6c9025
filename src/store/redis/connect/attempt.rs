//! How far an attempt to connect has come, so that a timeout names the step.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::store::redis::protocol::failure::Failure;

/// How far an attempt to connect has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Name,
    Dial,
    Tls,
    Ask,
}

/// The step that an attempt to connect has reached, named when it takes too long.
#[derive(Debug, Default)]
pub struct Attempt(AtomicU8);

impl Attempt {
    pub fn reach(&self, step: Step) {
        self.0.store(step as u8, Ordering::Relaxed);
    }

    /// Why it takes too long.
    fn late(&self) -> Failure {
        let step = self.0.load(Ordering::Relaxed);
        match [Step::Name, Step::Dial, Step::Tls].into_iter().find(|known| *known as u8 == step) {
            Some(Step::Name) => Failure::connection("the name server does not answer in time"),
            Some(Step::Dial) => Failure::connection("the server does not accept the connection in time"),
            Some(Step::Tls) => Failure::connection(
                "the server does not answer the TLS handshake in time: its port may not speak TLS (redis://)",
            ),
            _ => Failure::late(),
        }
    }

    /// Bounds the attempt by `timeout`.
    ///
    /// # Errors
    /// When it fails or takes longer.
    pub async fn within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(self.late()))
    }
}
