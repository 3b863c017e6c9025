//! A primary with replicas, and the three sentinels that watch it.

use super::redis::Server;
use super::wait_until;

/// The name of the master.
pub(crate) const MASTER: &str = "tollgate-test";

/// The servers and their sentinels. They end with it.
pub(crate) struct Watched {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Watched {
    /// A primary with two replicas.
    pub(crate) fn start() -> Self {
        Self::start_with(2, 500)
    }

    /// Starts them, and waits until each sentinel knows all others and all replicas. The first
    /// server is the primary. A server that is silent for `down_after` ms counts as down.
    pub(crate) fn start_with(replicas: usize, down_after: u32) -> Self {
        let primary = Server::start_with(&FAST);
        let port = primary.port.to_string();
        let replica = || Server::start_with(&[&FAST[..], &["--replicaof", "127.0.0.1", &port]].concat());
        let servers: Vec<Server> = std::iter::once(primary).chain((0..replicas).map(|_| replica())).collect();
        servers[1..].iter().for_each(follows);
        let mut lines = watching(servers[0].port, 2);
        lines += &format!("sentinel down-after-milliseconds {MASTER} {down_after}\n");
        let sentinels: Vec<Server> = (0..3).map(|_| Server::start_sentinel(&lines)).collect();
        let watched = Self { servers, sentinels };
        for place in 0..3 {
            wait_until("the sentinels know each other and all replicas", || {
                let fields = watched.fields(place);
                fields.contains(&format!("num-slaves {replicas} ")) && fields.contains("num-other-sentinels 2")
            });
        }
        watched
    }

    /// The part of a configuration that names them.
    pub(crate) fn store(&self) -> String {
        let nodes: Vec<_> = self.sentinels.iter().map(|sentinel| format!("'127.0.0.1:{}'", sentinel.port)).collect();
        format!("store: {{sentinel: {{master: {MASTER}, nodes: [{}]}}}}", nodes.join(", "))
    }

    /// The port of the primary that a sentinel names, if it answers.
    pub(crate) fn named_by(&self, place: usize) -> Option<u16> {
        let mut connection = self.sentinels[place].brief_connection().ok()?;
        let ask = redis::cmd("SENTINEL").arg(&["GET-MASTER-ADDR-BY-NAME", MASTER]).query(&mut connection);
        let (_, port): (String, String) = ask.ok()?;
        port.parse().ok()
    }

    /// Fails over without a fault. Returns the place of the new primary. A failover may be given
    /// up on a busy machine.
    pub(crate) fn fail_over(&self) -> usize {
        let (former, mut looks) = (self.servers[0].port, 0);
        let mut found = None;
        wait_until("a replica is promoted", || {
            if looks % 300 == 0 {
                let mut connection = self.sentinels[0].connection().unwrap();
                // A sentinel refuses while a failover is under way.
                let _ = redis::cmd("SENTINEL").arg(&["FAILOVER", MASTER]).exec(&mut connection);
            }
            looks += 1;
            found = self.other_primary(former);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until another server than the one at `port` is a primary. Returns its place.
    pub(crate) fn promoted(&self, port: u16) -> usize {
        let mut found = None;
        wait_until("a replica is promoted", || {
            found = self.other_primary(port);
            found.is_some()
        });
        found.unwrap()
    }

    fn other_primary(&self, port: u16) -> Option<usize> {
        self.servers.iter().position(|server| server.port != port && server.is_primary())
    }

    /// The number of failovers so far.
    pub(crate) fn epoch(&self) -> u64 {
        let fields = self.fields(0);
        let (_, after) = fields.split_once("config-epoch ").unwrap();
        after.split(' ').next().unwrap().parse().unwrap()
    }

    fn fields(&self, place: usize) -> String {
        let mut connection = self.sentinels[place].connection().unwrap();
        let fields: Vec<String> = redis::cmd("SENTINEL").arg(&["MASTER", MASTER]).query(&mut connection).unwrap();
        fields.join(" ")
    }
}

/// The configuration of a sentinel that watches the server at `port`. That many must agree that it
/// is down.
pub(crate) fn watching(port: u16, quorum: usize) -> String {
    format!(
        "sentinel monitor {MASTER} 127.0.0.1 {port} {quorum}\nsentinel down-after-milliseconds {MASTER} 500\n\
         sentinel failover-timeout {MASTER} 3000\nsentinel parallel-syncs {MASTER} 2\n"
    )
}

/// Options of servers that synchronise without delay.
const FAST: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

fn follows(replica: &Server) {
    wait_until("the replica follows", || replica.info("replication").contains("master_link_status:up"));
}
