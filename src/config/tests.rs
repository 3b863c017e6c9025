//! Tests of the loader's public functions. `tests/fixtures/config` holds the message of each fault.

pub(super) mod page;

mod schema;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::calendar::{Calendar, Unit};
use crate::limit::key::KeyType;
use crate::limit::lease::Lease;
use crate::limit::policy::{OnStoreFailure, Policy};
use crate::limit::quota::{Anchor, Rule};
use crate::limit::time::MICROS_PER_MILLI;

const EXAMPLE: &str = include_str!("../../tollgate.example.yaml");

fn source(text: &str) -> Source {
    Source { origin: "my.yaml".into(), text: text.into(), file: None }
}

fn loaded(text: &str) -> Config {
    load(&source(text), &Overrides::default(), 7).unwrap()
}

fn refused(text: &str, overrides: &Overrides) -> String {
    load(&source(text), overrides, 7).unwrap_err().to_string()
}

fn refused_store(urls: &[&str]) -> String {
    let store = urls.iter().map(|url| (*url).to_owned()).collect();
    refused("policies: {p: {quotas: [5 per 1s]}}", &Overrides { store, ..Overrides::default() })
}

fn version(text: &str) -> String {
    loaded(text).policies.version
}

#[test]
fn the_example_loads_and_is_embedded() {
    let config = built_in(&Overrides::default(), 7).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
    assert!(matches!(config.store, StoreConfig::Embedded));
    let Policies { by_name, origin, loaded_at, .. } = config.policies;
    assert_eq!((origin.as_str(), loaded_at), ("built-in", 7));
    let trio: Vec<_> = by_name["default"].quotas.iter().map(|quota| (quota.name.as_str(), quota.limit.get())).collect();
    assert_eq!(trio, [("1s", 1000), ("10s", 5000), ("15s", 7000)]);
    assert_eq!(by_name["five-per-minute"].quotas[0].name, "60s");
    assert_eq!(by_name["per-ip"].key_type, KeyType::Ip { ipv6_prefix: 64 });
    assert_eq!(by_name["login"].on_store_failure, OnStoreFailure::Deny);
    assert_eq!(by_name["new-customer-transfers"].timeout, Duration::from_millis(200));
}

#[test]
fn omitted_settings_have_defaults() {
    let config = loaded("policies: {p: {quotas: [5 per 60s]}}");
    let policy = &config.policies.by_name["p"];
    assert_eq!(config.admin_listen, None);
    assert_eq!(config.expected_nodes.get(), 1);
    assert_eq!(config.prefilter.max_denial, Duration::from_secs(60));
    assert_eq!(config.shutdown.timeout, Duration::from_secs(30));
    assert_eq!((policy.quotas[0].name.as_str(), policy.quotas[0].window), ("60s", 60_000_000));
    assert_eq!(policy.timeout, Duration::from_millis(100));
    assert_eq!((policy.key_type, policy.on_store_failure), (KeyType::Text, OnStoreFailure::Local));
}

#[test]
fn a_request_may_take_as_long_as_its_policies_need() {
    let request_timeout = |text: &str| loaded(text).limits.request_timeout.as_secs();
    let policy = |timeout: &str| {
        format!("policies: {{p: {{quotas: [5 per 60s], timeout: {timeout}}}, q: {{quotas: [5 per 60s]}}}}")
    };
    assert_eq!(request_timeout(&policy("8s")), 50);
    assert_eq!(request_timeout(&policy("20s")), 120);
    assert_eq!(request_timeout(&format!("limits: {{idle_timeout: 5s}}\n{}", policy("20s"))), 120);
    assert_eq!(request_timeout(&format!("limits: {{request_timeout: 6s}}\n{}", policy("1s"))), 6);
}

