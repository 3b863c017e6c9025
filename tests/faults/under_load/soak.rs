//! Mixed load and random faults for minutes: memory stays flat, nothing leaks, the counts are
//! right.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::{TIMEOUT, tell};
use crate::support::chaos::{self, Service, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::{resident_kib, wait_until};

/// The maximum growth of a node after its first minute, KiB; allocators keep memory that they once
/// needed.
const GROWTH: u64 = 64 * 1024;

/// `SOAK_MINUTES` sets the duration, `SOAK_SEED` the faults.
#[test]
#[ignore = "takes ten minutes; scripts/soak runs it"]
fn soak_leaks_nothing_and_counts_exactly() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (minutes, mut seed) = (number("SOAK_MINUTES").unwrap_or(10), number("SOAK_SEED").unwrap_or(1));
    let cluster = chaos::arena();
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let pids: Vec<u32> = service.nodes.iter().map(|node| node.pid()).collect();
    let idle = settled(&pids);
    let rows = service.under(&format!("soak of {minutes} min"), None, || {
        let end = now_ms() + minutes * 60_000;
        sleep(Duration::from_secs(30));
        let early: Vec<u64> = pids.iter().map(|pid| resident_kib(*pid)).collect();
        while now_ms() < end {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            disturb(&cluster, &pids, seed >> 33);
            cluster.heal();
            sleep(Duration::from_secs(2));
        }
        for (pid, early) in pids.iter().zip(early) {
            let late = resident_kib(*pid);
            println!("SOAK | pid {pid} | {early} KiB after 30 s | {late} KiB after {minutes} min |");
            assert!(late < early + GROWTH, "a node grew from {early} to {late} KiB");
        }
        None
    });
    rows.iter().for_each(|row| {
        row.holds();
    });
    let after = settled(&pids);
    println!("SOAK | sockets and threads of each node idle before | {idle:?} | and after | {after:?} |");
    for (before, after) in idle.iter().zip(after) {
        // A lane to each new primary, one per node and primary.
        assert!(after.0 <= before.0 + 6 && after.1 == before.1, "{before:?} became {after:?}");
    }
}

fn disturb(cluster: &Cluster, pids: &[u32], choice: u64) {
    let victim = cluster.owner(slot_in(u16::try_from(choice / 16 % 3).unwrap()));
    let name = victim.to_string();
    match choice % 8 {
        0 => {
            let replica = cluster.replica_of(victim);
            cluster.run(&["kill", &name]);
            wait_until("the replica has taken over", || cluster.is_primary(replica));
        }
        1 => {
            cluster.run(&["freeze", &name]);
            sleep(Duration::from_secs(4));
            cluster.run(&["thaw", &name]);
        }
        2 => tell(cluster, cluster.replica_of(victim), "CLUSTER FAILOVER"),
        3 => (1..=6).for_each(|number| tell(cluster, number, "SCRIPT FLUSH")),
        4 => (1..=6).for_each(|number| tell(cluster, number, "CLIENT KILL TYPE normal")),
        5 => tell(cluster, victim, "CLIENT PAUSE 500"),
        6 => {
            tell(cluster, victim, "CONFIG SET maxmemory 1");
            sleep(Duration::from_secs(1));
            tell(cluster, victim, "CONFIG SET maxmemory 0");
        }
        _ => pids.iter().for_each(|pid| {
            assert!(Command::new("kill").args(["-HUP", &pid.to_string()]).status().unwrap().success());
        }),
    }
}

fn settled(pids: &[u32]) -> Vec<(usize, usize)> {
    sleep(Duration::from_secs(5));
    pids.iter().map(|pid| (count(*pid, "fd"), count(*pid, "task"))).collect()
}

fn count(pid: u32, what: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap();
    let link = |entry: &std::fs::DirEntry| std::fs::read_link(entry.path());
    let counts = |entry: &std::fs::DirEntry| {
        what == "task" || link(entry).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    entries.flatten().filter(counts).count()
}
