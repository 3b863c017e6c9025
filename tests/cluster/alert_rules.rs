//! The rules, the dashboard and the manual name existing metrics, and promtool accepts the rules.

use std::collections::BTreeSet;
use std::fs;

use crate::support::promtool::promtool;
use crate::support::{Node, cluster, config_on, http, unique};

#[test]
fn alert_rules_pass_promtool_and_fire() {
    for arguments in [
        ["check", "config", "cluster/prometheus.yml"],
        ["check", "rules", "cluster/alerts.yml"],
        ["test", "rules", "cluster/alerts_test.yml"],
    ] {
        let output = promtool(&arguments, "");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn watched_metrics_exist_and_are_documented() {
    let policies = "policies: {default: {quotas: [5 per 1h], timeout: 5s, lease: {}}, \
                    jobs: {hold: {ttl: 10s, in_flight: 4}, timeout: 5s}}";
    let file = config_on(&cluster::shared().seeds(), policies);
    let node = Node::with_config(&file);
    let key = unique("watched");
    http::post(&node.address, "/v1/check", format!(r#"{{"key": "{key}"}}"#));
    http::post(&node.address, "/v1/check", format!(r#"{{"policy": "jobs", "key": "{key}", "id": "run"}}"#));
    // Operations have no series before the first one.
    http::get(&node.address, &format!("/v1/usage?policy=default&key={key}"));
    let deny = format!(r#"{{"match": {{"key": "{key}"}}, "deny": true}}"#);
    let put = http::call(&node.address, "PUT", "/v1/overrides/default", None, &deny);
    assert_eq!(put.status, 200, "{put:?}");
    let text = node.metrics();
    let mut samples: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    // It has no series without `tls`.
    let certificate = "tollgate_tls_certificate_end_timestamp_seconds";
    assert!(text.contains(&format!("# TYPE {certificate} gauge")), "{text}");
    samples.insert(certificate);
    for path in ["cluster/alerts.yml", "cluster/alerts_test.yml", "cluster/grafana/dashboards/tollgate.json"] {
        let watched = fs::read_to_string(path).unwrap();
        let watched = names(&watched);
        assert!(watched.len() > 5, "{path} was misread");
        let unknown: Vec<_> = watched.difference(&samples).collect();
        assert!(unknown.is_empty(), "{path} speaks of {unknown:?}");
    }
    let manual = fs::read_to_string("docs/metrics.md").unwrap();
    let announced = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let unexplained: Vec<&str> = announced.filter(|name| !manual.contains(&format!("`{name}"))).collect();
    assert!(unexplained.is_empty(), "docs/metrics.md says nothing of {unexplained:?}");
    let manual = fs::read_to_string("docs/alerts.md").unwrap();
    let alerts = fs::read_to_string("cluster/alerts.yml").unwrap();
    let unexplained: Vec<&str> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .filter(|alert| !manual.contains(&format!("`{alert}`")))
        .collect();
    assert!(unexplained.is_empty(), "docs/alerts.md says nothing of {unexplained:?}");
}

fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("tollgate_") || word.starts_with("process_")).collect()
}
