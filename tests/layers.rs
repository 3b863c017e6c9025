//! Imports point one way, `limit` stays pure, and one file reads the time. Tables list the allowed
//! imports. No comment is wider than the code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Permitted imports of each module. A module names only modules above it, so no cycle can arise.
const MODULES: &[(&str, &[&str])] = &[
    // A macro; depends on nothing.
    ("named", &[]),
    // The pure core depends on nothing.
    ("limit", &[]),
    // Reads the time in the core's unit.
    ("clock", &["limit::time"]),
    // Bounds the wait for an answer, by that clock.
    ("deadline", &["clock::Clock"]),
    // Times that follow from the timeouts of the configuration; depends on nothing.
    ("timeouts", &[]),
    // Threads that run connections and lanes.
    ("workers", &["limit::time", "clock"]),
    // Tokens and the operations that they permit, until their end.
    ("access", &["limit::time", "clock::unix_micros"]),
    // Divides what callers share.
    ("shares", &["access::TokenHash"]),
    // Resolves text into policies of the core and the tokens of callers.
    ("config", &["limit", "access", "timeouts"]),
    // Collects and exposes counts and times of the other modules; imports none of them.
    ("telemetry", &["limit::time", "clock"]),
    // Keeps counts and keys for operators, in fixed memory; asks no other module.
    ("live", &["limit::key", "limit::time", "workers::cores"]),
    // Decides by the core, on its own clock; of the configuration it knows only how to reach Redis.
    (
        "store",
        &[
            "limit",
            "clock::Clock",
            "clock::Step",
            "deadline",
            "config::RedisConfig",
            "config::SentinelConfig",
            "config::Credentials",
            "config::ClientTls",
            "config::Login",
            "config::Password",
            "telemetry",
            "workers",
        ],
    ),
    // Learns from the store's answers; never calls the store.
    ("prefilter", &["limit", "telemetry::instrument", "store::Generations", "store::Taken"]),
    // Sends notices of the engine's decisions; asks nobody.
    ("notices", &["limit", "clock::Clock", "shares", "telemetry::limiter"]),
    // The limits that operators change at run time, in memory and at their keeper.
    (
        "overrides",
        &[
            "limit",
            "clock",
            "config::Policies",
            "config::inline",
            "store::StoreError",
            "store::redis",
            "telemetry::limiter",
        ],
    ),
    // The path of a check through the pre-filter and the store, by the policies in force. It parses
    // the quotas of a request as the configuration parses its own.
    (
        "engine",
        &[
            "access::Door",
            "limit",
            "clock::Clock",
            "clock::LeaseInstant",
            "deadline",
            "shares",
            "timeouts",
            "config::Policies",
            "config::Running",
            "config::inline",
            "telemetry",
            "live",
            "store",
            "prefilter",
            "notices",
            "overrides",
        ],
    ),
    // Reads the configuration again and applies it.
    ("reload", &["access::Access", "limit::time", "clock", "config", "telemetry", "engine"]),
    // Bounds the memory and the time that callers take.
    ("load", &["access::TokenHash", "shares", "workers::cores"]),
    // The state that all doors share: the load, the refusals, the phase.
    (
        "node",
        &["access", "shares", "limit::time", "clock::Clock", "engine", "reload", "telemetry", "load"],
    ),
    // Renders the rate limit fields, for all doors.
    ("fields", &["limit", "engine::Decision"]),
    // Maps the requests of other protocols to checks.
    (
        "gateway",
        &[
            "access",
            "shares",
            "limit",
            "clock::Clock",
            "config",
            "telemetry::limiter",
            "telemetry::traces",
            "engine",
            "fields",
            "reload",
            "node",
        ],
    ),
    // Parses, calls the engine and renders. The other types are results of the engine and of a
    // reload.
    (
        "http",
        &[
            "access",
            "shares",
            "limit",
            "clock::Clock",
            "clock::unix_micros",
            "workers::cores",
            "engine",
            "telemetry",
            "live",
            "load",
            "node",
            "gateway",
            "config::Policies",
            "config::Gate",
            "config::Gates",
            "config::Fault",
            "config::Place",
            "overrides",
            "reload",
            "fields",
        ],
    ),
    // The composition root knows everything but the command line.
    (
        "serve",
        &[
            "access",
            "shares",
            "load",
            "node",
            "limit",
            "clock::Clock",
            "timeouts",
            "config",
            "telemetry",
            "store",
            "prefilter",
            "engine",
            "reload",
            "http",
            "gateway",
            "shares",
            "workers",
        ],
    ),
    // `serve` runs by a configuration; `explain` shows its decisions down to the keys in Redis.
    // Most other commands are clients of a node. `replay` decides with the embedded store. Only
    // this module knows where the log goes.
    (
        "cli",
        &[
            "access",
            "limit",
            "clock",
            "config",
            "store::redis",
            "store::memory",
            "store::MemoryStore",
            "store::Subject",
            "store::Work",
            "store::Done",
            "reload",
            "gateway::envoy",
            "gateway::forward_auth",
            "serve",
            "telemetry::log_queue",
            "workers",
        ],
    ),
    ("main", &["cli"]),
];

