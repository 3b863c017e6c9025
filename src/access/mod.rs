//! Authorization: the tokens, and the calls that each token permits.
//!
//! A token is a random text that a caller sends as `Authorization: Bearer`. A node stores only its
//! SHA-256, so a leaked token file grants nothing. Since a token holds 256 random bits, a slow hash
//! would add nothing.
//!
//! A call asks for a token as soon as one of the tokens is for such calls. Without tokens every
//! caller that reaches the node may check. A listener on loopback then permits every operator call
//! as well.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

mod door;

mod token;

pub use door::Door;
pub use token::{Scope, TOKEN, Token, TokenHash, new_token};

/// The known tokens, and the rights of callers without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// A token has several hashes while its secret is rotated.
    tokens: Vec<(TokenHash, Arc<Token>)>,
    /// Whether checks need no token on a listener that other machines reach.
    pub allow_anonymous: bool,
    /// Whether a token lists the scope, by scope.
    listed: [bool; Scope::ALL.len()],
}

/// The machines that can reach a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only this machine.
    Loopback,
    Network,
}

/// The right that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// Any token, or none where checks need none.
    Known,
    /// On loopback nothing, unless a token is for metrics.
    Metrics,
    Check,
    /// That of a check, or of an operator.
    Refund,
    /// The same, but no page in a browser without a token: it frees the place of another caller.
    Settle,
    /// The counts of a key. Without tokens open like checks.
    Usage,
    /// All else that changes nothing. Without tokens open only on loopback.
    Read,
    Operate,
    Admin,
}

impl Need {
    /// The scopes of which a token must have one.
    pub fn scopes(self) -> &'static [Scope] {
        match self {
            Self::Nothing | Self::Known => &[],
            Self::Metrics => &[Scope::Read, Scope::Metrics],
            Self::Check => &[Scope::Check],
            Self::Refund | Self::Settle => &[Scope::Check, Scope::Operate],
            Self::Usage | Self::Read => &[Scope::Read],
            Self::Operate => &[Scope::Operate],
            Self::Admin => &[Scope::Admin],
        }
    }

    /// The scope that a token lacks, with the reason for the rejection.
    fn scope(self) -> Option<(Scope, Refused)> {
        let scope = *self.scopes().first()?;
        let is_operators = matches!(scope, Scope::Operate | Scope::Admin);
        let reason = if is_operators { Refused::NeedsAdmin } else { Refused::NeedsScope };
        Some((scope, reason))
    }
}

named! {
    /// The reason for a rejected call.
    pub enum Refused {
        /// The call has no token.
        NoToken = "no_token",
        /// The token is unknown.
        UnknownToken = "unknown_token",
        /// The token was valid once.
        ExpiredToken = "expired_token",
        /// The token permits no such call, which is no operator's.
        NeedsScope = "needs_scope",
        /// The token permits no such call, which is an operator's.
        NeedsAdmin = "needs_admin",
        /// The token is for other policies.
        NeedsPolicy = "needs_policy",
        /// The token is for other plans.
        NeedsPlan = "needs_plan",
        /// The token is for other doors.
        NeedsDoor = "needs_door",
        /// No token would do, since no admin token is configured.
        NoAdminTokens = "no_admin_tokens",
        /// A page in a browser calls without a token. Any site could make the browser on this
        /// machine do so.
        Page = "page",
        /// An anonymous gate serves only its trusted proxies.
        UntrustedPeer = "untrusted_peer",
    }
}

impl Refused {
    /// Whether the caller is unknown, and not only without the right.
    pub fn is_unknown_caller(self) -> bool {
        matches!(self, Self::NoToken | Self::UnknownToken | Self::ExpiredToken)
    }
}

/// A rejected call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub reason: Refused,
    /// The name of the caller's token, if the node knows it.
    pub token: Option<String>,
    sentence: Cow<'static, str>,
}

impl From<Refused> for Rejected {
    fn from(reason: Refused) -> Self {
        let sentence = match reason {
            Refused::NoToken => "the call has no token",
            Refused::UnknownToken => "the token is not known",
            Refused::NoAdminTokens => {
                "this call needs an admin token, and none is configured: name auth.admin_token_files, or listen for \
                 operators on loopback (admin_listen) without tokens"
            }
            Refused::Page => {
                "a page in a browser may not make this call without a token: make it without Origin and Sec-Fetch-Site, \
                 or name auth.admin_token_files and send a token"
            }
            Refused::UntrustedPeer => "this gate serves only the peers in its trusted_proxies",
            // `Token` has the sentences of the others.
            _ => "the token does not permit this call",
        };
        Self { reason, token: None, sentence: sentence.into() }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence)
    }
}

impl Access {
    /// A hash that occurs twice has the rights of its last entry.
    pub fn new(tokens: Vec<(TokenHash, Arc<Token>)>, allow_anonymous: bool) -> Self {
        let listed = Scope::ALL.map(|scope| tokens.iter().any(|(_, token)| token.scopes.contains(&scope)));
        Self { tokens, allow_anonymous, listed }
    }

