//! The quotas of a policy: `1000 per 1s` or `{name: burst, limit: 1000, per: 1s}`. A token bucket
//! has `{rate: 10 per 1s, burst: 20}`.

use std::num::NonZeroU64;

use crate::limit::bucket::{MAX_DEBT, Terms};
use crate::limit::calendar::{Calendar, UTC, Unit};
use crate::limit::quota::{Anchor, MAX_QUOTAS, MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, Rate, Rule};
use crate::limit::time::{Micros, span_text};

use super::counter;
use super::duration::{parse_by_clock, parse_within};
use super::node::{Node, Value};
use super::scalar::{digits, excerpt};
use super::settings;
use super::zone::is_utc;

/// How the quotas of a policy are written and interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A limit per window, counted by this rule.
    Window(Rule),
    /// A limit per window by the clock; days, weeks, months and years follow this time zone.
    Clock(&'static str),
    /// A rate and a burst.
    Bucket,
}

impl Form {
    /// The zone that inline quotas count by.
    pub(super) fn zone(self) -> Option<&'static str> {
        match self {
            Self::Clock(zone) => Some(zone),
            Self::Window(_) | Self::Bucket => None,
        }
    }
}

/// A window as written: its length, and its unit if that is one of the calendar.
type Window = (Micros, Option<Unit>);

/// The readable parts of one quota; each missing part has its fault.
#[derive(Debug)]
struct Draft<'a> {
    node: &'a Node,
    name: Option<&'a str>,
    limit: Option<NonZeroU64>,
    /// The window, or the duration in a rate.
    window: Option<Window>,
    /// The tokens that a bucket refills in that duration.
    units: Option<NonZeroU64>,
}

/// The quotas listed at `node`; none if one of them has a fault.
pub(super) fn quotas(node: &Node, form: Form) -> Option<Vec<Quota>> {
    let items = node.list("[1000 per 1s, 5000 per 10s]")?;
    if items.is_empty() || items.len() > MAX_QUOTAS {
        node.note(format!("a policy has 1 to {MAX_QUOTAS} quotas, not {}", items.len()));
    }
    let drafts: Vec<Draft<'_>> = items.iter().filter_map(|item| draft(item, form)).collect();
    refuse_duplicates(&drafts, form);
    let quotas: Vec<Quota> = drafts.into_iter().filter_map(|draft| draft.quota(form)).collect();
    (quotas.len() == items.len()).then(|| counter::with_longest(quotas))
}

impl Draft<'_> {
    fn quota(self, form: Form) -> Option<Quota> {
        let (name, limit, (window, unit)) = (self.name?.to_owned(), self.limit?, self.window?);
        let rate = match form {
            Form::Window(rule) => {
                self.node.noted(counter::check_parts(rule, window))?;
                return Some(Quota { name, limit, window, rule });
            }
            Form::Clock(zone) => {
                let rule = Rule::FixedWindow(anchor(unit, zone)?);
                return Some(Quota { name, limit, window, rule });
            }
            Form::Bucket => Rate { units: self.units?, per: window },
        };
        let most = MAX_DEBT / 2 / Terms::of(rate).price;
        let refuse = || format!("at this rate a burst of more than {most} cannot be counted exactly");
        self.node.noted(Quota::bucket(name, rate, limit).ok_or_else(refuse))
    }

    /// The rate of a token bucket, in lowest terms.
    fn terms(&self) -> Option<Terms> {
        let (units, (per, _)) = (self.units?, self.window?);
        Some(Terms::of(Rate { units, per }))
    }

    /// burst / rate of a token bucket.
    fn fill_time(&self) -> Option<FillTime> {
        let (of, (per, _)) = (u128::from(self.units?.get()), self.window?);
        let full = u128::from(self.limit?.get()) * u128::from(per);
        Some(FillTime { whole: full / of, rest: full % of, of })
    }
}

/// Whole us, and a fraction of one: `rest / of`.
#[derive(Debug, Clone, Copy)]
struct FillTime {
    whole: u128,
    rest: u128,
    /// At most [`MAX_UNITS`], so that products of two are exact.
    of: u128,
}

impl FillTime {
    /// Rounded up, us.
    fn span(self) -> Micros {
        Micros::try_from(self.whole + u128::from(self.rest > 0)).unwrap_or(Micros::MAX)
    }
}

impl PartialEq for FillTime {
    fn eq(&self, other: &Self) -> bool {
        self.whole == other.whole && self.rest * other.of == other.rest * self.of
    }
}

fn anchor(unit: Option<Unit>, zone: &str) -> Option<Anchor> {
    match unit {
        None => Some(Anchor::Clock),
        Some(unit) => Calendar::new(unit, zone).map(Anchor::Calendar),
    }
}

fn draft(node: &Node, form: Form) -> Option<Draft<'_>> {
    match (&node.value, form) {
        (Value::Mapping(_), Form::Bucket) => Some(bucket(node)),
        (_, Form::Bucket) => node.refuse("a quota such as `{rate: 10 per 1s, burst: 20}`"),
        (Value::Text { text, .. }, _) => {
            // Named after its window as written.
            let read = per(text).ok_or_else(|| format!("a quota reads like `1000 per 1s`, not `{}`", excerpt(text)));
            let (limit, per) = node.noted(read)?;
            let (limit, window) = (units(limit, node), window(per, form, node));
            Some(Draft { node, name: Some(per), limit, window, units: None })
        }
        (Value::Mapping(_), _) => Some(long(node, form)),
        _ => node.refuse("a quota such as `1000 per 1s`"),
    }
}