/// Crates that belong to certain modules.
const CRATES: &[(&str, &[&str])] = &[
    // Only the store speaks Redis.
    ("redis", &["store"]),
    // Only the HTTP surface and its server know of requests.
    ("axum", &["load", "gateway", "http", "serve"]),
    // Decisions need no runtime: the pre-filter and the configuration neither wait nor spawn.
    (
        "tokio",
        &[
            "deadline",
            "workers",
            "shares",
            "telemetry",
            "store",
            "notices",
            "overrides",
            "engine",
            "reload",
            "load",
            "node",
            "gateway",
            "http",
            "serve",
            "cli",
        ],
    ),
    // Wire formats end at the surface and at the keeper of overrides; the configuration has its own
    // parser.
    ("serde", &["notices", "overrides", "http", "cli"]),
    ("serde_json", &["notices", "overrides", "http", "cli"]),
    // The configuration loads certificates; listeners and clients use them.
    ("rustls", &["config", "store", "notices", "reload", "serve", "cli"]),
    ("tokio_rustls", &["store", "serve", "cli"]),
    // Messages of Envoy and OTLP, and their framing. A control plane sends the configuration as
    // messages.
    ("prost", &["config", "telemetry", "gateway", "serve"]),
    ("tonic", &["telemetry", "gateway", "serve"]),
    ("tonic_prost", &["gateway", "serve"]),
    ("clap", &["cli", "main"]),
    // One module knows how metrics and traces leave the process.
    ("prometheus_client", &["telemetry"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("opentelemetry_proto", &["telemetry"]),
];

/// All that `limit` may import: values and arithmetic, no I/O and no clock. It only parses
/// addresses. Time zone rules are part of the program.
const PURE: &str = "jiff::Timestamp jiff::civil jiff::tz smallvec thiserror std::borrow std::cmp std::collections std::fmt std::hash std::iter \
    std::mem std::net::IpAddr std::net::Ipv4Addr std::net::Ipv6Addr std::num std::ops std::sync std::time::Duration";

/// All that the load generator imports of the product: units, the clock, the URL and token of a
/// node, and the messages of Envoy's protocol.
const OF_BENCH: &[&str] = &[
    "cli::bearer",
    "cli::parse",
    "cli::print",
    "cli::target",
    "clock::Clock",
    "config::span",
    "config::visible",
    "gateway::envoy::messages",
    "limit::quota::MAX_UNITS",
    "limit::time",
];

/// Permitted imports of each room of the Redis store. The protocol is pure: bytes in, bytes out.
const ROOMS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("connect", &["protocol"]),
    ("request", &["protocol"]),
    ("lane", &["protocol", "connect", "request"]),
    ("topology", &["protocol", "connect", "lane"]),
    ("observe", &["protocol", "connect", "topology"]),
    ("router", &["protocol", "request", "lane", "topology", "observe"]),
];

/// The maximum width of code for rustfmt, in columns.
const MAX_WIDTH: usize = 120;

#[test]
fn the_source_keeps_its_layers() {
    let dependencies = dependencies(&fs::read_to_string("Cargo.toml").unwrap());
    assert!(dependencies.iter().any(|name| name == "tokio"), "Cargo.toml was misread: {dependencies:?}");
    let mut files = Vec::new();
    files_in(Path::new("src"), &["rs"], &mut files);
    let found: Vec<_> = files
        .iter()
        .flat_map(|file| faults(file, &fs::read_to_string(file).unwrap(), &dependencies))
        .collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn no_circle_can_arise() {
    for (place, (module, allowed)) in MODULES.iter().enumerate() {
        let above = |import: &&str| MODULES[..place].iter().any(|(name, _)| import.split("::").next() == Some(name));
        assert!(allowed.iter().all(above), "{module} imports something that is not above it");
    }
}

#[test]
fn redis_store_keeps_its_rooms() {
    let root = Path::new("src/store/redis");
    for (room, allowed) in ROOMS {
        let (mut files, folder) = (Vec::new(), root.join(room));
        match folder.is_dir() {
            true => files_in(&folder, &["rs"], &mut files),
            false => files.push(folder.with_extension("rs")),
        }
        for file in files {
            let is_forbidden = |path: &String| match path.strip_prefix("crate::store::redis::") {
                Some(import) => !within(import, &[room]) && !within(import, allowed),
                None => *room == "protocol" && within(path, &["tokio"]),
            };
            let paths = paths(&fs::read_to_string(&file).unwrap());
            let found: Vec<_> = paths.into_iter().filter(is_forbidden).collect();
            assert!(found.is_empty(), "{}: {found:?}", file.display());
        }
    }
}

#[test]
fn load_generator_imports_units_and_modules_above_only() {
    let main = fs::read_to_string("bench/src/main.rs").unwrap();
    let modules: Vec<_> = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    let mut files = Vec::new();
    files_in(Path::new("bench/src"), &["rs"], &mut files);
    assert_eq!(modules.len() + 1, files.len(), "misread: {modules:?}");
    let found: Vec<_> = files
        .iter()
        .flat_map(|file| faults_of_bench(file, &fs::read_to_string(file).unwrap(), &modules))
        .collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    for planted in ["use super::run::run;", "use tollgate::http::CheckService;", "use crate::keys::Keys;"] {
        assert_eq!(faults_of_bench(Path::new("bench/src/zipf.rs"), planted, &modules).len(), 1, "{planted}");
    }
}

#[test]
fn no_comment_is_wider_than_code_may_be() {
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches", "bench"] {
        files_in(Path::new(folder), &["rs", "lua"], &mut files);
    }
    let found: Vec<_> = files.iter().flat_map(|file| wide_comments(file, &fs::read_to_string(file).unwrap())).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    let widest = format!("    /// {}", "ä".repeat(MAX_WIDTH - 8));
    assert_eq!(wide_comments(Path::new("src/a.rs"), &widest), [""; 0]);
    let [rust, lua] = [format!("{widest}ä"), format!("-- {}", "b".repeat(MAX_WIDTH))];
    for (file, code) in [("src/a.rs", format!("fn f() {{}}\n{rust}\n")), ("src/a.lua", format!("local a\n{lua}"))] {
        assert_eq!(wide_comments(Path::new(file), &code), [format!("{file}:2: the comment is wider than 120 columns")]);
    }
}

#[test]
fn planted_violations_are_found() {
    let planted = [
        ("src/limit/window.rs", "use crate::store::Taken;"),
        ("src/limit/window.rs", "fn f() { crate::clock::Clock::system(); }"),
        ("src/limit/window.rs", "use super::super::{limit::time::Micros, engine::{Check, Decision}};"),
        ("src/limit/mod.rs", "use super::config::Config;"),
        ("src/limit/mod.rs", "use crate::*;"),
        ("src/limit/key.rs", "use std::{borrow::Cow, net::{IpAddr, TcpStream}};"),
        ("src/limit/key.rs", "use std::fs;"),
        ("src/limit/time.rs", "use std::time::{Duration, Instant};"),
        ("src/limit/time.rs", "#[derive(serde::Serialize)] struct S;"),
        ("src/limit/time.rs", "use tokio as runtime;"),
        ("src/limit/calendar.rs", "let now = jiff::Timestamp::now();"),
        ("src/limit/calendar.rs", "let now = jiff::Zoned::now();"),
        ("src/limit/decision.rs", "pub async fn decide() {}"),
        ("src/store/redis/lane/mod.rs", "use crate::engine::Decision;"),
        ("src/store/memory.rs", "use super::super::prefilter::Prefilter;"),
        ("src/store/mod.rs", "use crate::config::{RedisConfig, Policies};"),
        ("src/prefilter/mod.rs", "use crate::store::{Store, Taken};"),
        ("src/prefilter/mod.rs", "fn f() { tokio::spawn(async {}); }"),
        ("src/engine/mod.rs", "use redis::Cmd;"),
        ("src/http/check.rs", "let x = crate::store::MemoryStore::new();"),
        ("src/http/check.rs", "let late = Instant::now() > then;"),
        ("src/serve.rs", "use std::time::SystemTime as Wall; let t = Wall::now();"),
        ("src/serve.rs", "let spent = started.elapsed();"),
        ("src/telemetry/mod.rs", "use crate::engine::Decision;"),
        ("src/elsewhere/mod.rs", "use crate::limit::time::Micros;"),
    ];
    for (file, code) in planted {
        assert!(!faults(Path::new(file), code, &["tokio".into(), "serde".into()]).is_empty(), "{file}: {code}");
    }
    let harmless = [
        ("src/limit/key.rs", "// not crate::store\nuse std::net::{IpAddr, Ipv6Addr}; use super::slot::SLOTS;"),
        ("src/clock.rs", "let now = Instant::now();"),
        ("src/http/health.rs", "use crate::engine::{Health, ShardHealth}; pub(crate) fn f(redis: u8) {}"),
    ];
    for (file, code) in harmless {
        assert_eq!(faults(Path::new(file), code, &[]), [""; 0], "{file}: {code}");
    }
}

/// The paths in `code` that `file` may not use.
fn faults(file: &Path, code: &str, dependencies: &[String]) -> Vec<String> {
    let inside = file.with_extension("");
    let module: Vec<&str> =
        inside.iter().skip(1).filter_map(|part| part.to_str()).filter(|part| *part != "mod").collect();
    let place = module.first().copied().unwrap_or_default();
    if place == "lib" {
        return Vec::new();
    }
    let Some((_, ours)) = MODULES.iter().find(|(name, _)| *name == place) else {
        return vec![format!("{}: the module has no row in tests/layers.rs", file.display())];
    };
    // A test may render and read what its module does not know.
    let is_test = module.contains(&"tests");
    let foreign = |path: &str| {
        let name = path.split("::").next().unwrap_or_default();
        let elsewhere = !is_test
            && CRATES.iter().any(|(krate, homes)| *krate == name && path.contains("::") && !homes.contains(&place));
        let outside = matches!(name, "std" | "core") || dependencies.iter().any(|dependency| dependency == name);
        elsewhere
            || (place == "limit"
                && outside
                && path.contains("::")
                && !within(path, &PURE.split(' ').collect::<Vec<_>>()))
    };
    let forbidden = |path: &String| match import(path, &module) {
        Some(import) => !within(&import, &[place]) && !within(&import, ours),
        None => {
            (place != "clock" && (path.ends_with("::now") || path == "elapsed" || path == "UNIX_EPOCH"))
                || (place == "limit" && (path == "async" || path == "await"))
                || foreign(path)
        }
    };
    let fault = |path: String| format!("{}: {} may not use {path}", file.display(), place);
    paths(code).into_iter().filter(forbidden).map(fault).collect()
}

fn faults_of_bench(file: &Path, code: &str, modules: &[&str]) -> Vec<String> {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let above = modules.iter().position(|module| *module == name).unwrap_or(modules.len());
    let is_forbidden = |path: &String| {
        if let Some(import) = path.strip_prefix("tollgate::") {
            return !within(import, OF_BENCH);
        }
        let inside = path.trim_start_matches("super::").trim_start_matches("crate::");
        inside.len() < path.len() && modules[above..].iter().any(|module| *module != name && within(inside, &[module]))
    };
    paths(code)
        .into_iter()
        .filter(is_forbidden)
        .map(|path| format!("{}: {path}", file.display()))
        .collect()
}

/// The absolute path of an import, from the crate's root.
fn import(path: &str, module: &[&str]) -> Option<String> {
    if let Some(absolute) = path.strip_prefix("crate::").or_else(|| path.strip_prefix("tollgate::")) {
        return Some(absolute.to_owned());
    }
    let (mut base, mut rest) = (module.to_vec(), path);
    while let Some(above) = rest.strip_prefix("super::") {
        base.pop();
        rest = above;
    }
    base.push(rest);
    // A unit test is one level deeper than its file. A result outside our modules is therefore no
    // import.
    let ours = |import: &String| MODULES.iter().any(|(name, _)| within(import, &[name]));
    Some(base.join("::")).filter(|import| rest.len() < path.len() && ours(import))
}

fn within(path: &str, allowed: &[&str]) -> bool {
    allowed
        .iter()
        .any(|start| path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")))
}

/// Every path in `code` outside comments. Nested imports appear in full, `use name` at least as
/// `name::`.
fn paths(code: &str) -> Vec<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let (mut found, mut groups, mut path, mut rest) = (Vec::new(), vec![String::new()], String::new(), code.as_str());
    let mut imports = false;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
        let length = if word > 0 {
            word
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        let joins = token == "::" || (word > 0 && (path.is_empty() || path.ends_with("::")));
        if joins {
            path.push_str(token);
            continue;
        }
        let group = groups.last().cloned().unwrap_or_default();
        if token == "{" {
            groups.push(if path.ends_with("::") { group + &path } else { String::new() });
        } else if !path.is_empty() {
            let bare = imports && group.is_empty() && !path.contains("::");
            imports = path == "use";
            found.push(group + &path + if bare { "::" } else { "" });
        }
        path.clear();
        if token == "}" {
            groups.pop();
        }
        if word > 0 {
            path.push_str(token);
        }
    }
    found
}

fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("[dependencies]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.replace('-', "_")).collect()
}

fn wide_comments(file: &Path, code: &str) -> Vec<String> {
    let mark = if file.extension().is_some_and(|extension| extension == "lua") { "--" } else { "//" };
    let is_wide = |line: &str| line.trim_start().starts_with(mark) && line.chars().count() > MAX_WIDTH;
    let wide = code.lines().zip(1..).filter(|(line, _)| is_wide(line));
    wide.map(|(_, number)| format!("{}:{number}: the comment is wider than {MAX_WIDTH} columns", file.display()))
        .collect()
}

fn files_in(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_in(&path, extensions, files);
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|known| extension == *known)) {
            files.push(path);
        }
    }
}
