//! `tollgate envoy-ratelimit` in place of the reference's program: its variables, its calls over
//! HTTP and its metrics.

use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tollgate::gateway::envoy::messages::Code;

use crate::control_plane::{ControlPlane, domain, hourly};
use crate::rls::{Client, EnvoyNode, Settings, codes, descriptor, request, with_hits};
use crate::support::http;
use crate::support::promtool::promtool;
use crate::support::redis::Server;
use crate::support::{TOLLGATE, free_port, wait_until};

/// A program that ends with its owner.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The value of the series that has this name and these labels.
fn series(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line = text.lines().find(|line| {
        let (series, _) = line.rsplit_once(' ').unwrap_or_default();
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && labels.iter().all(|label| series.contains(label))
    });
    line?.rsplit_once(' ')?.1.parse().ok()
}

/// By a link with the name of the reference's program, and by the variables of Envoy Gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_with_the_name_of_the_reference_serves_its_ports() {
    let (redis, mut plane, folder) = (Server::start(), ControlPlane::start(), tempfile::tempdir().unwrap());
    let program = folder.path().join("ratelimit");
    symlink(TOLLGATE, &program).unwrap();
    let [grpc, calls, metrics, own] = [(); 4].map(|()| free_port());
    let spawned = Command::new(&program)
        .env("TOLLGATE_LISTEN", format!("127.0.0.1:{own}"))
        .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("LOG_LEVEL", "warn")])
        .env("PORT", calls.to_string())
        .env("GRPC_PORT", grpc.to_string())
        .envs([("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit")])
        .env("CONFIG_GRPC_XDS_SERVER_URL", plane.address())
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", format!("127.0.0.1:{}", redis.port))
        .envs([("USE_STATSD", "false"), ("USE_PROMETHEUS", "true")])
        .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
        .stdout(Stdio::null())
        .spawn();
    let _program = Program(spawned.unwrap());
    assert_eq!(plane.request().await.node.unwrap().id, "envoy-ratelimit");
    let at = |port: u16| format!("127.0.0.1:{port}");
    assert_eq!(http::get(&at(calls), "/healthcheck").status, 500);
    plane.put("1", &[domain("default/eg/http", vec![hourly("user", 2)])]).await;
    let health = || http::get(&at(calls), "/healthcheck");
    wait_until("the node is healthy", || health().status == 200);
    assert_eq!(health().body, b"OK");
    let client = Client::connect(&at(grpc)).await;
    let mut asked = request(&[descriptor(&[("user", "alice")])]);
    asked.domain = "default/eg/http".to_owned();
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(codes(&client.ask(asked.clone()).await.unwrap()).0, expected);
    }
    let text = String::from_utf8(http::get(&at(metrics), "/metrics").body).unwrap();
    let labels = ["domain=\"default/eg/http\"", "key1=\"user\""];
    for (name, value) in
        [("total_hits", 3.0), ("within_limit", 2.0), ("over_limit", 1.0), ("near_limit", 1.0), ("shadow_mode", 0.0)]
    {
        assert_eq!(series(&text, &format!("ratelimit_service_rate_limit_{name}"), &labels), Some(value), "{name}");
    }
    assert_eq!(series(&text, "ratelimit_service_config_load_success", &[]), Some(1.0));
    // Each port has its own calls only.
    for (port, path) in
        [(calls, "/metrics"), (calls, "/v1/policies"), (metrics, "/v1/policies"), (metrics, "/json"), (own, "/json")]
    {
        assert_eq!(http::get(&at(port), path).status, 404, "{port} {path}");
    }
}

