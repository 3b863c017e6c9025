//! Follows a control plane that sends the rules by xDS, the whole set at each change ("state of the
//! world").
//!
//! A set that the node can apply is in force before the node accepts it. The node rejects any other
//! set with the reason, and its former rules stay. They also stay while the control plane is away.

use std::convert::Infallible;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use futures_util::stream;
use prost::Message;
use prost_types::Any;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Streaming};
use tonic_prost::ProstCodec;

use self::messages::{DiscoveryRequest, DiscoveryResponse, NodeInfo, Status};
use crate::clock::Clock;
use crate::config::envoy::{RateLimitConfig, RuleSet, XdsConfig, XdsTls};
use crate::node::{Node, Phase};
use crate::telemetry::limiter::Limiter;

pub mod messages;

/// The type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The call that carries the requests and the responses.
pub const STREAM: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The largest set, bytes. It bounds what a faulty control plane costs.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Longest time until a connection and its TLS stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval of TCP's own probes: a control plane that vanished without a word is noticed within
/// minutes. Pings of HTTP/2 would not do, since servers end connections that ping more often than
/// every five minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The interval at which a rejected set waits for a load of the file.
const LOOK: Duration = Duration::from_secs(1);

/// Lines in the log about accepted sets, and about unreadable ones, in ten seconds.
const LINES: u64 = 10;

/// Faults that a rejection repeats.
const MAX_FAULTS: usize = 20;

/// Follows the control plane of `node` as long as the node runs. Never returns, even without one.
pub async fn follow(node: &Node) {
    let Some(config) = node.reloader.control_plane() else { return std::future::pending().await };
    let (acceptances, refusals) = (Limiter::of(LINES), Limiter::of(LINES));
    let (clock, pauses) = (Clock::system(), Pauses::default());
    let mut follower = Follower { node, config, pauses, clock, acceptances, refusals };
    loop {
        let Err(reason) = follower.stream().await;
        let pause = follower.pauses.next();
        let (server, pause_ms) = (&follower.config.server, pause.as_millis());
        tracing::warn!(server, reason, pause_ms, "no stream of rules from the control plane: the rules stay");
        sleep(pause).await;
    }
}

struct Follower<'a> {
    node: &'a Node,
    config: Arc<XdsConfig>,
    pauses: Pauses,
    clock: Clock,
    /// Limit the log lines about sets: a control plane may send any number.
    acceptances: Limiter,
    refusals: Limiter,
}

/// A rejected set.
struct Rejected {
    response: DiscoveryResponse,
    /// The loads of the configuration until then.
    loads: u64,
}

impl Follower<'_> {
    /// Opens a stream and answers each set until the stream ends. Returns the reason of the end.
    async fn stream(&mut self) -> Result<Infallible, String> {
        let channel = connect(&self.config).await?;
        let (sender, receiver) = mpsc::channel(1);
        let node = NodeInfo {
            id: self.config.node_id.clone(),
            user_agent_name: "tollgate".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        // Without a version the control plane sends its set, also if it counts anew after a restart.
        let mut request =
            DiscoveryRequest { node: Some(node), type_url: TYPE_URL.to_owned(), ..DiscoveryRequest::default() };
        let send = async |request: &DiscoveryRequest| {
            sender.send(request.clone()).await.map_err(|_| "the stream has ended".to_owned())
        };
        send(&request).await?;
        let mut responses = open(channel, receiver).await?;
        // The set that was rejected last.
        let mut rejected: Option<Rejected> = None;
        loop {
            let response = tokio::select! {
                received = responses.message() => {
                    received.map_err(|status| told(&status))?.ok_or("the control plane has ended the stream")?
                }
                again = self.retry(rejected.as_ref()) => again,
            };
            let applied = self.apply(&response).await;
            let DiscoveryResponse { version_info, nonce, resources, .. } = &response;
            request.response_nonce.clone_from(nonce);
            request.error_detail = match applied {
                Ok(()) => {
                    let count = resources.len();
                    if let Some(suppressed) = self.acceptances.pass(self.clock.now()) {
                        let version = version_info;
                        tracing::info!(
                            version,
                            resources = count,
                            suppressed,
                            "the control plane's rules are in force"
                        );
                    }
                    (self.pauses, rejected) = (Pauses::default(), None);
                    request.version_info.clone_from(version_info);
                    None
                }
                Err(message) => {
                    // Some control planes send a rejected set again at once.
                    if rejected.is_some_and(|rejected| rejected.response.version_info == *version_info) {
                        sleep(self.pauses.next()).await;
                    }
                    rejected = Some(Rejected { response, loads: self.loads() });
                    Some(Status { code: Code::InvalidArgument.into(), message })
                }
            };
            send(&request).await?;
        }
    }

    /// Waits until the rejected set may fit, since the file beside it has been loaded again.
    async fn retry(&self, rejected: Option<&Rejected>) -> DiscoveryResponse {
        let Some(Rejected { response, loads }) = rejected else { return std::future::pending().await };
        while self.loads() == *loads {
            sleep(LOOK).await;
        }
        response.clone()
    }

    /// How often a configuration was put into force.
    fn loads(&self) -> u64 {
        self.node.reloader.loads().successes.total()
    }

    /// Puts the rules into force.
    ///
    /// # Errors
    /// The faults for the control plane. The log has them as well.
    async fn apply(&self, response: &DiscoveryResponse) -> Result<(), String> {
        require_type("response", &response.type_url)?;
        let rules: Result<Vec<RateLimitConfig>, String> = response.resources.iter().map(read).collect();
        let rules = rules.map(RuleSet).and_then(fitting).inspect_err(|reason| {
            if let Some(suppressed) = self.refusals.pass(self.clock.now()) {
                tracing::error!(reason, suppressed, "unreadable rules of the control plane");
            }
        })?;
        self.node.reloader.receive(rules).await.map_err(|error| {
            let faults = error.to_string();
            faults.lines().take(MAX_FAULTS).collect::<Vec<_>>().join("\n")
        })?;
        // Without its overrides the node becomes ready when it has them.
        if self.node.engine.overrides().is_loaded() {
            self.node.lifecycle.advance(Phase::Serving);
        }
        Ok(())
    }
}