    /// Whether a token lists this scope.
    pub fn lists(&self, scope: Scope) -> bool {
        self.listed[scope as usize]
    }

    /// Whether some caller may check under this policy and plan: no check needs a token, or a token
    /// for checks permits both.
    pub fn may_check(&self, policy: &str, plan: &str) -> bool {
        let permits =
            |token: &Token| token.scopes.contains(&Scope::Check) && token.permit_check(policy, Some(plan)).is_ok();
        !self.lists(Scope::Check) || self.tokens.iter().any(|(_, token)| permits(token))
    }

    /// Whether a token permits operator calls.
    pub fn has_operators(&self) -> bool {
        self.lists(Scope::Operate) || self.lists(Scope::Admin)
    }

    /// Whether everyone who reaches the listener may make such a call.
    pub fn is_open(&self, need: Need, reach: Reach) -> bool {
        let is_local = reach == Reach::Loopback;
        let is_anonymous = is_local || self.allow_anonymous;
        let reads_ask = self.lists(Scope::Check) || self.lists(Scope::Read);
        match need {
            Need::Nothing => true,
            Need::Metrics => !self.lists(Scope::Metrics) && (is_local || self.allow_anonymous && !reads_ask),
            Need::Known | Need::Check | Need::Refund | Need::Settle => is_anonymous && !self.lists(Scope::Check),
            Need::Usage => is_anonymous && !reads_ask,
            Need::Read => is_local && !reads_ask,
            Need::Operate | Need::Admin => is_local && self.tokens.is_empty(),
        }
    }

