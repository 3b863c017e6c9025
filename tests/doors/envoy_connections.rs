//! Connections to Envoy's rate limit service: TLS, their age, and hostile callers.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tollgate::gateway::envoy::messages::{HealthCheckResponse, ServingStatus};
use tonic::{Code as Grpc, Streaming};

use crate::rls::{EnvoyNode, Settings, codes, descriptor, request};
use crate::support::dice::Dice;
use crate::support::resident_kib;
use crate::support::tls::Authority;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const LIMITS: &str = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

/// One connection of HTTP/2, and the task that ends with it.
struct Connection {
    calls: SendRequest<Full<Bytes>>,
    ended: JoinHandle<()>,
}

impl Connection {
    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (calls, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let ended = tokio::spawn(async move { _ = connection.await });
        Self { calls, ended }
    }

    async fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        // Without it each call waits for a delayed acknowledgement.
        stream.set_nodelay(true).unwrap();
        Self::over(stream).await
    }

    /// # Errors
    /// The handshake fails, or the connection ends right after it.
    async fn encrypted(address: &str, mut config: ClientConfig) -> Result<Self, std::io::Error> {
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Self::over(TlsConnector::from(Arc::new(config)).connect(name, stream).await?).await)
    }

    /// The HTTP status and the `grpc-status` of a call with these bytes.
    async fn call(&mut self, path: &str, bytes: Vec<u8>) -> Result<(u16, Option<i32>), hyper::Error> {
        self.calls.ready().await?;
        let request = hyper::Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .body(Full::new(Bytes::from(bytes)))
            .unwrap();
        let response = self.calls.send_request(request).await?;
        let number = |headers: &hyper::HeaderMap| headers.get("grpc-status")?.to_str().ok()?.parse().ok();
        let (status, code) = (response.status().as_u16(), number(response.headers()));
        let trailers = response.into_body().collect().await?.trailers().cloned().unwrap_or_default();
        Ok((status, code.or_else(|| number(&trailers))))
    }
}

