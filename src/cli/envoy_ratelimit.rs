//! `tollgate envoy-ratelimit`: a node by the variables of envoyproxy/ratelimit.
//!
//! The variables become a configuration as a file has it, and `serve` runs it. A variable that the
//! node cannot honour is an error or a warning.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use jiff::SignedDuration;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

mod members;

use super::{fail, load, log, print, say, serve};
use crate::clock::unix_micros;
use crate::config::envoy::{ALL, ALL_AND_HIDDEN};
use crate::config::{self, Overrides, Setup, Source};

/// The name of the reference's program. A link of this name runs this command.
pub(super) const PROGRAM: &str = "ratelimit";

/// The default of `REDIS_TIMEOUT` here. The caller's own timeout is usually shorter.
const DEADLINE: Duration = Duration::from_millis(100);

/// Where the dashboard is by default.
const DASHBOARD: &str = "127.0.0.1:7070";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the configuration of the variables, for a file of `tollgate serve`, and end. It has
    /// the password of REDIS_AUTH.
    #[arg(long)]
    print: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let variables = Variables::from_environment();
    let Translation { config, level, mut warnings } = match Translation::of(&variables) {
        Ok(translation) => translation,
        Err(faults) => return fail(&faults.join("\ntollgate: "), 1),
    };
    let text = format!("{config:#}\n");
    let origin = "the variables (`tollgate envoy-ratelimit --print`)".to_owned();
    let [listen, admin_listen] = [load::LISTEN, load::ADMIN_LISTEN].map(|name| variables.get(name).map(str::to_owned));
    let overrides = Overrides { listen, admin_listen, ..Overrides::default() };
    let source = Source { origin, text: text.clone(), file: None };
    if let Err(faults) = config::load(&source, &overrides, unix_micros()) {
        // The printed configuration may be for another machine, which has the files.
        let (of_files, faults): (Vec<_>, Vec<_>) =
            faults.iter().partition(|fault| args.print && fault.is_of_an_absent_file());
        let named = |fault| variables.named(fault, &text);
        if !faults.is_empty() {
            return fail(&faults.into_iter().map(named).collect::<Vec<_>>().join("\ntollgate: "), 1);
        }
        warnings.extend(of_files.into_iter().map(named));
    }
    if args.print {
        warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
        return print(&text).map_or_else(|reason| fail(&reason, 1), |()| ExitCode::SUCCESS);
    }
    log::start(level);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    serve::run_node(Ok(Setup { file: None, text: Some(source), overrides }))
}

/// All variables of the reference without a counterpart, one a line: `error` or `warning`, the
/// name, the value that means what this node does anyway or a dash, and the advice. The reference
/// ignores the variables of memcached beside Redis, too.
const UNREAD: &str = include_str!("envoy_ratelimit/unread.txt");

/// The columns of [`UNREAD`].
fn unread() -> impl Iterator<Item = [&'static str; 4]> {
    UNREAD.lines().map(|line| {
        let mut columns = line.splitn(4, ' ');
        std::array::from_fn(|_| columns.next().unwrap_or_default())
    })
}

