//! A node with Envoy's rate limit service, and a client of it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tollgate::gateway::envoy::messages::{
    Code, DescriptorStatus, Entry, HealthCheckRequest, HealthCheckResponse, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse,
};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::support::{Node, TOLLGATE};

/// A node with descriptor files.
pub(crate) struct EnvoyNode {
    pub(crate) node: Node,
    /// `127.0.0.1:port` of the service.
    pub(crate) address: String,
    pub(crate) folder: TempDir,
}

impl EnvoyNode {
    /// A node with `policies`, `more` members of the configuration and of its section `envoy`, and
    /// a file of descriptors.
    pub(crate) fn start(settings: &Settings<'_>) -> Self {
        Self::start_by(Command::new(TOLLGATE), settings)
    }

    /// The same by a command that runs the program, with its own environment.
    pub(crate) fn start_by(program: Command, settings: &Settings<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let Settings { policies, more, envoy, descriptors } = settings;
        std::fs::write(folder.path().join("limits.yaml"), descriptors).unwrap();
        let config = format!(
            "{more}\npolicies:\n  unused: {{quotas: [1 per 1s]}}\n{policies}\nenvoy:\n  listen: 127.0.0.1:0\n  config: [limits.yaml]\n{envoy}\n"
        );
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, config).unwrap();
        let node = Node::start_by(program, &["--config", file.to_str().unwrap()]);
        let address = address(&node);
        Self { node, address, folder }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.address).await
    }
}

/// The parts of a configuration, each indented as it stands in the file.
#[derive(Default)]
pub(crate) struct Settings<'a> {
    pub(crate) policies: &'a str,
    pub(crate) more: &'a str,
    pub(crate) envoy: &'a str,
    pub(crate) descriptors: &'a str,
}

/// The address of the service, by the node's greeting.
pub(crate) fn address(node: &Node) -> String {
    let line = node.greeting.lines().find_map(|line| line.trim().strip_prefix("Envoy ")).expect("it serves Envoy");
    line.trim().split("://").nth(1).unwrap().to_owned()
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Client(Channel);

impl Client {
    pub(crate) async fn connect(address: &str) -> Self {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        Self(channel.connect().await.expect("the service accepts connections"))
    }

    pub(crate) async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.ask_with(tonic::Request::new(request)).await
    }

    pub(crate) async fn ask_with(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        self.call("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", request).await
    }

    pub(crate) async fn health(&self, service: &str) -> Result<HealthCheckResponse, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        self.call("/grpc.health.v1.Health/Check", tonic::Request::new(request)).await
    }

    /// The statuses of a service, one by one.
    pub(crate) async fn watch_health(&self, service: &str) -> Result<Streaming<HealthCheckResponse>, Status> {
        let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Watch");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        Ok(grpc.server_streaming(request, path, codec).await?.into_inner())
    }

    async fn call<Q, A>(&self, path: &'static str, request: tonic::Request<Q>) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
    }
}

/// A descriptor with these entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// The same with its own hits.
pub(crate) fn with_hits(descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

/// The same with its own limit.
pub(crate) fn with_limit(
    descriptor: RateLimitDescriptor,
    requests_per_unit: u32,
    unit: impl Into<i32>,
) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }), ..descriptor }
}

/// A request in the domain `d`.
pub(crate) fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "d".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// The code of each status as text, and the overall one.
pub(crate) fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    let code = |status: &DescriptorStatus| Code::try_from(status.code).unwrap();
    (Code::try_from(response.overall_code).unwrap(), response.statuses.iter().map(code).collect())
}

/// A field that the response adds.
pub(crate) fn header<'a>(response: &'a RateLimitResponse, key: &str) -> Option<&'a str> {
    response
        .response_headers_to_add
        .iter()
        .find(|header| header.key == key)
        .map(|header| header.value.as_str())
}

/// The path of a file of this folder.
pub(crate) fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doors").join(name)
}
