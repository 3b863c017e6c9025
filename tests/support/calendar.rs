//! Policies and subjects for calendar windows.

use jiff::Timestamp;
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::Subject;

use super::steps::{self, policy_of, quota};
use super::unique;

pub(crate) const UNITS: [Unit; 4] = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];

pub(crate) fn micros(instant: &str) -> Micros {
    u64::try_from(instant.parse::<Timestamp>().unwrap().as_microsecond()).unwrap()
}

pub(crate) fn by_calendar(limit: u64, unit: Unit, zone: &str) -> Policy {
    let calendar = Calendar::new(unit, zone).unwrap();
    policy_of(
        Algorithm::FixedWindow,
        vec![quota(limit, unit.nominal(), Rule::FixedWindow(Anchor::Calendar(calendar)))],
    )
}

pub(crate) fn subject(policy: &Policy) -> Subject {
    steps::subject(policy.clone(), &unique("calendar"))
}
