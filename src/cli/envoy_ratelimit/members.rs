//! Faults of the configuration in the words of the variables.

use super::Variables;
use crate::config::{Fault, Place};

/// The members of the configuration, and the variables that they come from.
const MEMBERS: [(&str, &str); 23] = [
    ("envoy.config", "RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY"),
    ("envoy.config.node_id", "CONFIG_GRPC_XDS_NODE_ID"),
    ("envoy.config.tls", "CONFIG_GRPC_XDS_SERVER_USE_TLS"),
    ("envoy.config.tls.ca_file", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ("envoy.config.tls.cert_file", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("envoy.config.tls.key_file", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("envoy.config.tls.server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    ("envoy.config.xds", "CONFIG_GRPC_XDS_SERVER_URL"),
    ("envoy.connection_age", "GRPC_MAX_CONNECTION_AGE"),
    ("envoy.http_listen", "HOST PORT"),
    ("envoy.listen", "GRPC_HOST GRPC_PORT"),
    ("envoy.near_limit", "NEAR_LIMIT_RATIO"),
    ("envoy.tls", "GRPC_SERVER_USE_TLS"),
    ("envoy.tls.ca_file", "GRPC_CLIENT_TLS_CACERT GRPC_SERVER_TLS_CA_CERT"),
    ("envoy.tls.cert_file", "GRPC_SERVER_TLS_CERT"),
    ("envoy.tls.key_file", "GRPC_SERVER_TLS_KEY"),
    ("metrics_listen", "PROMETHEUS_ADDR"),
    ("store", "REDIS_URL REDIS_AUTH"),
    ("store.key_prefix", "CACHE_KEY_PREFIX"),
    ("store.tls", "REDIS_TLS"),
    ("store.tls.ca_file", "REDIS_TLS_CACERT"),
    ("store.tls.cert_file", "REDIS_TLS_CLIENT_CERT"),
    ("store.tls.key_file", "REDIS_TLS_CLIENT_KEY"),
];

impl Variables {
    /// The variables of a row of [`MEMBERS`] that are set, or all if none is.
    fn of_member(&self, names: &str) -> String {
        let set: Vec<&str> = names.split(' ').filter(|name| self.get(name).is_some()).collect();
        if set.is_empty() { names.replace(' ', ", ") } else { set.join(", ") }
    }

    /// A fault of the configuration `text`, with variables in place of the line and its members.
    pub(super) fn named(&self, fault: &Fault, text: &str) -> String {
        let (None, Place::At { line, .. }) = (&fault.file, fault.place) else { return fault.to_string() };
        let around = members_at(text, line);
        let row = (1..=around.len()).rev().find_map(|depth| {
            let path = around.get(..depth)?.join(".");
            MEMBERS.iter().find(|(member, _)| *member == path)
        });
        let Some((own, variables)) = row else { return fault.message.clone() };
        let section = |member: &'static str| member.rsplit_once('.').unwrap_or(("", member));
        let mut message = fault.message.clone();
        for (member, variables) in MEMBERS {
            let (outer, name) = section(member);
            if member == *own || outer == *own || outer == section(own).0 {
                message = message.replace(&format!("`{name}`"), &self.of_member(variables));
            }
        }
        if message == fault.message { format!("{}: {message}", self.of_member(variables)) } else { message }
    }
}

/// The names of the members around a line of printed JSON, from the outermost one.
fn members_at(text: &str, line: usize) -> Vec<&str> {
    let mut members: Vec<(usize, &str)> = Vec::new();
    for line in text.lines().take(line) {
        let member = line.trim_start();
        let indent = line.len() - member.len();
        members.retain(|(outer, _)| *outer < indent);
        members.extend(member.strip_prefix('"').and_then(|rest| Some((indent, rest.split_once("\":")?.0))));
    }
    members.into_iter().map(|(_, name)| name).collect()
}
