//! The kinds of calls that a shard refuses while it makes others.
//!
//! A missing right fails the calls that need it, often for some keys only. Such a kind recovers
//! when the shard makes a call of it for the same key, or when others pass and no more are refused.
//! Any other refusal ends with the next call of its kind. Unreachable servers, redirections and
//! corrupt values concern no kind.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limit::key::Fingerprint;
use crate::limit::policy::Algorithm;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::lane::health::{QUIET, REFUSES};
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::request::KeyRequest;
use crate::store::{Over, Work};

/// How long after its last call a missing right counts, us. A caller may need it rarely.
const RIGHTS: Micros = 60 * MICROS_PER_SECOND;

/// The kinds of calls that callers make, and the policies that they ask under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    Operation {
        name: &'static str,
        algorithm: Algorithm,
        has_hold: bool,
    },
    /// The wait for a replica.
    Wait,
}

impl CallKind {
    pub fn of(request: &KeyRequest) -> Self {
        let KeyRequest { policy, work, .. } = request;
        let has_hold = policy.options.hold.is_some();
        Self::Operation { name: operation(work), algorithm: policy.algorithm, has_hold }
    }
}

/// The name of such operations for users.
fn operation(work: &Work) -> &'static str {
    match work {
        Work::Take(_) | Work::Look(_) => "checks",
        Work::Once { over: Over::Deny, .. } => "checks with an id",
        Work::Drain(_) | Work::Once { over: Over::Drain, .. } => "drains",
        Work::Wait(_) => "checks with `wait_ms`",
        Work::Reserve { .. } => "checks of /v1/check/all",
        Work::Lease { .. } => "leases of nodes",
        Work::Sell(_) => "leases of callers",
        Work::GiveBack(_) | Work::Return(_) => "returns of units",
        Work::Refund(_) | Work::RefundOnce(_) | Work::Undo(_) => "refunds",
        Work::Reset(_) => "resets",
        Work::Settle { .. } => "settles",
        Work::Renew(_) => "renewals",
        Work::ReadHolds => "lists of holds",
        Work::ReadLog(_) => "lists of charges",
        Work::ReadTicks { .. } => "looks",
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation { name, algorithm, has_hold } => {
                let hold = if *has_hold { " with `hold`" } else { "" };
                write!(f, "{name} under `{}`{hold}", algorithm.name())
            }
            Self::Wait => f.write_str("calls of WAIT for `durability: replica`"),
        }
    }
}

/// The kinds that were refused since they were made last.
#[derive(Debug, Default)]
pub struct RefusedKinds {
    /// Whether there are any.
    any: AtomicBool,
    /// At most one for each kind.
    kinds: Mutex<Vec<Refused>>,
}

#[derive(Debug)]
struct Refused {
    kind: CallKind,
    /// The key of the last refused call.
    key: Option<Fingerprint>,
    /// The first and the last refused call, us by this node's clock.
    first: Micros,
    last: Micros,
    why: Failure,
    is_logged: bool,
}

impl Refused {
    fn is_of_rights(&self) -> bool {
        self.why.kind == Kind::Rights
    }

    /// Whether nobody has asked for it for so long that it may have recovered.
    fn is_stale(&self, now: Micros) -> bool {
        now >= self.last + if self.is_of_rights() { RIGHTS } else { QUIET }
    }

    /// Whether it was refused for a second. A right that is missing once stays missing.
    fn lasts(&self, now: Micros) -> bool {
        !self.is_stale(now) && if self.is_of_rights() { now } else { self.last } >= self.first + REFUSES
    }

    /// Whether a call for this key shows that the kind has recovered.
    fn ends_by(&self, key: Option<Fingerprint>, now: Micros) -> bool {
        !self.is_of_rights() || self.key == key || now >= self.last + QUIET
    }
}

impl RefusedKinds {
    /// Notes a refused call at `now`, us.
    pub fn refuse(&self, kind: CallKind, key: Option<Fingerprint>, why: &Failure, now: Micros) {
        if !matches!(why.kind, Kind::Rights | Kind::Answer) {
            return;
        }
        self.retain(|refused| !refused.is_stale(now));
        let mut kinds = self.kinds();
        self.any.store(true, Ordering::Relaxed);
        match kinds.iter_mut().find(|refused| refused.kind == kind) {
            Some(known) => (known.key, known.last, known.why) = (key, now, why.clone()),
            None => kinds.push(Refused { kind, key, first: now, last: now, why: why.clone(), is_logged: false }),
        }
    }

    /// Returns the kinds that the log must report at `now`, us, with their reasons. It reports each
    /// once. Called each second, so that nothing stays that is over.
    pub fn to_log(&self, now: Micros) -> Vec<(CallKind, Failure)> {
        if self.is_empty() {
            return Vec::new();
        }
        self.retain(|refused| !refused.is_stale(now));
        let mut kinds = self.kinds();
        let new = kinds.iter_mut().filter(|refused| refused.lasts(now) && !refused.is_logged);
        let mark = |refused: &mut Refused| {
            refused.is_logged = true;
            (refused.kind, refused.why.clone())
        };
        new.map(mark).collect()
    }

    /// Whether no kind was refused, so that no call needs to be noted.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Notes a call that was made at `now`, us. Returns whether the log reported its kind, which
    /// has recovered.
    pub fn accept(&self, kind: CallKind, key: Option<Fingerprint>, now: Micros) -> bool {
        let mut was_logged = false;
        self.retain(|refused| {
            let ends = refused.kind == kind && refused.ends_by(key, now);
            was_logged |= ends && refused.is_logged;
            !ends
        });
        was_logged
    }

