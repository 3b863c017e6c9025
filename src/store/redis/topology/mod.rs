//! The lane of each slot. The servers report it, and their redirections correct it. A separate task
//! keeps it current: `discovery.rs` asks the servers, and `sentinel.rs` asks sentinels.

use std::sync::Arc;

use crate::store::redis::lane::shared::Shared;
use crate::store::redis::protocol::address::Address;

mod current;

mod discovery;

mod moving;

mod sentinel;

mod table;

pub use current::Topology;
pub use moving::Moving;
pub use sentinel::Sentinels;
pub use table::Layout;

/// Starts to learn the topology from `seeds`.
pub fn open(seeds: Vec<Address>, shared: Arc<Shared>) -> Arc<Topology> {
    let topology = Arc::new(Topology::new(seeds, shared));
    discovery::Watcher::start(&topology);
    topology
}

/// Starts to follow the primary that `sentinels` name.
pub fn follow(sentinels: Sentinels, shared: Arc<Shared>) -> Arc<Topology> {
    let topology = Arc::new(Topology::of_sentinels(shared));
    sentinel::start(&topology, sentinels);
    topology
}
