//! A control plane that sends the descriptors by xDS: where it is, and the resources that it sends.
//!
//! A resource is a rule file of the reference as protobuf, `ratelimit.config.ratelimit.v3`. It
//! becomes the tree that a file has, so one reader checks both.

use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value as ProtoValue};

use super::Unit;
use crate::config::credentials::{ClientTls, client_tls};
use crate::config::fault::{Place, Reading};
use crate::config::node::{Member, Node, Value};
use crate::config::settings::envoy_xds::{NODE_ID, READY_WITHOUT_RULES, SHAPE, TLS, XDS};
use crate::config::settings::envoy_xds_tls;
use crate::config::url;

/// The control plane of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsConfig {
    /// `host:port`.
    pub server: String,
    pub node_id: String,
    /// None: plain text.
    pub tls: Option<XdsTls>,
    /// Whether the node is ready before it has rules.
    pub ready_without_rules: bool,
}

/// TLS towards a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsTls {
    pub files: ClientTls,
    /// The name in its certificate, if it is not the host.
    pub server_name: Option<String>,
}

/// All resources of one response: the whole set of rules.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuleSet(pub Vec<RateLimitConfig>);

impl RuleSet {
    /// The most parts of a set. A part takes some kilobytes while the node reads it, and a few bytes
    /// in a message.
    pub const MOST: usize = 100_000;

    /// Number of descriptors, entries of `replaces`, and values of `metadata`.
    pub fn parts(&self) -> usize {
        self.0.iter().map(|config| 1 + parts(&config.descriptors)).sum()
    }
}

fn parts(descriptors: &[RateLimitDescriptor]) -> usize {
    let of_one = |descriptor: &RateLimitDescriptor| {
        let replaces = descriptor.rate_limit.as_ref().map_or(0, |limit| limit.replaces.len());
        1 + replaces + descriptor.metadata.as_ref().map_or(0, values) + parts(&descriptor.descriptors)
    };
    descriptors.iter().map(of_one).sum()
}

fn values(fields: &Struct) -> usize {
    fn of_one(value: &ProtoValue) -> usize {
        1 + match &value.kind {
            Some(Kind::StructValue(fields)) => values(fields),
            Some(Kind::ListValue(items)) => items.values.iter().map(of_one).sum(),
            _ => 0,
        }
    }
    fields.fields.values().map(of_one).sum()
}

/// One domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RateLimitPolicy {
    /// The number of a [`Unit`].
    #[prost(int32, tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Reads `config` if it is a mapping; none after a fault.
pub(super) fn xds(node: &Node) -> Option<XdsConfig> {
    let section = node.section(&SHAPE);
    let server = section.required(XDS.name, "`config` needs `xds`, such as `xds: \"envoy-gateway:18001\"`");
    let server = server.and_then(|node| node.parsed("`host:port` such as `envoy-gateway:18001`", url::address));
    let sentence = "`config` needs `node_id`, the name of this node for the control plane, such as `envoy-ratelimit`";
    let node_id = section.required(NODE_ID.name, sentence);
    let node_id = node_id.and_then(|node| node.word("a name such as `envoy-ratelimit`"));
    let tls = section.member(TLS.name).map(tls);
    Some(XdsConfig {
        ready_without_rules: section.read(&READY_WITHOUT_RULES),
        tls,
        server: server?,
        node_id: node_id?.to_owned(),
    })
}

fn tls(node: &Node) -> XdsTls {
    let section = node.section(&envoy_xds_tls::SHAPE);
    let server_name = section.member(envoy_xds_tls::SERVER_NAME.name).and_then(|node| node.word("a host name"));
    XdsTls { files: client_tls(&section), server_name: server_name.map(str::to_owned) }
}

impl RateLimitConfig {
    /// The name in faults.
    pub(super) fn label(&self) -> Arc<str> {
        format!("resource `{}`", if self.name.is_empty() { &self.domain } else { &self.name }).into()
    }

