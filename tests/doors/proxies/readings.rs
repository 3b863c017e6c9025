//! Many spellings of the protected paths, through each proxy to several backends: what a backend
//! serves by a protected route was counted by the rule of that route.

use std::collections::BTreeMap;

use super::backends::Backends;
use super::rig::Rig;
use super::{PROXIES, Proxy};
use crate::support::dice::Dice;
use crate::support::fuzz::cases;
use crate::support::wait_until;

/// What separates two segments, and what might.
const SEPARATORS: [&str; 16] = [
    "/",
    "//",
    "/./",
    "%2f",
    "%2F",
    "/%2f",
    "%2f/",
    "%2f%2F",
    "/;/",
    "%2f%2e%2f",
    "%5c",
    "%5C",
    "\\",
    "%252f",
    "%c0%af",
    "%255c",
];

/// What leads to the parent, and what might.
const PARENTS: [&str; 20] = [
    "..",
    "%2e%2e",
    "%2E%2E",
    ".%2e",
    "%2E.",
    ".",
    "%2e",
    "..;",
    "..;x=1",
    "%2e%2e;",
    "..%3b",
    "%252e%252e",
    ".%252e",
    "..%00",
    "..%20",
    "...",
    "%c0%ae%c0%ae",
    "%ef%bc%8e%ef%bc%8e",
    "..%2f..",
    "%2e%2e%2F%2e%2e",
];

/// Segments on a detour.
const NAMES: [&str; 12] =
    ["x", "health", "account", "account/7", "login", ";", ";x=1", "x;y", "%2f", "", "x%2fy", "account%2f7"];

const ENDS: [&str; 11] = ["/", "//", ";x=1", "%3bx", "%00", "%20", "%09", "?/health", "#/health", "%3f", ".json"];

/// What may stand before a path, or seem to.
const STARTS: [&str; 5] = ["//x", "///x", "http://app.example.com", "/.", "//x%2f.."];

/// The protected paths, and the one that the pages exempt.
const PATHS: [(&str, &[&str]); 5] = [
    ("POST", &["login"]),
    ("POST", &["login"]),
    ("GET", &["account", "7"]),
    ("GET", &["export"]),
    ("GET", &["health"]),
];

/// A path, written in another way.
fn spelling(names: &[&str], dice: &mut Dice) -> String {
    let mut target = oddly("", &STARTS, dice).to_owned();
    if dice.below(2) == 0 {
        detours(&mut target, dice);
    }
    for (number, name) in names.iter().enumerate() {
        target.push_str(if number == 0 && target.is_empty() { "/" } else { oddly("/", &SEPARATORS, dice) });
        for letter in name.chars() {
            match dice.below(40) {
                0 => target.push_str(&format!("%{:02x}", u32::from(letter))),
                1 => target.push_str(&format!("%{:02X}", u32::from(letter))),
                2 => target.push(letter.to_ascii_uppercase()),
                _ => target.push(letter),
            }
        }
    }
    if dice.below(2) == 0 {
        detours(&mut target, dice);
    }
    target + oddly("", &ENDS, dice)
}

/// Segments that lead nowhere, or seem to.
fn detours(target: &mut String, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        target.push_str(if target.is_empty() { "/" } else { oddly("/", &SEPARATORS, dice) });
        target.push_str(if dice.below(2) == 0 { NAMES[dice.place(NAMES.len())] } else { oddly("..", &PARENTS, dice) });
    }
}

/// Mostly the plain form: a target with many odd parts is refused for one of them.
fn oddly(plain: &'static str, odd: &[&'static str], dice: &mut Dice) -> &'static str {
    if dice.below(3) > 0 { plain } else { odd[dice.place(odd.len())] }
}

struct Request {
    method: &'static str,
    target: String,
    host: &'static str,
}

fn requests(count: usize) -> Vec<Request> {
    let mut dice = Dice::new(61);
    let mut all = BTreeMap::new();
    while all.len() < count {
        let (method, names) = PATHS[dice.place(PATHS.len())];
        let host = if dice.below(3) == 0 { "app.example.com" } else { "status.example.com" };
        let target = spelling(names, &mut dice);
        all.insert((method, target.clone(), host), Request { method, target, host });
    }
    all.into_values().collect()
}

