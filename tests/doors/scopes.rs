//! Tokens with names at Envoy's service. `resp/scopes.rs` has those of Redis clients, and the layer
//! `http` those of gates and of the JSON API.

use tollgate::access::TokenHash;
use tonic::{Code, Status};

use crate::rls::{EnvoyNode, Settings, descriptor, request};

const DESCRIPTORS: &str = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: ip, policy: per-ip}
";

/// A node with these tokens. The secret of each is its name.
fn node(tokens: &[(&str, &str)]) -> (EnvoyNode, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let entry = |(name, rest): &(&str, &str)| {
        let file = folder.path().join(name);
        std::fs::write(&file, TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {}, {rest}}}\n", file.display())
    };
    let more = format!("tokens:\n{}", tokens.iter().map(entry).collect::<String>());
    let policies = "  per-ip: {key: {type: ip}, quotas: [100 per 1h]}";
    let settings = Settings { policies, more: &more, descriptors: DESCRIPTORS, ..Settings::default() };
    (EnvoyNode::start(&settings), folder)
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
