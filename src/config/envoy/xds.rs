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
        let mut writer = Writer { number: 0, reading };
        let descriptors = writer.descriptors(&self.descriptors);
        let mut root = writer.members(Place::Descriptor(0));
        root.text("domain", &self.domain);
        root.add("descriptors", descriptors);
        root.node("the resource")
    }
}

struct Writer<'r> {
    /// Descriptors so far, parents first.
    number: usize,
    /// For the faults of all nodes.
    reading: &'r Rc<Reading>,
}

impl<'r> Writer<'r> {
    fn members(&self, place: Place) -> Members<'r> {
        Members { place, members: Vec::new(), reading: self.reading }
    }

    fn descriptors(&mut self, descriptors: &[RateLimitDescriptor]) -> Option<Value> {
        let items: Vec<Node> = descriptors.iter().map(|descriptor| self.descriptor(descriptor)).collect();
        (!items.is_empty()).then_some(Value::List(items))
    }

    fn descriptor(&mut self, descriptor: &RateLimitDescriptor) -> Node {
        self.number += 1;
        let mut members = self.members(Place::Descriptor(self.number));
        members.text("key", &descriptor.key);
        members.text("value", &descriptor.value);
        members.add("rate_limit", descriptor.rate_limit.as_ref().map(|limit| rate_limit(&members, limit)));
        members.flag("shadow_mode", descriptor.shadow_mode);
        members.flag("detailed_metric", descriptor.detailed_metric);
        members.flag("quota_mode", descriptor.quota_mode);
        members.add("metadata", descriptor.metadata.as_ref().map(|metadata| mapping(&members, metadata)));
        members.add("descriptors", self.descriptors(&descriptor.descriptors));
        members.node("a descriptor")
    }
}

/// The value of a `rate_limit`, at the place of `around`.
fn rate_limit(around: &Members<'_>, limit: &RateLimitPolicy) -> Value {
    let mut members = around.inner();
    if limit.unit != 0 || !limit.unlimited {
        let unit = match limit.unit {
            0 => "Unknown".to_owned(),
            number => Unit::try_from(number).map_or_else(|_| number.to_string(), |unit| unit.name().to_owned()),
        };
        members.add("unit", Some(plain(unit)));
    }
    if !limit.unlimited {
        members.add("requests_per_unit", Some(plain(limit.requests_per_unit.to_string())));
    }
    members.flag("unlimited", limit.unlimited);
    members.text("name", &limit.name);
    let replaces = limit.replaces.iter().map(|replaced| {
        let mut members = around.inner();
        members.text("name", &replaced.name);
        members.node("an entry of `replaces`")
    });
    let replaces: Vec<Node> = replaces.collect();
    members.add("replaces", (!replaces.is_empty()).then_some(Value::List(replaces)));
    Value::Mapping(members.members)
}

fn mapping(around: &Members<'_>, fields: &Struct) -> Value {
    let mut members = around.inner();
    for (name, field) in &fields.fields {
        members.add(name, Some(value(around, field)));
    }
    Value::Mapping(members.members)
}

fn value(around: &Members<'_>, value: &ProtoValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Empty,
        Some(Kind::NumberValue(number)) => plain(number.to_string()),
        Some(Kind::StringValue(text)) => Value::Text { text: text.clone(), quoted: true },
        Some(Kind::BoolValue(flag)) => plain(flag.to_string()),
        Some(Kind::StructValue(fields)) => mapping(around, fields),
        Some(Kind::ListValue(items)) => {
            let item = |item| around.at("an entry", self::value(around, item));
            Value::List(items.values.iter().map(item).collect())
        }
    }
}

fn plain(text: String) -> Value {
    Value::Text { text, quoted: false }
}

/// The members of a mapping that is being written.
struct Members<'r> {
    place: Place,
    members: Vec<Member>,
    reading: &'r Rc<Reading>,
}

impl Members<'_> {
    /// A mapping inside of this one.
    fn inner(&self) -> Self {
        Self { members: Vec::new(), ..*self }
    }

    fn at(&self, name: &str, value: Value) -> Node {
        Node { place: self.place, name: name.to_owned(), value, reading: self.reading.clone() }
    }

    fn add(&mut self, key: &str, value: Option<Value>) {
        let Some(value) = value else { return };
        let node = self.at(&format!("`{key}`"), value);
        self.members.push(Member { place: self.place, key: key.to_owned(), node });
    }

    fn text(&mut self, key: &str, text: &str) {
        let value = Value::Text { text: text.to_owned(), quoted: true };
        self.add(key, (!text.is_empty()).then_some(value));
    }

    fn flag(&mut self, key: &str, is_set: bool) {
        self.add(key, is_set.then(|| plain(is_set.to_string())));
    }

    fn node(mut self, name: &str) -> Node {
        let members = std::mem::take(&mut self.members);
        self.at(name, Value::Mapping(members))
    }
}
