//! The member `metadata`: any mapping, as a `google.protobuf.Struct`.

use std::sync::Arc;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};

use super::yaml_1_1;
use crate::config::node::{Member, Node, Value};

/// The metadata at `node`; none if it is empty.
pub(super) fn metadata(node: &Node) -> Option<Arc<Struct>> {
    match &node.value {
        Value::Mapping(members) => Some(Arc::new(mapping(members))),
        Value::Empty => None,
        _ => node.refuse("a mapping such as `{backend: eu}`"),
    }
}

fn mapping(members: &[Member]) -> Struct {
    let fields = members.iter().map(|member| (member.key.clone(), value(&member.node)));
    Struct { fields: fields.collect() }
}

fn value(node: &Node) -> prost_types::Value {
    let kind = match &node.value {
        Value::Empty | Value::Refused => Kind::NullValue(0),
        Value::Text { text, quoted: false } => plain(text),
        Value::Text { text, quoted: true } => Kind::StringValue(text.clone()),
        Value::List(items) => Kind::ListValue(ListValue { values: items.iter().map(value).collect() }),
        Value::Mapping(members) => Kind::StructValue(mapping(members)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// A text without quotes. The reference reads it by YAML 1.1.
fn plain(text: &str) -> Kind {
    if let Some(flag) = yaml_1_1::flag(text) {
        return Kind::BoolValue(flag);
    }
    match yaml_1_1::number(text) {
        Some(number) => Kind::NumberValue(number),
        None => Kind::StringValue(text.to_owned()),
    }
}