#[test]
fn variables_that_cannot_be_honoured_end_the_program() {
    let told = Command::new(TOLLGATE)
        .arg("envoy-ratelimit")
        .envs([
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", "127.0.0.1:1"),
            ("SHADOW_MODE", "true"),
            ("GRPC_PORT", "none"),
        ])
        .output()
        .unwrap();
    assert_eq!(told.status.code(), Some(1));
    let text = String::from_utf8(told.stderr).unwrap();
    let lines = [
        "tollgate: SHADOW_MODE cannot be honoured: set `shadow_mode` in the rules",
        "tollgate: GRPC_PORT must be a port, not `none`",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn printed_configuration_is_a_valid_file() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("config");
    std::fs::create_dir(&rules).unwrap();
    std::fs::write(rules.join("a.yaml"), "domain: d\n").unwrap();
    let printed = Command::new(TOLLGATE)
        .args(["envoy-ratelimit", "--print"])
        .env("RUNTIME_ROOT", folder.path())
        .envs([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "127.0.0.1:1"), ("REDIS_AUTH", "p@ss${word}")])
        .output()
        .unwrap();
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, printed.stdout).unwrap();
    let validated = Command::new(TOLLGATE).arg("validate").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&validated.stdout);
    assert!(text.ends_with("valid, 0 policies, 1 domain of Envoy with 0 rules\n"), "{validated:?}");
}

const LIMITS: &str = "domain: d
descriptors:
  - key: user
    value: alice
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: open, metadata: {backend: {name: eu, ports: [1, null, true]}}, rate_limit: {unit: day, requests_per_unit: 5, name: daily}}
";

/// A node with the calls of the reference; its address for them is `reference`.
struct Reference {
    node: EnvoyNode,
    http: String,
}

impl Reference {
    fn start(envoy: &str) -> Self {
        let envoy = format!("  http_listen: 127.0.0.1:0\n{envoy}");
        let node = EnvoyNode::start(&Settings { envoy: &envoy, descriptors: LIMITS, ..Settings::default() });
        let line = node.node.greeting.lines().find_map(|line| line.trim().strip_prefix("Envoy HTTP http://"));
        let http = line.expect("it serves the calls of the reference").to_owned();
        Self { node, http }
    }

    fn ask(&self, body: &Value) -> (u16, Value) {
        let answer = http::post(&self.http, "/json", body.to_string());
        (answer.status, answer.json())
    }
}

