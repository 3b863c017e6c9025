//! A control plane of xDS, which a test tells what to send.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use prost::Message;
use prost_types::Any;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tollgate::config::envoy::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, Unit};
use tollgate::gateway::envoy::xds::messages::{DiscoveryRequest, DiscoveryResponse};
use tollgate::gateway::envoy::xds::{STREAM, TYPE_URL};
use tonic::codegen::{Body, StdError};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::support::free_port;
use crate::support::tls::Authority;

type Answer = Result<DiscoveryResponse, Status>;

/// A server of one stream at a time. Dropping it cuts the stream off.
pub(crate) struct ControlPlane {
    pub(crate) port: u16,
    requests: mpsc::UnboundedReceiver<DiscoveryRequest>,
    answers: Arc<Mutex<Option<mpsc::UnboundedSender<Answer>>>>,
    /// The threads of the server and of its connections.
    runtime: Option<Runtime>,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl ControlPlane {
    pub(crate) fn start() -> Self {
        Self::start_on(free_port(), None)
    }

    /// A server at this port, with the certificate `plane` of the authority, for clients that have
    /// one as well.
    pub(crate) fn start_on(port: u16, tls: Option<&Authority>) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(None));
        let service = Ads { requests: sender, answers: answers.clone() };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        let listener = socket.listen(16).unwrap();
        let mut server = Server::builder();
        if let Some(authority) = tls {
            let read = |name: &str| std::fs::read(authority.path(name)).unwrap();
            let identity = Identity::from_pem(read("plane.pem"), read("plane.key"));
            let tls = ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(read("ca.pem")));
            server = server.tls_config(tls).unwrap();
        }
        let incoming = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let serving = server.add_service(service).serve_with_incoming(incoming);
        runtime.spawn(async move { serving.await.unwrap() });
        Self { port, requests, answers, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The next request of the node.
    pub(crate) async fn request(&mut self) -> DiscoveryRequest {
        let request = tokio::time::timeout(Duration::from_secs(60), self.requests.recv());
        request.await.expect("the node asks within a minute").expect("the control plane runs")
    }

    /// Sends resources of this type on the present stream.
    pub(crate) fn send_typed(&self, version: &str, type_url: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: format!("nonce-{version}"),
        };
        self.answers.lock().unwrap().as_ref().expect("a node has a stream").send(Ok(response)).unwrap();
    }

    pub(crate) fn send(&self, version: &str, rules: &[RateLimitConfig]) {
        self.send_typed(version, TYPE_URL, rules.iter().map(any).collect());
    }

    /// Sends a set, and asserts that the node accepts it.
    pub(crate) async fn put(&mut self, version: &str, rules: &[RateLimitConfig]) {
        self.send(version, rules);
        let answer = self.request().await;
        assert_eq!(answer.error_detail, None);
        assert_eq!((answer.version_info.as_str(), answer.response_nonce), (version, format!("nonce-{version}")));
    }
}

pub(crate) fn any(rules: &RateLimitConfig) -> Any {
    Any { type_url: TYPE_URL.to_owned(), value: rules.encode_to_vec() }
}

/// A domain of this name.
pub(crate) fn domain(name: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: name.to_owned(), domain: name.to_owned(), descriptors }
}

/// A rule of so many requests an hour for each value.
pub(crate) fn hourly(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let limit = RateLimitPolicy { unit: Unit::Hour.into(), requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor { key: key.to_owned(), rate_limit: Some(limit), ..RateLimitDescriptor::default() }
}

#[derive(Clone)]
struct Ads {
    requests: mpsc::UnboundedSender<DiscoveryRequest>,
    answers: Arc<Mutex<Option<mpsc::UnboundedSender<Answer>>>>,
}

impl NamedService for Ads {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl<B> Service<http::Request<B>> for Ads
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != STREAM {
                return Ok(Status::unimplemented("unknown method").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).streaming(service, request).await)
        })
    }
}

impl StreamingService<DiscoveryRequest> for Ads {
    type Response = DiscoveryResponse;
    type ResponseStream = BoxStream<'static, Answer>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let requests = self.requests.clone();
        let (sender, answers) = mpsc::unbounded_channel();
        *self.answers.lock().unwrap() = Some(sender);
        tokio::spawn(async move {
            let mut incoming = request.into_inner();
            while let Ok(Some(request)) = incoming.message().await {
                let _ = requests.send(request);
            }
        });
        let answers = stream::unfold(answers, |mut answers| async move { Some((answers.recv().await?, answers)) });
        Box::pin(async { Ok(Response::new(answers.boxed())) })
    }
}
