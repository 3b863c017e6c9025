//! Tokens with names at Envoy's service. `resp/scopes.rs` has those of Redis clients, and the layer
//! `http` those of gates and of the JSON API.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use tollgate::access::TokenHash;
use tonic::{Code, Status};

use crate::rls::{EnvoyNode, Settings, descriptor, request};
use crate::support::collector::{Collector, attribute};
use crate::support::{TOLLGATE, http};

const DESCRIPTORS: &str = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: ip, policy: per-ip}
";

/// A node with these tokens. The secret of each is its name.
fn node(tokens: &[(&str, &str)]) -> (EnvoyNode, tempfile::TempDir) {
    node_by(Command::new(TOLLGATE), tokens, "")
}

fn node_by(program: Command, tokens: &[(&str, &str)], more: &str) -> (EnvoyNode, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let entry = |(name, rest): &(&str, &str)| {
        let file = folder.path().join(name);
        std::fs::write(&file, TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {}, {rest}}}\n", file.display())
    };
    let more = format!("{more}\ntokens:\n{}", tokens.iter().map(entry).collect::<String>());
    let policies = "  per-ip: {key: {type: ip}, quotas: [100 per 1h]}";
    let settings = Settings { policies, more: &more, descriptors: DESCRIPTORS, ..Settings::default() };
    (EnvoyNode::start_by(program, &settings), folder)
}

async fn ask(node: &EnvoyNode, entry: (&str, &str), token: &str) -> Result<(), Status> {
    let mut request = tonic::Request::new(request(&[descriptor(&[entry])]));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    node.client().await.ask_with(request).await.map(drop)
}

#[tokio::test]
async fn envoy_needs_a_token_of_scope_check() {
    let scopes = ["check", "read", "metrics", "operate", "admin"];
    let scoped = scopes.map(|scope| format!("scopes: [{scope}]"));
    let tokens: Vec<_> = scopes.iter().zip(&scoped).map(|(name, rest)| (*name, rest.as_str())).collect();
    let (node, _folder) = node(&tokens);
    for scope in scopes {
        let answered = ask(&node, ("user", "alice"), scope).await;
        if ["check", "admin"].contains(&scope) {
            assert_eq!(answered.map_err(|status| status.code()), Ok(()), "{scope}");
            continue;
        }
        let status = answered.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{scope}");
        assert!(status.message().contains("one of the scope `check`"), "{}", status.message());
    }
}

#[tokio::test]
async fn envoys_token_may_be_for_a_policy_or_another_door() {
    let (node, _folder) = node(&[
        ("shop", "scopes: [check], policies: [per-ip]"),
        ("edge", "scopes: [check], doors: [gate, http]"),
        ("old", "scopes: [check], expires: 2001-01-01"),
    ]);
    assert!(ask(&node, ("ip", "192.0.2.1"), "shop").await.is_ok());
    assert!(ask(&node, ("unlimited", "x"), "shop").await.is_ok());
    for (entry, token, code, words) in [
        (("user", "alice"), "shop", Code::PermissionDenied, "the token `shop` is not for the policy"),
        (("ip", "192.0.2.1"), "edge", Code::PermissionDenied, "the token `edge` is not for the door `envoy`"),
        (("ip", "192.0.2.1"), "old", Code::Unauthenticated, "the token `old` has expired"),
    ] {
        let status = ask(&node, entry, token).await.unwrap_err();
        assert_eq!(status.code(), code, "{token}");
        assert!(status.message().starts_with(words), "{}", status.message());
    }
}

/// `POST /json` of the reference is a call of the same door.
#[test]
fn json_of_the_reference_needs_a_token_of_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |name: &str, rest: &str| {
        std::fs::write(folder.path().join(name), TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {}, {rest}}}\n", folder.path().join(name).display())
    };
    let tokens = entry("edge", "scopes: [check], doors: [envoy]") + &entry("app", "scopes: [check], doors: [http]");
    let (more, envoy) = (format!("tokens:\n{tokens}"), "  http_listen: 127.0.0.1:0");
    let policies = "  per-ip: {key: {type: ip}, quotas: [100 per 1h]}";
    let node = EnvoyNode::start(&Settings { more: &more, envoy, policies, descriptors: DESCRIPTORS });
    let line = node.node.greeting.lines().find_map(|line| line.trim().strip_prefix("Envoy HTTP http://"));
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let status = |token| http::call(line.unwrap(), "POST", "/json", token, body).status;
    assert_eq!([status(None), status(Some("edge")), status(Some("app"))], [401, 200, 403]);
}

/// The spans of all doors have the name of the caller's token, and never its secret.
#[test]
fn spans_have_the_name_of_the_token() {
    let collector = Collector::start();
    let more = "resp: {listen: 127.0.0.1:0}\ngates: {edge: {rules: [{checks: [{policy: unused, key: k}]}]}}";
    let program = collector.tollgate(&[("OTEL_TRACES_SAMPLER", "always_on")]);
    let (node, folder) = node_by(program, &[("shop", "scopes: [check]")], more);
    std::fs::write(folder.path().join("shop"), TokenHash::of("a-secret").to_string()).unwrap();
    let check = r#"{"policy": "unused", "key": "k"}"#;
    crate::support::wait_until("the secret is in force", || {
        http::call(&node.node.address, "POST", "/v1/check", Some("a-secret"), check).status == 200
    });
    let gate = http::request("GET", "/v1/gate/edge", &[("X-Tollgate-Token", "a-secret")], b"");
    assert!([200, 429].contains(&http::exchange(&node.node.address, &gate).status));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        ask(&node, ("ip", "192.0.2.1"), "a-secret").await.unwrap();
    });
    let greeting = node.node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).unwrap();
    let mut stream = TcpStream::connect(greeting.trim().split_once("://").unwrap().1).unwrap();
    stream.write_all(b"AUTH a-secret\r\nTG.CHECK unused k\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let doors = [
        "POST /v1/check",
        "ANY /v1/gate/{gate}",
        "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "RESP",
    ];
    let spans = collector.wait("the spans are there", |spans| {
        let is_there =
            |name: &&str| spans.all().any(|span| span.name == **name && attribute(span, "tollgate.token") == "shop");
        doors.iter().all(is_there)
    });
    assert!(!format!("{:?}", spans.0.iter().map(|received| &received.span).collect::<Vec<_>>()).contains("a-secret"));
}
