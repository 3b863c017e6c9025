//! `validate`, `explain --domain` and `import` know the files of Envoy's rate limit service.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{TOLLGATE, file_with};

/// The exit code, standard output and standard error of a command.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(TOLLGATE).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn documented() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/integrations/envoy/tollgate.yaml")
        .display()
        .to_string()
}

#[test]
fn validate_counts_domains_and_rules() {
    let (code, out, reason) = run(&["validate", &documented()]);
    assert_eq!(code, 0, "{reason}");
    assert!(out.ends_with(": valid, 2 policies, 1 domain of Envoy with 4 rules\n"), "{out}");
}

#[test]
fn validate_reports_faults_of_descriptor_files_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("envoy")).unwrap();
    std::fs::write(folder.path().join("envoy/a.yaml"), "domain: d\ndescriptors: [{key: a, rate_limt: {}}]\n").unwrap();
    std::fs::write(folder.path().join("envoy/b.yml"), "domain: d\n").unwrap();
    std::fs::write(folder.path().join("envoy/notes.txt"), "not read").unwrap();
    let file = folder.path().join("tollgate.yaml");
    let text = "policies: {p: {quotas: [1 per 1s]}}\nenvoy: {listen: \"127.0.0.1:8081\", config: [envoy/]}\n";
    std::fs::write(&file, text).unwrap();
    let (code, _, faults) = run(&["validate", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    let root = folder.path().display();
    assert!(faults.contains(&format!("{root}/envoy/a.yaml:2:24: unknown member `rate_limt`")), "{faults}");
    assert!(faults.contains(&format!("{root}/envoy/b.yml:1:9: the domain `d` is already in ")), "{faults}");
}

/// `tollgate envoy-ratelimit --print` for the rules in `root/config`: standard output and error.
fn printed(root: &Path, variables: &[(&str, &str)]) -> Result<(String, String), String> {
    let told = Command::new(TOLLGATE)
        .args(["envoy-ratelimit", "--print"])
        .env("RUNTIME_ROOT", root)
        .envs([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "127.0.0.1:1")])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let [out, told_of] = [told.stdout, told.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    if told.status.success() { Ok((out, told_of)) } else { Err(told_of) }
}

/// The printed configuration may be for another machine.
#[test]
fn print_needs_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/absent/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/absent/tls.key"),
    ];
    let (text, warnings) = printed(folder.path(), &tls).unwrap();
    assert!(text.contains("/absent/tls.key"), "{text}");
    for (variable, absent) in [("RUNTIME_ROOT: ", "/config/"), ("GRPC_SERVER_TLS_CERT: ", "/absent/tls.crt")] {
        let is_told = |line: &str| line.starts_with(&format!("warning: {variable}")) && line.contains(absent);
        assert!(warnings.lines().any(is_told), "{absent}: {warnings}");
    }
}

#[test]
fn rule_files_of_the_reference_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    std::fs::create_dir_all(config.join("below")).unwrap();
    // A mounted ConfigMap: each file is a link into `..data`, which is a link, too.
    let mounted = config.join("..2026_07_05");
    std::fs::create_dir(&mounted).unwrap();
    std::os::unix::fs::symlink("..2026_07_05", config.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/limits", config.join("limits")).unwrap();
    let rule = |domain| {
        format!("domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 1}}}}]\n")
    };
    std::fs::write(mounted.join("limits"), rule("limits")).unwrap();
    let json = "{\n\t\"domain\": \"json\",\n\t\"descriptors\": []\n}\n";
    std::fs::write(config.join("b.json"), json).unwrap();
    std::fs::write(config.join("below/c.yaml"), rule("below")).unwrap();
    std::fs::write(config.join(".hidden.yaml"), rule("hidden")).unwrap();
    let read = |variables| {
        let (text, warnings) = printed(folder.path(), variables).unwrap();
        let (code, out, reason) = run(&["validate", file_with(&text).path().to_str().unwrap()]);
        assert_eq!(code, 0, "{reason}");
        (out.rsplit_once("policies, ").unwrap().1.to_owned(), warnings + &reason)
    };
    assert_eq!(read(&[]).0, "4 domains of Envoy with 3 rules\n");
    assert_eq!(read(&[("RUNTIME_IGNOREDOTFILES", "true")]).0, "3 domains of Envoy with 2 rules\n");
    // The reference follows no link to a folder. With its root watched it reads `config.*`.
    std::os::unix::fs::symlink("..data", config.join("linked")).unwrap();
    std::fs::write(folder.path().join("config.more.yaml"), rule("more")).unwrap();
    let (domains, warnings) = read(&[]);
    assert_eq!(domains, "4 domains of Envoy with 3 rules\n");
    assert!(warnings.contains("linked: a link to a folder is not read: name that folder, too\n"), "{warnings}");
    assert!(warnings.contains("config.more.yaml is not read: move it into "), "{warnings}");
    assert!(!read(&[("RUNTIME_WATCH_ROOT", "false")]).1.contains("config.more.yaml"));
}