#[test]
fn json_is_the_message_of_the_protocol() {
    let reference = Reference::start("  headers: none");
    let (status, answer) = reference.ask(&json!({"domain": "d", "descriptors": [{"entries": [{"key": "open"}]}]}));
    assert_eq!(status, 200);
    let reset = answer["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(
        reset
            .strip_suffix('s')
            .is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|seconds| seconds <= 86_400))
    );
    let limit = json!({"name": "daily", "requestsPerUnit": 5, "unit": "DAY"});
    let one = json!({"code": "OK", "currentLimit": limit, "limitRemaining": 4, "durationUntilReset": reset});
    let metadata = json!({
        "domain": "d",
        "descriptors": [{"entries": ["open="]}],
        "metadata": {"backend": {"name": "eu", "ports": [1.0, null, true]}},
    });
    assert_eq!(answer, json!({"overallCode": "OK", "statuses": [one], "dynamicMetadata": metadata}));
    // Names in either spelling, numbers as texts, and a body of any type.
    let hits = json!({"domain": "d", "hits_addend": "4", "descriptors": [{"entries": [{"key": "open", "value": ""}]}]});
    assert_eq!(reference.ask(&hits).0, 200);
    let (status, answer) = reference.ask(&hits);
    assert_eq!(
        (status, &answer["overallCode"], &answer["statuses"][0]["code"]),
        (429, &json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
    assert_eq!(answer["statuses"][0].get("limitRemaining"), None);
    let own = json!({"domain": "d", "descriptors": [{
        "entries": [{"key": "other"}],
        "limit": {"requestsPerUnit": 7, "unit": "MINUTE"},
        "hitsAddend": "2",
    }]});
    let (status, answer) = reference.ask(&own);
    assert_eq!((status, &answer["statuses"][0]["limitRemaining"]), (200, &json!(5)), "{answer}");
    for (wrong, reason) in [
        (json!({"domain": "d"}), "`descriptors` is empty"),
        (json!({"descriptors": []}), "`domain` is empty"),
        (json!({"domain": "d", "descriptor": []}), "unknown field `descriptor`"),
        (json!({"domain": "d", "hitsAddend": -1}), "did not match"),
        (
            json!({"domain": "d", "hitsAddend": 4_294_967_296_u64}),
            "`hitsAddend` must be an integer from 0 that fits 32 bits",
        ),
        (json!({"domain": "d", "descriptors": [{"limit": {"unit": "EON"}}]}), "`unit` must be SECOND"),
    ] {
        let (status, problem) = reference.ask(&wrong);
        assert_eq!(status, 400, "{wrong}");
        assert!(problem["detail"].as_str().unwrap().contains(reason), "{problem}");
    }
    assert_eq!(http::get(&reference.http, "/json").status, 405);
}

#[test]
fn pages_in_browsers_do_not_spend_limits() {
    let reference = Reference::start("");
    let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": "open"}]}]}).to_string();
    let head = "POST /json HTTP/1.1\r\nHost: t\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\nConnection: close\r\n";
    let sent = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(http::exchange(&reference.http, sent.as_bytes()).status, 403);
}

#[tokio::test]
async fn metrics_count_hits_as_the_reference_does() {
    let reference = Reference::start("  metrics: reference\n  counting: independent");
    let client = reference.node.client().await;
    let path = |hits| with_hits(descriptor(&[("user", "alice"), ("path", "/a")]), hits);
    // 7 within; then 9 of 10, of which the ninth is near; then one of two fits.
    for hits in [7, 2, 2] {
        client.ask(request(&[path(hits)])).await.unwrap();
    }
    for key in ["quiet", "quiet", "closed"] {
        client.ask(request(&[descriptor(&[(key, "x")])])).await.unwrap();
    }
    client.ask(request(&[])).await.unwrap_err();
    let text = reference.node.node.metrics();
    let rows = [
        ("key1=\"user_alice\",key2=\"path\"", [11.0, 2.0, 1.0, 9.0, 0.0]),
        ("key1=\"quiet\"", [2.0, 1.0, 1.0, 1.0, 1.0]),
        ("key1=\"closed\"", [1.0, 0.0, 1.0, 0.0, 0.0]),
    ];
    for (labels, values) in rows {
        for (name, value) in
            ["total_hits", "near_limit", "over_limit", "within_limit", "shadow_mode"].iter().zip(values)
        {
            let name = format!("ratelimit_service_rate_limit_{name}");
            assert_eq!(series(&text, &name, &["domain=\"d\"", labels]), Some(value), "{name} {labels}");
        }
    }
    for (name, label, value) in [
        ("ratelimit_service_should_rate_limit_error", "err_type=\"service_error\"", 1.0),
        ("ratelimit_service_should_rate_limit_error", "err_type=\"redis_error\"", 0.0),
        ("ratelimit_service_total_requests", "grpc_method=\"ShouldRateLimit\"", 7.0),
        ("ratelimit_service_response_time_seconds_count", "grpc_method=\"ShouldRateLimit\"", 7.0),
        ("ratelimit_service_config_load_success", "", 1.0),
        ("ratelimit_service_config_load_error", "", 0.0),
        ("go_memstats_gc_cpu_fraction", "", 0.0),
    ] {
        assert_eq!(series(&text, name, &[label]), Some(value), "{name}");
    }
    assert!(series(&text, "process_virtual_memory_bytes", &[]).is_some_and(|bytes| bytes > 1e6));
    assert!(text.contains("# TYPE ratelimit_service_rate_limit_total_hits counter\n"), "{text}");
    let checked = promtool(&["check", "metrics"], &text);
    // The reference's names lack `_total`, and promtool only advises on that.
    let advice = String::from_utf8(checked.stderr).unwrap();
    assert!(advice.lines().all(|line| line.contains("should have \"_total\" suffix")), "{advice}");
    // Without the setting there are none of these.
    let own = Reference::start("");
    assert!(!own.node.node.metrics().contains("ratelimit_service"));
}
