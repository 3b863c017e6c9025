//! One round of questions to all primaries.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::Servers;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::questions::bounded;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::server_info::{questions, read};
use crate::store::redis::topology::Topology;

/// How long a server may take to connect, and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The open connections. One that failed is opened anew in the next round.
#[derive(Default)]
pub(super) struct Connections(HashMap<Address, Connection>);

impl Connections {
    /// Asks all primaries at once. Takes two seconds at most.
    pub(super) async fn ask(&mut self, topology: &Topology) -> Servers {
        let mut known = std::mem::take(&mut self.0);
        let primaries = topology.primaries();
        let asked = primaries.into_iter().map(|address| {
            let open = known.remove(&address);
            async move {
                let (connection, answers) = ask(topology, &address, open).await.ok()?;
                Some((address, connection, answers))
            }
        });
        let mut servers = Servers::new();
        for (address, connection, answers) in join_all(asked).await.into_iter().flatten() {
            let mut answers = answers.into_iter();
            servers.extend(read(answers.next(), answers.next()).map(|told| (address.to_string(), told)));
            self.0.insert(address, connection);
        }
        servers
    }
}

/// Asks a server over an open connection, or over a new one.
async fn ask(
    topology: &Topology,
    address: &Address,
    open: Option<Connection>,
) -> Result<(Connection, Vec<Value>), Failure> {
    let mut connection = match open {
        Some(connection) => connection,
        None => topology.shared.open_for_questions(address, TIMEOUT).await?,
    };
    let [info, scan] = questions(&topology.shared.prefix);
    let mut both = redis::pipe();
    both.add_command(info).add_command(scan);
    let answers = bounded(TIMEOUT, connection.send_all(&both)).await?;
    Ok((connection, answers))
}
