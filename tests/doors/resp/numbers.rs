//! The five numbers of redis-cell, by a clock that the test sets.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::watch;
use tollgate::access::Reach;
use tollgate::clock::Clock;
use tollgate::config::{Limits, Overrides, Setup, Source, load};
use tollgate::engine::Engine;
use tollgate::engine::fallback::FallbackStore;
use tollgate::gateway::resp::{Service, serve};
use tollgate::node::{Lifecycle, Load, Node, Refusals, Watchers};
use tollgate::prefilter::Prefilter;
use tollgate::reload::Reloader;
use tollgate::store::{Generations, MemoryStore, Store};

use super::{POLICY, door, numbers};
use crate::support::redis_cell::ROWS;
use crate::support::unique;

/// A client of a node whose clock is `time`.
fn client(time: &Arc<AtomicU64>) -> (BufReader<DuplexStream>, watch::Sender<()>) {
    let clock = Clock::manual(time.clone());
    let source = Source { origin: "test".into(), text: format!("resp: {{}}\n{POLICY}"), file: None };
    let config = load(&source, &Overrides::default(), 0).unwrap();
    let store = || MemoryStore::new(clock.clone(), 1000);
    let prefilter = Prefilter::new(1000, Duration::from_secs(60), Arc::new(Generations::default()));
    let fallback = FallbackStore::new(store(), NonZeroU64::MIN);
    let engine = Arc::new(Engine::new(&config, prefilter, Store::Memory(store()), fallback, clock.clone()));
    let reloader = Arc::new(Reloader::new(Setup::default(), config, engine.clone()));
    let (lifecycle, load) = (Lifecycle::default(), Load::default());
    let node = Node {
        engine,
        lifecycle,
        load,
        refusals: Refusals::default(),
        reloader,
        tracing: None,
        keys: Arc::default(),
        watchers: Watchers::default(),
    };
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (end, ended) = watch::channel(());
    tokio::spawn(serve(Service::new(&node, Reach::Loopback), theirs, Limits::default(), ended));
    (BufReader::new(ours), end)
}

async fn throttle(client: &mut BufReader<DuplexStream>, words: &str) -> [i64; 5] {
    client.write_all(format!("CL.THROTTLE {words}\r\n").as_bytes()).await.unwrap();
    let mut lines = [const { String::new() }; 6];
    for line in &mut lines {
        client.read_line(line).await.unwrap();
    }
    assert_eq!(lines[0], "*5\r\n", "{words}: {lines:?}");
    [1, 2, 3, 4, 5].map(|place: usize| lines[place].trim().trim_start_matches(':').parse().unwrap())
}

#[tokio::test]
async fn each_row_of_redis_cell_has_the_same_five_numbers() {
    let time = Arc::new(AtomicU64::new(1_790_000_000_000_000));
    let (mut client, _end) = client(&time);
    for (row, ([max_burst, count, period, used, later, quantity], expected)) in ROWS.into_iter().enumerate() {
        let words = format!("key-{row} {max_burst} {count} {period}");
        if used > 0 {
            assert_eq!(throttle(&mut client, &format!("{words} {used}")).await[0], 0);
        }
        time.fetch_add(later * 1000, Ordering::Relaxed);
        let told = throttle(&mut client, &format!("{words} {quantity}")).await;
        assert_eq!(told, expected, "{words} {quantity}, {used} used {later} ms ago");
    }
}

#[test]
fn cl_throttle_needs_no_policy() {
    let door = door(POLICY);
    let mut connection = door.connect();
    let key = unique("k");
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 15 30 60")), [0, 16, 15, -1, 2]);
    let shown = door.node.metrics();
    let series =
        r#"tollgate_checks_total{policy="cl.throttle",outcome="allowed",source="store",reason="ok",door="resp"} 1"#;
    assert!(shown.contains(series), "{shown}");
}