    /// The resource as the tree of a file. Absent and default values are alike in protobuf, so both
    /// are left out, except for a limit of zero.
    pub(super) fn tree(&self, reading: &Rc<Reading>) -> Node {
        let at = At { place: Place::Descriptor(0), reading };
        let descriptors = descriptors(&self.descriptors, &mut 0, reading);
        at.node("the resource", at.mapping([("domain", text(&self.domain)), ("descriptors", descriptors)]))
    }
}

/// `number` counts the descriptors, parents first.
fn descriptors(all: &[RateLimitDescriptor], number: &mut usize, reading: &Rc<Reading>) -> Option<Value> {
    list(all.iter().map(|descriptor| {
        *number += 1;
        let at = At { place: Place::Descriptor(*number), reading };
        let members = at.mapping([
            ("key", text(&descriptor.key)),
            ("value", text(&descriptor.value)),
            ("rate_limit", descriptor.rate_limit.as_ref().map(|limit| at.rate_limit(limit))),
            ("shadow_mode", flag(descriptor.shadow_mode)),
            ("detailed_metric", flag(descriptor.detailed_metric)),
            ("quota_mode", flag(descriptor.quota_mode)),
            ("metadata", descriptor.metadata.as_ref().map(|metadata| at.fields(metadata))),
            ("descriptors", descriptors(&descriptor.descriptors, number, reading)),
        ]);
        at.node("a descriptor", members)
    }))
}

/// Writes nodes at one place.
#[derive(Clone, Copy)]
struct At<'r> {
    place: Place,
    /// For the faults of all nodes.
    reading: &'r Rc<Reading>,
}

impl At<'_> {
    fn node(self, name: &str, value: Value) -> Node {
        Node { place: self.place, name: name.to_owned(), value, reading: self.reading.clone() }
    }

    /// A mapping of the members that are there.
    fn mapping<'n>(self, members: impl IntoIterator<Item = (&'n str, Option<Value>)>) -> Value {
        let member = |(key, value): (&str, Option<Value>)| {
            Some(Member { place: self.place, key: key.to_owned(), node: self.node(&format!("`{key}`"), value?) })
        };
        Value::Mapping(members.into_iter().filter_map(member).collect())
    }

    fn rate_limit(self, limit: &RateLimitPolicy) -> Value {
        let unit = match limit.unit {
            0 => "Unknown".to_owned(),
            number => Unit::try_from(number).map_or_else(|_| number.to_string(), |unit| unit.name().to_owned()),
        };
        let replaced = |replaced: &RateLimitReplace| {
            self.node("an entry of `replaces`", self.mapping([("name", text(&replaced.name))]))
        };
        self.mapping([
            ("unit", (limit.unit != 0 || !limit.unlimited).then(|| plain(unit))),
            ("requests_per_unit", (!limit.unlimited).then(|| plain(limit.requests_per_unit.to_string()))),
            ("unlimited", flag(limit.unlimited)),
            ("name", text(&limit.name)),
            ("replaces", list(limit.replaces.iter().map(replaced))),
        ])
    }

    fn fields(self, fields: &Struct) -> Value {
        self.mapping(fields.fields.iter().map(|(name, value)| (name.as_str(), Some(self.value(value)))))
    }

    fn value(self, value: &ProtoValue) -> Value {
        match &value.kind {
            None | Some(Kind::NullValue(_)) => Value::Empty,
            Some(Kind::NumberValue(number)) => plain(number.to_string()),
            Some(Kind::StringValue(text)) => Value::Text { text: text.clone(), quoted: true },
            Some(Kind::BoolValue(flag)) => plain(flag.to_string()),
            Some(Kind::StructValue(fields)) => self.fields(fields),
            Some(Kind::ListValue(items)) => {
                Value::List(items.values.iter().map(|item| self.node("an entry", self.value(item))).collect())
            }
        }
    }
}

fn list(items: impl Iterator<Item = Node>) -> Option<Value> {
    let items: Vec<Node> = items.collect();
    (!items.is_empty()).then_some(Value::List(items))
}

fn text(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::Text { text: text.to_owned(), quoted: true })
}

fn flag(is_set: bool) -> Option<Value> {
    is_set.then(|| plain(is_set.to_string()))
}

fn plain(text: String) -> Value {
    Value::Text { text, quoted: false }
}
