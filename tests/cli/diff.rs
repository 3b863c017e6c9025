//! `tollgate diff`: the real program on two files and a log, with results computed by hand.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TOLLGATE, run_in};

const OLD: &str = "
policies:
  login: {quotas: [3 per 1m]}
  search: {quotas: [1 per 1h]}
  same: {quotas: [1 per 1h]}
  gone: {quotas: [1 per 1h]}
";

const NEW: &str = "
policies:
  login: {quotas: [1 per 1m]}
  search: {quotas: [3 per 1h]}
  same: {quotas: [1 per 1h]}
  fresh: {quotas: [1 per 1h]}
";

/// `ann` four times in a minute and once later, `bob` twice in that later minute.
const LOG: &str = r#"{"time":"2026-11-21T10:00:00Z","key":"ann"}
{"time":"2026-11-21T10:00:05Z","key":"ann"}
{"time":"2026-11-21T10:00:10Z","key":"ann"}
{"time":"2026-11-21T10:00:15Z","key":"ann"}
{"time":"2026-11-21T10:05:00Z","key":"ann"}
{"time":"2026-11-21T10:05:01Z","key":"bob"}
{"time":"2026-11-21T10:05:02Z","key":"bob"}
"#;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("old.yaml", OLD), ("new.yaml", NEW), ("a.jsonl", LOG)].iter().chain(files) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn run(folder: &TempDir, arguments: &str) -> (i32, String, String) {
    run_in(folder.path(), &["diff"], arguments)
}

