//! A token: its secret's hash, its name, and the calls that it permits.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Door, Need, Refused, Rejected};
use crate::clock::unix_micros;
use crate::limit::time::Micros;

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

    /// The place of this hash among `hashes`, from 1, or 0. The time depends neither on the
    /// matching entry nor on the length of an equal prefix.
    pub(super) fn place_among<'a>(&self, hashes: impl Iterator<Item = &'a Self>) -> u32 {
        (1..)
            .zip(hashes)
            .fold(0, |found, (place, hash)| u32::conditional_select(&found, &place, self.0.ct_eq(&hash.0)))
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

named! {
    /// A group of calls that a token may permit.
    pub enum Scope {
        /// Checks, and refunds of what one check can charge.
        Check = "check",
        /// Everything that changes nothing, `/metrics` included.
        Read = "read",
        /// `GET /metrics` alone.
        Metrics = "metrics",
        /// Changes of a key: resets, refunds, overrides.
        Operate = "operate",
        /// Everything.
        Admin = "admin",
    }
}

/// A token and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its name in logs, traces and the audit: `[A-Za-z0-9_.-]`.
    pub name: String,
    pub scopes: Vec<Scope>,
    /// The policies that it is for; `None` for all.
    pub policies: Option<BTreeSet<String>>,
    /// The plans that its checks may name; `None` for all.
    pub plans: Option<BTreeSet<String>>,
    /// The doors that it is for; `None` for all.
    pub doors: Option<Vec<Door>>,
    /// The node rejects it from this instant on, us since the Unix epoch.
    pub expires: Option<Micros>,
}

impl Token {
    /// A token for all policies and doors.
    pub fn new(name: impl Into<String>, scopes: &[Scope]) -> Arc<Self> {
        let (name, scopes) = (name.into(), scopes.to_vec());
        Arc::new(Self { name, scopes, policies: None, plans: None, doors: None, expires: None })
    }

    /// Whether it permits calls of this scope.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|own| *own == scope || *own == Scope::Admin)
    }

    /// Whether it permits the operators' calls for a key.
    pub fn is_of_operator(&self) -> bool {
        self.has(Scope::Operate)
    }

    pub fn has_expired(&self) -> bool {
        self.expires.is_some_and(|end| unix_micros() >= end)
    }

    /// Checks whether it permits a call with this `need` through this door.
    ///
    /// # Errors
    /// It has expired, or lacks the door or the scope.
    pub fn permit(&self, need: Need, door: Door) -> Result<(), Rejected> {
        let name = &self.name;
        if self.has_expired() {
            return Err(self.rejected(Refused::ExpiredToken, format!("the token `{name}` has expired")));
        }
        if self.doors.as_ref().is_some_and(|doors| !doors.contains(&door)) {
            let sentence = format!("the token `{name}` is not for the door `{}`", door.name());
            return Err(self.rejected(Refused::NeedsDoor, sentence));
        }
        let Some((scope, reason)) = need.scope() else { return Ok(()) };
        if need.scopes().iter().any(|scope| self.has(*scope)) {
            return Ok(());
        }
        let alone = if scope == Scope::Admin { "" } else { &format!(" or one of the scope `{}`", scope.name()) };
        let own: Vec<_> = self.scopes.iter().map(|scope| format!("`{}`", scope.name())).collect();
        let sentence = format!("this call needs an admin token{alone}: the token `{name}` has {}", own.join(" and "));
        Err(self.rejected(reason, sentence))
    }

    /// Checks whether it is for this policy.
    ///
    /// # Errors
    /// It names its policies, and this is none of them.
    pub fn permit_policy(&self, policy: &str) -> Result<(), Rejected> {
        if self.policies.as_ref().is_none_or(|policies| policies.contains(policy)) {
            return Ok(());
        }
        // A client chooses this text.
        let shown: String = policy.chars().take(MAX_NAME).collect();
        let sentence = format!("the token `{}` is not for the policy {shown:?}", self.name);
        Err(self.rejected(Refused::NeedsPolicy, sentence))
    }

    /// Whether it permits some checks only.
    pub fn is_bounded(&self) -> bool {
        self.policies.is_some() || self.plans.is_some()
    }

    /// Checks whether it permits a check under this policy and plan.
    ///
    /// # Errors
    /// It names its policies or its plans, and this is none of them.
    pub fn permit_check(&self, policy: &str, plan: Option<&str>) -> Result<(), Rejected> {
        self.permit_policy(policy)?;
        let is_other = |plan: &&str| self.plans.as_ref().is_some_and(|plans| !plans.contains(*plan));
        let Some(plan) = plan.filter(is_other) else { return Ok(()) };
        let shown: String = plan.chars().take(MAX_NAME).collect();
        let sentence = format!("the token `{}` may not name the plan {shown:?}", self.name);
        Err(self.rejected(Refused::NeedsPlan, sentence))
    }

    /// Checks whether it is for all policies.
    ///
    /// # Errors
    /// It names its policies.
    pub fn permit_all_policies(&self) -> Result<(), Rejected> {
        if self.policies.is_none() {
            return Ok(());
        }
        let sentence = format!("this call is about all policies, and the token `{}` is for some", self.name);
        Err(self.rejected(Refused::NeedsPolicy, sentence))
    }

    fn rejected(&self, reason: Refused, sentence: String) -> Rejected {
        Rejected { reason, token: Some(self.name.clone()), sentence: sentence.into() }
    }
}

