//! The messages of `envoy.service.discovery.v3`, as far as this node uses them.

use prost::Message;
use prost_types::Any;

/// `DiscoveryRequest`: a subscription, an acceptance, or a rejection with `error_detail`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version in force; empty before the first one of a stream.
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeInfo>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this request answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    #[prost(string, tag = "7")]
    pub user_agent_version: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `DiscoveryResponse`: the whole set of resources.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
}