/// The policies of the rules of each page, and the route of each.
const RULES: [(&str, &str, u64); 3] = [("login", "login", 5), ("per-user", "account", 20), ("per-ip", "rest", 100)];

/// Whether the path is equivalent to the one that the pages exempt (RFC 3986, 6.2.2).
fn is_exempt(head: &str) -> bool {
    let target = head.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    path.trim_start_matches("http://app.example.com").trim_end_matches('/') == "/health"
}

/// The policy that counted a request from this address, the only one.
fn rule_of(rig: &Rig, address: &str) -> Option<&'static str> {
    let is_counted = |policy: &str, limit: u64| {
        let key = if policy == "per-user" { format!("ip:{address}") } else { address.to_owned() };
        rig.left(policy, &key) < limit
    };
    let mut counted = RULES.iter().filter(|(policy, _, limit)| is_counted(policy, *limit));
    let rule = counted.next().map(|(policy, ..)| *policy);
    assert_eq!(counted.next(), None, "{address} is counted by {rule:?}");
    rule
}

/// Whether a request that came with this head may be served by a route, if a rule has counted it.
fn is_right(head: &str, route: &str, rule: Option<&str>) -> bool {
    match RULES.iter().find(|(_, served, _)| *served == route).map(|(policy, ..)| *policy) {
        // Paths without a rule of their own.
        Some("per-ip") => rule.is_some() || is_exempt(head),
        Some(own) => rule == Some(own),
        None => true,
    }
}

fn counts_what_backends_serve(proxy: &Proxy) {
    let (rig, backends) = (Rig::with_one_node(proxy, &[]), Backends::start());
    let mut served = BTreeMap::<_, u64>::new();
    let mut evasions = Vec::new();
    let count = usize::try_from(cases(600)).unwrap();
    for (number, Request { method, target, host }) in requests(count).into_iter().enumerate() {
        // An address of its own, so that the node's counts tell the rule of each request.
        let [.., high, middle, low] = number.to_be_bytes();
        let source = [127, 1 + high, middle, low];
        let (reached, mut status) = (rig.answered(), None);
        // On a busy machine a proxy may miss the answer of the gate.
        wait_until("the gate answers", || {
            let answer = rig.client().from(source).try_ask(method, &target, host, &[]);
            status = answer.ok().map(|answer| answer.status);
            status.is_none_or(|status| status < 500)
        });
        if rig.answered() == reached {
            assert_ne!(status, Some(200), "{method} {target}");
            continue;
        }
        let (rule, head) = (rule_of(&rig, &source.map(|byte| byte.to_string()).join(".")), rig.last_head());
        for (backend, route) in backends.served(&head) {
            let Some(route) = route else { continue };
            if !is_right(&head, &route, rule) {
                let read = head.lines().next().unwrap_or_default();
                evasions.push(format!("{method} {target} {host}: {backend} serves {route} for {read}, by {rule:?}"));
            }
            *served.entry((route, backend)).or_default() += 1;
        }
    }
    println!("{}: {served:?}", proxy.page);
    assert!(evasions.is_empty(), "{}: {} evasions\n{}", proxy.page, evasions.len(), evasions.join("\n"));
    // Otherwise the gate refuses too much for a test.
    let is_served = |route: &str| backends.names().all(|name| served.get(&(route.to_owned(), name)) >= Some(&4));
    assert!(is_served("login") && is_served("account") && is_served("rest"), "{}: {served:?}", proxy.page);
}

#[test]
fn no_spelling_evades_its_rule_behind_nginx() {
    counts_what_backends_serve(&PROXIES[0]);
}

#[test]
fn no_spelling_evades_its_rule_behind_caddy() {
    counts_what_backends_serve(&PROXIES[1]);
}

#[test]
fn no_spelling_evades_its_rule_behind_traefik() {
    counts_what_backends_serve(&PROXIES[2]);
}

#[test]
fn no_spelling_evades_its_rule_behind_envoy_ext_authz() {
    counts_what_backends_serve(&PROXIES[3]);
}

#[test]
fn no_spelling_evades_its_rule_behind_haproxy() {
    counts_what_backends_serve(&PROXIES[4]);
}
