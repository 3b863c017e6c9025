//! The questions of a lane beside its calls: whether a refusing shard writes again, and whether the
//! server evicts keys.

use std::time::Duration;

use crate::limit::policy::Durability;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::preflight;
use crate::store::redis::connect::questions::{self, bounded};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::failure::{Failure, Kind};

/// The interval of probes to a shard that is down.
const PROBE: Duration = Duration::from_secs(1);

/// The interval at which a connection checks whether its server evicts keys.
const EVICTION: Duration = Duration::from_secs(60);

/// Probes the shard while it is connected and makes no charges. The loop never ends. Only one lane
/// of a shard probes.
pub async fn probe_while_down(mut connection: Connection, shard: &Shard) {
    loop {
        tokio::time::sleep(PROBE).await;
        if shard.durability == Durability::Primary && shard.is_refusing() {
            shard.log_down();
            // Other code detects a server that does not answer.
            let _ = bounded(shard.silence_limit(), probe(&mut connection, shard)).await;
        }
    }
}

/// Asks the server to write, and notes whether it does.
///
/// # Errors
/// When it does not answer.
pub async fn probe(connection: &mut Connection, shard: &Shard) -> Result<(), Failure> {
    let key = shard.probe();
    match questions::probe(connection, key.as_deref()).await {
        Ok(()) if key.is_some() => shard.accept_probe(),
        Ok(()) => {}
        Err(failure) if failure.kind == Kind::Moved => shard.shared.request_refresh(),
        Err(failure) if failure.is_told() => shard.charging.explain(&failure),
        Err(failure) => return Err(failure),
    }
    Ok(())
}

/// Warns when the server starts to evict keys during the connection. The loop never ends.
pub async fn watch_eviction(mut connection: Connection, shard: &Shard) {
    loop {
        tokio::time::sleep(EVICTION).await;
        // Other code detects a server that does not answer.
        let _ = bounded(
            shard.silence_limit(),
            preflight::check_eviction(&mut connection, &shard.address, &shard.preflight),
        )
        .await;
    }
}
