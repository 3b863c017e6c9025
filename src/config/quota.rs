//! The quotas of a policy: `1000 per 1s` or `{name: burst, limit: 1000, per: 1s}`. A token bucket
//! has `{rate: 10 per 1s, burst: 20}`.

use std::num::NonZeroU64;

use crate::limit::bucket::{MAX_DEBT, Terms};
use crate::limit::calendar::{Calendar, UTC, Unit};
use crate::limit::quota::{Anchor, MAX_QUOTAS, MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, Rate, Rule};
use crate::limit::time::{Micros, span_text};

use super::counter;
use super::duration::{parse_by_clock, parse_within};
use super::fault::{Faults, Place};
use super::form::Form;
use super::raw::{Member, Node, Value};
use super::scalar::{digits, excerpt};
use super::section::Section;
use super::settings;
use super::zone::is_utc;

/// A window as written: its length, and its unit if that is one of the calendar.
type Window = (Micros, Option<Unit>);

/// The readable parts of one quota; each missing part has its fault.
#[derive(Debug)]
struct Draft<'a> {
    place: Place,
    name: Option<&'a str>,
    limit: Option<NonZeroU64>,
    /// The window, or the duration in a rate.
    window: Option<Window>,
    /// The tokens that a bucket refills in that duration.
    units: Option<NonZeroU64>,
}

/// The quotas listed at `node`; none if one of them has a fault.
pub(super) fn quotas(node: &Node, form: Form, faults: &mut Faults) -> Option<Vec<Quota>> {
    let items = node.list("[1000 per 1s, 5000 per 10s]", faults)?;
    if items.is_empty() || items.len() > MAX_QUOTAS {
        faults.note(node.place, format!("a policy has 1 to {MAX_QUOTAS} quotas, not {}", items.len()));
    }
    let drafts: Vec<Option<Draft<'_>>> = items.iter().map(|item| draft(item, form, faults)).collect();
    refuse_duplicates(&drafts.iter().flatten().collect::<Vec<_>>(), form, faults);
    // Collects all of them first, so that each reports its fault.
    let quotas: Vec<Option<Quota>> = drafts.into_iter().map(|draft| draft?.quota(form, faults)).collect();
    Some(counter::with_longest(quotas.into_iter().collect::<Option<_>>()?))
}

impl Draft<'_> {
    fn quota(self, form: Form, faults: &mut Faults) -> Option<Quota> {
        let (name, limit, (window, unit)) = (self.name?.to_owned(), self.limit?, self.window?);
        let rule = match form {
            Form::Window(rule) => {
                counter::refuse_parts(rule, window, self.place, faults)?;
                return Some(Quota { name, limit, window, rule });
            }
            Form::Clock(zone) => {
                let rule = Rule::FixedWindow(anchor(unit, zone)?);
                return Some(Quota { name, limit, window, rule });
            }
            Form::Bucket => Rate { units: self.units?, per: window },
        };
        let Some(window) = Terms::of(rule).fill_time(limit) else {
            let most = MAX_DEBT / 2 / Terms::of(rule).price;
            faults.note(self.place, format!("at this rate a burst of more than {most} cannot be counted exactly"));
            return None;
        };
        Some(Quota { name, limit, window, rule: Rule::TokenBucket(rule) })
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

fn draft<'a>(node: &'a Node, form: Form, faults: &mut Faults) -> Option<Draft<'a>> {
    match (&node.value, form) {
        (Value::Mapping(_), Form::Bucket) => bucket(node, faults),
        (_, Form::Bucket) => {
            node.must_be("a quota such as `{rate: 10 per 1s, burst: 20}`", faults);
            None
        }
        (Value::Text { text, .. }, _) => short(node.place, text, form, faults),
        (Value::Mapping(_), _) => long(node, form, faults),
        _ => {
            node.must_be("a quota such as `1000 per 1s`", faults);
            None
        }
    }
}

/// `1000 per 1s`, named after its window as written.
fn short<'a>(place: Place, text: &'a str, form: Form, faults: &mut Faults) -> Option<Draft<'a>> {
    let Some((limit, per)) = per(text) else {
        faults.note(place, format!("a quota reads like `1000 per 1s`, not `{}`", excerpt(text)));
        return None;
    };
    let (limit, window) = (units(limit, place, faults), window(per, form, place, faults));
    Some(Draft { place, name: Some(per), limit, window, units: None })
}

