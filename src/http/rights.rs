//! A call that the router has found, and the rights of its caller, as far as they depend on more
//! than its path.

use std::sync::Arc;

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::rejection::ExtensionRejection;
use axum::extract::{Extension, FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::head::{Denied, bearer, permit};
use super::problem::{Problem, Violation, Violations};
use crate::access::{Door, Need, Reach, Refused, Rejected, Scope, Token, TokenHash};
use crate::engine::Check;
use crate::node::{Caller, Node};
use crate::shares::Holder;

/// The author of an act that needs no token.
const NO_TOKEN: &str = "a caller without a token";

/// A call as its handler gets it.
pub(super) struct Routed {
    pub(super) node: Node,
    pub(super) rights: Rights,
    pub(super) head: Parts,
    pub(super) body: Body,
}

impl FromRequest<Node> for Routed {
    type Rejection = ExtensionRejection;

    async fn from_request(request: Request, node: &Node) -> Result<Self, ExtensionRejection> {
        let (mut head, body) = request.into_parts();
        let Extension(rights) = head.extract().await?;
        Ok(Self { node: node.clone(), rights, head, body })
    }
}

/// The caller of a request that may be made.
#[derive(Debug, Clone)]
pub(super) struct Rights {
    /// Its token, if the call needs one. For a check only a token that names its policies.
    pub(super) token: Option<Arc<Token>>,
    /// Whether the caller's token permitted the call, and not only its address.
    pub(super) by_token: bool,
    pub(super) caller: Caller,
    pub(super) reach: Reach,
}

impl Rights {
    /// # Errors
    /// 403: the token is for other policies.
    pub(super) fn policy(&self, node: &Node, policy: &str) -> Result<(), Problem> {
        self.checked(node, |token| token.permit_policy(policy))
    }

    /// # Errors
    /// 403: the token is for other policies, or for other plans.
    pub(super) fn check(&self, node: &Node, check: &Check) -> Result<(), Problem> {
        self.checked(node, |token| token.permit_check(&check.policy, check.plan.as_deref()))
    }

    /// For calls about all policies.
    ///
    /// # Errors
    /// 403: the token is for some policies.
    pub(super) fn all_policies(&self, node: &Node) -> Result<(), Problem> {
        self.checked(node, Token::permit_all_policies)
    }

    /// For checks that are charged together.
    ///
    /// # Errors
    /// 403 with each check under another policy or plan.
    pub(super) fn checks(&self, node: &Node, checks: &[Check]) -> Result<(), Problem> {
        let rejected = |check: &Check| self.token.as_ref()?.permit_check(&check.policy, check.plan.as_deref()).err();
        let mut rejected = checks.iter().enumerate().filter_map(|(place, check)| Some((place, rejected(check)?)));
        let Some((place, first)) = rejected.next() else { return Ok(()) };
        let violation = |place, rejected: &Rejected| {
            let member = if rejected.reason == Refused::NeedsPlan { "plan" } else { "policy" };
            Violation::new(format!("/checks/{place}/{member}"), rejected.to_string())
        };
        let mut violations = Violations::from(vec![violation(place, &first)]);
        rejected.for_each(|(place, rejected)| violations.note(|| violation(place, &rejected)));
        Err(self.refuse(node, &first).with(violations))
    }

    /// The holder of a share in what the call needs. An invented token is none.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Holder {
        match bearer(headers).filter(|_| self.by_token) {
            Some(secret) => Holder::Token(TokenHash::of(secret)),
            None => Holder::at(self.caller.address),
        }
    }

    /// Whether the caller may do what operators do for a key.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn operates(&self, node: &Node, headers: &HeaderMap) -> Result<(), Denied> {
        let access = &node.reloader.running().access;
        permit(access, (Door::Http, self.reach), Some(Need::Operate), headers).map(drop)
    }

    /// Whether the caller acts as an operator where callers with checks act, too.
    pub(super) fn is_only_operator(&self) -> bool {
        self.token.as_ref().is_some_and(|token| !token.has(Scope::Check))
    }

    fn checked(&self, node: &Node, check: impl FnOnce(&Token) -> Result<(), Rejected>) -> Result<(), Problem> {
        let token = self.token.as_deref();
        token.map_or(Ok(()), check).map_err(|rejected| self.refuse(node, &rejected))
    }

    /// The caller in the audit.
    pub(super) fn author(&self) -> String {
        self.token.as_ref().map_or_else(|| NO_TOKEN.to_owned(), |token| token.name.clone())
    }

    /// Counts the rejection.
    pub(super) fn refuse(&self, node: &Node, rejected: &Rejected) -> Problem {
        node.refusals.refused(rejected, self.caller);
        Problem::refused(rejected)
    }
}