/// The variables of the process that are not empty.
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn from_environment() -> Self {
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self(std::env::vars_os().filter_map(text).filter(|(_, value)| !value.is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn or(&self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or(default).to_owned()
    }
}

/// The configuration that the variables mean.
#[derive(Debug)]
struct Translation {
    config: Value,
    level: Option<&'static str>,
    warnings: Vec<String>,
}

impl Translation {
    /// # Errors
    /// Each variable that is wrong or that this node cannot honour, with what would be right.
    fn of(variables: &Variables) -> Result<Self, Vec<String>> {
        let mut reader = VariableReader { variables, faults: Vec::new(), warnings: Vec::new() };
        reader.note_unread();
        let mut config = Map::new();
        let store = reader.store();
        let envoy = reader.envoy(&mut config);
        let level = reader.level();
        config.insert("store".to_owned(), store);
        config.insert("envoy".to_owned(), envoy);
        // Envoy has a few connections to each node, and a pod may have few open files.
        config.insert("limits".to_owned(), json!({"max_connections": 2000}));
        // So that the endpoints of a service lose the node before it stops.
        config.insert("shutdown".to_owned(), json!({"delay": "5s"}));
        match reader.faults.is_empty() {
            true => Ok(Self { config: config.into(), level, warnings: reader.warnings }),
            false => Err(reader.faults),
        }
    }
}

/// Reads the variables and notes what is wrong.
struct VariableReader<'a> {
    variables: &'a Variables,
    faults: Vec<String>,
    warnings: Vec<String>,
}

impl VariableReader<'_> {
    fn note_unread(&mut self) {
        let listens = [load::ADMIN_LISTEN, load::LISTEN].into_iter().find_map(|name| self.variables.get(name));
        let dashboard = listens.unwrap_or(DASHBOARD);
        for [kind, name, harmless, advice] in unread() {
            let Some(value) = self.variables.get(name) else { continue };
            let advice = advice.replace(DASHBOARD, dashboard);
            let means = go_bool(value).map_or_else(|| value.to_owned(), |flag| flag.to_string());
            // The value may be a secret.
            match kind {
                _ if harmless == means && harmless != "-" => {}
                "error" => self.faults.push(format!("{name} cannot be honoured: {advice}")),
                _ => self.warnings.push(format!("{name} has no effect: {advice}")),
            }
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        let Some(value) = self.variables.get(name) else { return default };
        go_bool(value).unwrap_or_else(|| {
            self.faults.push(format!("{name} must be `true` or `false`, not `{value}`"));
            default
        })
    }

    fn required(&mut self, name: &str, why: &str) -> String {
        self.variables.get(name).map(ToOwned::to_owned).unwrap_or_else(|| {
            self.faults.push(format!("{name} is not set: {why}"));
            String::new()
        })
    }

    fn duration(&mut self, name: &str) -> Option<Duration> {
        let value = self.variables.get(name)?;
        let duration = go_duration(value);
        if duration.is_none() {
            self.faults.push(format!("{name} must be a duration such as `10s`, not `{value}`"));
        }
        duration
    }

    /// The address of a host and a port, by two variables.
    fn address(&mut self, name_of_host: &str, port: (&str, &str)) -> String {
        let host = self.variables.or(name_of_host, "0.0.0.0");
        let (name, default) = port;
        let port = self.variables.or(name, default);
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            self.faults.push(format!("{name} must be a port, not `{port}`"));
        }
        self.joined(name_of_host, &host, &port)
    }

    /// `host:port`, where Go's empty host is every address. A name becomes its first address, of
    /// IPv4 if there is one, as in Go.
    fn joined(&mut self, variable: &str, host: &str, port: &str) -> String {
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let found: Vec<IpAddr> = match plain {
            "" => vec![Ipv4Addr::UNSPECIFIED.into()],
            name => (name, 0)
                .to_socket_addrs()
                .map(|found| found.map(|address| address.ip()).collect())
                .unwrap_or_default(),
        };
        match found.iter().find(|address| address.is_ipv4()).or(found.first()) {
            Some(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            Some(address) => format!("{address}:{port}"),
            None => {
                self.faults.push(format!("{variable} must be an IP address or the name of one, not `{host}`"));
                String::new()
            }
        }
    }

    fn store(&mut self) -> Value {
        let url = self.required("REDIS_URL", "name the Redis that has the counts, as `host:port`");
        let socket = self.variables.or("REDIS_SOCKET_TYPE", "unix");
        let kind = self.variables.or("REDIS_TYPE", "SINGLE").to_ascii_uppercase();
        let login = self.variables.get("REDIS_AUTH").map(login);
        let mut store = Map::new();
        match (socket.as_str(), kind.as_str()) {
            ("tcp", "SINGLE" | "CLUSTER") => {
                let seed = |seed: &str| match seed.contains("://") {
                    true => seed.to_owned(),
                    false => format!("redis://{}{seed}", login.as_deref().unwrap_or_default()),
                };
                store.insert("redis".to_owned(), url.split(',').map(seed).collect());
            }
            ("tcp", "SENTINEL") => {
                if login.is_some() {
                    let advice = "write a file with `store.password_file`, for `tollgate serve`";
                    self.faults.push(format!("REDIS_AUTH cannot be honoured with REDIS_TYPE=SENTINEL: {advice}"));
                }
                let (master, nodes) = url.split_once(',').unwrap_or((&url, ""));
                let nodes: Vec<&str> = nodes.split(',').filter(|node| !node.is_empty()).collect();
                store.insert("sentinel".to_owned(), json!({"master": master, "nodes": nodes}));
            }
            ("unix", "SINGLE") => drop(store.insert("redis".to_owned(), json!([format!("unix://{url}")]))),
            ("unix", _) => {
                self.faults.push("REDIS_SOCKET_TYPE must be `tcp` for REDIS_TYPE other than SINGLE".to_owned())
            }
            ("tcp", _) => self.faults.push("REDIS_TYPE must be SINGLE, CLUSTER or SENTINEL".to_owned()),
            _ => self.faults.push("REDIS_SOCKET_TYPE must be `tcp` or `unix`".to_owned()),
        }
        if self.flag("REDIS_TLS", false) {
            let names = ("REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY");
            store.insert("tls".to_owned(), self.tls(names));
        }
        if let Some(prefix) = self.variables.get("CACHE_KEY_PREFIX") {
            store.insert("key_prefix".to_owned(), json!(prefix));
        }
        store.into()
    }

    /// The files of TLS: of the authority, the certificate and its key.
    fn tls(&self, (authority, certificate, key): (&str, &str, &str)) -> Value {
        let members = [("ca_file", authority), ("cert_file", certificate), ("key_file", key)];
        let members = members.into_iter().filter_map(|(member, name)| {
            let file = self.variables.get(name)?;
            Some((member.to_owned(), json!(file)))
        });
        members.collect::<Map<_, _>>().into()
    }

    /// The section `envoy`. Sections beside it go into `config`.
    fn envoy(&mut self, config: &mut Map<String, Value>) -> Value {
        let mut envoy = Map::new();
        let mut set = |name: &str, value: Value| drop(envoy.insert(name.to_owned(), value));
        set("listen", self.address("GRPC_HOST", ("GRPC_PORT", "8081")).into());
        set("http_listen", self.address("HOST", ("PORT", "8080")).into());
        set("config", self.rules());
        let both = self.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false);
        set("counting", if both { "all-or-none" } else { "independent" }.into());
        let has_fields = self.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false);
        set("headers", if has_fields { "draft-11" } else { "none" }.into());
        if has_fields {
            let fields = "LIMIT_RESPONSE_HEADERS_ENABLED adds `RateLimit-Policy`, `RateLimit` and `Retry-After`, not \
                          `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`";
            self.warnings.push(fields.to_owned());
        }
        let deadline = self.duration("REDIS_TIMEOUT").unwrap_or(DEADLINE);
        let deadline = deadline.clamp(Duration::from_millis(1), Duration::from_secs(20));
        set("deadline", format!("{}ms", deadline.as_millis()).into());
        if let Some(age) = self.duration("GRPC_MAX_CONNECTION_AGE") {
            set("connection_age", format!("{}ms", age.as_millis()).into());
        }
        let mut asks_clients = false;
        if self.flag("GRPC_SERVER_USE_TLS", false) {
            // Envoy Gateway sets the second name, which the reference does not read.
            let authority = ["GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_TLS_CA_CERT"];
            let authority = authority.into_iter().find(|name| self.variables.get(name).is_some());
            asks_clients = authority.is_some();
            set("tls", self.tls((authority.unwrap_or_default(), "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY")));
        }
        if !asks_clients {
            let open = "without GRPC_CLIENT_TLS_CACERT everyone who reaches the ports may spend the limits";
            self.warnings.push(open.to_owned());
            config.insert("auth".to_owned(), json!({"allow_anonymous": true}));
        }
        if self.flag("USE_PROMETHEUS", false) && !self.flag("DISABLE_STATS", false) {
            set("metrics", "reference".into());
            let address = self.variables.or("PROMETHEUS_ADDR", ":9090");
            let (host, port) = address.rsplit_once(':').unwrap_or(("", &address));
            let address = self.joined("PROMETHEUS_ADDR", host, port);
            config.insert("metrics_listen".to_owned(), address.into());
        }
        if let Some(ratio) = self.variables.get("NEAR_LIMIT_RATIO") {
            match ratio.parse::<f64>() {
                Ok(ratio) => set("near_limit", json!(ratio)),
                Err(_) => self.faults.push("NEAR_LIMIT_RATIO must be a number from 0 to 1".to_owned()),
            }
        }
        envoy.into()
    }

    /// The folder of the rules, or the control plane that sends them.
    fn rules(&mut self) -> Value {
        match self.variables.or("CONFIG_TYPE", "FILE").as_str() {
            "FILE" => {
                let root = self.variables.or("RUNTIME_ROOT", "/srv/runtime_data/current");
                let parts = [
                    root,
                    self.variables.or("RUNTIME_SUBDIRECTORY", ""),
                    self.variables.or("RUNTIME_APPDIRECTORY", "config"),
                ];
                let all = if self.flag("RUNTIME_IGNOREDOTFILES", false) { ALL } else { ALL_AND_HIDDEN };
                let folder: PathBuf = parts.iter().filter(|part| !part.is_empty()).collect();
                if self.flag("RUNTIME_WATCH_ROOT", true) {
                    self.note_files_beside(&folder);
                }
                json!([folder.join(all)])
            }
            "GRPC_XDS_SOTW" => {
                let forced = self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
                let waits = self.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false);
                let mut xds = json!({
                    "xds": self.variables.or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
                    "node_id": self.variables.or("CONFIG_GRPC_XDS_NODE_ID", "default"),
                    "ready_without_rules": forced && !waits,
                });
                if self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
                    xds["tls"] = self.tls((
                        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
                        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
                        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
                    ));
                    if let Some(name) = self.variables.get("CONFIG_GRPC_XDS_SERVER_TLS_SAN") {
                        xds["tls"]["server_name"] = json!(name);
                    }
                }
                xds
            }
            _ => {
                self.faults.push("CONFIG_TYPE must be `FILE` or `GRPC_XDS_SOTW`".to_owned());
                Value::Null
            }
        }
    }

    /// With its root watched the reference also reads files beside the folder whose names begin as
    /// `config.` does.
    fn note_files_beside(&mut self, folder: &Path) {
        let start = format!("{}.", folder.file_name().unwrap_or_default().to_string_lossy());
        let beside = folder.parent().and_then(|parent| std::fs::read_dir(parent).ok());
        let beside = beside.into_iter().flatten().flatten();
        let beside = beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
        let warning = |path: PathBuf| format!("{} is not read: move it into {}", path.display(), folder.display());
        self.warnings.extend(beside.map(|entry| warning(entry.path())));
    }

    /// The level of the log; none if no variable names one.
    fn level(&mut self) -> Option<&'static str> {
        if self.variables.get("LOG_FORMAT").is_some_and(|format| format != "json") {
            self.warnings
                .push("LOG_FORMAT has no effect: the log is JSON unless a terminal shows it".to_owned());
        }
        let level = self.variables.get("LOG_LEVEL")?.to_ascii_lowercase();
        match level.as_str() {
            "panic" | "fatal" | "error" => Some("error"),
            "warn" | "warning" => Some("warn"),
            "info" => Some("info"),
            "debug" => Some("debug"),
            "trace" => Some("trace"),
            _ => {
                self.faults.push("LOG_LEVEL must be error, warn, info, debug or trace".to_owned());
                None
            }
        }
    }
}