#[test]
fn longer_timeouts_wait_for_a_restart_where_calls_would_be_cut_off() {
    let policy = |limits: &str, timeout: &str| {
        loaded(&format!("{limits}\npolicies: {{p: {{quotas: [5 per 60s], timeout: {timeout}}}}}"))
    };
    let running = policy("limits: {request_timeout: 6s}", "100ms");
    assert!(policy("", "1s").fits(&running).is_ok());
    let refused = policy("limits: {request_timeout: 20s}", "3s").fits(&running).unwrap_err().to_string();
    assert!(refused.starts_with("my.yaml: ") && refused.contains("may take 18s"), "{refused}");
}

#[test]
fn derived_request_timeout_needs_no_restart() {
    let policy = |limits: &str, timeout: &str| {
        loaded(&format!("{limits}\npolicies: {{p: {{quotas: [5 per 60s], timeout: {timeout}}}}}"))
    };
    let running = policy("", "10s");
    let waiting = |limits: &str| policy(limits, "1s").needs_restart(&running);
    assert_eq!(waiting(""), [""; 0]);
    assert_eq!(waiting("limits: {request_timeout: 70s}"), ["limits"]);
    assert_eq!(waiting("limits: {idle_timeout: 70s}"), ["limits"]);
}

#[test]
fn removed_tokens_of_a_public_listener_need_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let line = "sha256:".to_owned() + &"0".repeat(64);
    std::fs::write(folder.path().join("tokens"), line).unwrap();
    let file = folder.path().join("my.yaml");
    let policies = "policies: {p: {quotas: [5 per 60s]}}";
    let waiting = |running: &str, settings: &str| {
        let [running, settings] = [running, settings].map(|settings| {
            std::fs::write(&file, format!("{settings}\n{policies}")).unwrap();
            Setup { file: Some(file.clone()), ..Setup::default() }.load(7).unwrap()
        });
        settings.needs_restart(&running)
    };
    let public = "listen: 0.0.0.0:7070\nauth: {check_token_files: [tokens]}";
    assert_eq!(waiting(public, "listen: 127.0.0.1:7070"), ["listen", "auth"]);
    assert_eq!(waiting(public, "listen: 0.0.0.0:7070\nauth: {allow_anonymous: true}"), [""; 0]);
    assert_eq!(waiting("listen: 127.0.0.1:7070\nauth: {check_token_files: [tokens]}", ""), [""; 0]);
    let operators = "admin_listen: 0.0.0.0:7071\nauth: {admin_token_files: [tokens]}";
    assert_eq!(waiting(operators, "admin_listen: 127.0.0.1:7071"), ["admin_listen", "auth"]);
}