/// A valid call, with its prefix.
fn valid() -> Vec<u8> {
    let message = request(&[descriptor(&[("user", "alice")])]).encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

#[tokio::test]
async fn client_certificate_stands_for_a_token() {
    let authority = Authority::new();
    ["node", "envoy"].iter().for_each(|name| authority.sign(name));
    let token = tollgate::access::TokenHash::of("secret").to_string();
    std::fs::write(authority.path("check.tokens"), token).unwrap();
    let file = |name: &str| authority.text(name);
    let tls = |more: &str| format!("  tls: {{cert_file: {}, key_file: {}{more}}}", file("node.pem"), file("node.key"));
    let more = format!("auth: {{check_token_files: [{}]}}", file("check.tokens"));
    let start =
        |envoy: &str| EnvoyNode::start(&Settings { more: &more, envoy, descriptors: LIMITS, ..Settings::default() });

    let node = start(&tls(&format!(", ca_file: {}", file("ca.pem"))));
    let mut envoy = Connection::encrypted(&node.address, authority.client(Some("envoy"))).await.unwrap();
    assert_eq!(envoy.call(PATH, valid()).await.unwrap(), (200, Some(0)));
    let nobody = async {
        let mut nobody = Connection::encrypted(&node.address, authority.client(None)).await.ok()?;
        nobody.call(PATH, valid()).await.ok()
    };
    assert_eq!(nobody.await, None, "served without a certificate");

    let node = start(&tls(""));
    let mut nobody = Connection::encrypted(&node.address, authority.client(None)).await.unwrap();
    assert_eq!(nobody.call(PATH, valid()).await.unwrap(), (200, Some(Grpc::Unauthenticated as i32)));
}

#[tokio::test]
async fn connections_end_at_their_age() {
    let node =
        EnvoyNode::start(&Settings { envoy: "  connection_age: 1s", descriptors: LIMITS, ..Settings::default() });
    let mut connection = Connection::open(&node.address).await;
    assert_eq!(connection.call(PATH, valid()).await.unwrap(), (200, Some(0)));
    // 0.75 to 1.25 s; an idle connection stays two minutes.
    let ended = tokio::time::timeout(Duration::from_secs(20), &mut connection.ended).await;
    assert!(ended.is_ok(), "the connection stays");
    // A gRPC client opens another one.
    assert!(node.client().await.ask(request(&[descriptor(&[("user", "bob")])])).await.is_ok());
}

async fn next_status(statuses: &mut Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    let next = tokio::time::timeout(Duration::from_secs(20), statuses.message());
    let next = next.await.expect("the stream continues").unwrap();
    next.map(|response| ServingStatus::try_from(response.status).unwrap())
}

#[tokio::test]
async fn watched_health_follows_the_node_to_its_end() {
    let more = "shutdown: {delay: 1s}\nlimits: {request_timeout: 1s, idle_timeout: 1s}";
    let mut node = EnvoyNode::start(&Settings { more, descriptors: LIMITS, ..Settings::default() });
    let client = node.client().await;
    let mut watched = client.watch_health("ratelimit").await.unwrap();
    assert_eq!(next_status(&mut watched).await, Some(ServingStatus::Serving));
    let mut unknown = client.watch_health("other").await.unwrap();
    assert_eq!(next_status(&mut unknown).await, Some(ServingStatus::ServiceUnknown));
    // The idle timeout ends a later connection, but none with an open stream.
    let mut idle = Connection::open(&node.address).await;
    assert_eq!(idle.call(PATH, valid()).await.unwrap(), (200, Some(0)));
    let ended = tokio::time::timeout(Duration::from_secs(20), &mut idle.ended).await;
    assert!(ended.is_ok(), "the idle connection stays");
    node.node.terminate();
    assert_eq!(next_status(&mut watched).await, Some(ServingStatus::NotServing));
    assert_eq!((next_status(&mut watched).await, next_status(&mut unknown).await), (None, None));
    assert!(node.node.ended().success());
}

#[tokio::test]
async fn malformed_calls_cost_no_memory() {
    let calls = std::env::var("TOLLGATE_HOSTILE_CALLS").map_or(3_000, |calls| calls.parse().unwrap());
    let node = EnvoyNode::start(&Settings { descriptors: LIMITS, ..Settings::default() });
    let mut connection = Connection::open(&node.address).await;
    let (dice, valid) = (&mut Dice::new(45), valid());
    let mut codes_seen = std::collections::BTreeSet::new();
    let mut before = 0;
    for number in 0..calls {
        if number == calls / 3 {
            before = resident_kib(node.node.pid());
        }
        let (status, code) = connection.call(PATH, mutated(dice, &valid)).await.expect("the connection stays");
        assert_eq!(status, 200);
        codes_seen.insert(code.expect("a grpc-status"));
    }
    let grown = resident_kib(node.node.pid()).saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    assert!(codes_seen.len() >= 4, "{codes_seen:?}");
    let response = node.client().await.ask(request(&[descriptor(&[("user", "bob")])])).await.unwrap();
    assert_eq!(codes(&response).0, tollgate::gateway::envoy::messages::Code::Ok);
}

/// The call with some bytes changed, left out or added.
fn mutated(dice: &mut Dice, valid: &[u8]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..=dice.below(4) {
        let place = dice.place(bytes.len() + 1);
        match dice.below(4) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, dice.below(256) as u8),
            2 => bytes.extend(std::iter::repeat_n(dice.below(256) as u8, dice.place(40_000))),
            _ => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte = dice.below(256) as u8),
        }
    }
    bytes
}

#[tokio::test]
async fn calls_that_are_not_grpc_are_refused() {
    let node = EnvoyNode::start(&Settings { descriptors: LIMITS, ..Settings::default() });
    let mut connection = Connection::open(&node.address).await;
    let unknown = connection.call("/grpc.reflection.v1.ServerReflection/List", valid()).await.unwrap();
    assert_eq!(unknown, (200, Some(Grpc::Unimplemented as i32)));
    for (method, content_type, status) in [("GET", "application/grpc", 405), ("POST", "application/json", 415)] {
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("http://localhost{PATH}"))
            .header("content-type", content_type)
            .body(Full::new(Bytes::new()))
            .unwrap();
        connection.calls.ready().await.unwrap();
        let response = connection.calls.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
    }
}
