//! `tollgate replay`: the real program on logs of every format, with results computed by hand.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TOLLGATE, run_in};

const POLICIES: &str = "
policies:
  three: {quotas: [3 per 1m]}
  one: {algorithm: fixed-window, anchor: first-hit, quotas: [1 per 10s]}
  sum: {algorithm: fixed-window, anchor: clock, quotas: [100 per 1h]}
  sms: {algorithm: fixed-window, anchor: clock, timezone: Europe/Berlin, quotas: [2 per 1d]}
  counters: {algorithm: sliding-counter, shared: true, tick: 10s, quotas: [2 per 20s]}
  addresses: {key: {type: ip}, quotas: [2 per 1m]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 5}]}
";

/// `a` at 10:00:00, :05, :10, :15 and 10:02:00; `b` twice in one second.
pub(crate) const COMMON: &str = r#"192.0.2.1 - ann [21/Nov/2026:10:00:00 +0000] "GET /x HTTP/1.1" 200 10
192.0.2.1 - ann [21/Nov/2026:10:00:05 +0000] "GET /x?q=1 HTTP/1.1" 200 20
192.0.2.2 - bob [21/Nov/2026:11:00:10 +0100] "POST /y HTTP/1.1" 404 -
192.0.2.2 - - [21/Nov/2026:10:00:10 +0000] "POST /y HTTP/1.1" 200 30
192.0.2.1 - ann [21/Nov/2026:10:00:10 +0000] "GET /x HTTP/1.1" 200 40
192.0.2.1 - ann [21/Nov/2026:10:00:15 +0000] "GET /y HTTP/1.1" 200 50
192.0.2.1 - ann [21/Nov/2026:10:02:00 +0000] "GET /x HTTP/1.1" 200 60
"#;

pub(crate) fn folder(logs: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("policies.yaml", POLICIES)].iter().chain(logs) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

pub(crate) fn run(folder: &TempDir, arguments: &str) -> (i32, String, String) {
    run_in(folder.path(), &["replay", "policies.yaml"], arguments)
}

pub(crate) fn report(folder: &TempDir, arguments: &str) -> Value {
    let (code, out, error) = run(folder, &format!("{arguments} --json"));
    assert_eq!(code, 0, "{error}");
    serde_json::from_str(&out).unwrap()
}

pub(crate) fn verdicts(report: &Value) -> (u64, u64) {
    let policy = &report["policies"][0];
    (policy["allowed"].as_u64().unwrap(), policy["denied"].as_u64().unwrap())
}

#[test]
fn common_log_replays_two_policies_side_by_side() {
    let folder = folder(&[("access.log", COMMON)]);
    let report = report(&folder, "--policy three --policy one --log access.log");
    assert_eq!(report["logs"], json!([{"name": "access.log", "format": "common"}]));
    assert_eq!((&report["lines"], &report["requests"], &report["unreadable"]), (&json!(7), &json!(7), &json!(0)));
    assert_eq!((&report["from"], &report["to"]), (&json!("2026-11-21T10:00:00Z"), &json!("2026-11-21T10:02:00Z")));
    assert_eq!(report["peak_minutes"][0], json!({"minute": "2026-11-21T10:00:00Z", "checks": 6}));
    // 192.0.2.1 sends a fourth request within the minute at 10:00:15.
    let three = &report["policies"][0];
    assert_eq!(
        (&three["checks"], &three["denied"], &three["denied_share"]),
        (&json!(7), &json!(1), &json!(0.142857))
    );
    assert_eq!(three["top_denied_keys"], json!([{"key": "192.0.2.1", "denied": 1, "cost": 1}]));
    assert_eq!(three["peak_minutes"], json!([{"minute": "2026-11-21T10:00:00Z", "checks": 6, "denied": 1}]));
    // 1 per 10 s from the first request: denied at :05 and :15. The second one of 192.0.2.2 is
    // denied.
    let one = &report["policies"][1];
    assert_eq!((&one["policy"], &one["allowed"], &one["denied"]), (&json!("one"), &json!(4), &json!(3)));
    let top = json!([{"key": "192.0.2.1", "denied": 2, "cost": 2}, {"key": "192.0.2.2", "denied": 1, "cost": 1}]);
    assert_eq!(one["top_denied_keys"], top);
}

#[test]
fn text_report_matches_json_report() {
    let folder = folder(&[("access.log", COMMON)]);
    let (code, out, error) = run(&folder, "--policy three --policy one --log access.log --top 1");
    assert_eq!((code, error.as_str()), (0, ""));
    let expected = "\
access.log: common
7 lines, 7 requests, 0 unreadable, 0 without a key, 0 out of order
from 2026-11-21T10:00:00Z to 2026-11-21T10:02:00Z

POLICY        CHECKS        DENIED     SHARE  COST DENIED
three              7             1   14.29 %      14.29 %
one                7             3   42.86 %      42.86 %

peak minute of the log: 2026-11-21T10:00:00Z with 6 requests

three: denials by quota
           1  1m

three: keys denied most
           1  192.0.2.1

three: minutes denied most
           1  of 6 at 2026-11-21T10:00:00Z

one: denials by quota
           3  10s

one: keys denied most
           2  192.0.2.1

one: minutes denied most
           3  of 6 at 2026-11-21T10:00:00Z
";
    assert_eq!(out, expected);
}