/// The longest part of a policy's name that an error repeats, characters.
const MAX_NAME: usize = 64;

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
    fn token_permits_its_scopes_doors_and_policies_only() {
        use Scope::{Check, Metrics, Operate, Read};
        let reason = |token: &Token, need, door| token.permit(need, door).err().map(|rejected| rejected.reason);
        let plain = |scopes: &[Scope]| Token::clone(&Token::new("ci", scopes));
        let (soon, past) = (unix_micros() + 3_600_000_000, unix_micros() - 1);
        for (token, need, door, expected) in [
            (plain(&[Check]), Need::Check, Door::Http, None),
            (plain(&[Check]), Need::Known, Door::Resp, None),
            (plain(&[Check]), Need::Refund, Door::Http, None),
            (plain(&[Check]), Need::Usage, Door::Http, Some(Refused::NeedsScope)),
            (plain(&[Check]), Need::Read, Door::Http, Some(Refused::NeedsScope)),
            (plain(&[Check]), Need::Metrics, Door::Http, Some(Refused::NeedsScope)),
            (plain(&[Check]), Need::Operate, Door::Http, Some(Refused::NeedsAdmin)),
            (plain(&[Read]), Need::Check, Door::Http, Some(Refused::NeedsScope)),
            (plain(&[Read]), Need::Metrics, Door::Http, None),
            (plain(&[Read]), Need::Usage, Door::Http, None),
            (plain(&[Metrics]), Need::Metrics, Door::Http, None),
            (plain(&[Metrics]), Need::Read, Door::Http, Some(Refused::NeedsScope)),
            (plain(&[Operate]), Need::Refund, Door::Http, None),
            (plain(&[Operate]), Need::Admin, Door::Http, Some(Refused::NeedsAdmin)),
            (plain(&[Check, Operate]), Need::Operate, Door::Resp, None),
            (plain(&[Scope::Admin]), Need::Check, Door::Envoy, None),
            (plain(&[Scope::Admin]), Need::Admin, Door::Http, None),
            (Token { doors: Some(vec![Door::Gate]), ..plain(&[Check]) }, Need::Check, Door::Gate, None),
            (
                Token { doors: Some(vec![Door::Gate]), ..plain(&[Check]) },
                Need::Check,
                Door::Http,
                Some(Refused::NeedsDoor),
            ),
            (Token { expires: Some(soon), ..plain(&[Check]) }, Need::Check, Door::Http, None),
            (
                Token { expires: Some(past), ..plain(&[Check]) },
                Need::Known,
                Door::Http,
                Some(Refused::ExpiredToken),
            ),
        ] {
            assert_eq!(reason(&token, need, door), expected, "{token:?} {need:?} {door:?}");
        }
        let token = Token { policies: Some(["a".to_owned()].into()), ..plain(&[Check]) };
        assert_eq!(token.permit_policy("a"), Ok(()));
        let rejected = token.permit_policy("b").unwrap_err();
        assert_eq!(rejected.to_string(), "the token `ci` is not for the policy \"b\"");
        assert!(token.permit_all_policies().is_err() && plain(&[Check]).permit_all_policies().is_ok());
    }
}
