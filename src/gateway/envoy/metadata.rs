//! The dynamic metadata of an answer, as the reference writes it: the request, and the merged
//! `metadata` of the rules whose descriptors passed. Envoy's filters and routes can read it.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::decide::Verdict;
use super::messages::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::plan::Plan;
use crate::config::envoy::Unit;

/// The metadata of the answer with one verdict for each counted descriptor. None unless a counted
/// descriptor has metadata.
pub(super) fn of(request: &RateLimitRequest, plan: &Plan, verdicts: &[Verdict]) -> Option<Struct> {
    plan.counted().find(|counted| counted.metadata.is_some())?;
    let mut passed = Struct::default();
    for (counted, verdict) in plan.counted().zip(verdicts) {
        if let Some(metadata) = counted.metadata.as_ref().filter(|_| !verdict.over) {
            merge(&mut passed, metadata);
        }
    }
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut members = vec![("domain", text(&request.domain)), ("descriptors", list(descriptors))];
    if request.hits_addend > 0 {
        members.push(("hitsAddend", number(request.hits_addend.into())));
    }
    if !passed.fields.is_empty() {
        members.push(("metadata", Value { kind: Some(Kind::StructValue(passed)) }));
    }
    Some(members_of(members))
}

/// Adds the members of `other`. A known name keeps its value, but two structs are merged.
fn merge(into: &mut Struct, other: &Struct) {
    for (name, value) in &other.fields {
        match (into.fields.get_mut(name).map(|known| &mut known.kind), &value.kind) {
            (None, _) => _ = into.fields.insert(name.clone(), value.clone()),
            (Some(Some(Kind::StructValue(known))), Some(Kind::StructValue(new))) => merge(known, new),
            _ => {}
        }
    }
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entry = |Entry { key, value }: &Entry| text(&format!("{key}={value}"));
    let mut members = vec![("entries", list(descriptor.entries.iter().map(entry).collect()))];
    if let Some(limit) = descriptor.limit {
        members.push(("limit", text(&shown(limit))));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "a Struct has only doubles")]
        members.push(("hitsAddend", number(hits as f64)));
    }
    Value { kind: Some(Kind::StructValue(members_of(members))) }
}

/// A limit in the text format of protocol buffers, without fields that have their default.
fn shown(RateLimitOverride { requests_per_unit, unit }: RateLimitOverride) -> String {
    let requests = (requests_per_unit > 0).then(|| format!("requests_per_unit:{requests_per_unit}"));
    let unit = Unit::try_from(unit).ok().map(|unit| format!("unit:{}", unit.name().to_uppercase()));
    requests.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

fn members_of(members: Vec<(&str, Value)>) -> Struct {
    Struct { fields: members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}