#[test]
fn aliases_and_merge_keys_share_parts_of_policies() {
    let shared = loaded(
        "policies:
  a: &a
    quotas: &quotas [5 per 1s]
    key: &ip {type: ip}
    shadow: true
  b: *a
  c: {<<: *a, quotas: [7 per 1s]}
  d: {<<: [{key: *ip, shadow: false}, *a], inline: true}
  e: {quotas: *quotas, \"shadow\": true, key: {<<: *ip}}
",
    );
    let written = loaded(
        "policies:
  a: {quotas: [5 per 1s], key: {type: ip}, shadow: true}
  b: {quotas: [5 per 1s], key: {type: ip}, shadow: true}
  c: {quotas: [7 per 1s], key: {type: ip}, shadow: true}
  d: {quotas: [5 per 1s], key: {type: ip}, shadow: false, inline: true}
  e: {quotas: [5 per 1s], key: {type: ip}, shadow: true}
",
    );
    assert_eq!(shared.policies.version, written.policies.version);
}

#[test]
fn faults_of_a_shared_value_are_reported_once_at_its_line() {
    let text = "policies:\n  a: &a\n    quotas: [5 per 1s]\n    shadow: maybe\n  b: *a\n  c: {<<: *a}\n";
    let faults = refused(text, &Overrides::default());
    assert_eq!(faults, "my.yaml:4:13: `shadow` must be `true` or `false`, not `maybe`");
}

#[test]
fn copies_by_aliases_are_bounded() {
    let layers =
        (1..20).map(|layer| format!("l{layer}: &l{layer} [{}]\n", vec![format!("*l{}", layer - 1); 10].join(", ")));
    let bomb = format!("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n{}", layers.collect::<String>());
    let long = format!("l0: &l0 {}\nlist: [{}]\n", "x".repeat(1_000_000), vec!["*l0"; 1000].join(", "));
    for text in [bomb, long] {
        let faults = refused(&text, &Overrides::default());
        assert!(
            faults.contains("the aliases of a file copy up to 16777216 bytes: write this value again"),
            "{faults}"
        );
    }
}

#[test]
fn policy_timeout_defaults_to_store_timeout() {
    let config = loaded(
        "store: {redis: [redis://a:1], timeout: 50ms}\n\
         policies: {p: {quotas: [5 per 1s]}, q: {quotas: [5 per 1s], timeout: 2s}}",
    );
    let timeouts: Vec<_> = config.policies.by_name.values().map(|policy| policy.timeout.as_millis()).collect();
    assert_eq!(timeouts, [50, 2000]);
}

#[test]
fn a_time_zone_that_only_an_override_needs_is_that_of_its_days_and_of_a_requests() {
    let config = loaded(
        "policies: {p: {algorithm: fixed-window, timezone: Europe/Berlin, quotas: [10 per 1h], inline: true, \
         overrides: [{match: {key: vip}, quotas: [100 per 1d]}]}}",
    );
    let policy = &config.policies.by_name["p"];
    let berlin = Rule::FixedWindow(Anchor::Calendar(Calendar::new(Unit::Day, "Europe/Berlin").unwrap()));
    assert_eq!(policy.quotas[0].rule, Rule::FixedWindow(Anchor::Clock));
    assert_eq!(policy.counting("vip", "vip").quotas[0].rule, berlin);
    let written = [inline::QuotaSpec::Text("7 per 1d".into())];
    assert_eq!(inline::quotas(policy, &written).unwrap()[0].rule, berlin);
}

#[test]
fn the_command_line_beats_the_file() {
    let file = "listen: 127.0.0.1:1\nadmin_listen: 127.0.0.1:2\nstore: {redis: [redis://a:1], key_prefix: rl}\n\
                policies: {p: {quotas: [5 per 1s]}}";
    let overrides = Overrides {
        listen: Some("127.0.0.1:3".into()),
        admin_listen: Some("127.0.0.1:4".into()),
        store: vec!["redis://b:1, redis://c:1".into(), "redis://d".into()],
        ..Overrides::default()
    };
    let config = load(&source(file), &overrides, 7).unwrap();
    assert_eq!(config.listen.port(), 3);
    assert_eq!(config.admin_listen.unwrap().port(), 4);
    let redis = match config.store {
        StoreConfig::Redis(redis) => Some((redis.seeds.join(" "), redis.key_prefix)),
        StoreConfig::Embedded => None,
    };
    assert_eq!(redis, Some(("redis://b:1 redis://c:1 redis://d:6379".into(), "rl".into())));
}

#[test]
fn the_file_may_leave_the_urls_to_the_command_line() {
    let file = "store: {timeout: 50ms, key_prefix: rl}\npolicies: {p: {quotas: [5 per 1s]}}";
    let overrides = Overrides { store: vec!["redis://b:1".into()], ..Overrides::default() };
    let config = load(&source(file), &overrides, 7).unwrap();
    assert!(matches!(config.store, StoreConfig::Redis(RedisConfig { key_prefix, .. }) if key_prefix == "rl"));
    assert_eq!(config.policies.by_name["p"].timeout, Duration::from_millis(50));
}

#[test]
fn the_embedded_store_needs_no_url_for_its_capacity() {
    let config = loaded("store: {max_keys: 7}\npolicies: {p: {quotas: [5 per 1s]}}");
    assert_eq!((config.store, config.max_keys), (StoreConfig::Embedded, 7));
    assert_eq!(loaded("policies: {p: {quotas: [5 per 1s]}}").max_keys, DEFAULT_MAX_KEYS);
    let config = loaded("store: {redis: [redis://a], max_keys: 7}\npolicies: {p: {quotas: [5 per 1s]}}");
    assert!(matches!((config.store, config.max_keys), (StoreConfig::Redis(_), 7)));
}

/// For every server, whatever its scheme and whether the file or a flag names it.
#[test]
fn tls_settings_enable_tls() {
    let tls_of = |store: &str, flag: &[&str]| {
        let file = format!("store: {store}\npolicies: {{p: {{quotas: [5 per 1s]}}}}");
        let store = flag.iter().map(|url| (*url).to_owned()).collect();
        match load(&source(&file), &Overrides { store, ..Overrides::default() }, 7).unwrap().store {
            StoreConfig::Redis(redis) => (redis.seeds.join(" "), redis.credentials.tls),
            StoreConfig::Embedded => (String::new(), None),
        }
    };
    let on = Some(ClientTls::default());
    assert_eq!(tls_of("{redis: [redis://a:1]}", &[]), ("redis://a:1".into(), None));
    assert_eq!(tls_of("{redis: [rediss://a:1]}", &[]), ("rediss://a:1".into(), on.clone()));
    let both = "rediss://a:1 rediss://b:1";
    assert_eq!(tls_of("{redis: [redis://a:1, redis://b:1], tls: {}}", &[]), (both.into(), on.clone()));
    assert_eq!(tls_of("{redis: [redis://a:1, rediss://b:1], tls: {}}", &[]), (both.into(), on.clone()));
    assert_eq!(tls_of("{tls: {}}", &["redis://a:1,redis://b:1"]), (both.into(), on));
}

#[test]
fn an_empty_flag_is_a_fault_and_not_the_default() {
    let overrides = Overrides { listen: Some(String::new()), store: vec![String::new()], ..Overrides::default() };
    assert_eq!(refused("policies: {p: {quotas: [5 per 1s]}}", &overrides).lines().count(), 2);
}

#[test]
fn a_fault_of_the_command_line_names_the_flag_and_the_variable() {
    let overrides = Overrides {
        listen: Some("0.0.0.0:7070".into()),
        admin_listen: Some("nowhere".into()),
        store: vec!["redis://u:secret@".into()],
        ..Overrides::default()
    };
    let refused = refused("policies: {p: {quotas: [0 per 1s]}}", &overrides);
    let lines: Vec<_> = refused.lines().collect();
    let starts = [
        "--admin-listen or TOLLGATE_ADMIN_LISTEN: the address to listen on must be",
        "--listen or TOLLGATE_LISTEN: 0.0.0.0:7070 can be reached from other machines",
        "--store or TOLLGATE_STORE: no host and port in the URL",
        "my.yaml:1:25: a limit must be an integer",
    ];
    assert_eq!(lines.len(), starts.len(), "{refused}");
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
}

/// Even where a password contains commas.
#[test]
fn no_part_of_a_url_of_the_command_line_is_repeated() {
    for url in ["redis://me:a,secret,b@c:1", "redis://me:a secret@c:1", "me:secret@c", "secret@c", "secret"] {
        let refused = refused_store(&[url]);
        assert!(!refused.contains("secret"), "{refused}");
    }
    // The words that a shell makes of `redis://me:a secret b@c:1`.
    let refused = refused_store(&["redis://me:a", "secret", "b@c:1"]);
    assert!(!refused.contains("secret"), "{refused}");
}

/// `--store` takes every word after it.
#[test]
fn misplaced_configuration_path_is_reported() {
    for file in ["my.yaml", "conf/my.yml", "Cargo.toml"] {
        let refused = refused_store(&["redis://c:1", file]);
        assert!(refused.contains(file) && refused.contains("is named before `--store`"), "{refused}");
    }
    for other in ["localhost", "localhost:6379", "src"] {
        let refused = refused_store(&[other]);
        assert!(refused.contains("not the URL of a Redis: write") && !refused.contains("before"), "{refused}");
    }
}

#[test]
fn one_address_for_both_is_one_listener() {
    let config = loaded("listen: 127.0.0.1:1\nadmin_listen: 127.0.0.1:1\npolicies: {p: {quotas: [5 per 1s]}}");
    assert_eq!(config.admin_listen, None);
}

#[test]
fn version_depends_on_policies_not_their_spelling() {
    let plain = version("policies:\n  a: {quotas: [5 per 60s]}\n  b: {quotas: [1 per 1s]}");
    let other = "# Said otherwise.\npolicies:\n  b: {algorithm: sliding-window, quotas: [{limit: 1, per: 1s}]}\n  \
                 a: {quotas: [{name: 60s, limit: 5, per: 1m}], shadow: false}";
    assert_eq!(plain, version(other));
    assert!(plain.len() == 16 && plain.bytes().all(|byte| byte.is_ascii_hexdigit()), "{plain}");
    let changed = [
        "a: {quotas: [6 per 60s]}",
        "a: {quotas: [5 per 61s]}",
        "c: {quotas: [5 per 60s]}",
        "a: {quotas: [5 per 60s], key: {type: ip}}",
        "a: {quotas: [5 per 60s], on_store_failure: deny}",
        "a: {quotas: [5 per 60s], timeout: 1s}",
        "a: {quotas: [5 per 60s], shadow: true}",
        "a: {quotas: [5 per 60s], inline: true}",
        "a: {quotas: [5 per 60s], deny: {keys: [mallory]}}",
        "a: {quotas: [5 per 60s], lease: {}}",
    ];
    let bounded = |most: u32| {
        version(&format!("policies: {{p: {{algorithm: sliding-log, max_entries: {most}, quotas: [5 per 60s]}}}}"))
    };
    assert_ne!(bounded(10), bounded(11));
    let leased = |lease: &str| version(&format!("policies: {{p: {{quotas: [5 per 60s], lease: {{{lease}}}}}}}"));
    assert!(leased("") == leased("span: 937ms, nodes: 1") && leased("") != leased("span: 936ms"));
    assert_ne!(leased(""), leased("nodes: 2"));
    for policy in changed {
        assert_ne!(plain, version(&format!("policies:\n  {policy}\n  b: {{quotas: [1 per 1s]}}")), "{policy}");
    }
}

#[test]
fn lease_defaults_to_a_64th_of_the_window_and_the_expected_nodes() {
    let lease = |text: &str| {
        let lease = loaded(text).policies.by_name["p"].options.lease;
        lease.map(|Lease { span, nodes, .. }| (span / MICROS_PER_MILLI, nodes.get()))
    };
    let two = |policy: &str| lease(&format!("fallback: {{expected_nodes: 2}}\npolicies: {{p: {{{policy}}}}}"));
    let counter = |more: &str| two(&format!("algorithm: sliding-counter, quotas: [5 per 120s], {more}"));
    assert_eq!(two("quotas: [5 per 64s]"), None);
    assert_eq!(lease("policies: {p: {quotas: [5 per 64s], lease: {}}}"), Some((1000, 1)));
    assert_eq!(two("quotas: [5 per 64s, 9 per 128s], lease: {span: auto}"), Some((1000, 2)));
    assert_eq!(two("quotas: [5 per 64s], lease: {span: 8s, nodes: 3}"), Some((8000, 3)));
    // A file has whole ms.
    assert_eq!(two("quotas: [5 per 1s], lease: {}"), Some((15, 2)));
    assert_eq!(
        two("quotas: [5 per 1h], overrides: [{match: {key: k}, quotas: [5 per 64s]}], lease: {}"),
        Some((1000, 2))
    );
    // It ends before the ticks that count ahead, by the 250 ms of a clock that is behind.
    assert_eq!([counter("lease: {}"), counter("tick: 1500ms, lease: {}")], [Some((750, 2)), Some((1250, 2))]);
}

#[test]
fn lease_reduces_each_burst_by_what_refills_in_its_span() {
    let config = loaded(
        "policies: {p: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 20}], lease: {span: 101ms},
         overrides: [{match: {key: k}, quotas: [{rate: 100 per 1s, burst: 200}]}]}}",
    );
    let policy = &config.policies.by_name["p"];
    let of = |policy: &Policy| (policy.quotas[0].limit.get(), policy.options.lease.is_some());
    let (special, _) = policy.options.lists.as_ref().unwrap().overrides.iter().next().unwrap().1;
    assert_eq!([of(policy), of(special)], [(18, true), (189, true)]);
}

