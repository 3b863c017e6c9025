//! Questions to all primaries of a cluster at once, by the cluster client of the redis crate.
//!
//! Checks do not use this client, see [`super::super`]. These questions charge nothing, so they
//! have none of its problems: each is bounded in time, and a client that fails is opened anew.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::join_all;
use redis::cluster::{ClusterClient, ClusterClientBuilder, NodeAddress};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo, RedisResult, TlsCertificates, TlsMode, Value};
use tokio::time::timeout;

use super::round::TIMEOUT;
use crate::config::{ClientTls, Credentials};
use crate::store::redis::connect::{auth, dns};
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::topology::Topology;

/// A client of these primaries.
pub(super) struct ClusterQuestions {
    primaries: Vec<Address>,
    connection: ClusterConnection,
}

impl ClusterQuestions {
    /// Opens a client with the credentials and the address map of the lanes.
    ///
    /// # Errors
    /// When no primary lets this node in, or a file of the credentials is wrong.
    pub(super) async fn open(topology: &Topology, primaries: &[Address]) -> Result<Self, Failure> {
        let shared = &topology.shared;
        let client = client(primaries, &shared.credentials, shared.address_map()).await?;
        // It connects to all nodes, and then asks for the slots.
        let opened = timeout(3 * TIMEOUT, client.get_async_connection()).await.map_err(|_| Failure::late())?;
        let connection = opened.map_err(|error| Failure::connection(error.to_string()))?;
        Ok(Self { primaries: primaries.to_vec(), connection })
    }

    pub(super) fn primaries(&self) -> &[Address] {
        &self.primaries
    }

    /// Returns the answers of those primaries that answer. One question to all of them fails as a
    /// whole if one primary is frozen, and then each is asked alone.
    pub(super) async fn ask(&self, question: &Cmd) -> BTreeMap<Address, Value> {
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        if let Some(Value::Map(answers)) = self.route(question, all).await {
            let by_address =
                |(address, answer)| Some((Address::parse(&redis::from_redis_value::<String>(address).ok()?)?, answer));
            return answers.into_iter().filter_map(by_address).collect();
        }
        let alone = self.primaries.iter().map(async |address| {
            let (host, port) = (address.host.clone(), address.port);
            let alone = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
            Some((address.clone(), self.route(question, alone).await?))
        });
        join_all(alone).await.into_iter().flatten().collect()
    }

    async fn route(&self, question: &Cmd, routing: RoutingInfo) -> Option<Value> {
        let mut connection = self.connection.clone();
        timeout(2 * TIMEOUT, connection.route_command(question.clone(), routing)).await.ok()?.ok()
    }
}

async fn client(
    primaries: &[Address],
    credentials: &Credentials,
    address_map: &HashMap<Address, Address>,
) -> Result<ClusterClient, Failure> {
    let wrong = |error: redis::RedisError| Failure::connection(error.to_string());
    let seeds: RedisResult<Vec<_>> = primaries
        .iter()
        .map(|address| ConnectionAddr::Tcp(address.host.clone(), address.port).into_connection_info())
        .collect();
    // The lanes compare hosts without their case.
    let announced = primaries.iter().chain(address_map.keys());
    let mapped = announced.filter_map(|address| {
        let dialed = address_map.get(&address.lowercase())?;
        Some((node(address), node(dialed)))
    });
    let mut builder = ClusterClientBuilder::new(seeds.map_err(wrong)?)
        .node_address_map(mapped.collect())
        .async_dns_resolver(dns::system())
        .connection_timeout(TIMEOUT)
        .response_timeout(TIMEOUT)
        .retries(0);
    if let Some(login) = &credentials.login {
        builder = builder.password(auth::password(&login.password).await?);
        if let Some(username) = &login.username {
            builder = builder.username(username);
        }
    }
    if let Some(tls) = &credentials.tls {
        builder = builder.tls(TlsMode::Secure).certs(certificates(tls).await?);
    }
    builder.build().map_err(wrong)
}

fn node(address: &Address) -> NodeAddress {
    NodeAddress::new(address.host.as_str(), address.port)
}

/// The content of the files now. Without an authority the client trusts those of the system.
async fn certificates(tls: &ClientTls) -> Result<TlsCertificates, Failure> {
    let root_cert = match &tls.ca_file {
        Some(path) => Some(auth::read(path).await?),
        None => None,
    };
    let client_tls = match &tls.identity {
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: auth::read(certificate).await?, client_key: auth::read(key).await? })
        }
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}