    /// Checks whether a caller may make a call with this `need`. Calls `find` for its token only if
    /// the answer depends on it. Returns the token then.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub fn permit<'a>(
        &self,
        need: Need,
        (door, reach): (Door, Reach),
        find: impl FnOnce() -> Result<&'a Arc<Token>, Refused>,
    ) -> Result<Option<&'a Arc<Token>>, Rejected> {
        if self.is_open(need, reach) {
            return Ok(None);
        }
        let has_tokens = match need {
            Need::Read => !self.tokens.is_empty(),
            Need::Operate => self.has_operators(),
            Need::Admin => self.lists(Scope::Admin),
            _ => true,
        };
        if !has_tokens {
            return Err(Refused::NoAdminTokens.into());
        }
        let token = find()?;
        token.permit(need, door)?;
        Ok(Some(token))
    }

    /// The token with this text.
    ///
    /// # Errors
    /// There is no text, or no such token.
    pub fn find(&self, text: Option<&str>) -> Result<&Arc<Token>, Refused> {
        let place = TokenHash::of(text.ok_or(Refused::NoToken)?).place_among(self.tokens.iter().map(|(hash, _)| hash));
        let found = place.checked_sub(1).and_then(|place| self.tokens.get(place as usize));
        found.map(|(_, token)| token).ok_or(Refused::UnknownToken)
    }

    /// The tokens that are no use, in words for operators.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let expired = self.tokens.iter().filter(|(_, token)| token.has_expired());
        let names: BTreeSet<_> = expired.map(|(_, token)| &token.name).collect();
        names.into_iter().map(|name| {
            format!("the token `{name}` has expired, and the node rejects it: set a later `expires`, or remove it")
        })
    }

    /// The rights that `next` adds for callers, in words for operators.
    pub fn openings(&self, next: &Self) -> Vec<&'static str> {
        let no_check = self.lists(Scope::Check) && !next.lists(Scope::Check);
        let no_tokens = next.tokens.is_empty() && !self.tokens.is_empty();
        let operates = |tokens: &Self, hash: &TokenHash| {
            tokens.tokens.iter().any(|(own, token)| own == hash && token.is_of_operator())
        };
        let operators = self.tokens.iter().any(|(hash, _)| operates(next, hash) && !operates(self, hash));
        let openings = [
            (no_check, "there are no check tokens any more: checks need none"),
            (
                no_tokens,
                "there are no tokens any more: who reaches a listener on loopback may do what operators do",
            ),
            (next.allow_anonymous && !self.allow_anonymous, "`allow_anonymous` is set: checks need no token"),
            (operators, "a token for checks is now one for operators"),
        ];
        openings.into_iter().filter(|(is_open, _)| *is_open).map(|(_, words)| words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(check: &[&str], admin: &[&str], allow_anonymous: bool) -> Access {
        let [checks, admins] = [("check", &[Scope::Check, Scope::Read][..]), ("admin", &[Scope::Admin])]
            .map(|(name, scopes)| Token::new(name, scopes));
        let of = |token: &Arc<Token>, texts: &[&str]| {
            texts.iter().map(|text| (TokenHash::of(text), token.clone())).collect::<Vec<_>>()
        };
        Access::new([of(&checks, check), of(&admins, admin)].concat(), allow_anonymous)
    }

    #[test]
    fn openings_of_a_change_are_reported() {
        let (both, none) = (access(&["c"], &["a"], false), access(&[], &[], false));
        for (before, now, openings) in [
            (&both, &both, 0),
            (&none, &both, 0),
            (&both, &access(&["d", "e"], &["b"], false), 0),
            (&both, &access(&["c"], &[], false), 0),
            (&both, &none, 2),
            (&both, &access(&[], &["a"], false), 1),
            (&access(&[], &["a"], false), &none, 1),
            (&access(&["c"], &[], false), &none, 2),
            (&none, &access(&[], &[], true), 1),
            (&both, &access(&[], &["a"], true), 2),
            (&both, &access(&["c"], &["a", "c"], false), 1),
        ] {
            assert_eq!(before.openings(now).len(), openings, "{before:?} {now:?}");
        }
    }

    #[test]
    fn each_need_is_met_by_its_tokens_only() {
        use Need::{Admin, Check, Metrics, Nothing, Operate, Read};
        use Reach::{Loopback, Network};
        use Refused::{NeedsAdmin, NoAdminTokens, NoToken, UnknownToken};
        let both = access(&["c", "d"], &["a"], false);
        let check_only = access(&["c"], &[], false);
        let admin_only = access(&[], &["a"], false);
        let none = access(&[], &[], false);
        let anonymous = access(&[], &[], true);
        let anonymous_admin = access(&[], &["a"], true);
        let scoped = |scope| Access::new(vec![(TokenHash::of("s"), Token::new("s", &[scope]))], false);
        let (scraper, reader) = (scoped(Scope::Metrics), scoped(Scope::Read));
        let cases = [
            (&both, Check, Loopback, Some("c"), Ok(())),
            (&both, Check, Loopback, Some("d"), Ok(())),
            (&both, Check, Network, Some("a"), Ok(())),
            (&both, Check, Loopback, None, Err(NoToken)),
            (&both, Check, Network, Some("x"), Err(UnknownToken)),
            (&both, Admin, Network, Some("a"), Ok(())),
            (&both, Admin, Loopback, Some("c"), Err(NeedsAdmin)),
            (&both, Operate, Loopback, Some("c"), Err(NeedsAdmin)),
            (&both, Admin, Loopback, None, Err(NoToken)),
            (&both, Admin, Loopback, Some(""), Err(UnknownToken)),
            (&both, Nothing, Network, None, Ok(())),
            (&both, Metrics, Loopback, None, Ok(())),
            (&both, Metrics, Network, None, Err(NoToken)),
            (&both, Metrics, Network, Some("c"), Ok(())),
            (&check_only, Admin, Loopback, Some("c"), Err(NoAdminTokens)),
            (&admin_only, Check, Loopback, None, Ok(())),
            (&admin_only, Admin, Loopback, None, Err(NoToken)),
            (&none, Check, Loopback, None, Ok(())),
            (&none, Admin, Loopback, None, Ok(())),
            (&none, Check, Network, None, Err(NoToken)),
            (&anonymous, Check, Network, None, Ok(())),
            (&anonymous, Admin, Network, None, Err(NoAdminTokens)),
            (&anonymous, Admin, Loopback, None, Ok(())),
            (&both, Read, Loopback, None, Err(NoToken)),
            (&both, Read, Loopback, Some("x"), Err(UnknownToken)),
            (&both, Read, Network, Some("c"), Ok(())),
            (&both, Read, Network, Some("a"), Ok(())),
            (&check_only, Read, Loopback, None, Err(NoToken)),
            (&check_only, Read, Loopback, Some("c"), Ok(())),
            (&admin_only, Read, Loopback, None, Ok(())),
            (&admin_only, Read, Network, None, Err(NoToken)),
            (&none, Read, Loopback, None, Ok(())),
            (&none, Read, Network, None, Err(NoAdminTokens)),
            (&anonymous, Read, Loopback, None, Ok(())),
            (&anonymous, Read, Network, None, Err(NoAdminTokens)),
            (&anonymous_admin, Read, Network, None, Err(NoToken)),
            (&anonymous_admin, Read, Network, Some("x"), Err(UnknownToken)),
            (&anonymous_admin, Read, Network, Some("a"), Ok(())),
            (&anonymous_admin, Check, Network, None, Ok(())),
            (&scraper, Metrics, Loopback, None, Err(NoToken)),
            (&scraper, Metrics, Network, Some("s"), Ok(())),
            (&scraper, Check, Loopback, None, Ok(())),
            (&reader, Need::Usage, Loopback, None, Err(NoToken)),
            (&reader, Metrics, Loopback, None, Ok(())),
        ];
        for (access, need, reach, token, expected) in cases {
            let permitted = access.permit(need, (Door::Http, reach), || access.find(token));
            let permitted = permitted.map(drop).map_err(|rejected| rejected.reason);
            assert_eq!(permitted, expected, "{access:?} {need:?} {reach:?} {token:?}");
        }
    }
}
