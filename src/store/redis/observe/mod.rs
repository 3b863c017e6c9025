//! Keeps the reports of the servers about themselves, while there is a watcher.
//!
//! One task asks, every [`INTERVAL`], on connections of its own. No check waits for it. Without a
//! watcher it has no connections and asks nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::store::redis::protocol::server_info::ServerInfo;
use crate::store::redis::topology::Topology;

mod round;

use round::Connections;

/// How often the servers are asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// The reports of the primaries by address, `host:port`. A server that did not answer is absent.
pub type Servers = BTreeMap<String, ServerInfo>;

/// The task that asks the servers, and its result.
#[derive(Debug)]
pub struct Observer {
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Each watcher has a receiver.
    watchers: watch::Sender<()>,
    /// Wakes the task when the first watcher arrives.
    begin: Notify,
    servers: ArcSwap<Servers>,
}

/// The servers are asked as long as one of these exists.
#[derive(Debug)]
pub struct ServerWatch(#[expect(dead_code, reason = "its drop ends the watch")] watch::Receiver<()>);

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Observer {
    /// Starts the task, which waits for a watcher.
    pub fn start(topology: &Arc<Topology>) -> Self {
        let seen = Arc::new(Seen::default());
        let task = tokio::spawn(observe(seen.clone(), Arc::downgrade(topology)));
        Self { seen, task }
    }

    /// Has the servers asked as long as the watch exists.
    pub fn watch(&self) -> ServerWatch {
        let watch = ServerWatch(self.seen.watchers.subscribe());
        self.seen.begin.notify_one();
        watch
    }

    /// The last reports; empty without a watch.
    pub fn servers(&self) -> Arc<Servers> {
        self.seen.servers.load_full()
    }
}

async fn observe(seen: Arc<Seen>, topology: Weak<Topology>) {
    loop {
        seen.begin.notified().await;
        let mut connections = Connections::default();
        while !seen.watchers.is_closed() {
            let Some(topology) = topology.upgrade() else { return };
            let asked = tokio::select! {
                asked = connections.ask(&topology) => asked,
                () = seen.watchers.closed() => break,
            };
            seen.servers.store(Arc::new(asked));
            drop(topology);
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = seen.watchers.closed() => {}
            }
        }
        seen.servers.store(Arc::default());
    }
}
