//! Leases: units that the client buys from a node and spends without a call.
//!
//! This file decides, without I/O and without a clock. `lessee.rs` makes the calls. The clients of
//! all languages have the same rules, and `clients/lease-cases.json` tests them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::LeaseInstant;
use crate::decision::LeaseAnswer;

/// The fewest units of a lease.
const LEAST: u64 = 4;

/// The share of its time that a lease does not use, for clocks that drift apart: 1/256.
const DRIFT: u64 = 256;

/// The next lease is bought when an eighth of the units, or of the time, is left.
const AHEAD: u64 = 8;

/// How long a key buys nothing after a failed purchase, us.
const PAUSE: u64 = 1_000_000;

/// The most keys whose demand is measured.
const KEYS: usize = 10_000;

const MICROS_PER_MILLI: u64 = 1000;

/// The keys under their policies, and the leases in hand.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    policies: HashMap<String, HashMap<String, Key>>,
    keys: usize,
    purchases: u64,
    is_closed: bool,
    due: Vec<Settle>,
}

/// The name of a key under a policy.
pub(crate) type Name<'a> = (&'a str, &'a str);

/// A key under a policy that sells leases.
#[derive(Debug)]
struct Key {
    /// How long bought units may be spent, us.
    span: u64,
    demand: Demand,
    /// Up to two leases, the older one first.
    hands: Vec<Lease>,
    is_buying: bool,
    /// The settles without an answer yet. Until then a node counts the lease.
    settling: u32,
    /// Whether the last purchase got fewer units than it wanted.
    was_cut: bool,
    /// No purchase until then, us.
    pause_until: u64,
}

/// A lease in hand.
#[derive(Debug)]
struct Lease {
    purchase: u64,
    left: u64,
    answer: Arc<LeaseAnswer>,
    sent: LeaseInstant,
    /// How long its units may be spent after that, us.
    lasts: u64,
}

/// A purchase to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub purchase: u64,
    pub units: u64,
}

/// A check that a lease pays.
#[derive(Debug)]
pub(crate) struct Paid {
    pub answer: Arc<LeaseAnswer>,
    /// Units that are left in the lease.
    pub left: u64,
    /// us since the purchase was sent.
    pub age: u64,
}

/// A settle to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settle {
    pub policy: String,
    pub key: String,
    pub purchase: u64,
    /// The units that were spent.
    pub cost: u64,
}

impl Hands {
    /// Pays a check from a lease, and says what to buy.
    pub fn check(&mut self, name: Name<'_>, cost: u64, now: LeaseInstant) -> (Option<Paid>, Option<Order>) {
        let Self { policies, purchases, is_closed, due, .. } = self;
        let Some(key) = policies.get_mut(name.0).and_then(|keys| keys.get_mut(name.1)) else { return (None, None) };
        key.end(name, due, |lease| lease.has_ended(now));
        // A denied check raises no demand, so its cost is added once it is allowed.
        let demand = key.demand.add(key.span, now.elapsed, 0).saturating_add(cost);
        let mut paid = None;
        if let Some(lease) = key.hands.iter_mut().find(|lease| lease.left >= cost) {
            lease.left -= cost;
            paid = Some(Paid { answer: lease.answer.clone(), left: lease.left, age: now.since(lease.sent) });
            key.demand.add(key.span, now.elapsed, cost);
            if lease.left == 0 {
                key.end(name, due, |lease| lease.left == 0);
            }
        }
        let units = demand - demand % cost.max(1);
        if *is_closed || units < LEAST || !key.may_buy(now) {
            return (paid, None);
        }
        key.is_buying = true;
        *purchases += 1;
        (paid, Some(Order { purchase: *purchases, units }))
    }

    /// Learns from the answer of a node to a check.
    pub fn answered(&mut self, name: Name<'_>, charged: u64, span_ms: Option<u64>, now: LeaseInstant) {
        let Some(span) = span_ms.filter(|span| *span > 0 && !self.is_closed) else { return self.forget(name) };
        let span = span.saturating_mul(MICROS_PER_MILLI);
        if self.key(name).is_none() && (self.keys < KEYS || self.has_room(now)) {
            self.keys += 1;
            self.policies.entry(name.0.to_owned()).or_default().insert(name.1.to_owned(), Key::new(span));
        }
        let Some(key) = self.key(name) else { return };
        if key.span != span {
            (key.span, key.demand) = (span, Demand::default());
        }
        key.demand.add(span, now.elapsed, charged);
    }