#[test]
fn any_field_can_be_key_and_bytes_can_be_cost() {
    let combined: String = COMMON.lines().map(|line| format!("{line} \"http://r/\" \"curl \\\"8\\\"\"\n")).collect();
    let folder = folder(&[("common.log", COMMON), ("combined.log", &combined)]);
    let by = |log: &str, key: &str| {
        let report = report(&folder, &format!("--policy three --log {log} --key {key}"));
        (verdicts(&report), report["without_key"].as_u64().unwrap())
    };
    // ann sends five requests; the fourth in the minute is denied. A dash is no user.
    assert_eq!(by("common.log", "user"), ((5, 1), 1));
    // /x three times in the first minute with and without a query, /y three times.
    assert_eq!(by("common.log", "path"), ((7, 0), 0));
    assert_eq!(by("common.log", "method"), ((6, 1), 0));
    assert_eq!(by("common.log", "status"), ((5, 2), 0));
    // All have one value; the seventh request comes two minutes later.
    assert_eq!(by("combined.log", "user-agent"), ((4, 3), 0));
    assert_eq!(by("combined.log", "referer"), ((4, 3), 0));
    let (code, _, error) = run(&folder, "--policy three --log common.log --key referer");
    assert_eq!((code, error.as_str()), (2, "tollgate: the logs have no request: no line has the key `referer`\n"));
    let format = report(&folder, "--policy three --log combined.log")["logs"][0]["format"].clone();
    assert_eq!(format, "combined");
    // 192.0.2.1 sends 10, 20, then 40, and 50 would be 120; 60 more are 130. 192.0.2.2 sends 0 and
    // 30.
    let bytes = report(&folder, "--policy sum --log common.log --cost bytes");
    let sum = &bytes["policies"][0];
    assert_eq!((verdicts(&bytes), &sum["cost"], &sum["cost_denied"]), ((5, 2), &json!(210), &json!(110)));
    assert_eq!(sum["top_denied_keys"], json!([{"key": "192.0.2.1", "denied": 2, "cost": 110}]));
    // 34 + 34, and no third.
    assert_eq!(verdicts(&report(&folder, "--policy sum --log common.log --cost 34")), (4, 3));
}

#[test]
fn json_lines_accept_every_time_format() {
    // All within 10 seconds of 2026-11-21T10:00:00Z, which is 1795255200.
    let lines = r#"{"time":"2026-11-21T10:00:00Z","key":"a"}
{"time":1795255201,"key":"a","cost":2,"meta":"user-42","more":[{"x":1}]}
{"key":"b","time":1795255202.5}
{"time":1795255203000,"key":"a"}
{"time":1795255204000000,"key":"a","cost":0}

{"time":"2026-11-21T11:00:05.5+01:00","key":"b","cost":3}
{"time":1795255206,"key":"b","cost":2}
"#;
    let folder = folder(&[("checks.jsonl", lines)]);
    let told = report(&folder, "--policy three --log checks.jsonl");
    // a: 1 and 2 fit, then one more is denied, and cost 0 only peeks. b: 1 fits, 3 do not, 2 do.
    assert_eq!((&told["logs"][0]["format"], &told["lines"]), (&json!("json"), &json!(7)));
    assert_eq!((verdicts(&told), &told["policies"][0]["cost_denied"]), ((5, 2), &json!(4)));
    assert_eq!((&told["from"], &told["to"]), (&json!("2026-11-21T10:00:00Z"), &json!("2026-11-21T10:00:06Z")));
    // By another member: one key. Lines without that member have no key.
    let by_meta = report(&folder, "--policy three --log checks.jsonl --key meta --cost 4");
    assert_eq!((verdicts(&by_meta), &by_meta["without_key"]), ((0, 1), &json!(6)));
}

/// Two ticks of 10 s count.
#[test]
fn sliding_counters_follow_times_of_the_log() {
    let folder = folder(&[("access.log", COMMON)]);
    let report = report(&folder, "--policy counters --log access.log");
    // 192.0.2.1 has two charges when it asks at 10:00:10 and 10:00:15.
    assert_eq!(verdicts(&report), (5, 2));
    assert_eq!(report["policies"][0]["top_denied_keys"], json!([{"key": "192.0.2.1", "denied": 2, "cost": 2}]));
}

/// A client of an access log, and the key that it counts as.
const CLIENTS: &[(&str, &str)] = &[
    ("203.0.113.7", "203.0.113.7"),
    ("203.0.113.7:51234", "203.0.113.7"),
    ("203.0.113.7:0", "203.0.113.7"),
    ("[2001:db8::1]:443", "2001:db8::1"),
    ("[2001:db8::1]", "2001:db8::1"),
    ("2001:DB8:0::1", "2001:db8::1"),
    ("2001:db8:0:0:0:0:0:1:443", "2001:db8::1"),
    ("[fe80::1%eth0]:443", "fe80::1"),
    ("fe80::1%eth0", "fe80::1"),
    ("::ffff:203.0.113.7", "203.0.113.7"),
    ("[::ffff:203.0.113.7]:51234", "203.0.113.7"),
    ("::ffff:203.0.113.7:51234", "203.0.113.7"),
    ("[64:ff9b::203.0.113.7]:51234", "203.0.113.7"),
    ("203.0.113.7,10.0.0.9", "203.0.113.7"),
    ("203.0.113.7:51234,10.0.0.9:80", "203.0.113.7"),
    ("203.0.113.7:51234, [2001:db8::9]:80", "203.0.113.7"),
    ("[2001:db8::1]:443, 10.0.0.9", "2001:db8::1"),
];

