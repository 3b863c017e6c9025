//! The real Envoy asks two nodes about its requests, by the documented configuration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::clock::Clock;

use crate::proxy::{Backend, Envoy, documented};
use crate::rls::address;
use crate::support::chaos;
use crate::support::cluster;
use crate::support::http;
use crate::support::redis::Server;
use crate::support::{Node, unique, wait_until};

/// Clients at the same time.
const CLIENTS: u64 = 64;

/// A node with the documented configuration on these servers, with `changes` to its text, and its
/// folder.
fn node_on(seeds: &[String], changes: &[(&str, &str)]) -> (Node, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(documented("limits.yaml"), folder.path().join("limits.yaml")).unwrap();
    let mut config = std::fs::read_to_string(documented("tollgate.yaml")).unwrap();
    let seeds = format!("redis: [{}]", seeds.join(", "));
    let own = [("redis: [redis://127.0.0.1:6379]", seeds.as_str()), ("127.0.0.1:8081", "127.0.0.1:0")];
    for (from, to) in own.iter().chain(changes) {
        assert!(config.contains(from), "the documented configuration has no {from}");
        config = config.replace(from, to);
    }
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, config).unwrap();
    (Node::with_config(&file), folder)
}

/// Changes to the times of the nodes, and to that of Envoy. The short ones hold for an idle machine,
/// which a test may not have.
fn times() -> ([(&'static str, &'static str); 2], (&'static str, &'static str)) {
    let (deadline, timeout, of_envoy) = match chaos::strict() {
        true => ("deadline: 800ms", "timeout: 800ms", "timeout: 1s"),
        false => ("deadline: 8s", "timeout: 8s", "timeout: 12s"),
    };
    ([("deadline: 80ms", deadline), ("timeout: 800ms", timeout)], ("timeout: 0.1s", of_envoy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_envoy_get_exactly_the_limit_from_two_nodes() {
    let seeds = cluster::shared().seeds();
    let (times, of_envoy) = times();
    let nodes = [(); 2].map(|()| node_on(&seeds, &times));
    let services = [address(&nodes[0].0), address(&nodes[1].0)];
    let backend = Backend::start().await;
    let envoy = Envoy::start([&services[0], &services[1]], &backend, &[of_envoy]);
    let (user, admitted) = (unique("user"), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..6 {
                    let answer = envoy.get("/", &user);
                    match answer.status {
                        200 => _ = admitted.fetch_add(1, Ordering::Relaxed),
                        429 => assert!(answer.header("retry-after").is_some(), "{answer:?}"),
                        _ => panic!("{answer:?}"),
                    }
                    assert!(answer.header("ratelimit-policy").is_some(), "{answer:?}");
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 200);
    assert_eq!(backend.requests(), 200);
    let denied = envoy.get("/", &user);
    assert_eq!(denied.header("ratelimit-policy"), Some("\"1h\";q=200;w=3600"));
    assert!(denied.header("ratelimit").unwrap().starts_with("\"1h\";r=0;t="), "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert!(denied.header("x-ratelimit-limit").unwrap().starts_with("200, "), "{denied:?}");
    for (node, _) in &nodes {
        assert!(node.metrics().contains("door=\"envoy\""), "Envoy did not ask both nodes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_service_follows_failure_mode_deny() {
    for (mode, status) in [("failure_mode_deny: true", 500), ("failure_mode_deny: false", 200)] {
        let mut node = Some(node_on(&cluster::shared().seeds(), &[]));
        let service = address(&node.as_ref().unwrap().0);
        let backend = Backend::start().await;
        let envoy = Envoy::start([&service, &service], &backend, &[("failure_mode_deny: true", mode)]);
        assert_eq!(envoy.get("/", &unique("user")).status, 200);
        drop(node.take());
        assert_eq!(envoy.get("/", &unique("user")).status, status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_store_is_answered_before_envoy_gives_up() {
    // Times that need an idle machine, which a test may not have, and the printed ones: Envoy's own
    // timeout, and the deadline of the node.
    let (requests, envoys, own) = match chaos::strict() {
        true => (1000, "", "15ms"),
        false => (100, "                      timeout: 0.1s\n", "80ms"),
    };
    let server = Server::start();
    let seeds = [server.url()];
    let (node, _folder) = node_on(&seeds, &[("  deadline: 80ms\n", &format!("  deadline: {own}\n"))]);
    let service = address(&node);
    let backend = Backend::start().await;
    // Without a line Envoy's own timeout is 20 ms.
    let changes =
        [("                      timeout: 0.1s\n", envoys), ("failure_mode_deny: true", "failure_mode_deny: false")];
    let envoy = Envoy::start([&service, &service], &backend, &changes);
    assert_eq!(envoy.get("/", &unique("user")).status, 200);
    server.freeze();
    let (clock, mut denied) = (Clock::system(), 0);
    let started = clock.now();
    for number in 0..requests {
        // `per-user` denies without the store; Envoy itself would let the request pass.
        denied += u32::from(envoy.get("/", &unique("user")).status == 429);
        let due = started + 20_000 * u64::from(number + 1);
        std::thread::sleep(Duration::from_micros(due.saturating_sub(clock.now())));
    }
    server.thaw();
    println!("{denied} of {requests} are answered by the policy");
    assert!(denied * 100 >= requests * 90, "{denied} of {requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_at_the_end_of_a_stream_count() {
    let (times, of_envoy) = times();
    let (node, _folder) = node_on(&cluster::shared().seeds(), &times);
    let service = address(&node);
    let backend = Backend::start().await;
    let envoy = Envoy::start([&service, &service], &backend, &[of_envoy]);
    let user = unique("user");
    let remaining = || envoy.get("/llm", &user).header("x-ratelimit-remaining").map(str::to_owned);
    assert_eq!(envoy.get("/llm?cost=600", &user).status, 200);
    wait_until("the first cost counts", || remaining().as_deref() == Some("400"));
    // The answer has cost more than was left: the limit is charged in full.
    assert_eq!(envoy.get("/llm?cost=600", &user).status, 200);
    wait_until("the second cost counts", || remaining().as_deref() == Some("0"));
    assert_eq!(envoy.get("/llm", &user).status, 429);
    let other = envoy.get("/llm", &unique("other"));
    assert_eq!(other.status, 200);
}

/// The documented streams of a user hold two places, and 100 units each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_stream_settles_its_hold() {
    let (node, _folder) = node_on(&cluster::shared().seeds(), &[("deadline: 80ms", "deadline: 8s")]);
    let (service, backend) = (address(&node), Backend::start().await);
    let envoy = Envoy::start([&service, &service], &backend, &[("timeout: 0.1s", "timeout: 12s")]);
    let user = unique("user");
    let usage = || http::get(&node.address, &format!("/v1/usage?policy=streams&key={user}")).json();
    let in_flight = |count: u64, remaining: u64| {
        wait_until(&format!("{count} streams leave {remaining} units"), || {
            let usage = usage();
            usage["in_flight"] == count && usage["remaining"] == remaining
        });
    };
    let open = |path: &str| {
        // A caller cannot name the hold of another stream.
        let ids = "x-hold-id: mine\r\nx-request-id: mine";
        let request = format!("GET {path} HTTP/1.1\r\nHost: edge\r\nX-User: {user}\r\n{ids}\r\n\r\n");
        let mut connection = http::Connection::open(&envoy.address).unwrap();
        connection.send(request.as_bytes()).unwrap();
        let status = connection.receive(false).unwrap().status;
        (connection, status)
    };
    let streams = [open("/stream?cost=30"), open("/stream")];
    assert_eq!(streams.each_ref().map(|(_, status)| *status), [200, 200]);
    in_flight(2, 800);
    let denied = envoy.get("/stream", &user);
    assert_eq!((denied.status, denied.header("retry-after").is_some()), (429, true), "{denied:?}");
    in_flight(2, 800);
    // The first one costs 30, and the other one its 100 units.
    backend.end_streams();
    in_flight(0, 870);
    let (caller, status) = open("/stream?cost=7");
    assert_eq!(status, 200);
    in_flight(1, 770);
    drop(caller);
    in_flight(0, 863);
}

/// A filter or a route behind the rate limit chooses a backend that has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_reads_the_metadata_of_open_quotas() {
    let (node, folder) = node_on(&cluster::shared().seeds(), &[("deadline: 80ms", "deadline: 8s")]);
    let quota = |name: &str, requests: u32| {
        format!(
            "  - {{key: {name}, quota_mode: true, metadata: {{backend: {name}}}, \
             rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
        )
    };
    let limits = format!("domain: edge\ndescriptors:\n{}{}", quota("blue", 1), quota("green", 2));
    std::fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
    let (service, backend) = (address(&node), Backend::start().await);
    let action = |name: &str| {
        format!(
            "{}- actions: [{{request_headers: {{header_name: x-user, descriptor_key: {name}}}}}]\n",
            " ".repeat(30)
        )
    };
    let actions = action("blue") + &action("green");
    let route = "                        - match: {prefix: /}\n";
    let field = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:backend)%";
    let with_header = format!(
        "{route}                          response_headers_to_add: [{{header: {{key: x-backend, value: \"{field}\"}}}}]\n"
    );
    let changes = [
        ("timeout: 0.1s", "timeout: 12s"),
        ("                              - actions: [{remote_address: {}}]\n", actions.as_str()),
        (route, with_header.as_str()),
    ];
    let envoy = Envoy::start([&service, &service], &backend, &changes);
    let user = unique("user");
    for chosen in ["blue", "green"] {
        let answer = envoy.get("/", &user);
        assert_eq!((answer.status, answer.header("x-backend")), (200, Some(chosen)), "{answer:?}");
    }
    assert_eq!(envoy.get("/", &user).status, 429);
}
