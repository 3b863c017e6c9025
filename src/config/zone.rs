//! `timezone`: the zone whose days, weeks, months and years a policy counts by.

use crate::limit::calendar::{Calendar, UTC, Unit, zones};
use crate::limit::policy::Algorithm;
use crate::limit::quota::{Anchor, Quota, Rule};

use super::node::{Member, Node};
use super::quota::Form;
use super::scalar::{excerpt, nearest};

/// Aliases of UTC, and zones that have equalled it since 1970.
const LIKE_UTC: &str = "Etc/UTC Etc/UCT Etc/Universal Etc/Zulu UCT Universal Zulu Etc/GMT Etc/GMT0 Etc/GMT+0 \
    Etc/GMT-0 Etc/Greenwich GMT GMT0 GMT+0 GMT-0 Greenwich";

/// Whether the days of `zone` are the days of UTC.
pub(super) fn is_utc(zone: &str) -> bool {
    zone == UTC || LIKE_UTC.split(' ').any(|alias| alias == zone)
}

/// The form with the time zone that `node` names, if it can have one.
pub(super) fn form(form: Form, algorithm: Option<Algorithm>, node: &Node) -> Form {
    let zone = zone(node);
    match form {
        Form::Clock(utc) => return Form::Clock(zone.unwrap_or(utc)),
        // The algorithm has its fault already.
        _ if algorithm.is_none() => {}
        Form::Window(Rule::FixedWindow(_)) => {
            node.note("`timezone` is for windows by the clock, not for `anchor: first-hit`");
        }
        _ => node.note("`timezone` is for windows by the clock: add `algorithm: fixed-window`"),
    }
    form
}

/// Notes a time zone that no quota of the policy or of an override depends on.
pub(super) fn refuse_idle(member: Option<&Member>, form: Form, is_needed: bool) {
    if let (Some(member), Form::Clock(_), false) = (member, form, is_needed) {
        member.note("`timezone` matters to windows of `1d`, `1w`, `1mo` and `1y` only, and here is none");
    }
}

/// Whether one of the quotas depends on the time zone of the form. Unreadable quotas may depend on
/// it.
pub(super) fn is_needed(form: Form, quotas: Option<&[Quota]>) -> bool {
    let by_calendar = |quota: &Quota| {
        // Windows of days in UTC have no calendar, so only their length reveals them.
        let day = form == Form::Clock(UTC) && quota.window == Unit::Day.nominal();
        matches!(quota.rule, Rule::FixedWindow(Anchor::Calendar(_))) || day
    };
    quotas.is_none_or(|quotas| quotas.iter().any(by_calendar))
}

/// Reads the name of a time zone.
fn zone(node: &Node) -> Option<&'static str> {
    let what = "an IANA time zone such as `Europe/Berlin`";
    let text = node.text(what)?;
    if let Some(known) = Calendar::new(Unit::Day, text) {
        return Some(known.zone());
    }
    match meant(text, &zones()) {
        Some(meant) => node.note(format!("`timezone` cannot be `{}`: did you mean `{meant}`?", excerpt(text))),
        None => node.must_be(what),
    }
    None
}

/// The zone with a similar name or the same city: `Berlin`.
fn meant<'a>(text: &str, zones: &'a [String]) -> Option<&'a str> {
    let names = || zones.iter().map(String::as_str);
    let city = |zone: &&str| zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(text));
    let alike = || nearest(text, names().filter(|zone| zone.len() > 3));
    names().find(|zone| zone.eq_ignore_ascii_case(text)).or_else(|| names().find(city)).or_else(alike)
}