/// `{rate: 10 per 1s, burst: 20}`, named after the duration in its rate.
fn bucket<'a>(node: &'a Node, faults: &mut Faults) -> Option<Draft<'a>> {
    let section = Section::open(node, &settings::bucket::SHAPE, faults)?;
    for Member { place, key, .. } in ["limit", "per"].into_iter().filter_map(|key| section.entry(key)) {
        faults.note(*place, format!("`{key}` belongs to a window: a token bucket has `rate` and `burst`"));
    }
    let rate = section.required("rate", "a token bucket needs `rate`, such as `rate: 10 per 1s`", faults);
    let burst = section.required("burst", "a token bucket needs `burst`, such as `burst: 20`", faults);
    let limit = burst.and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS, faults)?));
    let rate = rate.and_then(|node| Some((node.text("a rate such as `10 per 1s`", faults)?, node.place)));
    let read = rate.and_then(|(text, place)| {
        let read = per(text);
        if read.is_none() {
            faults.note(place, format!("a rate reads like `10 per 1s`, not `{}`", excerpt(text)));
        }
        Some((read?, place))
    });
    let name = section.member("name").map(|node| node.identifier(faults));
    let name = name.unwrap_or(read.map(|((_, per), _)| per));
    let units = read.and_then(|((amount, _), place)| units(amount, place, faults));
    let window = read.and_then(|((_, per), place)| window(per, Form::Bucket, place, faults));
    Some(Draft { place: node.place, name, limit, window, units })
}

/// The two sides of `1000 per 1s`.
fn per(text: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [amount, "per", span] => Some((amount, span)),
        _ => None,
    }
}

fn long<'a>(node: &'a Node, form: Form, faults: &mut Faults) -> Option<Draft<'a>> {
    let section = Section::open(node, &settings::window::SHAPE, faults)?;
    if !refuse_bucket(&section, faults) {
        section.required("limit", "a quota needs `limit`, such as `limit: 20`", faults);
        section.required("per", "a quota needs `per`, such as `per: 1s`", faults);
    }
    let limit = section.member("limit").and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS, faults)?));
    let per = section
        .member("per")
        .and_then(|node| Some((node.text("a duration such as `1s`", faults)?, node.place)));
    let window = per.and_then(|(text, place)| window(text, form, place, faults));
    let name = section.member("name").map(|node| node.identifier(faults));
    let name = name.unwrap_or(per.map(|(text, _)| text));
    Some(Draft { place: node.place, name, limit, window, units: None })
}

/// Notes the members of a token bucket and returns whether there are any.
fn refuse_bucket(section: &Section<'_>, faults: &mut Faults) -> bool {
    let members: Vec<_> = ["rate", "burst"].into_iter().filter_map(|key| section.entry(key)).collect();
    for Member { place, key, .. } in &members {
        let sentence = format!("`{key}` belongs to `algorithm: token-bucket`: a window has `limit` and `per`");
        faults.note(*place, sentence);
    }
    !members.is_empty()
}

fn units(text: &str, place: Place, faults: &mut Faults) -> Option<NonZeroU64> {
    let limit = digits(text).filter(|limit| *limit <= MAX_UNITS).and_then(NonZeroU64::new);
    if limit.is_none() {
        faults.note(place, format!("a limit must be an integer from 1 to {MAX_UNITS}, not `{}`", excerpt(text)));
    }
    limit
}

fn window(text: &str, form: Form, place: Place, faults: &mut Faults) -> Option<Window> {
    let read = match form {
        // Days in UTC need no calendar: they begin at the multiples of their length.
        Form::Clock(UTC) => parse_by_clock(text).map(|(window, unit)| (window, unit.filter(|unit| *unit != Unit::Day))),
        Form::Clock(_) => parse_by_clock(text),
        Form::Window(_) | Form::Bucket => parse_within(text, &(MIN_WINDOW..=MAX_WINDOW)).map(|window| (window, None)),
    };
    read.map_err(|message| faults.note(place, format!("the window {message}"))).ok()
}

/// Notes quotas with the same window, rate or name. The window of a token bucket is the time in
/// which it fills.
fn refuse_duplicates(drafts: &[&Draft<'_>], form: Form, faults: &mut Faults) {
    // Days in an alias of UTC are windows of 24 hours, too.
    let counted = |window: Option<Window>| match (form, window) {
        (Form::Clock(zone), Some((span, Some(Unit::Day)))) if is_utc(zone) => Some((span, None)),
        (_, window) => window,
    };
    for (index, draft) in drafts.iter().enumerate() {
        let Draft { place, name, window, units, .. } = draft;
        let before = || drafts.iter().take(index);
        let is_alike = |before: &&Draft<'_>| match (before.terms(), draft.terms()) {
            (Some(before), Some(terms)) => before == terms,
            _ => counted(before.window) == counted(*window) && before.units == *units,
        };
        if let Some((span, unit)) = window.filter(|_| before().any(is_alike)) {
            let length = unit.map_or_else(|| span_text(span), |unit| format!("1{}", unit.name()));
            let what =
                units.map_or_else(|| format!("window of {length}"), |units| format!("rate of {units} per {length}"));
            faults.note(*place, format!("a second quota for a {what}: keep the lower one"));
        } else if let Some(time) = draft.fill_time()
            && before().any(|before| before.fill_time() == Some(time))
        {
            let span = span_text(time.span());
            faults.note(*place, format!("a second quota for a window of {span} (burst / rate): keep the lower one"));
        } else if let Some(name) = name.filter(|name| before().any(|before| before.name == Some(name))) {
            faults.note(*place, format!("a second quota named `{}`: give each its own name", excerpt(name)));
        }
    }
}
