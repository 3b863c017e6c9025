//! The same answers as envoyproxy/ratelimit, whose recorded answers are the fixture.
//!
//! Seeds produce the configurations and the requests, so the fixture holds only answers. A line for
//! each request has one `code:limit_remaining` for each descriptor, and the merged metadata.
//! `scripts/record-envoy-reference` recorded them with commit
//! f2fb15770f7fd1c88ca6c3a1b58ee513917ace96 of 5 July 2026. docs/integrations/envoy.md lists the
//! differences.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use prost_types::value::Kind;
use tollgate::clock::unix_micros;
use tollgate::gateway::envoy::messages::{Code, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::rls::{Client, EnvoyNode, Settings, descriptor, fixture, with_hits};
use crate::support::dice::Dice;

const CONFIGURATIONS: u64 = 30;
const REQUESTS: usize = 5_000;
const FIXTURE: &str = "envoy-reference.txt";
const UNITS: [&str; 5] = ["hour", "day", "week", "month", "year"];
const KEYS: [&str; 3] = ["user", "path", "tenant"];
const VALUES: [&str; 6] = ["a", "ab", "abc", "b", "gold", ""];
const NAMES: [&str; 3] = ["tier", "backend", "region"];
const PATTERNS: [&str; 8] = ["a", "abc", "gold", "a*", "ab*", "*", "", ""];

/// The text of a descriptor file for the domain `d<number>`.
fn configuration(number: u64) -> String {
    let dice = &mut Dice::new(1_000 + number);
    let mut text = format!("domain: d{number}\ndescriptors:\n");
    level(dice, &mut text, 1);
    text
}

/// Some descriptors of a level, each pair of key and value once.
fn level(dice: &mut Dice, text: &mut String, depth: usize) {
    let indent = "    ".repeat(depth - 1);
    let mut known = Vec::new();
    for _ in 0..4 + dice.below(5) {
        let pair = (*dice.one_of(&KEYS), *dice.one_of(&PATTERNS));
        if known.contains(&pair) {
            continue;
        }
        known.push(pair);
        let (key, value) = pair;
        writeln!(text, "{indent}  - key: {key}").unwrap();
        if !value.is_empty() {
            writeln!(text, "{indent}    value: \"{value}\"").unwrap();
        }
        if value.ends_with('*') && dice.below(3) == 0 {
            writeln!(text, "{indent}    share_threshold: true").unwrap();
        }
        if dice.below(9) == 0 {
            writeln!(text, "{indent}    shadow_mode: true").unwrap();
        }
        if dice.below(3) == 0 {
            writeln!(text, "{indent}    quota_mode: true").unwrap();
        }
        if dice.below(3) == 0 {
            writeln!(text, "{indent}    metadata: {{{}: {}}}", dice.one_of(&NAMES), dice.below(5)).unwrap();
        }
        if dice.below(10) > 0 {
            writeln!(text, "{indent}    rate_limit: {}", rate_limit(dice)).unwrap();
        }
        if depth < 3 && dice.below(3) == 0 {
            writeln!(text, "{indent}    descriptors:").unwrap();
            level(dice, text, depth + 1);
        }
    }
}

fn rate_limit(dice: &mut Dice) -> String {
    let names = ["one", "two", "three"];
    let own = dice.place(5);
    let name = names.get(own).map(|name| format!("name: {name}, ")).unwrap_or_default();
    let other = names[(own + 1) % 3];
    let replaces = if dice.below(6) == 0 { format!("replaces: [{{name: {other}}}], ") } else { String::new() };
    if dice.below(10) == 0 {
        return format!("{{{name}{replaces}unlimited: true}}");
    }
    format!("{{{name}{replaces}unit: {}, requests_per_unit: {}}}", dice.one_of(&UNITS), dice.below(40))
}

/// All requests, in order.
fn requests() -> Vec<RateLimitRequest> {
    let dice = &mut Dice::new(7);
    (0..REQUESTS).map(|_| request(dice)).collect()
}

fn request(dice: &mut Dice) -> RateLimitRequest {
    let descriptors = (0..=dice.below(3)).map(|_| random_descriptor(dice)).collect();
    // One domain of the requests is unknown.
    let domain = format!("d{}", dice.below(CONFIGURATIONS + 1));
    let hits_addend = if dice.below(4) == 0 { 1 + dice.below(4) as u32 } else { 0 };
    RateLimitRequest { domain, descriptors, hits_addend }
}

fn random_descriptor(dice: &mut Dice) -> RateLimitDescriptor {
    let depth = [1, 1, 1, 1, 2, 3][dice.place(6)];
    let entries: Vec<(&str, &str)> = (0..depth).map(|_| (*dice.one_of(&KEYS), *dice.one_of(&VALUES))).collect();
    let descriptor = descriptor(&entries);
    match dice.below(8) {
        0 => with_hits(descriptor, dice.below(4)),
        _ => descriptor,
    }
}

/// `1 1:5 2:0 tier=3`: the overall code, code and remaining of each descriptor, and the metadata.
fn line(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().map(|status| format!("{}:{}", status.code, status.limit_remaining));
    let overall = std::iter::once(response.overall_code.to_string());
    overall.chain(statuses).chain(metadata(response)).collect::<Vec<_>>().join(" ")
}

fn metadata(response: &RateLimitResponse) -> Option<String> {
    let kind = |value: &prost_types::Value| value.kind.clone().unwrap();
    let Kind::StructValue(merged) = kind(response.dynamic_metadata.as_ref()?.fields.get("metadata")?) else { panic!() };
    let members = merged.fields.iter().map(|(name, value)| match kind(value) {
        Kind::NumberValue(number) => format!("{name}={number}"),
        other => panic!("{name}: {other:?}"),
    });
    Some(members.collect::<Vec<_>>().join(","))
}

/// The recorded line as Tollgate answers. The reference allows a look when nothing is left, which
/// may change the overall code and the metadata.
fn expected(request: &RateLimitRequest, recorded: &str, answer: &RateLimitResponse) -> String {
    let mut words: Vec<String> = recorded.split(' ').map(str::to_owned).collect();
    let over = i32::from(Code::OverLimit);
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let looks = descriptor.hits_addend == Some(0);
        let status = &answer.statuses[place];
        if looks && words[place + 1] == "1:0" && status.code == over && status.limit_remaining == 0 {
            words[place + 1] = format!("{over}:0");
            words[0] = answer.overall_code.to_string();
            words.truncate(request.descriptors.len() + 1);
            words.extend(metadata(answer));
        }
    }
    words.join(" ")
}

