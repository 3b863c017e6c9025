//! Nodes that are killed or frozen under load, and return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::mpsc;
use tollgate_limiter::{Client, LimitLayer, OnFailure, Options};

use crate::browser::Browser;
use crate::node::Node;
use crate::servers::{HOSTS, Host};

const CALLERS: usize = 16;

/// Long enough for any machine. The pause of a failed node lasts 500 ms (`node.rs` tests it).
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    Frozen,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_node_leaves_requests_open_or_closed() {
    each_host_outlives(Fault::Killed).await;
}

/// A request that waited for its node would not end while the node is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_node_leaves_requests_open_or_closed() {
    each_host_outlives(Fault::Frozen).await;
}

async fn each_host_outlives(fault: Fault) {
    for host in HOSTS {
        for on_failure in [OnFailure::Open, OnFailure::Closed] {
            outlive(host, fault, on_failure).await;
        }
    }
}

async fn outlive(host: Host, fault: Fault, on_failure: OnFailure) {
    let mut node = Node::start("cases.yaml");
    let options = Options::default().nodes([node.url()]).deadline(Duration::from_millis(300));
    let layer = LimitLayer::new(Client::new(options).unwrap()).policy("thousand").on_failure(on_failure);
    let mut load = Load::start(host.start(layer).await);
    let place = format!("{host:?} {fault:?} {on_failure:?}");

    load.wait_until(&format!("{place}: decisions"), |sample| sample.is_decided).await;
    match fault {
        Fault::Killed => node.kill(),
        Fault::Frozen => node.freeze(),
    }
    let failed = Instant::now();
    let status = match on_failure {
        OnFailure::Open => StatusCode::OK,
        OnFailure::Closed => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut ends = [0; CALLERS];
    while ends.iter().any(|&ends| ends < 3) {
        let sample = load.next(&format!("{place}: without a node, {ends:?}")).await;
        if sample.began > failed {
            assert!(!sample.is_decided && sample.status == status, "{place}: {sample:?}");
            ends[sample.caller] += 1;
        }
    }
    match fault {
        Fault::Killed => node.restart(),
        Fault::Frozen => node.thaw(),
    }
    load.wait_until(&format!("{place}: decisions after the return"), |sample| sample.is_decided).await;
}

/// One response. Only decisions have rate limit fields.
#[derive(Debug)]
struct Sample {
    caller: usize,
    began: Instant,
    status: StatusCode,
    is_decided: bool,
}

/// Several callers that send requests until this value is dropped.
struct Load {
    samples: mpsc::UnboundedReceiver<Sample>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    fn start(url: String) -> Self {
        let (sender, samples) = mpsc::unbounded_channel();
        let (browser, is_over) = (Browser::new(), Arc::new(AtomicBool::new(false)));
        for caller in 0..CALLERS {
            let (browser, url, sender, is_over) = (browser.clone(), url.clone(), sender.clone(), is_over.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let response = browser.get(&url).await;
                    let is_decided = response.headers().contains_key("ratelimit");
                    let _ = sender.send(Sample { caller, began, status: response.status(), is_decided });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        Self { samples, is_over }
    }

    async fn next(&mut self, event: &str) -> Sample {
        let next = tokio::time::timeout(PATIENCE, self.samples.recv()).await;
        next.unwrap_or_else(|_| panic!("{event}: no response in {PATIENCE:?}")).expect("callers run")
    }

    /// Ends when a request that begins from now on gets a response as wanted.
    async fn wait_until(&mut self, event: &str, is_wanted: impl Fn(&Sample) -> bool) {
        let began = Instant::now();
        loop {
            let sample = self.next(event).await;
            if sample.began > began && is_wanted(&sample) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{event}: not in {PATIENCE:?}");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