/// A proxy logs the client with its port, which each connection changes.
#[test]
fn replay_counts_an_address_without_its_port() {
    for (client, key) in CLIENTS {
        let access = format!("{client} - - [21/Nov/2026:10:00:00 +0000] \"GET /x HTTP/1.1\" 200 10\n");
        let json = format!("{{\"time\": 1795255200, \"key\": \"{client}\"}}\n");
        let folder = folder(&[("access.log", &access.repeat(5)), ("checks.jsonl", &json.repeat(5))]);
        for log in ["access.log", "checks.jsonl"] {
            let told = report(&folder, &format!("--policy three --policy addresses --log {log}"));
            let top = |policy: usize| told["policies"][policy]["top_denied_keys"][0]["key"].clone();
            assert_eq!((verdicts(&told), top(0)), ((3, 2), json!(key)), "{log}: {client}");
            let network = if key.contains(':') {
                key.rsplit_once("::").unwrap().0.to_owned() + "::/64"
            } else {
                (*key).to_owned()
            };
            assert_eq!(top(1), network, "{log}: {client}");
        }
    }
}

#[test]
fn two_ports_of_a_client_are_one_key() {
    let line = |port: u16| format!("203.0.113.7:{port} - - [21/Nov/2026:10:00:00 +0000] \"GET /x HTTP/1.1\" 200 10\n");
    let name = |port: u16| format!("host.example:{port} - - [21/Nov/2026:10:00:00 +0000] \"GET /x HTTP/1.1\" 200 10\n");
    let folder = folder(&[("a.log", &(line(51234) + &line(51235))), ("b.log", &(name(51234) + &name(51235)))]);
    assert_eq!(verdicts(&report(&folder, "--policy one --log a.log")), (1, 1));
    assert_eq!(verdicts(&report(&folder, "--policy one --log b.log")), (1, 1));
}

/// Other texts than addresses may end in digits, too.
#[test]
fn keys_that_are_no_addresses_stay_as_written() {
    for key in
        ["tenant:42", "user-7", "a, b", "10.0.0.1/8:80", "203.0.113.7:port", "[x]:80", "203.0.113.7:70000", "1:2"]
    {
        let line = format!("{{\"time\": 1795255200, \"key\": \"{key}\"}}\n");
        let folder = folder(&[("checks.jsonl", &line.repeat(2))]);
        let told = report(&folder, "--policy one --log checks.jsonl");
        assert_eq!(told["policies"][0]["top_denied_keys"][0]["key"], *key);
    }
    let path = "a - - [21/Nov/2026:10:00:00 +0000] \"GET 203.0.113.7:80 HTTP/1.1\" 200 10\n";
    let folder = folder(&[("access.log", &path.repeat(2))]);
    let told = report(&folder, "--policy one --log access.log --key path");
    assert_eq!(told["policies"][0]["top_denied_keys"][0]["key"], "203.0.113.7:80");
}

/// RFC 7239 names such clients `unknown`, and hides others behind names such as `_hidden`.
#[test]
fn unknown_client_is_no_key() {
    let line = |client: &str| format!("{client} - - [21/Nov/2026:10:00:00 +0000] \"GET /x HTTP/1.1\" 200 10\n");
    for (client, without_key, denied) in
        [("unknown", 2, 0), ("-", 2, 0), ("unknown, 10.0.0.9", 2, 0), ("_hidden", 0, 1)]
    {
        let folder = folder(&[("access.log", &(line(client).repeat(2) + &line("192.0.2.1")))]);
        let told = report(&folder, "--policy one --log access.log");
        let denials = &told["policies"][0]["denied"];
        assert_eq!((&told["without_key"], denials), (&json!(without_key), &json!(denied)), "{client}");
    }
}

