//! One test for each story.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::{run, run_with};
use crate::load::Load;
use crate::support::cluster::{Cluster, shared};
use crate::support::{Node, TOLLGATE, free_port, unique};

/// The policies of all stories. `slow` denies the fourth check of a key for minutes.
pub(crate) const POLICIES: &str = r#"
policies:
  default: {quotas: [400 per 1s, 3000 per 15s]}
  per-ip: {quotas: [{name: burst, limit: 6, per: 1s}, {name: sustained, limit: 120, per: 1m}]}
  login: {algorithm: token-bucket, quotas: [{rate: 2 per 1s, burst: 5}]}
  slow: {quotas: [3 per 10m]}
  costly: {quotas: [10 per 10m]}
  jobs: {quotas: [{name: tokens, limit: 100, per: 10m}], hold: {ttl: 10m, in_flight: 2}}
  quick: {algorithm: fixed-window, anchor: first-hit, quotas: [2 per 10s]}
  log: {algorithm: sliding-log, quotas: [100 per 1h]}
  ticks: {algorithm: sliding-counter, tick: 1s, quotas: [100 per 1m]}
  tenants:
    quotas: [30 per 1m]
    overrides:
      - match: {prefix: "tenant-7:"}
        quotas: [{name: burst, limit: 100, per: 5m}, {name: hourly, limit: 60, per: 1h}]
  watched: {quotas: [1 per 10m], shadow: true}
  listed:
    quotas: [100 per 1m]
    deny: {keys: [mallory]}
    overrides: [{match: {prefix: "tenant-7:"}, quotas: [500 per 1m]}]
"#;

/// A node with a token of each kind.
pub(crate) struct Guarded {
    pub(crate) node: Node,
    pub(crate) check: String,
    pub(crate) admin: String,
    _folder: TempDir,
}

impl Guarded {
    /// `settings` stand before the policies.
    pub(crate) fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [check, admin] = ["check", "admin"].map(|name| token(folder.path(), name));
        let auth = "auth: {check_token_files: [check], admin_token_files: [admin]}";
        let file = folder.path().join("node.yaml");
        std::fs::write(&file, format!("{auth}\n{settings}\n{POLICIES}")).unwrap();
        Self { node: Node::with_config(&file), check, admin, _folder: folder }
    }

    pub(crate) fn settings(&self) -> Value {
        json!({"url": self.node.url(), "check": self.check, "admin": self.admin, "explains": true})
    }
}

/// Makes a token, whose hash is in a file of this name.
fn token(folder: &Path, name: &str) -> String {
    let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (token, line) = text.trim_end().split_once('\n').unwrap();
    std::fs::write(folder.join(name), line).unwrap();
    token.to_owned()
}

/// The store of a story, with keys of its own.
pub(crate) fn store(cluster: &Cluster) -> String {
    let mut seeds = String::new();
    for seed in cluster.seeds() {
        write!(seeds, "{seed}, ").unwrap();
    }
    format!("store: {{redis: [{}], key_prefix: {}}}", seeds.trim_end_matches(", "), unique("page"))
}

#[test]
fn page_shows_a_denied_key_and_resets_it() {
    let guarded = Guarded::start(&store(shared()));
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    run("under_load", &guarded.settings());
}

#[test]
fn page_asks_again_when_the_wait_ends() {
    let guarded = Guarded::start(&store(shared()));
    run("countdown_ends", &guarded.settings());
}

#[test]
fn page_judges_a_key_by_the_cost_of_its_checks() {
    let guarded = Guarded::start("");
    run("costly_key", &guarded.settings());
}

/// `OPEN_SECONDS` makes it longer.
#[test]
fn open_page_moves_no_count_of_checks() {
    let guarded = Guarded::start("");
    let mut settings = guarded.settings();
    settings["seconds"] = std::env::var("OPEN_SECONDS").map_or(5, |seconds| seconds.parse().unwrap()).into();
    run("open_key", &settings);
}

#[test]
fn operator_changes_limits_by_the_page_alone() {
    let settings = store(shared());
    let [guarded, other] = [Guarded::start(&settings), Guarded::start(&settings)];
    let mut settings = guarded.settings();
    (settings["other"], settings["other_check"]) = (json!(other.node.url()), json!(other.check));
    run("evening", &settings);
}

#[test]
fn page_shows_who_holds_the_places_and_ends_one() {
    // A late answer would count its hold at the node alone.
    let guarded = Guarded::start(&store(shared()).replace('}', ", timeout: 5s}"));
    run("holds", &guarded.settings());
}

#[test]
fn page_shows_units_and_keys_that_use_most() {
    let guarded = Guarded::start("");
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    run("units", &guarded.settings());
}

#[test]
fn layout_holds_still_and_follows_the_choices() {
    let guarded = Guarded::start("");
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    run("layout", &guarded.settings());
}