fn require_type(of: &str, type_url: &str) -> Result<(), String> {
    if type_url == TYPE_URL { Ok(()) } else { Err(format!("the type of a {of} must be {TYPE_URL}, not {type_url}")) }
}

/// The set, unless it is too large.
fn fitting(rules: RuleSet) -> Result<RuleSet, String> {
    let (parts, most) = (rules.parts(), RuleSet::MOST);
    match parts <= most {
        true => Ok(rules),
        false => Err(format!(
            "the set has {parts} descriptors, entries of `replaces` and values of `metadata`: send at most {most}"
        )),
    }
}

fn read(resource: &Any) -> Result<RateLimitConfig, String> {
    require_type("resource", &resource.type_url)?;
    RateLimitConfig::decode(&*resource.value).map_err(|error| format!("a resource is no RateLimitConfig: {error}"))
}

async fn open(
    channel: Channel,
    requests: mpsc::Receiver<DiscoveryRequest>,
) -> Result<Streaming<DiscoveryResponse>, String> {
    let requests = stream::unfold(requests, |mut requests| async move { Some((requests.recv().await?, requests)) });
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_BYTES);
    grpc.ready().await.map_err(|error| causes(&error))?;
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let requests = tonic::Request::new(requests);
    let opened = grpc.streaming(requests, PathAndQuery::from_static(STREAM), codec).await;
    opened.map(tonic::Response::into_inner).map_err(|status| told(&status))
}

fn told(status: &tonic::Status) -> String {
    format!("{}: {}", status.code(), status.message())
}

/// Connects. Each connection reads the files of TLS again, so they can be renewed.
async fn connect(config: &XdsConfig) -> Result<Channel, String> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", config.server)).map_err(|error| causes(&error))?;
    let mut endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_keepalive(Some(KEEPALIVE));
    if let Some(tls) = &config.tls {
        endpoint = endpoint.tls_config(client_tls(tls).await?).map_err(|error| causes(&error))?;
    }
    let connected = tokio::time::timeout(2 * CONNECT_TIMEOUT, endpoint.connect()).await;
    connected.map_err(|_| "no connection in time".to_owned())?.map_err(|error| causes(&error))
}

async fn client_tls(XdsTls { files, server_name }: &XdsTls) -> Result<ClientTlsConfig, String> {
    let read = async |path: &PathBuf| {
        let path = path.clone();
        let read = spawn_blocking(move || fs::read(&path).map_err(|error| format!("{}: {error}", path.display())));
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    };
    let mut tls = match &files.ca_file {
        Some(authority) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authority).await?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &files.identity {
        tls = tls.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
    }
    Ok(match server_name {
        Some(name) => tls.domain_name(name),
        None => tls,
    })
}

/// The error and its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The pauses between attempts: from a second to half a minute, each about twice the one before.
/// They differ between nodes, since a control plane that restarts must not meet all at once.
#[derive(Debug, Default)]
struct Pauses(u32);

impl Pauses {
    fn next(&mut self) -> Duration {
        let longest = Duration::from_secs(1 << self.0.min(5)).min(Duration::from_secs(30));
        self.0 += 1;
        let [random, ..] = RandomState::new().hash_one(0).to_le_bytes();
        longest / 2 + longest / 512 * u32::from(random)
    }
}