#[test]
fn far_dates_are_read() {
    let key = |time: &str| format!("{{\"time\":\"{time}\",\"key\":\"a\"}}\n");
    for (time, shown) in [
        ("9999-12-31T00:00:00Z", "9999-12-31T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("9999-12-31t23:59:60z", "9999-12-31T23:59:59Z"),
        ("9999-12-31T23:59:59+23:59", "9999-12-31T00:00:59Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
        ("2016-12-31 23:59:60.5-08:00", "2017-01-01T07:59:59.5Z"),
        ("1970-01-01T00:00:00-00:00", "1970-01-01T00:00:00Z"),
        ("1969-12-31T16:00:00-08:00", "1970-01-01T00:00:00Z"),
    ] {
        let folder = folder(&[("checks.jsonl", &key(time).repeat(2))]);
        let told = report(&folder, "--policy sms --policy three --policy one --policy sum --log checks.jsonl");
        assert_eq!((&told["from"], verdicts(&told)), (&json!(shown), (2, 0)), "{time}");
        assert_eq!(told["policies"][2]["denied"], 1, "{time}");
    }
    let far = "a - - [31/Dec/9999:23:59:59 +0000] \"GET /x HTTP/1.1\" 200 10\n";
    let folder = folder(&[("access.log", far), ("zero.jsonl", &key("0001-01-01T00:00:00Z"))]);
    assert_eq!(report(&folder, "--policy three --log access.log")["to"], "9999-12-31T23:59:59Z");
    let (_, _, error) = run(&folder, "--policy three --log zero.jsonl");
    assert!(error.contains("`time` is before 1970"), "{error}");
}

#[test]
fn integer_cost_may_have_a_fraction_of_zero() {
    let line = |cost: &str| format!("{{\"time\":1,\"key\":\"a\",\"cost\":{cost}}}\n");
    let folder = folder(&[("checks.jsonl", &(line("1.0") + &line("2e0") + &line("1.5") + &line("1e0")))]);
    let told = report(&folder, "--policy three --log checks.jsonl");
    assert_eq!((verdicts(&told), &told["unreadable"]), ((2, 1), &json!(1)));
}

/// Five requests of one client within a minute, as containers, syslog and terminals show them.
#[test]
fn prefix_of_a_log_shipper_is_no_client() {
    for prefix in [
        "2026-11-21T10:00:0#.1Z stdout F ",
        "2026-11-21T10:00:0#.123456789+01:00 stderr F ",
        "2026-11-21T10:00:0#.1Z ",
        "Nov 21 10:00:0# web1 nginx: ",
        "Nov  1 10:00:0# web1 nginx[7]: ",
        "<30>Nov 21 10:00:0# 10.0.0.9 nginx: ",
        "<165>1 2026-11-21T10:00:0#.003Z web1 nginx 12 access - ",
        "2026-11-21T10:00:0#.123456+00:00 web1 nginx: ",
        "Nov 21 10:00:0# ",
        "web-#  | ",
        "[pod/web-7d9f-#/nginx] ",
        "\u{1b}[36mweb-#  |\u{1b}[0m ",
        "shop.example:443 ",
        "",
    ] {
        let access = |n: u8| format!("203.0.113.7 - - [21/Nov/2026:10:00:0{n} +0000] \"GET / HTTP/1.1\" 200 1");
        let lines: String = (1..6).map(|n| prefix.replace('#', &n.to_string()) + &access(n) + "\n").collect();
        let folder = folder(&[("access.log", &lines)]);
        let told = report(&folder, "--policy three --policy addresses --log access.log");
        let top = |policy: usize| told["policies"][policy]["top_denied_keys"].clone();
        assert_eq!(verdicts(&told), (3, 2), "{prefix}");
        assert_eq!(top(0), json!([{"key": "203.0.113.7", "denied": 2, "cost": 2}]), "{prefix}");
        let docker: String = lines
            .lines()
            .map(|line| {
                json!({"log": format!("{line}\n"), "stream": "stdout", "time": "2026-11-21T10:00:01Z"}).to_string()
                    + "\n"
            })
            .collect();
        std::fs::write(folder.path().join("docker.log"), docker).unwrap();
        let told = report(&folder, "--policy three --log docker.log");
        assert_eq!((verdicts(&told), &told["logs"][0]["format"]), ((3, 2), &json!("common")), "{prefix}");
    }
}

#[test]
fn unknown_prefix_is_unreadable() {
    for prefix in ["Nov 21 10:00 web1 ", "10.0.0.9 nginx ", "web-7d9f nginx ", "17:", "access.log:", "a b c "] {
        let line = format!("{prefix}203.0.113.7 - - [21/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 1\n");
        let folder = folder(&[("access.log", &line.repeat(2))]);
        let (code, out, error) = run(&folder, "--policy three --log access.log");
        assert_eq!((code, out.as_str()), (2, ""), "{prefix}: {error}");
        assert!(error.contains("no line of 2 can be read"), "{error}");
    }
}

/// As Caddy, nginx, Envoy and Cloudflare write them.
#[test]
fn json_lines_of_servers_are_read() {
    for (line, flags) in [
        (
            r#"{"ts":1795255200.5,"request":{"client_ip":"203.0.113.7"},"bytes_written":53}"#,
            "--key request.client_ip",
        ),
        (
            r#"{"ts":1795255200.5,"request":{"headers":{"X-Key":["203.0.113.7"]}}}"#,
            "--key request.headers.X-Key",
        ),
        (r#"{"msec":"1795255200.123","remote_addr":"203.0.113.7","bytes":"53"}"#, "--key remote_addr"),
        (r#"{"time_local":"21/Nov/2026:10:00:00 +0000","remote_addr":"203.0.113.7"}"#, "--key remote_addr"),
        (r#"{"time":"1795255200.123","key":"203.0.113.7"}"#, ""),
        (r#"{"start_time":"2026-11-21T10:00:00.123Z","peer":"203.0.113.7:4711"}"#, "--key peer"),
        (r#"{"EdgeStartTimestamp":1795255200123456789,"ClientIP":"203.0.113.7"}"#, "--key ClientIP"),
        (r#"{"@timestamp":"2026-11-21T10:00:00Z","key":"203.0.113.7"}"#, ""),
        (r#"{"at":{"unix":"1795255200"},"key":"203.0.113.7"}"#, "--time at.unix"),
        (r#"2026-11-21T10:00:01.1Z stdout F {"ts":1795255200,"key":"203.0.113.7"}"#, ""),
    ] {
        let folder = folder(&[("checks.jsonl", &format!("{line}\n").repeat(5))]);
        let told = report(&folder, &format!("--policy three --log checks.jsonl {flags}"));
        assert_eq!((verdicts(&told), &told["from"].as_str().unwrap()[..19]), ((3, 2), "2026-11-21T10:00:00"), "{line}");
        assert_eq!(told["policies"][0]["top_denied_keys"][0]["key"], "203.0.113.7", "{line}");
    }
    let quoted = r#"{"msec":"1795255200.123","key":"a","bytes":"53"}"#;
    let folder = folder(&[("checks.jsonl", &format!("{quoted}\n").repeat(2))]);
    let told = report(&folder, "--policy sum --log checks.jsonl --cost bytes");
    assert_eq!((verdicts(&told), &told["policies"][0]["cost"]), ((1, 1), &json!(106)));
}

#[test]
fn log_without_the_key_names_its_members() {
    let line = r#"{"ts":1795255200,"request":{"client_ip":"203.0.113.7","method":"GET"},"user":"-"}"#;
    let folder = folder(&[("checks.jsonl", &format!("{line}\n").repeat(2))]);
    for (flags, key) in [("", "key"), ("--key user", "user"), ("--key request.user", "request.user")] {
        let (code, out, error) = run(&folder, &format!("--policy three --log checks.jsonl {flags}"));
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        assert!(error.contains(&format!("the logs have no request: no line has the key `{key}`")), "{error}");
        assert!(error.contains("`request.client_ip`, `request.method`, `ts`, `user`"), "{error}");
    }
    assert_eq!(run(&folder, "--policy three --log checks.jsonl --key request.method").0, 0);
    let (code, _, error) = run(&folder, "--policy three --log checks.jsonl --time nginx.time");
    assert!(code == 2 && error.contains("no member `nginx.time`"), "{error}");
}

#[test]
fn quota_that_denies_is_named() {
    let folder = folder(&[("access.log", COMMON)]);
    let quotas = "policies:\n  both: {quotas: [{name: burst, limit: 1, per: 1s}, {name: minute, limit: 3, per: 1m}]}\n";
    std::fs::write(folder.path().join("policies.yaml"), quotas).unwrap();
    let told = report(&folder, "--policy both --log access.log");
    let by = json!([{"quota": "burst", "denied": 1}, {"quota": "minute", "denied": 1}]);
    assert_eq!((&told["policies"][0]["denied_by_quota"], verdicts(&told)), (&by, (5, 2)));
    let (_, out, _) = run(&folder, "--policy both --log access.log");
    assert!(out.contains("both: denials by quota\n           1  burst\n           1  minute\n"), "{out}");
}

#[test]
fn logs_of_iis_cloudfront_and_load_balancers_are_read() {
    let iis = "#Software: Microsoft Internet Information Services 10.0
#Version: 1.0
#Date: 2026-11-21 10:00:00
#Fields: date time s-ip cs-method cs-uri-stem cs-username c-ip cs(User-Agent) sc-status sc-bytes
2026-11-21 10:00:00 10.0.0.1 GET /x - 203.0.113.7 Mozilla/5.0+(X11) 200 60
";
    let cloudfront = "#Version: 1.0
#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status
2026-11-21\t10:00:00\tFRA2\t60\t203.0.113.7\tGET\td.example\t/x\t200
";
    let alb = "h2 2026-11-21T10:00:00.186641Z app/lb/50dc 203.0.113.7:2817 10.0.0.1:80 0.0 0.1 0.0 200 200 0 60 \
               \"GET https://x.example:443/x?q=1 HTTP/2.0\" \"curl/7.46.0\" ECDHE TLSv1.2 arn:a \"Root=1\" \"-\" \"-\" 0\n";
    for (text, format) in [(iis, "w3c"), (cloudfront, "w3c"), (alb, "alb")] {
        let last = text.lines().last().unwrap();
        let folder = folder(&[("access.log", &format!("{text}{last}\n{last}\n{last}\n"))]);
        let told = report(&folder, "--policy three --log access.log");
        assert_eq!((&told["logs"][0]["format"], &told["lines"]), (&json!(format), &json!(4)));
        assert_eq!((verdicts(&told), &told["from"].as_str().unwrap()[..19]), ((3, 1), "2026-11-21T10:00:00"));
        assert_eq!(told["policies"][0]["top_denied_keys"][0]["key"], "203.0.113.7");
        let told = report(&folder, "--policy sum --log access.log --key path --cost bytes");
        assert_eq!((verdicts(&told), &told["policies"][0]["top_denied_keys"][0]["key"]), ((1, 3), &json!("/x")));
    }
}

#[test]
fn forwarded_address_at_the_end_can_be_the_key() {
    let line = |forwarded: &str| {
        COMMON.lines().map(|line| format!("{line} \"-\" \"curl\" \"{forwarded}\"\n")).collect::<String>()
    };
    let folder = folder(&[("access.log", &line("198.51.100.1, 10.0.0.9"))]);
    let told = report(&folder, "--policy three --log access.log --key forwarded");
    assert_eq!(told["policies"][0]["top_denied_keys"], json!([{"key": "198.51.100.1", "denied": 3, "cost": 3}]));
}

#[test]
fn log_of_another_format_gets_one_sentence() {
    for text in [
        "[2026-11-21T10:00:00.310Z] \"POST /x HTTP/2\" 204 - 154 0 226 100 \"10.0.35.28\" \"nsq2http\"\n",
        "Feb  6 12:14:14 web1 haproxy[14389]: 10.0.1.2:33317 [06/Feb/2026:12:14:14.655] http-in static/srv1 10/0/30 200 2750 - - \n",
        "one two\n",
    ] {
        let folder = folder(&[("access.log", &text.repeat(9))]);
        let (code, out, error) = run(&folder, "--policy three --log access.log --key request.client_ip");
        assert_eq!((code, out.as_str(), error.lines().count()), (2, "", 3), "{error}");
        assert!(error.contains("common and combined logs") && error.contains("JSON lines"), "{error}");
    }
    for (text, advice) in [("[\n  {\"time\": 1}\n]\n", "jq -c '.[]'"), ("{\n  \"time\": 1\n}\n", "jq -c .")] {
        let folder = folder(&[("checks.json", text)]);
        let (code, _, error) = run(&folder, "--policy three --log checks.json");
        assert!(code == 2 && error.contains(advice) && error.lines().count() == 1, "{error}");
    }
}

/// PowerShell writes such files.
#[test]
fn log_in_utf_16_is_named_as_such() {
    let text: Vec<u8> = "\u{feff}{}\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let folder = folder(&[]);
    std::fs::write(folder.path().join("checks.jsonl"), text).unwrap();
    let (code, _, error) = run(&folder, "--policy three --log checks.jsonl");
    assert!(code == 2 && error.contains("checks.jsonl is in UTF-16: save it in UTF-8"), "{code} {error}");
}

#[test]
fn key_that_is_too_long_is_to_be_hashed() {
    let line = format!("{{\"time\":1,\"key\":\"{}\"}}\n", "x".repeat(1025));
    let folder = folder(&[("checks.jsonl", &line)]);
    let (code, _, error) = run(&folder, "--policy three --log checks.jsonl");
    assert!(code == 2 && error.contains("hash longer keys, for example with SHA-256"), "{code} {error}");
}

/// Two a day in Berlin: the day of 23 hours ends at 22:00 UTC.
#[test]
fn calendar_windows_follow_times_of_the_log() {
    let times = ["2026-03-28T23:00:00Z", "2026-03-29T21:59:58Z", "2026-03-29T21:59:59Z", "2026-03-29T22:00:00Z"];
    let lines: String = times.iter().map(|time| format!("{{\"time\":\"{time}\",\"key\":\"user\"}}\n")).collect();
    let folder = folder(&[("sms.jsonl", &lines)]);
    let told = report(&folder, "--policy sms --log sms.jsonl");
    assert_eq!(verdicts(&told), (3, 1));
    assert_eq!(told["policies"][0]["peak_minutes"][0]["minute"], "2026-03-29T21:59:00Z");
}

#[test]
fn replay_time_never_steps_back_across_logs() {
    let line = |time: u64| format!("{{\"time\":{time},\"key\":\"a\"}}\n");
    let (first, second) = (line(1000) + &line(1009) + &line(1005), line(1002) + &line(1010) + &line(1019));
    let folder = folder(&[("1.jsonl", &first), ("2.jsonl", &second)]);
    // 1 per 10 s from the first: 1000, then 1010. The replay decides 1005 and 1002 at 1009.
    let told = report(&folder, "--policy one --log 1.jsonl --log 2.jsonl");
    assert_eq!((verdicts(&told), &told["out_of_order"]), ((2, 4), &json!(2)));
    assert_eq!((&told["from"], &told["to"]), (&json!("1970-01-01T00:16:40Z"), &json!("1970-01-01T00:16:59Z")));
}

#[test]
fn standard_input_can_be_replayed() {
    let folder = folder(&[]);
    let mut program = Command::new(TOLLGATE)
        .current_dir(folder.path())
        .args(["replay", "policies.yaml", "--policy", "three", "--log", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(COMMON.as_bytes()).unwrap();
    let output = program.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((verdicts(&report), &report["logs"][0]["name"]), ((6, 1), &json!("standard input")));
}

#[test]
fn unreadable_lines_are_counted_and_first_ones_printed() {
    let mut log: Vec<u8> = COMMON.into();
    log.extend(b"\n\xff\xfe\n192.0.2.9 - - [no time] \"GET / HTTP/1.1\" 200 1\r\n");
    log.extend(b"192.0.2.9 - - [31/Feb/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    log.extend(b"192.0.2.9 - - [21/Nov/2026:10:03:00 +0000] \"GET / HTTP/1.1\n");
    log.extend(b"{\"time\":1,\"key\":\"a\"}\n".repeat(3));
    log.extend(vec![b'x'; 300_000]);
    let folder = folder(&[]);
    std::fs::write(folder.path().join("access.log"), log).unwrap();
    let (code, out, error) = run(&folder, "--policy three --log access.log");
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("\n15 lines, 7 requests, 8 unreadable, 0 without a key"), "{out}");
    let shown: Vec<_> = error.lines().collect();
    assert_eq!(shown.len(), 5, "{error}");
    assert_eq!(shown[0], "tollgate: access.log:9: nothing behind the client");
    assert_eq!(shown[1], "tollgate: access.log:10: the time is not like `10/Oct/2000:13:55:36 -0700`");
    assert_eq!(shown[3], "tollgate: access.log:12: no request in quotes");
}

#[test]
fn rejected_keys_are_reported() {
    let folder = folder(&[("access.log", COMMON)]);
    let told = report(&folder, "--policy addresses --log access.log --key user");
    assert_eq!((verdicts(&told), &told["policies"][0]["refused_keys"]), ((0, 0), &json!(6)));
    assert_eq!(verdicts(&report(&folder, "--policy addresses --log access.log")), (5, 2));
}

#[test]
fn replay_lists_match_those_of_a_node() {
    let log = r#"{"time": "2026-11-21T10:00:00Z", "key": "K"}"#;
    let keys = ["mallory", "10.1.2.3", "10.1.2.3", "vip", "vip", "vip", "ann", "ann"];
    let log: String = keys.iter().map(|key| log.replace('K', key) + "\n").collect();
    let folder = folder(&[("a.jsonl", &log)]);
    let lists =
        "{deny: {keys: [mallory]}, allow: {cidrs: [10.0.0.0/8]}, overrides: [{match: {key: vip}, quotas: [2 per 1h]}]";
    std::fs::write(
        folder.path().join("policies.yaml"),
        format!("policies:\n  listed: {lists}, quotas: [1 per 1h]}}\n"),
    )
    .unwrap();
    let report = report(&folder, "--policy listed --log a.jsonl");
    let denied = |key| json!({"key": key, "denied": 1, "cost": 1});
    let all = [denied("ann"), denied("mallory"), denied("vip")];
    assert_eq!(report["policies"][0]["top_denied_keys"], json!(all), "{report}");
    assert_eq!(verdicts(&report), (5, 3));
}

#[test]
fn replay_prints_keys_verbatim_and_escapes_invisible_characters() {
    let line = r#"{"time": 1, "key": "it's \"a\\b\"\u001b"}"#;
    let folder = folder(&[("checks.json", &format!("{line}\n{line}\n"))]);
    let (code, out, error) = run(&folder, "--policy one --log checks.json");
    assert!(code == 0 && out.contains(r#"  it's "a\b"\u{1b}"#), "{out}{error}");
}

/// `zcat *.gz` prints daily logs in this order: the newest first.
#[test]
fn wrong_order_of_logs_is_reported() {
    let newer = COMMON.replace("21/Nov", "22/Nov");
    let folder = folder(&[("access.log", COMMON), ("newer.log", &newer)]);
    let order = |logs: &str| run(&folder, &format!("--policy three {logs}"));
    assert_eq!(order("--log access.log --log newer.log").2, "");
    let (code, out, error) = order("--log newer.log --log access.log");
    assert!(code == 0 && out.contains("7 out of order"), "{code} {out}");
    assert!(error.contains("7 of 14 requests are from more than 5 minutes before"), "{error}");
}

#[test]
fn byte_order_mark_is_not_part_of_the_log() {
    let folder = folder(&[
        ("access.log", &format!("\u{feff}{COMMON}")),
        ("checks.json", "\u{feff}{\"time\":1,\"key\":\"k\"}\n"),
    ]);
    let told = report(&folder, "--policy three --log access.log");
    assert_eq!(
        told["policies"][0]["top_denied_keys"],
        json!([{"key": "192.0.2.1", "denied": 1, "cost": 1}]),
        "{told}"
    );
    assert_eq!(report(&folder, "--policy three --log checks.json")["logs"][0]["format"], "json");
}

#[test]
fn unreadable_log_is_a_failure() {
    let folder = folder(&[("access.log", COMMON), ("notes.txt", "one\ntwo\n")]);
    std::fs::write(folder.path().join("old.log.gz"), b"\x1f\x8b\x08\x00\n\n").unwrap();
    let (code, out, error) = run(&folder, "--policy three --log old.log.gz --log access.log");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("old.log.gz is compressed: `zcat` it to `--log -`"), "{error}");
    let (code, out, error) = run(&folder, "--policy three --log access.log --log notes.txt");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("no line of 2 can be read:\n  notes.txt:1: "), "{error}");
}

#[test]
fn excessive_cost_counts_as_the_largest() {
    let line = "{\"time\":1,\"key\":\"k\",\"cost\":1000000000000000}\n";
    let folder = folder(&[("checks.json", &line.repeat(20_000))]);
    let told = report(&folder, "--policy three --log checks.json");
    assert_eq!(told["policies"][0]["top_denied_keys"], json!([{"key": "k", "denied": 20_000, "cost": u64::MAX}]));
}

#[test]
fn replay_failures_have_exit_code_and_reason() {
    let folder =
        folder(&[("access.log", COMMON), ("notes.txt", "one\ntwo\n"), ("empty.log", ""), ("bad.yaml", "polices: {}")]);
    let fails = |arguments: &str, expected: i32, reason: &str| {
        let (code, out, error) = run(&folder, arguments);
        assert_eq!((code, out.as_str()), (expected, ""), "{arguments}: {error}");
        assert!(error.starts_with("tollgate: ") && error.contains(reason), "{arguments}: {error}");
    };
    fails("--policy thre --log access.log", 1, "no policy is named `thre`: there are `addresses`");
    fails("--log access.log", 1, "no policy is named `default`");
    fails("--policy three --log access.log --key agent", 1, "`user-agent`");
    fails("--policy three --log access.log --cost path", 1, "a number or `bytes`");
    fails("--policy three --log access.log --cost 1000000000000001", 1, "the most is 1000000000000000");
    fails("--policy three --log no-such.log", 2, "no-such.log cannot be read");
    fails("--policy three --log .", 2, "cannot be read");
    fails("--policy three --log notes.txt", 2, "no line of 2 can be read:\n  notes.txt:1: ");
    fails("--policy three --log access.log --format json", 2, "no line of 7 can be read");
    let empty = report(&folder, "--policy three --log empty.log");
    let (_, _, told) = run(&folder, "--policy three --log empty.log");
    assert_eq!(told, "tollgate: the logs have no request, so nothing is decided\n");
    assert_eq!(
        (verdicts(&empty), &empty["from"], &empty["logs"][0]["format"]),
        ((0, 0), &Value::Null, &Value::Null)
    );
    let bad = Command::new(TOLLGATE)
        .current_dir(folder.path())
        .args(["replay", "bad.yaml", "--log", "access.log"])
        .output();
    let bad = bad.unwrap();
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8(bad.stderr).unwrap().contains("did you mean `policies`?"));
    assert_eq!(run(&folder, "--policy three").0, 2, "clap's own");
}

/// A million lines of a day. The rate depends on the build, so the test prints it without an
/// assertion.
///
/// `cargo test --release --test it -- --ignored --nocapture replay`
#[test]
#[ignore = "writes 100 MB; its rate only says something of a release build"]
#[expect(clippy::disallowed_methods, clippy::print_stderr, reason = "a measurement has no clock of its own")]
fn million_lines_replay_in_time() {
    const LINES: u64 = 1_000_000;
    let folder = folder(&[]);
    for (name, json) in [("access.log", false), ("checks.jsonl", true)] {
        let mut file = std::io::BufWriter::new(std::fs::File::create(folder.path().join(name)).unwrap());
        let (mut line, mut random) = (String::new(), 1u64);
        for number in 0..LINES {
            // A linear congruential generator; the square favours few of 65,536 clients.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let client = ((random >> 48) * (random >> 32 & 0xffff)) >> 16;
            let (second, [high, low]) = (number * 86_400 / LINES, [client >> 8, client & 255]);
            line.clear();
            if json {
                write!(line, "{{\"time\":{},\"key\":\"10.0.{high}.{low}\"}}", 1_795_219_200 + second).unwrap();
            } else {
                let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
                write!(line, "10.0.{high}.{low} - - [21/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] ").unwrap();
                line.push_str("\"GET /some/path/of/usual/length?and=query HTTP/1.1\" 200 2326 \"-\" \"Mozilla/5.0\"");
            }
            writeln!(file, "{line}").unwrap();
        }
        file.into_inner().unwrap();
        let started = std::time::Instant::now();
        let told = report(&folder, &format!("--policy three --log {name} --propose 1%"));
        eprintln!("{name} with --propose: {:.1} s", started.elapsed().as_secs_f64());
        assert_eq!(told["checks"], LINES);
        for policies in ["--policy three", "--policy sms", "--policy three --policy one --policy sms"] {
            let started = std::time::Instant::now();
            let told = report(&folder, &format!("{policies} --log {name}"));
            let took = started.elapsed();
            assert_eq!(told["requests"], LINES);
            let (allowed, denied) = verdicts(&told);
            assert!(allowed + denied == LINES && denied > 0, "{told}");
            let rate = LINES as f64 / took.as_secs_f64();
            eprintln!("{name} {policies}: {took:.2?}, {rate:.0} lines/s, {denied} denied by the first");
        }
    }
}

/// 10 + 20 + 40 + 50 + 60 bytes of `192.0.2.1`, and 30 of `192.0.2.2`, within an hour.
#[test]
fn drains_charge_what_fits() {
    let folder = folder(&[("access.log", COMMON)]);
    let report = report(&folder, "--policy sum --log access.log --cost bytes --drain");
    let sum = &report["policies"][0];
    assert_eq!((&report["over"], &sum["cost"], &sum["denied"]), (&json!("drain"), &json!(210), &json!(2)));
    // The fourth takes 30 of 50, and the last none of 60.
    assert_eq!(sum["cost_denied"], 80);
    assert_eq!(sum["top_denied_keys"], json!([{"key": "192.0.2.1", "denied": 2, "cost": 80}]));
    let (_, text, _) = run(&folder, "--policy sum --log access.log --cost bytes --drain");
    assert!(text.contains("COST OWED") && text.contains("38.10 %"), "{text}");
}