#[tokio::test]
async fn answers_are_those_of_the_reference_server() {
    let node = EnvoyNode::start(&Settings {
        envoy: "  deadline: 5s\n  counting: independent",
        descriptors: &configuration(0),
        ..Settings::default()
    });
    let folder = node.folder.path().join("reference");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..CONFIGURATIONS {
        std::fs::write(folder.join(format!("{number}.yaml")), configuration(number)).unwrap();
    }
    let config = std::fs::read_to_string(node.folder.path().join("tollgate.yaml")).unwrap();
    node.write("tollgate.yaml", &config.replace("config: [limits.yaml]", "config: [reference]"));
    crate::support::http::post(&node.node.address, "/v1/reload", "");
    let client = node.client().await;
    let recorded = std::fs::read_to_string(fixture(FIXTURE)).expect("scripts/record-envoy-reference records it");
    assert_eq!(recorded.lines().count(), REQUESTS);
    stay_clear_of_the_hour().await;
    for (number, (request, recorded)) in requests().into_iter().zip(recorded.lines()).enumerate() {
        let answer = client.ask(request.clone()).await.unwrap();
        assert_eq!(line(&answer), expected(&request, recorded, &answer), "request {number}: {request:?}");
    }
}

/// The counters of an hour end with it.
async fn stay_clear_of_the_hour() {
    let now = unix_micros() / 1_000_000 % 3600;
    if now > 3600 - 60 {
        tokio::time::sleep(Duration::from_secs(3601 - now)).await;
    }
}

/// Writes the configurations into `ENVOY_REFERENCE_FOLDER`. Then records the answers of the server
/// at `ENVOY_REFERENCE`, if that is set.
#[tokio::test]
#[ignore = "scripts/record-envoy-reference runs it"]
async fn record_the_reference_server() {
    if let Some(folder) = std::env::var_os("ENVOY_REFERENCE_FOLDER") {
        for number in 0..CONFIGURATIONS {
            std::fs::write(Path::new(&folder).join(format!("{number}.yaml")), configuration(number)).unwrap();
        }
    }
    let Ok(address) = std::env::var("ENVOY_REFERENCE") else { return };
    let client = Client::connect(&address).await;
    stay_clear_of_the_hour().await;
    let mut lines = String::new();
    for request in requests() {
        lines += &line(&client.ask(request).await.unwrap());
        lines.push('\n');
    }
    std::fs::write(fixture(FIXTURE), lines).unwrap();
}
