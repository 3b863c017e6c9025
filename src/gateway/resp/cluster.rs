//! `CLUSTER`: a node is a cluster of one, which owns all slots. So clients for clusters can use it.

use std::net::SocketAddr;

use super::decode::Words;
use super::outcome::{Outcome, Ran, help, unknown_subcommand};
use super::reply::Replies;
use super::session::Session;
use crate::limit::slot::SLOTS;

const HELP: &[&str] = &[
    "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "SLOTS",
    "    Return this node as the owner of all slots.",
    "SHARDS",
    "    The same, as Redis 7 describes shards.",
    "NODES",
    "    The same, as a line of text.",
    "INFO",
    "    Return the state of the cluster.",
    "MYID",
    "    Return the id of this node.",
    "HELP",
    "    Print this help.",
];

/// `CLUSTER SLOTS | SHARDS | NODES | INFO | MYID | HELP`.
pub(super) fn cluster(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let is = |name: &str| words[1].eq_ignore_ascii_case(name.as_bytes());
    let node = This::of(session);
    match &words[2..] {
        [] if is("SLOTS") => node.slots(replies),
        [] if is("SHARDS") => node.shards(replies),
        [] if is("NODES") => replies.bulk(node.line().as_bytes()),
        [] if is("INFO") => replies.bulk(info().as_bytes()),
        [] if is("MYID") => replies.bulk(node.id.as_bytes()),
        [] if is("HELP") => help(replies, HELP),
        _ => return Err(unknown_subcommand("CLUSTER", &words[1])),
    }
    Ok(Outcome::Answered)
}

/// `READONLY` and `READWRITE`, which clients of clusters send to choose a replica.
pub(super) fn read_mode(_: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    replies.simple("OK");
    Ok(Outcome::Answered)
}

/// This node, as the client has reached it.
struct This {
    /// Empty stands for the host that the client knows: a certificate may not have the address.
    host: String,
    port: u16,
    id: String,
}

impl This {
    fn of(session: &Session) -> Self {
        let caller = session.service.caller;
        let host = caller.local.filter(|_| !caller.encrypted).map(|local| local.ip().to_canonical().to_string());
        let name = caller.local.map(|local: SocketAddr| local.to_string()).unwrap_or_default();
        let id = blake3::hash(name.as_bytes()).to_hex()[..40].to_owned();
        Self { host: host.unwrap_or_default(), port: caller.local.map_or(0, |local| local.port()), id }
    }

    fn slots(&self, replies: &mut Replies<'_>) {
        replies.array(1);
        replies.array(3);
        replies.integer(0);
        replies.integer(i64::from(SLOTS) - 1);
        replies.array(3);
        replies.bulk(self.host.as_bytes());
        replies.integer(self.port.into());
        replies.bulk(self.id.as_bytes());
    }

    fn shards(&self, replies: &mut Replies<'_>) {
        replies.array(1);
        replies.map(2);
        replies.bulk(b"slots");
        replies.array(2);
        replies.integer(0);
        replies.integer(i64::from(SLOTS) - 1);
        replies.bulk(b"nodes");
        replies.array(1);
        replies.map(7);
        replies.entry("id", self.id.as_bytes());
        replies.entry("ip", self.host.as_bytes());
        replies.entry("endpoint", self.host.as_bytes());
        replies.entry("role", b"master");
        replies.entry("health", b"online");
        replies.number("port", self.port.into());
        replies.number("replication-offset", 0);
    }

    fn line(&self) -> String {
        let Self { host, port, id } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("{id} {host}:{port}@0 myself,master - 0 0 1 connected 0-{}\n", SLOTS - 1)
    }
}

fn info() -> String {
    format!(
        "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\n\
         cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
    )
}
