//! The state that all handlers share.

use std::sync::Arc;

use super::lifecycle::Lifecycle;
use super::problem::Problem;
use super::refusals::Refusals;
use super::shed::Load;
use crate::engine::{CheckError, Engine};
use crate::reload::Reloader;
use crate::telemetry::traces::Tracing;

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub struct Node {
    pub engine: Arc<Engine>,
    pub lifecycle: Lifecycle,
    /// Records requests, if tracing is on.
    pub tracing: Option<Arc<Tracing>>,
    pub load: Load,
    pub refusals: Refusals,
    pub reloader: Arc<Reloader>,
}

impl Node {
    /// The problem of the only check of a call.
    pub(super) fn refused(&self, error: &CheckError) -> Problem {
        Problem::no_decision(error, &self.engine.policies(), "")
    }
}
