//! Authorization: the tokens, and the calls that each kind of token permits.
//!
//! A token is a random text that a caller sends as `Authorization: Bearer`. A node stores only its
//! SHA-256, so a leaked token file grants nothing. Since a token holds 256 random bits, a slow hash
//! would add nothing.
//!
//! Without tokens every caller that reaches the node may check. A listener on loopback then permits
//! every operator call as well.

use std::fmt;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};

/// The prefix of generated tokens; 64 hexadecimal digits follow.
pub const TOKEN: &str = "tollgate_";

/// The prefix of a line in a token file.
const SCHEME: &str = "sha256:";

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(token: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Reads `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(SCHEME).filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
        Some(Self(bytes))
    }

    /// Whether `hashes` contains this hash. The time depends neither on the matching entry nor on
    /// the length of an equal prefix.
    fn is_among(&self, hashes: &[Self]) -> bool {
        hashes.iter().fold(Choice::from(0), |found, hash| found | self.0.ct_eq(&hash.0)).into()
    }
}

impl fmt::Display for TokenHash {
    /// Writes a line of a token file.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(SCHEME)?;
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenHash(..)")
    }
}

/// A new token of 256 random bits, or `None` if the machine has no randomness.
pub fn new_token() -> Option<String> {
    let mut bytes = [0u8; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes.iter().fold(TOKEN.to_owned(), |token, byte| token + &format!("{byte:02x}")))
}

/// The known tokens, and the rights of callers without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Tokens that permit checks. If empty, checks need no token.
    pub check: Vec<TokenHash>,
    /// Tokens that permit everything. If both lists are empty, callers on loopback may do
    /// everything.
    pub admin: Vec<TokenHash>,
    /// Whether checks need no token on a listener that other machines reach.
    pub allow_anonymous: bool,
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
    /// On loopback nothing, elsewhere the same as `Check`.
    Metrics,
    Check,
    /// The same as `Check`, but without check tokens open only on loopback.
    Policies,
    Admin,
}

named! {
    /// The reason for a rejected call.
    pub enum Refused {
        /// The call has no token.
        NoToken = "no_token",
        /// The token is unknown.
        UnknownToken = "unknown_token",
        /// The token permits checks only.
        NeedsAdmin = "needs_admin",
        /// No token would do, since no admin token is configured.
        NoAdminTokens = "no_admin_tokens",
        /// A page in a browser calls without a token. Any site could make the browser on this
        /// machine do so.
        Page = "page",
        /// An anonymous gate serves only its trusted proxies.
        UntrustedPeer = "untrusted_peer",
    }
}

impl Access {
    /// Checks whether a caller may make a call with this `need` on a listener of this `reach`.
    /// Calls `token` only if the answer depends on it.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub fn permit<'a>(&self, need: Need, reach: Reach, token: impl FnOnce() -> Option<&'a str>) -> Result<(), Refused> {
        let local = reach == Reach::Loopback;
        match need {
            Need::Nothing => Ok(()),
            Need::Metrics if local => Ok(()),
            Need::Metrics | Need::Check if self.check.is_empty() && (local || self.allow_anonymous) => Ok(()),
            Need::Policies if self.check.is_empty() && local => Ok(()),
            Need::Policies if self.check.is_empty() && self.admin.is_empty() => Err(Refused::NoAdminTokens),
            Need::Metrics | Need::Check | Need::Policies => self.known(token()).map(|_| ()),
            Need::Admin if self.admin.is_empty() && self.check.is_empty() && local => Ok(()),
            Need::Admin if self.admin.is_empty() => Err(Refused::NoAdminTokens),
            Need::Admin => self.known(token())?.then_some(()).ok_or(Refused::NeedsAdmin),
        }
    }

    /// Whether this is an admin token.
    pub fn is_admin(&self, token: Option<&str>) -> bool {
        self.known(token) == Ok(true)
    }

    /// The rights that `next` adds for callers, in words for operators.
    pub fn openings(&self, next: &Self) -> Vec<&'static str> {
        let gone = |of: fn(&Self) -> &[TokenHash]| !of(self).is_empty() && of(next).is_empty();
        let no_check = gone(|access| &access.check);
        // With check tokens alone, operator calls stay closed.
        let no_admin =
            next.admin.is_empty() && next.check.is_empty() && !(self.admin.is_empty() && self.check.is_empty());
        let operators = self.check.iter().any(|token| next.admin.contains(token) && !self.admin.contains(token));
        let openings = [
            (no_check, "there are no check tokens any more: checks need none"),
            (
                no_admin,
                "there are no tokens any more: who reaches a listener on loopback may do what operators do",
            ),
            (next.allow_anonymous && !self.allow_anonymous, "`allow_anonymous` is set: checks need no token"),
            (operators, "a token for checks is now one for operators"),
        ];
        openings.into_iter().filter(|(is_open, _)| *is_open).map(|(_, words)| words).collect()
    }

    /// Whether a known token is an admin token.
    fn known(&self, token: Option<&str>) -> Result<bool, Refused> {
        let hash = TokenHash::of(token.ok_or(Refused::NoToken)?);
        let (admin, check) = (hash.is_among(&self.admin), hash.is_among(&self.check));
        if admin || check { Ok(admin) } else { Err(Refused::UnknownToken) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        // The example of FIPS 180-2.
        let hash = TokenHash::of("abc");
        let line = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), line);
        assert_eq!(TokenHash::parse(line), Some(hash));
        assert_eq!(TokenHash::parse(&line.to_uppercase().replace("SHA", "sha")), Some(hash));
        for wrong in ["", "abc", &line[7..], &line[..70], &line.replace('b', "g"), &format!("{line}0")] {
            assert_eq!(TokenHash::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert!(one.len() == 73 && one != other, "{one} {other}");
    }

    #[test]
    fn openings_of_a_change_are_reported() {
        let tokens = |names: &[&str]| names.iter().map(|name| TokenHash::of(name)).collect::<Vec<_>>();
        let access = |check: &[&str], admin: &[&str], allow_anonymous| Access {
            check: tokens(check),
            admin: tokens(admin),
            allow_anonymous,
        };
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
        use Need::{Admin, Check, Metrics, Nothing, Policies};
        use Reach::{Loopback, Network};
        use Refused::{NeedsAdmin, NoAdminTokens, NoToken, UnknownToken};
        let tokens = |names: &[&str]| names.iter().map(|name| TokenHash::of(name)).collect::<Vec<_>>();
        let access = |check: &[&str], admin: &[&str], allow_anonymous| Access {
            check: tokens(check),
            admin: tokens(admin),
            allow_anonymous,
        };
        let both = access(&["c", "d"], &["a"], false);
        let check_only = access(&["c"], &[], false);
        let admin_only = access(&[], &["a"], false);
        let none = access(&[], &[], false);
        let anonymous = access(&[], &[], true);
        let anonymous_admin = access(&[], &["a"], true);
        let cases = [
            (&both, Check, Loopback, Some("c"), Ok(())),
            (&both, Check, Loopback, Some("d"), Ok(())),
            (&both, Check, Network, Some("a"), Ok(())),
            (&both, Check, Loopback, None, Err(NoToken)),
            (&both, Check, Network, Some("x"), Err(UnknownToken)),
            (&both, Admin, Network, Some("a"), Ok(())),
            (&both, Admin, Loopback, Some("c"), Err(NeedsAdmin)),
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
            (&both, Policies, Loopback, None, Err(NoToken)),
            (&both, Policies, Loopback, Some("x"), Err(UnknownToken)),
            (&both, Policies, Network, Some("c"), Ok(())),
            (&both, Policies, Network, Some("a"), Ok(())),
            (&check_only, Policies, Loopback, None, Err(NoToken)),
            (&check_only, Policies, Loopback, Some("c"), Ok(())),
            (&admin_only, Policies, Loopback, None, Ok(())),
            (&admin_only, Policies, Network, None, Err(NoToken)),
            (&none, Policies, Loopback, None, Ok(())),
            (&none, Policies, Network, None, Err(NoAdminTokens)),
            (&anonymous, Policies, Loopback, None, Ok(())),
            (&anonymous, Policies, Network, None, Err(NoAdminTokens)),
            (&anonymous_admin, Policies, Network, None, Err(NoToken)),
            (&anonymous_admin, Policies, Network, Some("x"), Err(UnknownToken)),
            (&anonymous_admin, Policies, Network, Some("a"), Ok(())),
            (&anonymous_admin, Check, Network, None, Ok(())),
        ];
        for (access, need, reach, token, expected) in cases {
            assert_eq!(access.permit(need, reach, || token), expected, "{access:?} {need:?} {reach:?} {token:?}");
        }
    }
}