    /// Forgets what an outage may explain, which has ended: also missing rights `with_rights`.
    pub fn recover(&self, with_rights: bool) {
        self.retain(|refused| !with_rights && refused.is_of_rights());
    }

    /// Why calls fail, in one sentence; none unless a kind was refused for a second.
    pub fn reason(&self, now: Micros) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let kinds = self.kinds();
        let lasting = kinds.iter().filter(|refused| refused.lasts(now));
        let first = lasting.clone().min_by_key(|refused| refused.first)?;
        let more = lasting.count() - 1;
        let others = if more > 0 { format!(" and {more} other kinds of calls") } else { String::new() };
        Some(Failure::new(first.why.kind, format!("{}{others} fail: {}", first.kind, first.why)).to_string())
    }

    fn retain(&self, is_kept: impl FnMut(&Refused) -> bool) {
        let mut kinds = self.kinds();
        kinds.retain(is_kept);
        self.any.store(!kinds.is_empty(), Ordering::Relaxed);
    }

    fn kinds(&self) -> MutexGuard<'_, Vec<Refused>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::Fingerprinter;

    const SETTLE: CallKind =
        CallKind::Operation { name: "settles", algorithm: Algorithm::SlidingWindow, has_hold: true };

    fn failure(kind: Kind) -> Failure {
        Failure::new(kind, "no right")
    }

    fn keys() -> [Option<Fingerprint>; 2] {
        ["a", "b"].map(|key| Some(Fingerprinter::default().fingerprint("p", key)))
    }

    #[test]
    fn missing_right_is_a_reason_after_a_second_for_a_minute() {
        let kinds = RefusedKinds::default();
        let [a, b] = keys();
        assert_eq!((kinds.is_empty(), kinds.reason(5)), (true, None));
        kinds.refuse(SETTLE, a, &failure(Kind::Rights), 5);
        assert_eq!(kinds.reason(REFUSES + 4), None);
        let reason = "settles under `sliding-window` with `hold` fail: no right";
        assert_eq!(kinds.reason(REFUSES + 5).as_deref(), Some(reason));
        // It may be needed for some keys only.
        assert!(!kinds.accept(SETTLE, b, REFUSES + 6));
        assert_eq!(kinds.reason(REFUSES + 6).as_deref(), Some(reason));
        assert!(!kinds.accept(CallKind::Wait, a, REFUSES + 6));
        assert_eq!(kinds.reason(RIGHTS + 4).as_deref(), Some(reason));
        assert_eq!(kinds.reason(RIGHTS + 5), None);
        kinds.refuse(SETTLE, a, &failure(Kind::Rights), RIGHTS + 5);
        let logged = [RIGHTS + 5, RIGHTS + REFUSES + 5, RIGHTS + REFUSES + 5].map(|at| kinds.to_log(at).len());
        assert_eq!(logged, [0, 1, 0]);
        assert!(kinds.accept(SETTLE, a, RIGHTS + REFUSES + 6), "the log reported it");
        assert_eq!((kinds.is_empty(), kinds.reason(RIGHTS + REFUSES + 6)), (true, None));
    }

    #[test]
    fn right_that_other_keys_need_no_more_counts_until_refusals_end() {
        let kinds = RefusedKinds::default();
        let [a, b] = keys();
        kinds.refuse(SETTLE, a, &failure(Kind::Rights), 5);
        kinds.accept(SETTLE, b, QUIET + 4);
        assert!(kinds.reason(QUIET + 4).is_some());
        kinds.accept(SETTLE, b, QUIET + 5);
        assert!(kinds.is_empty());
    }

    #[test]
    fn other_refusals_need_a_second_without_a_call_that_is_made() {
        let kinds = RefusedKinds::default();
        let [a, b] = keys();
        let refuse = |at| {
            kinds.refuse(SETTLE, a, &failure(Kind::Answer), at);
            kinds.reason(at).is_some()
        };
        assert_eq!([5, REFUSES + 4].map(refuse), [false, false]);
        kinds.accept(SETTLE, b, REFUSES + 4);
        assert_eq!([REFUSES + 5, 2 * REFUSES + 4, 2 * REFUSES + 5].map(refuse), [false, false, true]);
        assert!(kinds.reason(2 * REFUSES + 4 + QUIET).is_some());
        assert_eq!(kinds.reason(2 * REFUSES + 5 + QUIET), None);
        for kind in [Kind::Connection, Kind::NotNow, Kind::Key, Kind::Moved] {
            let kinds = RefusedKinds::default();
            [5, REFUSES + 5].into_iter().for_each(|at| kinds.refuse(SETTLE, a, &failure(kind), at));
            assert!(kinds.is_empty(), "{kind:?}");
        }
    }

    #[test]
    fn end_of_an_outage_ends_the_refusals_that_it_may_explain() {
        let kinds = RefusedKinds::default();
        let refuse = |kind, why| [5, REFUSES + 5].map(|at| kinds.refuse(kind, None, &failure(why), at));
        refuse(SETTLE, Kind::Rights);
        refuse(CallKind::Wait, Kind::Answer);
        let reason = || kinds.reason(REFUSES + 5);
        assert!(reason().unwrap().starts_with("settles under `sliding-window` with `hold` and 1 other kind"));
        kinds.recover(false);
        assert!(!reason().unwrap().contains("other"));
        kinds.recover(true);
        assert_eq!(reason(), None);
    }
}