/// The part of a URL for `password` or `user:password`.
fn login(auth: &str) -> String {
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}@", encoded(user), encoded(password))
}

/// A boolean as Go reads it.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A duration as Go reads it, such as `1h30m` or `1.5s`.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" { Some(Duration::ZERO) } else { text.parse::<SignedDuration>().ok()?.try_into().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &[(&str, &str)]) -> Variables {
        Variables(set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// The variables of Envoy Gateway 1.9, without those of certificates.
    const OF_ENVOY_GATEWAY: &[(&str, &str)] = &[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis.redis.svc:6379"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ];

    #[test]
    fn variables_of_envoy_gateway_are_a_valid_configuration() {
        let Translation { config, level, warnings, .. } = Translation::of(&variables(OF_ENVOY_GATEWAY)).unwrap();
        assert_eq!(config["envoy"]["listen"], "0.0.0.0:8081");
        assert_eq!(config["envoy"]["http_listen"], "0.0.0.0:8080");
        assert_eq!(config["metrics_listen"], "0.0.0.0:19001");
        assert_eq!(config["store"]["redis"], json!(["redis://redis.redis.svc:6379"]));
        assert_eq!((level, warnings.len()), (Some("info"), 2), "{warnings:?}");
        let source = Source { origin: "variables".into(), text: config.to_string(), file: None };
        let config = config::load(&source, &Overrides::default(), 7).unwrap();
        let xds = config.envoy.unwrap().xds.unwrap();
        assert_eq!((xds.server.as_str(), xds.node_id.as_str()), ("envoy-gateway:18001", "envoy-ratelimit"));
        assert!(xds.ready_without_rules);
    }

    #[test]
    fn every_variable_that_cannot_be_honoured_is_reported() {
        let redis = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "a:1")];
        assert_eq!(unread().count(), 48);
        for [kind, name, harmless, advice] in unread() {
            assert!(matches!(kind, "error" | "warning") && !advice.is_empty(), "{name}");
            let of = |value| Translation::of(&variables(&[&redis[..], &[(name, value)]].concat()));
            match of("true-or-other") {
                Err(faults) => assert!(kind == "error" && faults[0].contains(advice), "{faults:?}"),
                Ok(Translation { warnings, .. }) => {
                    assert!(kind == "warning" && warnings.iter().any(|warning| warning.contains(advice)), "{name}");
                }
            }
            if harmless != "-" {
                assert_eq!(of(harmless).unwrap().warnings.len(), 1, "{name}");
            }
        }
    }

    #[test]
    fn debug_port_is_answered_by_the_address_of_the_dashboard() {
        let listen = ("TOLLGATE_LISTEN", "127.0.0.1:1");
        let admin = ("TOLLGATE_ADMIN_LISTEN", "127.0.0.1:2");
        for (set, address) in
            [(&[][..], "127.0.0.1:7070"), (&[listen], "127.0.0.1:1"), (&[listen, admin], "127.0.0.1:2")]
        {
            let own = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "a:1"), ("DEBUG_PORT", "6070")];
            let warnings = Translation::of(&variables(&[&own, set].concat())).unwrap().warnings;
            let expected =
                format!("DEBUG_PORT has no effect: Tollgate has no debug port: its dashboard is at {address}");
            assert!(warnings.contains(&expected), "{warnings:?}");
        }
    }

    #[test]
    fn other_fields_than_those_of_the_reference_are_a_warning() {
        let of = |value| {
            let set = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "a:1"), ("LIMIT_RESPONSE_HEADERS_ENABLED", value)];
            Translation::of(&variables(&set)).unwrap()
        };
        let Translation { config, warnings, .. } = of("true");
        assert_eq!(config["envoy"]["headers"], "draft-11");
        let expected = "LIMIT_RESPONSE_HEADERS_ENABLED adds `RateLimit-Policy`, `RateLimit` and `Retry-After`, not \
                        `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`";
        assert!(warnings.iter().any(|warning| warning == expected), "{warnings:?}");
        assert_eq!(of("false").warnings.len(), warnings.len() - 1);
    }

    #[test]
    fn wrong_values_are_named() {
        for (name, value, expected) in [
            ("GRPC_PORT", "x", "GRPC_PORT must be a port, not `x`"),
            ("REDIS_TLS", "yes", "REDIS_TLS must be `true` or `false`, not `yes`"),
            ("REDIS_TYPE", "RING", "REDIS_TYPE must be SINGLE, CLUSTER or SENTINEL"),
            ("REDIS_TIMEOUT", "10", "REDIS_TIMEOUT must be a duration such as `10s`, not `10`"),
            ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE must be `FILE` or `GRPC_XDS_SOTW`"),
            ("LOG_LEVEL", "loud", "LOG_LEVEL must be error, warn, info, debug or trace"),
            ("NEAR_LIMIT_RATIO", "most", "NEAR_LIMIT_RATIO must be a number from 0 to 1"),
        ] {
            let set = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "a:1"), (name, value)];
            assert_eq!(Translation::of(&variables(&set)).unwrap_err(), [expected]);
        }
        let faults = Translation::of(&variables(&[("REDIS_SOCKET_TYPE", "tcp")])).unwrap_err();
        assert_eq!(faults, ["REDIS_URL is not set: name the Redis that has the counts, as `host:port`"]);
    }

    #[test]
    fn redis_has_the_forms_of_the_reference() {
        for (socket, kind, url, auth, expected) in [
            ("tcp", "SINGLE", "a:1", None, json!({"redis": ["redis://a:1"]})),
            (
                "tcp",
                "CLUSTER",
                "a:1,b:2",
                Some("p@:x"),
                json!({"redis": ["redis://p%40:x@a:1", "redis://p%40:x@b:2"]}),
            ),
            ("tcp", "SINGLE", "a:1", Some("p w"), json!({"redis": ["redis://:p%20w@a:1"]})),
            (
                "tcp",
                "SENTINEL",
                "main,a:1,b:2",
                None,
                json!({"sentinel": {"master": "main", "nodes": ["a:1", "b:2"]}}),
            ),
            ("unix", "SINGLE", "/run/redis.sock", None, json!({"redis": ["unix:///run/redis.sock"]})),
        ] {
            let set = [("REDIS_SOCKET_TYPE", socket), ("REDIS_TYPE", kind), ("REDIS_URL", url)];
            let auth = auth.map(|auth| ("REDIS_AUTH", auth));
            let set: Vec<_> = set.into_iter().chain(auth).collect();
            assert_eq!(Translation::of(&variables(&set)).unwrap().config["store"], expected, "{set:?}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, millis) in
            [("10s", 10_000), ("1h30m", 5_400_000), ("1.5s", 1_500), ("250ms", 250), ("24h0m0s", 86_400_000), ("0", 0)]
        {
            assert_eq!(go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "10", "s", "1x", "-1s", "1..5s"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }
}
