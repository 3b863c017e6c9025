//! A primary with two replicas, and the three sentinels that watch it.

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
    /// Starts them, and waits until each sentinel knows all others and both replicas. The first
    /// server is the primary.
    pub(crate) fn start() -> Self {
        let primary = Server::start_with(&FAST);
        let port = primary.port.to_string();
        let replica = || Server::start_with(&[&FAST[..], &["--replicaof", "127.0.0.1", &port]].concat());
        let servers = vec![replica(), replica()];
        servers.iter().for_each(|replica| follows(replica));
        let servers: Vec<Server> = std::iter::once(primary).chain(servers).collect();
        let lines = watching(servers[0].port, 2);
        let sentinels: Vec<Server> = (0..3).map(|_| Server::start_sentinel(&lines)).collect();
        let watched = Self { servers, sentinels };
        for place in 0..3 {
            wait_until("the sentinels know each other and both replicas", || {
                let fields = watched.fields(place);
                fields.contains("num-slaves 2") && fields.contains("num-other-sentinels 2")
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

    /// Starts a failover without a fault.
    pub(crate) fn fail_over(&self) {
        let mut tries = 0;
        wait_until("a sentinel starts a failover", || {
            tries += 1;
            let mut connection = self.sentinels[tries % 2].connection().unwrap();
            redis::cmd("SENTINEL").arg(&["FAILOVER", MASTER]).exec(&mut connection).is_ok()
        });
    }

    /// Waits until another server than the one at `port` says that it is a primary. Returns its
    /// place.
    pub(crate) fn promoted(&self, port: u16) -> usize {
        let mut found = None;
        wait_until("a replica is promoted", || {
            let is_other = |server: &Server| server.port != port && server.is_primary();
            found = self.servers.iter().position(is_other);
            found.is_some()
        });
        found.unwrap()
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