    /// Puts what was bought into hand. The purchase was sent at `sent`.
    pub fn bought(&mut self, name: Name<'_>, order: Order, sent: LeaseInstant, answer: LeaseAnswer, now: LeaseInstant) {
        let Order { purchase, units } = order;
        let within = answer.spend_within_ms.saturating_mul(MICROS_PER_MILLI);
        let granted = answer.granted;
        let lasts = within - within.div_ceil(DRIFT);
        let lease = Lease { purchase, left: granted, answer: Arc::new(answer), sent, lasts };
        let is_closed = self.is_closed;
        if let Some(key) = self.key(name) {
            key.is_buying = false;
            if granted == 0 {
                let pause = lease.answer.retry_after_ms.unwrap_or(0).saturating_mul(MICROS_PER_MILLI);
                key.pause_until = now.elapsed.saturating_add(pause);
                return;
            }
            key.was_cut = granted < units;
            if !is_closed && !lease.has_ended(now) {
                key.hands.push(lease);
                return;
            }
            key.settling += 1;
        }
        if granted > 0 {
            self.due.push(lease.settle(name));
        }
    }

    /// Notes that a purchase failed. One that may have happened is returned.
    pub fn failed(&mut self, name: Name<'_>, purchase: u64, may_have_happened: bool, now: LeaseInstant) {
        if let Some(key) = self.key(name) {
            (key.is_buying, key.pause_until) = (false, now.elapsed + PAUSE);
            key.settling += u32::from(may_have_happened);
        }
        if may_have_happened {
            self.due.push(Settle { policy: name.0.to_owned(), key: name.1.to_owned(), purchase, cost: 0 });
        }
    }

    /// Notes that a settle was answered, or has failed.
    pub fn settled(&mut self, name: Name<'_>) {
        if let Some(key) = self.key(name) {
            key.settling = key.settling.saturating_sub(1);
        }
    }

    /// Ends the leases of a key whose time is over, and those of which nothing was spent in half of
    /// it.
    pub fn tick(&mut self, name: Name<'_>, now: LeaseInstant) {
        let Self { policies, due, .. } = self;
        if let Some(key) = policies.get_mut(name.0).and_then(|keys| keys.get_mut(name.1)) {
            key.end(name, due, |lease| lease.has_ended(now) || lease.has_cooled(now));
        }
    }

    /// Ends all leases, and buys no more.
    pub fn close(&mut self) {
        self.is_closed = true;
        let Self { policies, due, .. } = self;
        for (policy, keys) in policies {
            keys.iter_mut().for_each(|(name, key)| key.end((policy, name), due, |_| true));
        }
    }

    /// Settles to send.
    pub fn due(&mut self) -> Vec<Settle> {
        std::mem::take(&mut self.due)
    }

    fn key(&mut self, (policy, key): Name<'_>) -> Option<&mut Key> {
        self.policies.get_mut(policy)?.get_mut(key)
    }

    /// Ends the leases of a key that has none any more.
    fn forget(&mut self, name: Name<'_>) {
        let Self { policies, due, keys: count, .. } = self;
        let Some(keys) = policies.get_mut(name.0) else { return };
        if let Some(mut key) = keys.remove(name.1) {
            key.end(name, due, |_| true);
            *count -= 1;
        }
        if keys.is_empty() {
            policies.remove(name.0);
        }
    }

    /// Drops idle keys. Returns whether there is room now.
    fn has_room(&mut self, now: LeaseInstant) -> bool {
        let mut count = 0;
        self.policies.retain(|_, keys| {
            keys.retain(|_, key| !key.is_idle(now));
            count += keys.len();
            !keys.is_empty()
        });
        self.keys = count;
        count < KEYS
    }
}

impl Key {
    fn new(span: u64) -> Self {
        let (demand, hands, is_buying, settling, was_cut, pause_until) = Default::default();
        Self { span, demand, hands, is_buying, settling, was_cut, pause_until }
    }

    /// Ends some leases. Their settles are due.
    fn end(&mut self, name: Name<'_>, due: &mut Vec<Settle>, ends: impl Fn(&Lease) -> bool) {
        let before = due.len();
        due.extend(self.hands.extract_if(.., |lease| ends(lease)).map(|lease| lease.settle(name)));
        self.settling += u32::try_from(due.len() - before).unwrap_or(u32::MAX);
    }

    /// Whether it may buy now. After a purchase that was cut, the share is free once the lease is
    /// settled.
    fn may_buy(&self, now: LeaseInstant) -> bool {
        !self.is_buying
            && now.elapsed >= self.pause_until
            && match &self.hands[..] {
                [] => self.settling == 0 || !self.was_cut,
                [lease] => !self.was_cut && lease.is_nearly_over(now),
                _ => false,
            }
    }

    fn is_idle(&self, now: LeaseInstant) -> bool {
        self.hands.is_empty() && !self.is_buying && self.demand.is_over(self.span, now.elapsed)
    }
}

impl Lease {
    fn has_ended(&self, now: LeaseInstant) -> bool {
        now.since(self.sent) >= self.lasts
    }

    fn has_cooled(&self, now: LeaseInstant) -> bool {
        self.left == self.answer.granted && 2 * now.since(self.sent) >= self.lasts
    }

    fn is_nearly_over(&self, now: LeaseInstant) -> bool {
        self.left <= self.answer.granted / AHEAD || now.since(self.sent) >= self.lasts - self.lasts / AHEAD
    }