/// `{rate: 10 per 1s, burst: 20}`, named after the duration in its rate.
fn bucket(node: &Node) -> Draft<'_> {
    let section = node.section(&settings::bucket::SHAPE);
    for member in ["limit", "per"].into_iter().filter_map(|key| section.entry(key)) {
        member.note(format!("`{}` belongs to a window: a token bucket has `rate` and `burst`", member.key));
    }
    let rate = section.required("rate", "a token bucket needs `rate`, such as `rate: 10 per 1s`");
    let burst = section.required("burst", "a token bucket needs `burst`, such as `burst: 20`");
    let limit = burst.and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS)?));
    let read = rate.and_then(|node| {
        let text = node.text("a rate such as `10 per 1s`")?;
        let read = per(text).ok_or_else(|| format!("a rate reads like `10 per 1s`, not `{}`", excerpt(text)));
        Some((node, node.noted(read)?))
    });
    let name = section.member("name").map_or(read.map(|(_, (_, per))| per), Node::identifier);
    let units = read.and_then(|(node, (amount, _))| units(amount, node));
    let window = read.and_then(|(node, (_, per))| window(per, Form::Bucket, node));
    Draft { node, name, limit, window, units }
}

/// The two sides of `1000 per 1s`.
fn per(text: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [amount, "per", span] => Some((amount, span)),
        _ => None,
    }
}

/// `{name: burst, limit: 20, per: 1s}`.
fn long(node: &Node, form: Form) -> Draft<'_> {
    let section = node.section(&settings::window::SHAPE);
    let of_bucket: Vec<_> = ["rate", "burst"].into_iter().filter_map(|key| section.entry(key)).collect();
    for member in &of_bucket {
        let key = &member.key;
        member.note(format!("`{key}` belongs to `algorithm: token-bucket`: a window has `limit` and `per`"));
    }
    if of_bucket.is_empty() {
        section.required("limit", "a quota needs `limit`, such as `limit: 20`");
        section.required("per", "a quota needs `per`, such as `per: 1s`");
    }
    let limit = section.member("limit").and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS)?));
    let per = section.member("per").and_then(|node| Some((node, node.text("a duration such as `1s`")?)));
    let window = per.and_then(|(node, text)| window(text, form, node));
    let name = section.member("name").map_or(per.map(|(_, text)| text), Node::identifier);
    Draft { node, name, limit, window, units: None }
}

fn units(text: &str, node: &Node) -> Option<NonZeroU64> {
    let limit = digits(text).filter(|limit| *limit <= MAX_UNITS).and_then(NonZeroU64::new);
    let refuse = || format!("a limit must be an integer from 1 to {MAX_UNITS}, not `{}`", excerpt(text));
    node.noted(limit.ok_or_else(refuse))
}

fn window(text: &str, form: Form, node: &Node) -> Option<Window> {
    let read = match form {
        // Days in UTC need no calendar: they begin at the multiples of their length.
        Form::Clock(UTC) => parse_by_clock(text).map(|(window, unit)| (window, unit.filter(|unit| *unit != Unit::Day))),
        Form::Clock(_) => parse_by_clock(text),
        Form::Window(_) | Form::Bucket => parse_within(text, &(MIN_WINDOW..=MAX_WINDOW)).map(|window| (window, None)),
    };
    node.noted(read.map_err(|message| format!("the window {message}")))
}

/// Notes quotas with the same window, rate or name. The window of a token bucket is the time in
/// which it fills.
fn refuse_duplicates(drafts: &[Draft<'_>], form: Form) {
    // Days in an alias of UTC are windows of 24 hours, too.
    let counted = |window: Option<Window>| match (form, window) {
        (Form::Clock(zone), Some((span, Some(Unit::Day)))) if is_utc(zone) => Some((span, None)),
        (_, window) => window,
    };
    for (index, draft) in drafts.iter().enumerate() {
        let Draft { node, name, window, units, .. } = draft;
        let before = || drafts.iter().take(index);
        let is_alike = |before: &Draft<'_>| match (before.terms(), draft.terms()) {
            (Some(before), Some(terms)) => before == terms,
            _ => counted(before.window) == counted(*window) && before.units == *units,
        };
        if let Some((span, unit)) = window.filter(|_| before().any(is_alike)) {
            let length = unit.map_or_else(|| span_text(span), |unit| format!("1{}", unit.name()));
            let what =
                units.map_or_else(|| format!("window of {length}"), |units| format!("rate of {units} per {length}"));
            node.note(format!("a second quota for a {what}: keep the lower one"));
        } else if let Some(time) = draft.fill_time()
            && before().any(|before| before.fill_time() == Some(time))
        {
            let span = span_text(time.span());
            node.note(format!("a second quota for a window of {span} (burst / rate): keep the lower one"));
        } else if let Some(name) = name.filter(|name| before().any(|before| before.name == Some(name))) {
            node.note(format!("a second quota named `{}`: give each its own name", excerpt(name)));
        }
    }
}
