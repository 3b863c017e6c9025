//! One round of questions to all primaries.

use std::time::Duration;

use redis::Value;

use super::Servers;
use super::cluster::ClusterQuestions;
use crate::store::redis::connect::attempt::Attempt;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::questions::{bounded, name};
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::server_info::{questions, read};
use crate::store::redis::topology::{Layout, Topology};

/// How long a server may take to connect, and to answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// The open connections. One that failed is opened anew in the next round.
#[derive(Default)]
pub(super) struct Connections {
    cluster: Option<ClusterQuestions>,
    single: Option<(Address, Connection)>,
}

impl Connections {
    /// Asks each primary once. Takes a few seconds at most.
    pub(super) async fn ask(&mut self, topology: &Topology) -> Servers {
        let primaries = topology.primaries();
        match topology.kind() {
            Layout::Unknown => Servers::new(),
            Layout::Cluster => self.ask_cluster(topology, &primaries).await,
            Layout::Single => {
                let Some(address) = primaries.first() else { return Servers::new() };
                let answers = self.ask_single(topology, address).await.unwrap_or_default();
                let mut answers = answers.into_iter();
                let told = read(answers.next(), answers.next());
                told.map(|told| (address.to_string(), told)).into_iter().collect()
            }
        }
    }

    async fn ask_single(&mut self, topology: &Topology, address: &Address) -> Result<Vec<Value>, Failure> {
        let known = self.single.take().filter(|(known, _)| known == address);
        let mut connection = match known {
            Some((_, connection)) => connection,
            None => {
                let attempt = Attempt::default();
                let opening = async {
                    let mut new = topology.shared.connect(address, &attempt).await?;
                    new.send(&name()).await?;
                    Ok(new)
                };
                attempt.within(TIMEOUT, opening).await?
            }
        };
        let [info, scan] = questions(&topology.shared.prefix);
        let mut both = redis::pipe();
        both.add_command(info).add_command(scan);
        let answers = bounded(TIMEOUT, connection.send_all(&both)).await?;
        self.single = Some((address.clone(), connection));
        Ok(answers)
    }

    async fn ask_cluster(&mut self, topology: &Topology, primaries: &[Address]) -> Servers {
        // The client learns of no failover while it only asks such questions.
        let known = self.cluster.take().filter(|cluster| cluster.primaries() == primaries);
        let cluster = match known {
            Some(cluster) => Ok(cluster),
            None => ClusterQuestions::open(topology, primaries).await,
        };
        let Ok(cluster) = cluster else { return Servers::new() };
        let [info, scan] = questions(&topology.shared.prefix);
        let (infos, mut scans) = tokio::join!(cluster.ask(&info), cluster.ask(&scan));
        // The client never asks a primary that it could not connect to when it was opened.
        if infos.len() == primaries.len() {
            self.cluster = Some(cluster);
        }
        let told = infos.into_iter().filter_map(|(address, info)| {
            let told = read(Some(info), scans.remove(&address))?;
            Some((address.to_string(), told))
        });
        told.collect()
    }
}
