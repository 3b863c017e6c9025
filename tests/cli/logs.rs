//! Logs whose lines can be misread without a word: every line counts rightly, or is refused.

use serde_json::{Value, json};

use super::replay::{folder, report, run, verdicts};
use crate::support::run_in;

fn top_key(report: &Value) -> &Value {
    &report["policies"][0]["top_denied_keys"][0]["key"]
}

/// Both forms of a load balancer's line: of an application, and of a classic one.
fn balancer(client: &str) -> [String; 2] {
    let line = format!(
        "2026-11-21T10:00:01.1Z app/l/5 {client} 10.0.0.1:80 0 0 0 401 401 29 805 \"GET https://x:443/ HTTP/2.0\" \
         \"c\"\n"
    );
    [format!("h2 {line}"), line]
}

/// Load balancers write no brackets around an IPv6 address, and each connection has another port.
#[test]
fn load_balancer_clients_count_without_their_port() {
    for (client, key) in [
        ("203.0.113.7", "203.0.113.7"),
        ("2a02:a33c::f215", "2a02:a33c::f215"),
        ("2a02:a33c::8:1", "2a02:a33c::8:1"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
        ("2001:db8::", "2001:db8::"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
    ] {
        for kind in 0..2 {
            let ports = ["1", "80", "5123", "51234", "65535"];
            let log: String = ports.iter().map(|port| balancer(&format!("{client}:{port}"))[kind].clone()).collect();
            let folder = folder(&[("lb.log", &log)]);
            let told = report(&folder, "--policy three --log lb.log");
            assert_eq!((verdicts(&told), top_key(&told)), ((3, 2), &json!(key)), "{client}");
        }
    }
}

#[test]
fn load_balancer_client_of_another_form_is_unreadable() {
    for client in ["2a02:a33c::f215", "2a02:a33c::1:123456", "[2001:db8::1]", "203.0.113.7:65536", "203.0.113.7:1:2"] {
        let folder = folder(&[("lb.log", &balancer(client)[0])]);
        let (code, out, error) = run(&folder, "--policy three --log lb.log --format alb");
        assert_eq!((code, out.as_str()), (2, ""), "{client}: {error}");
        assert!(error.contains("lb.log:1: the client is no `address:port`"), "{client}: {error}");
    }
}

#[test]
fn diff_on_a_load_balancer_log_fails_over_its_ipv6_clients() {
    let log: String = (5123..5128).map(|port| balancer(&format!("2a02:a33c::f215:{port}"))[0].clone()).collect();
    let folder = folder(&[
        ("o.yaml", "policies: {p: {quotas: [5 per 1m]}}\n"),
        ("n.yaml", "policies: {p: {quotas: [1 per 1m]}}\n"),
        ("alb6", &log),
    ]);
    let (code, out, error) = run_in(folder.path(), &["diff"], "o.yaml n.yaml --log alb6 --fail-over 0");
    assert!(code == 1 && out.contains("newly denied             4   80.00 %  1 key"), "{code} {out} {error}");
}