    fn settle(&self, (policy, key): Name<'_>) -> Settle {
        let cost = self.answer.granted - self.left;
        Settle { policy: policy.to_owned(), key: key.to_owned(), purchase: self.purchase, cost }
    }
}

/// The units that a key asks for in a span. It weighs the present and the previous span.
#[derive(Debug, Clone, Copy, Default)]
struct Demand {
    /// The number of the present span.
    span: u64,
    present: u64,
    previous: u64,
}

impl Demand {
    /// Counts a cost. Returns the demand in units a span.
    fn add(&mut self, span: u64, now: u64, cost: u64) -> u64 {
        let number = now / span;
        if number != self.span {
            self.previous = if number == self.span + 1 { self.present } else { 0 };
            (self.span, self.present) = (number, 0);
        }
        self.present = self.present.saturating_add(cost);
        let rest = u128::from(self.previous) * u128::from(span - now % span) / u128::from(span);
        self.present.saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    fn is_over(&self, span: u64, now: u64) -> bool {
        now / span > self.span + 1
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instant(step: &Value) -> LeaseInstant {
        let at = step["at"].as_u64().unwrap();
        LeaseInstant { elapsed: 1000 * at, wall: 1000 * step["wall"].as_u64().unwrap_or(at) }
    }

    /// Plays the cases that the clients of all languages share.
    struct Player {
        hands: Hands,
        /// The purchases from 1 on: their keys, orders and instants.
        orders: Vec<(String, Order, LeaseInstant)>,
    }

    impl Player {
        /// Returns what the step tells beside its operation.
        fn play(&mut self, step: &Value) -> Value {
            let now = instant(step);
            let mut told = json!({});
            let units = |value: &Value| value.as_u64().unwrap();
            if let Some(check) = step.get("check") {
                let (key, cost) = (check["key"].as_str().unwrap(), units(&check["cost"]));
                let (paid, order) = self.hands.check(("p", key), cost, now);
                told["paid"] = paid.map_or(json!(false), |paid| json!(paid.answer.remaining.unwrap() + paid.left));
                told["buy"] = order.map_or(Value::Null, |order| json!(order.units));
                self.orders.extend(order.map(|order| (key.to_owned(), order, now)));
            } else if let Some(answered) = step.get("answered") {
                let charged = if answered["allowed"] == true { units(&answered["cost"]) } else { 0 };
                let name = ("p", answered["key"].as_str().unwrap());
                self.hands.answered(name, charged, answered["span"].as_u64(), now);
            } else if let Some(bought) = step.get("bought") {
                let (key, order, sent) = &self.orders[units(&bought["purchase"]) as usize - 1];
                let answer = json!({
                    "granted": bought["granted"], "spend_within_ms": bought["within"], "remaining": bought["remaining"],
                    "retry_after_ms": bought["retry"], "source": "store"
                });
                let answer = serde_json::from_value(answer).unwrap();
                self.hands.bought(("p", key), *order, *sent, answer, now);
            } else if let Some(failed) = step.get("failed") {
                let (key, order, _) = &self.orders[units(&failed["purchase"]) as usize - 1];
                self.hands.failed(("p", key), order.purchase, failed["unknown"] == true, now);
            } else if let Some(purchase) = step.get("settled") {
                self.hands.settled(("p", &self.orders[units(purchase) as usize - 1].0));
            } else if step.get("tick").is_some() {
                for key in ["k", "l"] {
                    self.hands.tick(("p", key), now);
                }
            } else if step.get("close").is_some() {
                self.hands.close();
            } else {
                assert_eq!(step["fork"], true, "an unknown step: {step}");
                self.hands = Hands::default();
            }
            let mut due = self.hands.due();
            due.sort_by_key(|settle| settle.purchase);
            if !due.is_empty() {
                told["due"] = due.iter().map(|settle| json!([settle.purchase, settle.cost])).collect();
            }
            told
        }
    }

    #[test]
    fn shared_cases() {
        let cases: Value = serde_json::from_str(include_str!("../../lease-cases.json")).unwrap();
        for case in cases["cases"].as_array().unwrap() {
            let mut player = Player { hands: Hands::default(), orders: Vec::new() };
            for step in case["steps"].as_array().unwrap() {
                let told = player.play(step);
                for member in ["paid", "buy", "due"] {
                    assert_eq!(told.get(member), step.get(member), "{}: {member} of {step}", case["name"]);
                }
            }
        }
    }

    #[test]
    fn keys_are_bounded_and_idle_ones_make_room() {
        let (mut hands, span) = (Hands::default(), Some(1000));
        let at = |ms: u64| LeaseInstant { elapsed: 1000 * ms, wall: 1000 * ms };
        (0..2 * KEYS).for_each(|key| hands.answered(("p", &key.to_string()), 1, span, at(5000)));
        assert_eq!((hands.keys, hands.policies["p"].len()), (KEYS, KEYS));
        hands.answered(("q", "k"), 1, span, at(7000));
        assert_eq!((hands.keys, hands.policies.contains_key("p")), (1, false));
    }
}
