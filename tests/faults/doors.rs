//! A node with all its doors.

use std::process::Command;

use tempfile::TempDir;

use crate::support::{Node, TOLLGATE};

/// A node that serves HTTP with a gate, Redis clients and Envoy. Each address is `127.0.0.1:port`.
pub(crate) struct Doors {
    pub(crate) node: Node,
    pub(crate) resp: String,
    pub(crate) envoy: String,
    _folder: TempDir,
}

impl Doors {
    pub(crate) fn start(limits: &str) -> Self {
        Self::start_by(Command::new(TOLLGATE), limits)
    }

    /// The same by a command that runs the program.
    pub(crate) fn start_by(program: Command, limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let descriptors =
            "domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";
        std::fs::write(folder.path().join("limits.yaml"), descriptors).unwrap();
        // A store that a check waits for, as `scripts/hostile` may want it. The attackers share its
        // cores, so that it may take longer than the usual timeout.
        let (store, timeout) = match std::env::var("TOLLGATE_HOSTILE_REDIS") {
            Ok(url) => (format!("store: {{redis: [{url}]}}\n"), ", timeout: 2s"),
            Err(_) => (String::new(), ""),
        };
        let config = format!(
            "{store}limits: {limits}\nresp: {{listen: 127.0.0.1:0}}\nenvoy: {{listen: 127.0.0.1:0, config: [limits.yaml]}}\n\
             policies: {{p: {{quotas: [1000000 per 1h]{timeout}}}, inline: {{inline: true, quotas: [5 per 1m]}}}}\n\
             gates: {{edge: {{client_from: peer, rules: [{{checks: [{{policy: p, key: all}}]}}]}}}}\n"
        );
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, config).unwrap();
        let node = Node::start_by(program, &["--config", file.to_str().unwrap()]);
        let address = |door: &str| {
            let line = node.greeting.lines().find_map(|line| line.trim().strip_prefix(door)).expect("it greets");
            line.trim().split_once("://").unwrap().1.to_owned()
        };
        let (resp, envoy) = (address("RESP "), address("Envoy "));
        Self { node, resp, envoy, _folder: folder }
    }
}
