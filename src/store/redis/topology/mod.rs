//! The lane of each slot. The servers report it, and their redirections correct it. A separate task
//! (`discovery.rs`) keeps it current.

use std::sync::Arc;

use crate::store::redis::lane::shared::Shared;
use crate::store::redis::protocol::address::Address;

mod current;

mod discovery;

mod moving;

mod table;

pub use current::Topology;
pub use moving::Moving;
pub use table::Kind;

/// Starts to learn the topology from `seeds`.
pub fn open(seeds: Vec<Address>, shared: Arc<Shared>) -> Arc<Topology> {
    let topology = Arc::new(Topology::new(seeds, shared));
    discovery::Watcher::start(&topology);
    topology
}
