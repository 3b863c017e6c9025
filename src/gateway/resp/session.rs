//! The state of a connection: its right to check, its name, and the version of its protocol.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};

use super::Service;
use super::outcome::Refusal;
use super::reply::Version;
use super::transaction::Transaction;
use crate::access::{Door, Need, Refused, Rejected, Scope, Token, TokenHash};
use crate::config::Running;
use crate::shares::Holder;

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
    secret: Option<String>,
    /// The configuration that `token` is of.
    asked: Weak<Running>,
    /// The token of this password.
    token: Result<Arc<Token>, Refused>,
    /// Whether the last command needed the token.
    by_token: bool,
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
            secret: None,
            asked: Weak::new(),
            token: Err(Refused::NoToken),
            by_token: false,
        }
    }

    /// Checks whether the client may run a command with this need, by the tokens in force. A
    /// password is hashed once for each configuration.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub(super) fn permit(&mut self, need: Need) -> Result<(), Rejected> {
        let running = self.service.reloader.running();
        if !std::ptr::eq(self.asked.as_ptr(), Arc::as_ptr(&running)) {
            self.token = running.access.find(self.secret.as_deref()).cloned();
            self.asked = Arc::downgrade(&running);
        }
        let find = || self.token.as_ref().map_err(|reason| *reason);
        self.by_token = running.access.permit(need, (Door::Resp, self.service.reach), find)?.is_some();
        if need != Need::Nothing {
            self.service.holdings.note_rights(|| self.secret.as_deref());
        }
        Ok(())
    }

    /// Checks whether the client may ask about this policy.
    pub(super) fn permit_policy(&self, policy: &str) -> Result<(), Refusal> {
        let Some(token) = self.token.as_ref().ok().filter(|_| self.by_token) else { return Ok(()) };
        token.permit_policy(policy).map_err(|rejected| {
            self.refuse(&rejected);
            Refusal::text(format!("NOPERM {rejected}"))
        })
    }

    /// Counts a rejected command.
    pub(super) fn refuse(&self, rejected: &Rejected) {
        self.service.refusals.refused(rejected, self.service.caller);
    }

    /// The name of the client's token.
    pub(super) fn token_name(&self) -> Option<&str> {
        self.token.as_ref().ok().map(|token| token.name.as_str())
    }

    /// The client's name, if its token is for operators and not for checks.
    pub(super) fn operator(&self) -> Option<String> {
        let token = self.token.as_ref().ok().filter(|token| self.by_token && !token.has(Scope::Check));
        token.map(|token| token.name.clone())
    }

    /// The client in the audit.
    pub(super) fn author(&self) -> String {
        self.token_name().unwrap_or("a client without a password").to_owned()
    }

    /// The holder of the share that the client uses.
    pub(super) fn holder(&self) -> Holder {
        match &self.secret {
            Some(secret) if self.token.is_ok() => Holder::Token(TokenHash::of(secret)),
            _ => Holder::at(self.service.caller.address),
        }
    }

    /// Whether clients without a password may check.
    pub(super) fn is_open(&self) -> bool {
        self.service.reloader.running().access.is_open(Need::Known, self.service.reach)
    }

    /// Accepts a password, which must be a token unless everybody may check. A wrong one leaves the
    /// rights of the connection as they are.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub(super) fn authenticate(&mut self, password: &[u8]) -> Result<(), Rejected> {
        let secret = std::str::from_utf8(password).map_err(|_| Refused::UnknownToken)?;
        let access = &self.service.reloader.running().access;
        access.permit(Need::Known, (Door::Resp, self.service.reach), || access.find(Some(secret)))?;
        (self.secret, self.asked) = (Some(secret.to_owned()), Weak::new());
        Ok(())
    }

    /// The state of a new connection, with the same id.
    pub(super) fn reset(&mut self) {
        (self.version, self.name, self.secret, self.asked) = Default::default();
        (self.transaction, self.replying) = Default::default();
    }
}