#[test]
fn version_depends_on_list_entries_not_their_lines() {
    let listed = |lists: &str| version(&format!("policies: {{a: {{quotas: [5 per 60s], {lists}}}}}"));
    let plain = listed("deny: {keys: [x, y], prefixes: [z]}, overrides: [{match: {key: k}, quotas: [9 per 60s]}]");
    let other =
        listed("\n overrides: [{match: {key: k},\n  quotas: [9 per 60s]}], deny: {prefixes: [z],\n  keys: [y, x]}");
    assert_eq!(plain, other);
    let changed = [
        "deny: {keys: [x], prefixes: [z]}, overrides: [{match: {key: k}, quotas: [9 per 60s]}]",
        "allow: {keys: [x, y], prefixes: [z]}, overrides: [{match: {key: k}, quotas: [9 per 60s]}]",
        "deny: {keys: [x, y, z]}, overrides: [{match: {key: k}, quotas: [9 per 60s]}]",
        "deny: {keys: [x, y], prefixes: [z]}, overrides: [{match: {prefix: k}, quotas: [9 per 60s]}]",
        "deny: {keys: [x, y], prefixes: [z]}, overrides: [{match: {key: k}, quotas: [8 per 60s]}]",
        "deny: {keys: [x, y], prefixes: [z]}",
    ];
    for lists in changed {
        assert_ne!(plain, listed(lists), "{lists}");
    }
}

