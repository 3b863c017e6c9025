//! What of a changed configuration only a restart puts into force.

use super::{Config, ServerTls};

impl Config {
    /// The settings at the top of the file that differ from those of `running` and are not put into force by a reload.
    pub fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let Self {
            listen,
            admin_listen,
            store,
            prefilter,
            expected_nodes,
            shutdown,
            telemetry,
            limits,
            tls,
            access: _,
            policies: _,
            files: _,
        } = self;
        let settings = [
            ("listen", *listen != running.listen),
            ("admin_listen", *admin_listen != running.admin_listen),
            ("tls", kind(tls.as_ref()) != kind(running.tls.as_ref())),
            ("store", *store != running.store),
            ("prefilter", *prefilter != running.prefilter),
            ("fallback", *expected_nodes != running.expected_nodes),
            ("limits", *limits != running.limits),
            ("shutdown", *shutdown != running.shutdown),
            ("telemetry", *telemetry != running.telemetry),
        ];
        settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// Whether there is TLS, and whether clients need certificates: no slip in a file may turn off either of a
/// node that runs.
fn kind(tls: Option<&ServerTls>) -> Option<bool> {
    tls.map(ServerTls::asks_clients)
}