#[test]
fn faults_name_the_variable_of_their_value() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    std::fs::create_dir(&config).unwrap();
    std::fs::write(config.join("a.yaml"), "domain: d\n").unwrap();
    std::fs::write(folder.path().join("none.pem"), "").unwrap();
    let pem = folder.path().join("none.pem").display().to_string();
    let tls = |name| [("REDIS_TLS", "true"), (name, &*pem)];
    let server = |name| [("GRPC_SERVER_USE_TLS", "true"), (name, &*pem)];
    let plane =
        |name, value| [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"), (name, value)];
    for (variables, fault) in [
        (
            &[("CACHE_KEY_PREFIX", "foo:")][..],
            "CACHE_KEY_PREFIX must be 1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`, not the text `\"foo:\"`",
        ),
        (&[("REDIS_URL", "a b")], "REDIS_URL: "),
        (&[("REDIS_URL", "a:1,/x")], "REDIS_URL: "),
        (&[("REDIS_URL", "main"), ("REDIS_TYPE", "SENTINEL")], "REDIS_URL: "),
        (&tls("REDIS_TLS_CACERT"), "REDIS_TLS_CACERT: "),
        (
            &tls("REDIS_TLS_CLIENT_CERT"),
            "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY belong together: name both",
        ),
        (
            &tls("REDIS_TLS_CLIENT_KEY"),
            "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY belong together: name both",
        ),
        (
            &[("GRPC_SERVER_USE_TLS", "true")],
            "GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, ",
        ),
        (&server("GRPC_SERVER_TLS_CERT"), "GRPC_SERVER_TLS_CERT: "),
        (&server("GRPC_SERVER_TLS_KEY"), "GRPC_SERVER_TLS_KEY: "),
        (&server("GRPC_CLIENT_TLS_CACERT"), "GRPC_CLIENT_TLS_CACERT: "),
        (&server("GRPC_SERVER_TLS_CA_CERT"), "GRPC_SERVER_TLS_CA_CERT: "),
        (&plane("CONFIG_GRPC_XDS_SERVER_URL", "a b"), "CONFIG_GRPC_XDS_SERVER_URL must be `host:port`"),
        (&plane("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &pem), "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: "),
        (&plane("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &pem), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_"),
        (&plane("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &pem), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_"),
        (&[("GRPC_MAX_CONNECTION_AGE", "1ms")], "GRPC_MAX_CONNECTION_AGE: "),
        (&[("NEAR_LIMIT_RATIO", "2")], "NEAR_LIMIT_RATIO must be a number from 0 to 1"),
        (&[("GRPC_HOST", "..")], "GRPC_HOST must be an IP address or the name of one, not `..`"),
        (&[("HOST", "..")], "HOST must be an IP address or the name of one, not `..`"),
        (
            &[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "..:1")],
            "PROMETHEUS_ADDR must be an IP address or the name of one, not `..`",
        ),
        (&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "localhost:x")], "PROMETHEUS_ADDR: "),
        (&[("TOLLGATE_LISTEN", "x")], "--listen or TOLLGATE_LISTEN: "),
    ] {
        let told = printed(folder.path(), variables).expect_err(fault);
        assert!(told.lines().any(|line| line.starts_with(&format!("tollgate: {fault}"))), "{fault:?} {told}");
    }
    // The variables of hosts may be names.
    let hosts = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "localhost:9090"),
        ("GRPC_HOST", "localhost"),
        ("HOST", "::1"),
    ];
    let (text, _) = printed(folder.path(), &hosts).unwrap();
    for address in ["\"127.0.0.1:9090\"", "\"127.0.0.1:8081\"", "\"[::1]:8080\""] {
        assert!(text.contains(address), "{text}");
    }
}

#[test]
fn members_without_effect_are_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let limits = "domain: d
descriptors:
  - {key: a, detailed_metric: false, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: b, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: c, value_to_metric: yes, descriptors: [{key: d, detailed_metric: true}]}
