//! The lanes by slot.

use crate::store::redis::lane::Lane;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::cluster_slots::MAX_PRIMARIES;

/// How the servers divide the keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// No server has answered yet.
    #[default]
    Unknown,
    Single,
    Cluster,
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    pub kind: Layout,
    pub lanes: Vec<Lane>,
    /// For each slot, the index of its owner in `lanes`, or [`NOBODY`]. Empty until the topology is
    /// known. Indices instead of lanes keep a copy of the table at 32 KiB.
    pub owners: Vec<u16>,
}

/// The owner of a slot that no primary owns.
pub const NOBODY: u16 = u16::MAX;

/// The most lanes. Redirections name nodes beside the primaries.
const MAX_LANES: usize = 2 * MAX_PRIMARIES;

impl Table {
    pub fn owner(&self, slot: u16) -> Option<&Lane> {
        self.lanes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub fn lane(&self, address: &Address) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.address() == address)
    }

    /// Returns the lanes that own slots.
    pub fn primaries(&self) -> impl Iterator<Item = &Lane> {
        let mut owns = vec![false; self.lanes.len()];
        for owner in &self.owners {
            if let Some(owns) = owns.get_mut(usize::from(*owner)) {
                *owns = true;
            }
        }
        self.lanes.iter().zip(owns).filter_map(|(lane, owns)| owns.then_some(lane))
    }

    /// Whether a lane towards `address` exists or has room.
    pub fn has_room(&self, address: &Address) -> bool {
        self.lanes.len() < MAX_LANES || self.lane(address).is_some()
    }

    /// Returns the lane towards `address` and its index. `open` creates a missing lane, so a node
    /// has one lane.
    pub fn place(&mut self, address: &Address, open: impl FnOnce() -> Lane) -> (u16, &Lane) {
        let place = self.lanes.iter().position(|lane| lane.address() == address).unwrap_or_else(|| {
            self.lanes.push(open());
            self.lanes.len() - 1
        });
        // A cluster has at most 1000 nodes.
        (u16::try_from(place).unwrap_or(NOBODY), &self.lanes[place])
    }
}
