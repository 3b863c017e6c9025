//! The state of a connection: its right to check, its name, and the version of its protocol.

use std::sync::Weak;
use std::sync::atomic::{AtomicI64, Ordering};

use super::Service;
use super::reply::Version;
use super::transaction::Transaction;
use crate::access::{Need, Refused};
use crate::config::Running;

/// Whether commands get their answers, by `CLIENT REPLY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Replying {
    #[default]
    On,
    Off,
    /// Not the next one.
    Skip,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) service: Service,
    pub(super) version: Version,
    /// Unique among the connections of this process.
    pub(super) id: i64,
    pub(super) name: Vec<u8>,
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) replying: Replying,
    /// The password that the client has given, if it was right then.
    token: Option<String>,
    /// The configuration that `permitted` holds for.
    asked: Weak<Running>,
    permitted: Result<(), Refused>,
}

impl Session {
    pub(super) fn new(service: Service) -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        Self {
            service,
            version: Version::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: Vec::new(),
            transaction: None,
            replying: Replying::On,
            token: None,
            asked: Weak::new(),
            permitted: Err(Refused::NoToken),
        }
    }

    /// Checks whether the client may check, by the tokens in force. A token is hashed once for each
    /// configuration.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub(super) fn permit(&mut self) -> Result<(), Refused> {
        let running = self.service.reloader.running();
        if !std::ptr::eq(self.asked.as_ptr(), std::sync::Arc::as_ptr(&running)) {
            self.permitted = self.service.permit(Need::Check, self.token.as_deref());
            if self.permitted.is_ok() {
                self.service.holdings.note_rights(|| self.token.as_deref());
            }
            self.asked = std::sync::Arc::downgrade(&running);
        }
        self.permitted
    }

    /// Checks whether the client may reset keys, by the tokens in force.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub(super) fn permit_reset(&self) -> Result<(), Refused> {
        self.service.permit(Need::Admin, self.token.as_deref())
    }

    /// Whether clients without a password may check.
    pub(super) fn is_open(&self) -> bool {
        self.service.permit(Need::Check, None).is_ok()
    }

    /// Accepts a password, which must be a token unless everybody may check. A wrong one leaves the
    /// rights of the connection as they are.
    pub(super) fn authenticate(&mut self, password: &[u8]) -> Result<(), Refused> {
        let token = std::str::from_utf8(password).map_err(|_| Refused::UnknownToken)?;
        self.service.permit(Need::Check, Some(token))?;
        (self.token, self.asked) = (Some(token.to_owned()), Weak::new());
        Ok(())
    }

    /// The state of a new connection, with the same id.
    pub(super) fn reset(&mut self) {
        (self.version, self.name, self.token, self.asked) = Default::default();
        (self.transaction, self.replying) = Default::default();
    }
}
