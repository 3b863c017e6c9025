//! The state of a connection: its right to check, its name, and the version of its protocol.

use std::sync::Weak;
use std::sync::atomic::{AtomicI64, Ordering};

use super::Service;
use super::reply::Version;
use crate::access::Refused;
use crate::config::Running;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) service: Service,
    pub(super) version: Version,
    /// Unique among the connections of this process.
    pub(super) id: i64,
    pub(super) name: Vec<u8>,
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
            self.permitted = self.service.permit(self.token.as_deref());
            if self.permitted.is_ok() {
                self.service.holdings.note_rights(|| self.token.as_deref());
            }
            self.asked = std::sync::Arc::downgrade(&running);
        }
        self.permitted
    }

    /// Whether clients without a password may check.
    pub(super) fn is_open(&self) -> bool {
        self.service.permit(None).is_ok()
    }

    /// Accepts a password, which must be a token unless everybody may check. A wrong one leaves the
    /// rights of the connection as they are.
    pub(super) fn authenticate(&mut self, password: &[u8]) -> Result<(), Refused> {
        let token = std::str::from_utf8(password).map_err(|_| Refused::UnknownToken)?;
        self.service.permit(Some(token))?;
        (self.token, self.asked) = (Some(token.to_owned()), Weak::new());
        Ok(())
    }

    /// The state of a new connection, with the same id.
    pub(super) fn reset(&mut self) {
        (self.version, self.name, self.token, self.asked) = Default::default();
    }
}
