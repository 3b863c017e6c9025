//! A private six-node cluster for tests, by `scripts/cluster`. `REDIS_SERVER` selects another
//! binary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::{hold_port, wait_until};

/// Three primaries with a replica each. Dropping it ends the cluster. A cluster that is never
/// dropped ends with the test process, however that ends. Its keeper waits for the pipe to close,
/// and then shuts it down.
pub(crate) struct Cluster {
    base: u16,
    folder: TempDir,
    _keeper: Child,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let folder = folder();
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

    pub(crate) fn heal(&self) {
        self.run(&["up"]);
    }

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

    pub(crate) fn seeds(&self) -> Vec<String> {
        (0..2).map(|node| format!("redis://127.0.0.1:{}", self.base + node)).collect()
    }
}

impl Cluster {
    pub(crate) fn connection(&self, number: u16) -> redis::Connection {
        self.connect(number, Duration::from_secs(10)).unwrap()
    }

    /// The same for a node that may not answer.
    pub(crate) fn try_connection(&self, number: u16) -> redis::RedisResult<redis::Connection> {
        self.connect(number, Duration::from_millis(500))
    }

    fn connect(&self, number: u16, limit: Duration) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port(number)))?;
        let connection = client.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(connection)
    }

    pub(crate) fn port(&self, number: u16) -> u16 {
        self.base + number - 1
    }

    /// The number of the node that owns `slot`, according to the first node that answers.
    pub(crate) fn owner(&self, slot: u16) -> u16 {
        let owner = self.ranges().into_iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        owner.expect("the slot is owned").2
    }

    /// The first and the last slot of each range, and the number of its owner. The first node that
    /// answers reports them.
    pub(crate) fn ranges(&self) -> Vec<(u16, u16, u16)> {
        let table = (1..=6).find_map(|number| {
            let mut connection = self.try_connection(number).ok()?;
            connection.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
            redis::cmd("CLUSTER").arg("SLOTS").query::<Vec<Vec<redis::Value>>>(&mut connection).ok()
        });
        let range = |range: &Vec<redis::Value>| {
            let [redis::Value::Int(first), redis::Value::Int(last), redis::Value::Array(primary), ..] =
                range.as_slice()
            else {
                return None;
            };
            let Some(redis::Value::Int(port)) = primary.get(1) else { return None };
            let [first, last, port] = [first, last, port].map(|number| u16::try_from(*number).unwrap());
            Some((first, last, port - self.base + 1))
        };
        table.expect("a node answers").iter().filter_map(range).collect()
    }

    pub(crate) fn replica_of(&self, number: u16) -> u16 {
        let mut connection = self.connection(number);
        let id: String = redis::cmd("CLUSTER").arg("MYID").query(&mut connection).unwrap();
        let lines: Vec<String> = redis::cmd("CLUSTER").arg("REPLICAS").arg(id).query(&mut connection).unwrap();
        let address = lines[0].split([' ', '@']).nth(1).unwrap();
        address.rsplit(':').next().unwrap().parse::<u16>().unwrap() - self.base + 1
    }

    /// Starts a manual failover to replica `number`, and waits for it. All but one of several
    /// concurrent elections may fail, and the server gives up after 5 s. This sends the command
    /// again later than that.
    pub(crate) fn fail_over(&self, number: u16) {
        let tell = || redis::cmd("CLUSTER").arg("FAILOVER").exec(&mut self.connection(number));
        tell().unwrap();
        let mut looks = 0;
        wait_until("the replica has taken over", || {
            looks += 1;
            if looks % 600 == 0 {
                // A node that is already a primary rejects it.
                let _ = tell();
            }
            self.is_primary(number)
        });
    }

    pub(crate) fn configure(&self, name: &str, value: &str) {
        for number in 1..=6 {
            redis::cmd("CONFIG").arg(&["SET", name, value]).exec(&mut self.connection(number)).unwrap();
        }
    }

    pub(crate) fn is_primary(&self, number: u16) -> bool {
        let role = |mut connection| redis::cmd("ROLE").query::<Vec<redis::Value>>(&mut connection);
        let role = self.try_connection(number).and_then(role);
        role.is_ok_and(|role| format!("{:?}", role[0]).contains("master"))
    }
}

/// In memory where possible. Nodes and sentinels wait for the disk at each change of their
/// configuration, up to half a minute on a busy disk.
pub(super) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Drop for Cluster {
    /// Runs before the removal of its folder, which lists the processes.
    fn drop(&mut self) {
        let down = control(self.base, &self.folder).args(["-c", r#"exec "$0" down"#, &script()]).output();
        if !down.as_ref().is_ok_and(|output| output.status.success()) && !std::thread::panicking() {
            panic!("scripts/cluster down: {down:?}");
        }
    }
}

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
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
        let cluster = Cluster::start();
        // A primary that stalls for 2 s must not fail over while other tests use it.
        cluster.configure("cluster-node-timeout", "15000");
        cluster
    });
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

/// The first of six free ports, with those of the cluster bus 10,000 above. Each call returns
/// another one, because a cluster binds its ports only later.
fn free_base() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 10_000 + u16::try_from(std::process::id() % 1000).unwrap() * 12;
    let mut bases = std::iter::repeat_with(|| start + NEXT.fetch_add(6, Ordering::Relaxed)).take(500);
    let base =
        bases.find(|base| (0..6).all(|node| hold_port(base + node).is_ok() && hold_port(base + node + 10_000).is_ok()));
    base.expect("six free ports in a row")
}
