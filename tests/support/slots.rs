//! Slots that tests move manually, step by step.

use super::cluster::Cluster;
use super::wait_until;

/// Moves a slot as `redis-cli --cluster reshard` does.
pub(crate) fn move_slot(cluster: &Cluster, slot: u16, from: u16, to: u16) {
    begin(cluster, slot, from, to);
    while migrate(cluster, slot, from, to, 100) > 0 {}
    settle(cluster, slot, [to, from]);
}

/// The slot is half-migrated from now on; none of its keys has moved.
pub(crate) fn begin(cluster: &Cluster, slot: u16, from: u16, to: u16) {
    set_slot(cluster, to, slot, "IMPORTING", &id(cluster, from));
    let to = id(cluster, to);
    // After a former move, a late message may take the slot away from its owner for a moment.
    wait_until("the source owns the slot", || try_set_slot(cluster, from, slot, "MIGRATING", &to).is_ok());
}

/// Assigns the slot to the first of `owners`, which learns it first.
pub(crate) fn settle(cluster: &Cluster, slot: u16, owners: [u16; 2]) {
    let id = id(cluster, owners[0]);
    owners.iter().for_each(|number| set_slot(cluster, *number, slot, "NODE", &id));
    // A node may take the slot back before it knows the new owner's epoch. It then claims the slot
    // with an older epoch. Once it learns the epoch, each of the two considers the other the owner,
    // permanently.
    let epoch = |number: u16, name: &str| -> u64 {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut cluster.connection(number)).unwrap();
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
    };
    let mine = epoch(owners[0], "cluster_my_epoch:");
    wait_until("the former owner has heard of it", || epoch(owners[1], "cluster_current_epoch:") >= mine);
}

pub(crate) fn set_slot(cluster: &Cluster, number: u16, slot: u16, state: &str, id: &str) {
    try_set_slot(cluster, number, slot, state, id).unwrap();
}

fn try_set_slot(cluster: &Cluster, number: u16, slot: u16, state: &str, id: &str) -> redis::RedisResult<()> {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SETSLOT").arg(slot).arg(state).arg(id).exec(&mut cluster.connection(number))
}

pub(crate) fn id(cluster: &Cluster, number: u16) -> String {
    redis::cmd("CLUSTER").arg("MYID").query(&mut cluster.connection(number)).unwrap()
}

/// Moves some keys of the slot; returns how many.
pub(crate) fn migrate(cluster: &Cluster, slot: u16, from: u16, to: u16, most: usize) -> usize {
    let mut source = cluster.connection(from);
    let keys = redis::cmd("CLUSTER")
        .arg("GETKEYSINSLOT")
        .arg(slot)
        .arg(most)
        .query::<Vec<String>>(&mut source)
        .unwrap();
    if !keys.is_empty() {
        let mut cmd = redis::cmd("MIGRATE");
        cmd.arg("127.0.0.1").arg(cluster.port(to)).arg("").arg(0).arg(5000).arg("KEYS").arg(&keys);
        cmd.exec(&mut source).unwrap();
    }
    keys.len()
}
