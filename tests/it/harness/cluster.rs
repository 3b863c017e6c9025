//! A six-node cluster of the tests' own, by `scripts/cluster`. `REDIS_SERVER` chooses another binary.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

/// Three primaries with a replica each. It ends when it is dropped; one that is kept to the end ends with the test
/// process, however that ends: its keeper waits for the pipe to close, and then takes it down.
pub(crate) struct Cluster {
    base: u16,
    folder: TempDir,
    _keeper: Child,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = free_base();
        let keeper = control(base, &folder)
            .args(["-c", r#"trap '' INT; exec 3<&0 </dev/null; read -r _ <&3; exec "$0" down >/dev/null"#, &script()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let cluster = Self { base, folder, _keeper: keeper };
        cluster.run(&["up"]);
        cluster
    }

    /// `scripts/cluster` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) {
        let output = control(self.base, &self.folder)
            .args(["-c", r#"exec "$0" "$@""#, &script()])
            .args(arguments)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "scripts/cluster {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Of the first two nodes.
    pub(crate) fn seeds(&self) -> Vec<String> {
        (0..2).map(|node| format!("redis://127.0.0.1:{}", self.base + node)).collect()
    }
}

impl Cluster {
    /// A connection to node `number`, 1 to 6.
    pub(crate) fn connection(&self, number: u16) -> redis::Connection {
        let url = format!("redis://127.0.0.1:{}", self.base + number - 1);
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }
}

impl Drop for Cluster {
    /// Before its folder goes, which knows the processes.
    fn drop(&mut self) {
        let down = control(self.base, &self.folder).args(["-c", r#"exec "$0" down"#, &script()]).output();
        if !down.as_ref().is_ok_and(|output| output.status.success()) && !std::thread::panicking() {
            panic!("scripts/cluster down: {down:?}");
        }
    }
}

/// Adds the calls that INFO commandstats tells.
pub(crate) fn add_calls(connection: &mut redis::Connection, calls: &mut BTreeMap<String, u64>) {
    let info: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    for line in info.lines() {
        if let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) {
            let count = rest.split(',').next().unwrap().parse::<u64>().unwrap();
            *calls.entry(name.to_owned()).or_default() += count;
        }
    }
}

/// One for all tests that kill nothing.
pub(crate) fn shared() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start);
    &CLUSTER
}

fn control(base: u16, folder: &TempDir) -> Command {
    let mut command = Command::new("bash");
    command.env("CLUSTER_PORT", base.to_string()).env("CLUSTER_DIR", folder.path().join("cluster"));
    command
}

fn script() -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/cluster").to_str().unwrap().to_owned()
}

/// The first of six ports that are free, with those of the cluster bus 10,000 above; another one at each call,
/// since a cluster takes its ports only a while later.
fn free_base() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = 10_000 + u16::try_from(std::process::id() % 1000).unwrap() * 12;
    let mut bases = std::iter::repeat_with(|| start + NEXT.fetch_add(6, Ordering::Relaxed)).take(500);
    let base = bases.find(|base| (0..6).all(|node| free(base + node) && free(base + node + 10_000)));
    base.expect("six free ports in a row")
}