";
    std::fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    std::fs::write(folder.path().join("plain.yaml"), "domain: e\ndescriptors: [{key: a, value_to_metric: off}]\n")
        .unwrap();
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, "envoy: {listen: \"127.0.0.1:8081\", config: [limits.yaml, plain.yaml]}\n").unwrap();
    let (code, _, warnings) = run(&["validate", file.to_str().unwrap()]);
    let limits = folder.path().join("limits.yaml").display().to_string();
    let expected = ["detailed_metric", "value_to_metric"].map(|member| {
        format!("warning: {limits}: `{member}` has no effect: labels of metrics never contain values of callers")
    });
    assert_eq!((code, warnings.lines().collect::<Vec<_>>()), (0, expected.iter().map(String::as_str).collect()));
}

#[test]
fn explain_finds_the_rule_of_a_descriptor() {
    let file = documented();
    let explain = |entries: &[&str]| {
        let mut arguments = vec!["explain", &file, "--json", "--domain", "edge"];
        entries.iter().for_each(|entry| arguments.extend(["--descriptor", entry]));
        let (code, out, reason) = run(&arguments);
        assert_eq!(code, 0, "{reason}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let user = explain(&["user=alice"]);
    assert_eq!((user["policy"].as_str(), user["key"].as_str()), (Some("per-user"), Some("alice")));
    assert!(user["rule"].as_str().unwrap().ends_with("limits.yaml:7"), "{user}");
    let tokens = explain(&["tokens=alice"]);
    assert_eq!(tokens["key"], "edge|tokens=alice");
    assert_eq!(tokens["quotas"][0]["limit"], 1000);
    assert_eq!(tokens["redis"]["keys"][0], "{ratelimit:edge|tokens=alice:}envoy~day:fixed");
    assert_eq!(tokens["match"], Value::Null);
    assert_eq!(explain(&["other=x"])["rule"], "none: the descriptor is allowed and not counted");
    let (_, text, _) = run(&["explain", &file, "--domain", "edge", "--descriptor", "user=alice"]);
    assert!(text.starts_with("rule    policy, ") && text.contains("quota   1h: 200 per 1h"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let limits = "domain: d
descriptors:
  - {key: zero, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: ip, policy: per-ip}
";
    std::fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    let own = folder.path().join("tollgate.yaml");
    let node = "policies: {per-ip: {key: {type: ip}, quotas: [1 per 1h]}}\nenvoy: {listen: \"127.0.0.1:0\", config: [limits.yaml]}\n";
    std::fs::write(&own, node).unwrap();
    let text = |entry| run(&["explain", own.to_str().unwrap(), "--domain", "d", "--descriptor", entry]);
    let (code, out, _) = text("zero=1");
    assert!(code == 0 && out.contains("limits.yaml:3") && !out.contains("tollgate.yaml:0"), "{out}");
    let (code, out, _) = text("ip=zzz");
    assert!(
        code == 0 && out.contains("limits.yaml:4") && out.contains("answer  over_limit: the key \"zzz\" must be"),
        "{out}"
    );
    let (code, _, reason) = run(&["explain", &file, "--domain", "elsewhere", "--descriptor", "user=alice"]);
    assert!(code == 1 && reason.contains("there are edge"), "{reason}");
}

#[test]
fn import_prints_policies_for_limits_of_limitador() {
    let limits = file_with("- {namespace: shop, max_value: 10, seconds: 60, variables: ['descriptors[0].user']}\n");
    let (code, out, reason) = run(&["import", "limitador", limits.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{reason}");
    assert!(out.contains("quotas: [10 per 60s]") && out.contains("domain: 'shop'"), "{out}");
    let wrong = file_with("- {namespace: shop, max_value: 10, seconds: 60, variables: [user]}\n");
    let (code, out, faults) = run(&["import", "limitador", wrong.path().to_str().unwrap()]);
    assert!(code == 1 && out.is_empty() && faults.contains(":1:"), "{faults}");
    let some = "- {namespace: shop, max_value: 10, seconds: 60}
- {namespace: shop, max_value: 10, seconds: 60, conditions: [\"descriptors[0].path != '/json'\"]}
";
    let some = file_with(some);
    let (code, out, faults) = run(&["import", "limitador", some.path().to_str().unwrap()]);
    assert!(code == 1 && out.contains("value: 'limitador-1-1'") && faults.lines().count() == 1, "{out}{faults}");
}