fn report(folder: &TempDir, arguments: &str) -> Value {
    let (code, out, error) = run(folder, &format!("old.yaml new.yaml --log a.jsonl --json {arguments}"));
    assert_eq!((code, error.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

/// The only policy that differs between two policies `p` of these texts, on a log.
fn one(old: &str, new: &str, log: &str) -> Value {
    let file = |policy: &str| format!("policies:\n  p: {policy}\n");
    let folder = folder(&[("old.yaml", &file(old)), ("new.yaml", &file(new)), ("a.jsonl", log)]);
    let report = report(&folder, "");
    assert_eq!(report["policies"].as_array().unwrap().len(), 1, "{report}");
    report["policies"][0].clone()
}

/// A line for each key, all within a minute.
fn lines(keys: &[&str]) -> String {
    let line = |(second, key): (usize, &&str)| json!({"time": 1_795_255_200 + second, "key": key}).to_string() + "\n";
    keys.iter().enumerate().map(line).collect()
}

fn checks(policy: &Value, side: &str) -> u64 {
    policy[side]["checks"].as_u64().unwrap()
}

#[test]
fn json_reports_all_policies_that_differ() {
    let report = report(&folder(&[]), "");
    assert_eq!((&report["old"], &report["new"]), (&json!("old.yaml"), &json!("new.yaml")));
    assert_eq!((&report["added"], &report["removed"]), (&json!(["fresh"]), &json!(["gone"])));
    assert_eq!((&report["unchanged"], &report["fail_over"]), (&json!(1), &Value::Null));
    assert_eq!((&report["lines"], &report["requests"], &report["over"]), (&json!(7), &json!(7), &json!("deny")));
    assert_eq!(report["logs"], json!([{"name": "a.jsonl", "format": "json"}]));
    // Before, only the fourth of ann is denied. After, her second to fourth and the second of bob.
    let login = json!({
        "policy": "login",
        "changed": [{"setting": "quotas", "says": "3 per 1m -> 1 per 1m"}],
        "checks": 7,
        "denied_before": 1, "denied_before_share": 0.142857,
        "denied_after": 4, "denied_after_share": 0.571429,
        "newly_denied": {
            "checks": 3, "share": 0.428571, "keys": 2, "keys_approximate": false,
            "top_keys": [{"key": "ann", "checks": 2, "cost": 2}, {"key": "bob", "checks": 1, "cost": 1}],
            "peak_minute": {"minute": "2026-11-21T10:00:00Z", "checks": 4, "changed": 2},
        },
        "newly_allowed": {
            "checks": 0, "share": 0.0, "keys": 0, "keys_approximate": false, "top_keys": [], "peak_minute": null,
        },
        "refused_keys_before": 0, "refused_keys_after": 0, "undecided": 0,
    });
    assert_eq!(report["policies"][0], login);
    // ann's second and third, and bob's second.
    let search = &report["policies"][1];
    assert_eq!((&search["denied_before"], &search["denied_after"]), (&json!(5), &json!(2)));
    assert_eq!((checks(search, "newly_denied"), checks(search, "newly_allowed")), (0, 3));
    assert_eq!(search["newly_allowed"]["keys"], 2);
    assert_eq!(report["policies"].as_array().unwrap().len(), 2);
}

#[test]
fn named_policies_are_compared_alone() {
    let folder = folder(&[]);
    let names = |arguments: &str| {
        let report = report(&folder, arguments);
        let policies = report["policies"].as_array().unwrap().iter().map(|policy| policy["policy"].clone()).collect();
        (
            Value::Array(policies),
            report["added"].clone(),
            report["removed"].clone(),
            report["unchanged"].clone(),
        )
    };
    assert_eq!(names("--policy search"), (json!(["search"]), json!([]), json!([]), json!(0)));
    assert_eq!(names("--policy same --policy gone"), (json!([]), json!([]), json!(["gone"]), json!(1)));
    assert_eq!(names("--policy fresh"), (json!([]), json!(["fresh"]), json!([]), json!(0)));
}

#[test]
fn text_report_is_for_people() {
    let (code, out, error) = run(&folder(&[]), "old.yaml new.yaml --log a.jsonl --top 1");
    assert_eq!((code, error.as_str()), (0, ""));
    let expected = "\
old.yaml -> new.yaml
a.jsonl: json
7 lines, 7 requests, 0 unreadable, 0 without a key, 0 out of order
from 2026-11-21T10:00:00Z to 2026-11-21T10:05:02Z
added: fresh
removed: gone

login
  quotas: 3 per 1m -> 1 per 1m
  checks                   7
  denied before            1   14.29 %
  denied after             4   57.14 %
  newly denied             3   42.86 %  2 keys, peak 2 of 4 at 2026-11-21T10:00:00Z
  newly allowed            0    0.00 %
  keys newly denied most
           2  ann

search
  quotas: 1 per 1h -> 3 per 1h
  checks                   7
  denied before            5   71.43 %
  denied after             2   28.57 %
  newly denied             0    0.00 %
  newly allowed            3   42.86 %  2 keys, peak 2 of 4 at 2026-11-21T10:00:00Z
  keys newly allowed most
           2  ann
";
    assert_eq!(out, expected);
    let same = run(&folder(&[]), "old.yaml old.yaml --log a.jsonl");
    assert!(same.0 == 0 && same.1.ends_with("\n\nno policy of both files differs\n"), "{same:?}");
}

#[test]
fn markdown_report_is_for_a_pull_request() {
    let (code, out, error) =
        run(&folder(&[]), "old.yaml new.yaml --log a.jsonl --top 1 --markdown --policy login --fail-over 1%");
    assert_eq!((code, error.as_str()), (1, "tollgate: login: 3 of 7 checks are newly denied, more than 1%\n"));
    let expected = "\
### Changed decisions: `old.yaml` -> `new.yaml`

7 lines, 7 requests, 0 unreadable, 0 without a key, 0 out of order.
From 2026-11-21T10:00:00Z to 2026-11-21T10:05:02Z.

**`login` newly denies 42.86 %, more than 1%.**

| policy | checks | denied before | denied after | newly denied | newly allowed |
| :-- | --: | --: | --: | --: | --: |
| `login` | 7 | 1 (14.29 %) | 4 (57.14 %) | 3 (42.86 %) | 0 (0.00 %) |

#### `login`

- quotas: `3 per 1m -> 1 per 1m`

3 checks of 2 keys newly denied: peak 2 of 4 checks at 2026-11-21T10:00:00Z.

| key newly denied | checks |
| :-- | --: |
| `ann` | 2 |
";
    assert_eq!(out, expected);
}

/// Each row of a table has the bars of its head, and each key is one code span.
#[test]
fn keys_stay_inside_their_cells_in_markdown() {
    let hostile = [
        "a | b",
        r"a\|b",
        r"ends\",
        "`code`",
        "``",
        "<img src=x onerror=alert(1)>",
        "</td></table>",
        "@someone #1",
        "[x](javascript:alert)",
        "line\n| injected | row |\n# title",
        "\u{1b}[2J\u{202e}",
        "&lt;b&gt;",
    ];
    let keys: Vec<&str> = hostile.iter().flat_map(|key| [*key; 2]).collect();
    let file = |quotas: &str| format!("policies: {{p: {{quotas: [{quotas}]}}}}");
    let (old, new) = (file("9 per 1h"), file("1 per 1h"));
    let folder = folder(&[("old.yaml", &old), ("new.yaml", &new), ("a.jsonl", &lines(&keys))]);
    let (code, out, error) = run(&folder, "old.yaml new.yaml --log a.jsonl --markdown --top 100");
    assert_eq!((code, error.as_str()), (0, ""));
    let table = out.split("| key newly denied | checks |\n| :-- | --: |\n").nth(1).unwrap();
    assert_eq!(table.lines().count(), hostile.len(), "{out}");
    for row in table.lines() {
        let key = row.strip_prefix("| `").and_then(|row| row.strip_suffix("` | 1 |"));
        let key = key.unwrap_or_else(|| panic!("{row}"));
        let is_escaped = |bar: usize| key[..bar].ends_with('\\') && !key[..bar].ends_with(r"\\");
        assert!(!key.contains('`') && key.match_indices('|').all(|(bar, _)| is_escaped(bar)), "{row}");
        assert!(!key.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{row:?}");
    }
    assert!(table.contains(r"| `a \| b` | 1 |") && table.contains(r"| `\u{60}code\u{60}` | 1 |"), "{table}");
    assert!(table.contains(r"| `a\\u{7c}b` | 1 |") && table.contains(r"| `line\n\u{7c} injected"), "{table}");
}

#[test]
fn fail_over_compares_exact_shares() {
    // 3 of 7 checks of login are newly denied, none of search.
    let folder = folder(&[]);
    let code = |arguments: &str| run(&folder, &format!("old.yaml new.yaml --log a.jsonl {arguments}")).0;
    assert_eq!(code(""), 0);
    assert_eq!((code("--fail-over 42.857142%"), code("--fail-over 42.857143%")), (1, 0));
    assert_eq!((code("--fail-over 0"), code("--fail-over 100%")), (1, 0));
    assert_eq!((code("--policy search --fail-over 0"), code("--policy same --fail-over 0")), (0, 0));
    let (code, out, _) = run(&folder, "old.yaml new.yaml --log a.jsonl --json --fail-over 0.5%");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["fail_over"]), (1, &json!({"share": "0.5%", "exceeded_by": ["login"]})));
    for wrong in ["1", "0.01", "101%", "-1%", "1e1%", "all"] {
        let (code, out, error) = run(&folder, &format!("old.yaml new.yaml --log a.jsonl --fail-over={wrong}"));
        assert_eq!((code, out.as_str()), (2, ""), "{wrong}");
        assert!(error.contains("it must be 0, or a percentage up to 100%"), "{error}");
    }
}

#[test]
fn lists_and_overrides_change_decisions() {
    let keys = lines(&["mallory", "10.1.2.3", "10.1.2.3", "vip", "vip", "ann", "ann"]);
    let old = "{quotas: [1 per 1h], deny: {keys: [mallory]}, overrides: [{match: {key: vip}, quotas: [1 per 1h]}]}";
    let new = "{quotas: [1 per 1h], deny: {keys: [ann]}, allow: {cidrs: [10.0.0.0/8]}, \
               overrides: [{match: {key: vip}, quotas: [2 per 1h]}]}";
    let policy = one(old, new, &keys);
    let settings = json!([
        {"setting": "deny", "says": "1 added, 1 removed"},
        {"setting": "allow", "says": "1 added, 0 removed"},
        {"setting": "overrides", "says": "1 added, 1 removed"},
    ]);
    assert_eq!(policy["changed"], settings);
    // The first of ann was allowed, and her second was denied already.
    let keys = |side: &str| {
        let top = policy[side]["top_keys"].as_array().unwrap();
        top.iter()
            .map(|key| (key["key"].as_str().unwrap(), key["checks"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(keys("newly_denied"), [("ann", 1)]);
    assert_eq!(keys("newly_allowed"), [("10.1.2.3", 1), ("mallory", 1), ("vip", 1)]);
}

#[test]
fn other_settings_than_quotas_are_named() {
    let log = lines(&["a", "a"]);
    let changed = |old: &str, new: &str| one(old, new, &log)["changed"].clone();
    let window = "{quotas: [1 per 1h]}";
    assert_eq!(
        changed(window, "{algorithm: fixed-window, quotas: [1 per 1h]}"),
        json!([{"setting": "algorithm", "says": "sliding-window -> fixed-window"}])
    );
    assert_eq!(
        changed(
            "{algorithm: sliding-counter, tick: 60s, quotas: [1 per 1h]}",
            "{algorithm: sliding-counter, tick: 120s, quotas: [{name: x, limit: 1, per: 1h}]}"
        ),
        json!([{"setting": "quotas", "says": "1 per 1h -> x: 1 per 1h"}, {"setting": "tick", "says": "1m -> 2m"}])
    );
    assert_eq!(
        changed(window, "{quotas: [1 per 1h], lease: {span: 5s}}"),
        json!([{"setting": "lease", "says": "none -> span 5s, nodes 1"}])
    );
    assert_eq!(
        changed(window, "{quotas: [1 per 1h], on_store_failure: deny, timeout: 50ms}"),
        json!([
            {"setting": "on_store_failure", "says": "local -> deny"},
            {"setting": "timeout", "says": "100ms -> 50ms"},
        ])
    );
}

/// Callers of a shadow policy are never denied.
#[test]
fn policy_that_leaves_shadow_mode_denies_newly() {
    let log = lines(&["a", "a", "a"]);
    let policy = one("{quotas: [1 per 1h], shadow: true}", "{quotas: [1 per 1h]}", &log);
    assert_eq!(policy["changed"], json!([{"setting": "shadow", "says": "true -> false"}]));
    assert_eq!((&policy["denied_before"], &policy["denied_after"]), (&json!(0), &json!(2)));
    assert_eq!(checks(&policy, "newly_denied"), 2);
}

/// A caller of a refused key gets an error, which is no permission.
#[test]
fn keys_that_the_new_type_refuses_are_newly_denied() {
    let log = lines(&["ann", "2001:db8::1", "2001:db8::2"]);
    let policy = one("{quotas: [1 per 1h]}", "{key: {type: ip}, quotas: [1 per 1h]}", &log);
    assert_eq!(policy["changed"], json!([{"setting": "key", "says": "text -> ip, ipv6_prefix 64"}]));
    assert_eq!((&policy["refused_keys_before"], &policy["refused_keys_after"]), (&json!(0), &json!(1)));
    let top = &policy["newly_denied"]["top_keys"];
    assert_eq!((&top[0]["key"], &top[1]["key"]), (&json!("2001:db8::/64"), &json!("ann")));
    assert_eq!(checks(&policy, "newly_denied"), 2);
}

#[test]
fn several_logs_are_one_pass() {
    let folder = folder(&[("b.log", "ann - - [21/Nov/2026:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n")]);
    let report = report(&folder, "--log b.log --policy login");
    assert_eq!((&report["requests"], &report["logs"][1]["format"]), (&json!(8), &json!("common")));
    assert_eq!(checks(&report["policies"][0], "newly_denied"), 4);
}

#[test]
fn options_of_replay_apply() {
    let log = r#"{"time":1,"user":"ann","cost":2}
{"time":2,"user":"ann","cost":2}
"#;
    let file = |limit: u8| format!("policies: {{p: {{quotas: [{limit} per 1h]}}}}");
    let folder = folder(&[("old.yaml", &file(4)), ("new.yaml", &file(3)), ("a.jsonl", log)]);
    let report = report(&folder, "--key user --cost cost --drain --format json");
    assert_eq!(report["over"], "drain");
    let top = &report["policies"][0]["newly_denied"]["top_keys"];
    assert_eq!(*top, json!([{"key": "ann", "checks": 1, "cost": 2}]));
}

/// An empty log permits everything, so a workflow must notice it.
#[test]
fn empty_log_is_reported() {
    let folder = folder(&[("a.jsonl", "")]);
    let (code, out, error) = run(&folder, "old.yaml new.yaml --log a.jsonl --fail-over 0");
    assert!(code == 2 && out.contains("a.jsonl: empty\n"), "{code} {out}");
    assert_eq!(error, "tollgate: the logs have no request, so nothing is compared\n");
    assert_eq!(run(&folder, "old.yaml new.yaml --log a.jsonl").0, 0);
}

/// A workflow must not pass when each line of its log is a key of its own, or has none.
#[test]
fn log_that_counts_for_nobody_fails() {
    let access = |second: u8| {
        format!(
            "2026-11-21T10:00:0{second}.1Z stdout F 203.0.113.7 - - [21/Nov/2026:10:00:0{second} +0000] \"GET / HTTP/1.1\" 200 1\n"
        )
    };
    let file = |limit: u8| format!("policies: {{p: {{quotas: [{limit} per 1m]}}}}");
    let log: String = (1..6).map(access).collect();
    let folder = folder(&[("old.yaml", &file(5)), ("new.yaml", &file(1)), ("cri.log", &log)]);
    let (code, out, _) = run(&folder, "old.yaml new.yaml --log cri.log --fail-over 0");
    assert!(code == 1 && out.contains("newly denied             4   80.00 %"), "{code} {out}");
    let (code, out, error) = run(&folder, "old.yaml new.yaml --log a.jsonl --key user");
    assert_eq!((code, out.as_str()), (2, ""), "{error}");
    assert!(error.contains("the logs have no request") && error.contains("`key`, `time`"), "{error}");
}

#[test]
fn faults_of_both_files_are_reported() {
    let folder = folder(&[("old.yaml", "polices: {}"), ("new.yaml", "policies: {p: {quotas: [1 per 1x]}}")]);
    let (code, out, error) = run(&folder, "old.yaml new.yaml --log a.jsonl");
    assert_eq!((code, out.as_str()), (2, ""));
    let lines: Vec<_> = error.lines().collect();
    assert!(lines[0].starts_with("old.yaml:1:1: ") && lines[0].contains("did you mean `policies`?"), "{error}");
    assert!(lines.last().unwrap().starts_with("new.yaml:1:"), "{error}");
    let validate = Command::new(TOLLGATE).current_dir(folder.path()).args(["validate", "new.yaml"]).output().unwrap();
    assert!(error.ends_with(&String::from_utf8(validate.stderr).unwrap()), "{error}");
}

#[test]
fn bad_input_has_exit_code_2() {
    let folder = folder(&[("notes.txt", "one\ntwo\n")]);
    for (arguments, reason) in [
        ("old.yaml new.yaml --log no-such.log", "no-such.log cannot be read"),
        ("old.yaml new.yaml --log notes.txt", "no line of 2 can be read"),
        ("old.yaml none.yaml --log a.jsonl", "none.yaml: cannot be read"),
        (
            "old.yaml new.yaml --log a.jsonl --policy logn",
            "no policy is named `logn`: there are `fresh`, `gone`",
        ),
        ("old.yaml - --log -", "only one of the configuration and the logs"),
        ("- - --log a.jsonl", "only one of the configuration and the logs"),
        ("old.yaml new.yaml --log a.jsonl --cost 1000000000000001", "the most is 1000000000000000"),
        ("old.yaml new.yaml --log a.jsonl --json --markdown", "cannot be used with"),
        ("old.yaml new.yaml", "--log"),
        ("old.yaml --log a.jsonl", "<NEW>"),
    ] {
        let (code, out, error) = run(&folder, arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments}: {error}");
        assert!(error.contains(reason), "{arguments}: {error}");
    }
}