#[test]
fn every_variable_is_in_the_document() {
    let document = include_str!("../../docs/configuration.md");
    let mut found = BTreeSet::new();
    for (_, source) in sources("src") {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = code.flat_map(|line| line.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_'));
        found.extend(words.filter(|word| word.starts_with("TOLLGATE_") && !word.ends_with('_')).map(str::to_owned));
    }
    assert!(found.len() > 8 && found.contains("TOLLGATE_KEY_HASH_SECRET"), "misread: {found:?}");
    let untold: Vec<_> = found.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(untold.is_empty(), "docs/configuration.md says nothing of {untold:?}");
}

/// The Rust files below a folder except this one, by name, with their text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let (mut folders, mut found) = (vec![PathBuf::from(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("config/tests.rs") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = load(&source(&text), &Overrides::default(), 0);
    }

    #[test]
    fn yaml_of_any_shape_never_panics(text in "([-?:,\\[\\]{}#&*!|>'\"%@` \n\t~a-c0-9]|policies|quotas|per|limit|: |\n  |- ){0,60}") {
        let _ = load(&source(&text), &Overrides::default(), 0);
    }

    #[test]
    fn mutated_example_never_panics(at in 0..EXAMPLE.len(), take in 0..9usize, put in "[-\\[\\]{}:#\"\n\t 0-9a-z]{0,3}") {
        let rest = EXAMPLE.get((at + take).min(EXAMPLE.len())..).unwrap_or_default();
        let text = format!("{}{put}{rest}", EXAMPLE.get(..at).unwrap_or_default());
        let _ = load(&source(&text), &Overrides::default(), 0);
    }

    #[test]
    fn any_override_never_panics(text in any::<String>()) {
        let (listen, admin_listen) = (Some(text.clone()), Some(text.clone()));
        let overrides = Overrides { listen, admin_listen, store: vec![text], ..Overrides::default() };
        let _ = built_in(&overrides, 0);
    }
}
