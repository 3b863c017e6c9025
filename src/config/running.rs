//! The parts of a configuration that a reload replaces, all at once.

use std::sync::Arc;

use super::{Config, Policies, ServerTls};
use crate::access::Access;

/// The configuration in force. Every reader sees the parts of one reload.
#[derive(Debug, Clone)]
pub struct Running {
    pub policies: Arc<Policies>,
    pub access: Access,
    /// The TLS settings of new connections, or `None` for plain text.
    pub tls: Option<Arc<ServerTls>>,
}

impl From<&Config> for Running {
    fn from(config: &Config) -> Self {
        Self {
            policies: Arc::new(config.policies.clone()),
            access: config.access.clone(),
            tls: config.tls.clone().map(Arc::new),
        }
    }
}

impl From<Policies> for Running {
    /// These policies, for callers without tokens and TLS.
    fn from(policies: Policies) -> Self {
        Self { policies: Arc::new(policies), access: Access::default(), tls: None }
    }
}