#[test]
fn shadow_denials_look_unlike_denials() {
    let guarded = Guarded::start("");
    run("shadow", &guarded.settings());
}

#[test]
fn page_stays_small() {
    let node = crate::support::node_with(POLICIES);
    let page = crate::support::http::get(&node.address, "/dashboard");
    assert!(page.body.len() < 144 * 1024, "{} bytes", page.body.len());
}

#[test]
fn page_shows_entries_ticks_and_the_rule_that_applies() {
    let guarded = Guarded::start(&store(shared()));
    run("details", &guarded.settings());
}

#[test]
fn page_marks_a_frozen_shard() {
    let cluster = Cluster::start();
    // The replica must not take over while the shard is frozen.
    cluster.configure("cluster-node-timeout", "60000");
    let guarded = Guarded::start(&store(&cluster));
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    let frozen = cluster.owner(0).to_string();
    run_with("frozen_shard", &guarded.settings(), |wish| cluster.run(&[wish, &frozen]));
}

#[test]
fn page_tells_of_an_outage_of_all_shards() {
    let cluster = Cluster::start();
    cluster.configure("cluster-node-timeout", "60000");
    let guarded = Guarded::start(&store(&cluster));
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    let primaries = [0, 8_000, 16_383].map(|slot| cluster.owner(slot).to_string());
    run_with("outage", &guarded.settings(), |wish| {
        primaries.iter().for_each(|primary| cluster.run(&[wish, primary]))
    });
}

#[test]
fn keys_are_hashed_without_an_admin_token() {
    let guarded = Guarded::start("");
    let mut settings = guarded.settings();
    settings["tokens"] = json!([guarded.check]);
    run("hashed_keys", &settings);
}

#[test]
fn keys_are_hashed_on_a_node_without_tokens() {
    let node = crate::support::node_with(POLICIES);
    run("hashed_keys", &json!({"url": node.url(), "tokens": [null]}));
}

#[test]
fn page_of_an_embedded_store_has_no_shards() {
    let node = crate::support::node_with(POLICIES);
    run("embedded_store", &json!({"url": node.url()}));
}

#[test]
fn hostile_names_do_no_harm() {
    let guarded = Guarded::start("overrides: {file: overrides.jsonl}");
    run("hostile_names", &guarded.settings());
}

#[test]
fn keyboard_alone_resets_a_key() {
    let guarded = Guarded::start("");
    run("keyboard_only", &guarded.settings());
}

#[test]
fn page_asks_for_a_token_and_forgets_it() {
    let guarded = Guarded::start("telemetry: {record_keys: true}");
    run("tokens", &guarded.settings());
}

#[test]
fn page_survives_a_node_that_hangs() {
    let guarded = Guarded::start("");
    run_with("lost_stream", &guarded.settings(), |wish| match wish {
        "stop" => guarded.node.stop(),
        _ => guarded.node.go_on(),
    });
}

#[test]
fn page_compares_other_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (free_port(), free_port());
    let config = |name: &str, peer: u16, policies: &str| {
        let text = format!("dashboard: {{nodes: [\"http://127.0.0.1:{peer}\"]}}\n{policies}");
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let start = |port: u16, file: &str| Node::start_on(&format!("127.0.0.1:{port}"), &["--config", file]);
    let node = start(own, &config("own.yaml", other, POLICIES));
    let second = RefCell::new(Some(start(other, &config("other.yaml", own, POLICIES))));
    let settings = json!({"url": node.url(), "other": format!("http://127.0.0.1:{other}")});
    run_with("other_nodes", &settings, |wish| match wish {
        "change" => {
            config("other.yaml", own, &POLICIES.replace("3 per 10m", "4 per 10m"));
        }
        "break" => {
            config("own.yaml", other, &POLICIES.replace("algorithm: sliding-log", "algoritm: sliding-log"));
        }
        _ => drop(second.take()),
    });
}

#[test]
fn page_sums_all_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (free_port(), free_port());
    let start = |port: u16, peer: u16| {
        let file = folder.path().join(format!("{port}.yaml"));
        std::fs::write(&file, format!("dashboard: {{nodes: [\"http://127.0.0.1:{peer}\"]}}\n{POLICIES}")).unwrap();
        Node::start_on(&format!("127.0.0.1:{port}"), &["--config", file.to_str().unwrap()])
    };
    let node = start(own, other);
    let second = RefCell::new(Some(start(other, own)));
    let settings = json!({"url": node.url(), "other": format!("http://127.0.0.1:{other}")});
    run_with("fleet", &settings, |_| drop(second.take()));
}

#[test]
fn page_meets_wcag_in_both_themes_and_widths() {
    let guarded = Guarded::start(&store(shared()));
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    run("accessibility", &guarded.settings());
}
