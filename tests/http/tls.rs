//! Listeners with TLS.

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rustls::pki_types::ServerName;
use serde_json::json;
use tollgate::clock::unix_micros;

use crate::support::chaos::now_ms;
use crate::support::tls::{Authority, certificates, exchange};
use crate::support::{Node, TOLLGATE, http, wait_until};

const POLICIES: &str = "policies: {p: {quotas: [5 per 1h]}}\n";

fn node(authority: &Authority, more: &str) -> Node {
    authority.sign("node");
    let text = format!("tls: {{cert_file: node.pem, key_file: node.key{more}}}\n{POLICIES}");
    std::fs::write(authority.path("my.yaml"), text).unwrap();
    Node::start_with(&["--config", &authority.text("my.yaml")])
}

fn check() -> Vec<u8> {
    http::json_request("/v1/check", br#"{"policy": "p", "key": "k", "cost": 0}"#)
}

#[test]
fn tls_listener_answers_tls_only() {
    let authority = Authority::new();
    let node = node(&authority, "");
    assert!(node.greeting.contains("listening on https://"), "{}", node.greeting);
    let (answer, _) = exchange(&node.address, authority.client(None), &check()).unwrap();
    assert_eq!((answer.status, &answer.json()["remaining"]), (200, &5.into()));
    assert!(http::try_exchange(&node.address, &check()).is_err(), "an answer without TLS");
    let stranger = Authority::new();
    assert!(exchange(&node.address, stranger.client(None), &check()).is_err(), "trusted by whom it is not");
}

#[test]
fn client_without_certificate_is_rejected() {
    let authority = Authority::new();
    let node = node(&authority, ", client_ca_file: ca.pem");
    authority.sign("client");
    let stranger = Authority::new();
    stranger.sign("client");
    assert_eq!(exchange(&node.address, authority.client(Some("client")), &check()).unwrap().0.status, 200);
    assert!(exchange(&node.address, authority.client(None), &check()).is_err());
    std::fs::copy(stranger.path("client.pem"), authority.path("forged.pem")).unwrap();
    std::fs::copy(stranger.path("client.key"), authority.path("forged.key")).unwrap();
    assert!(exchange(&node.address, authority.client(Some("forged")), &check()).is_err());

    let url = format!("https://{}", node.address);
    let run = |more: &[String]| {
        let mut command = Command::new(TOLLGATE);
        command.args(["health", "--url", &url, "--ca-file", &authority.text("ca.pem")]).args(more);
        command.output().unwrap().status.code()
    };
    let shown = ["--cert-file".into(), authority.text("client.pem"), "--key-file".into(), authority.text("client.key")];
    assert_eq!((run(&shown), run(&[])), (Some(0), Some(1)));
}

/// New connections get the new certificate; one that does not fit its key changes nothing.
#[test]
fn renewed_certificate_is_used_without_restart() {
    let authority = Authority::new();
    let node = node(&authority, "");
    let shown = || exchange(&node.address, authority.client(None), &check()).unwrap().1;
    let own = || certificates(&authority.path("node.pem")).remove(0);
    let first = own();
    assert_eq!(shown(), first);
    authority.sign("node");
    wait_until("the new certificate is shown", || shown() == own());
    let second = own();
    assert_ne!(second, first);
    authority.sign("other");
    std::fs::copy(authority.path("other.pem"), authority.path("node.pem")).unwrap();
    let reload = http::request("POST", "/v1/reload", &[], b"");
    let (refused, _) = exchange(&node.address, authority.client(None), &reload).unwrap();
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(refused.json()["violations"][0]["line"], 1);
    assert_eq!(shown(), second);
}

/// A mistake in the file makes a node neither open to all nor unreachable.
#[test]
fn reload_does_not_toggle_tls() {
    let authority = Authority::new();
    authority.sign("client");
    let node = node(&authority, "");
    let write = |tls: &str| std::fs::write(authority.path("my.yaml"), format!("{tls}{POLICIES}")).unwrap();
    let reload = || {
        let reload = http::request("POST", "/v1/reload", &[], b"");
        let (told, shown) = exchange(&node.address, authority.client(None), &reload).unwrap();
        (told.json()["restart_needed"].clone(), told.json()["settings"].clone(), shown)
    };
    let own = || certificates(&authority.path("node.pem")).remove(0);
    let first = own();
    for other in ["", "tls: {cert_file: node.pem, key_file: node.key, client_ca_file: ca.pem}\n"] {
        write(other);
        assert_eq!(reload(), (json!(["tls"]), json!([]), first.clone()), "{other}");
        assert!(http::try_exchange(&node.address, &check()).is_err(), "an answer without TLS");
    }
    write("tls: {cert_file: node.pem, key_file: node.key}\n");
    assert_eq!(reload(), (json!([]), json!([]), first.clone()));
    // The node still applies changed files.
    authority.sign("node");
    wait_until("the new certificate is shown", || reload().2 == own());

    std::fs::write(authority.path("plain.yaml"), POLICIES).unwrap();
    let plain = Node::with_config(authority.path("plain.yaml"));
    std::fs::write(
        authority.path("plain.yaml"),
        format!("tls: {{cert_file: node.pem, key_file: node.key}}\n{POLICIES}"),
    )
    .unwrap();
    let told = http::exchange(&plain.address, &http::request("POST", "/v1/reload", &[], b"")).json();
    assert_eq!(told["restart_needed"], json!(["tls"]), "{told}");
    assert_eq!(http::exchange(&plain.address, &check()).status, 200);
}

#[test]
fn reload_reports_renewed_certificate() {
    let authority = Authority::new();
    let node = node(&authority, "");
    let reload = http::request("POST", "/v1/reload", &[], b"");
    let told = || exchange(&node.address, authority.client(None), &reload).unwrap().0.json()["settings"].clone();
    // The node may have noticed the file before the call.
    wait_until("a reload tells of the new certificate", || {
        authority.sign("node");
        told() == json!(["tls"])
    });
    assert_eq!(told(), json!([]));
}

/// The log warns at the start and at each renewal; the metric exposes the end at any time.
#[test]
fn expired_or_expiring_certificate_is_logged() {
    let authority = Authority::new();
    authority.sign_until("node", date(2020, 1, 1));
    std::fs::write(authority.path("my.yaml"), format!("tls: {{cert_file: node.pem, key_file: node.key}}\n{POLICIES}"))
        .unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stderr(File::create(authority.path("log")).unwrap());
    let node = Node::start_by(program, &["--config", &authority.text("my.yaml")]);
    let log = || std::fs::read_to_string(authority.path("log")).unwrap();
    wait_until("the end is told", || log().contains("the certificate of `tls` has ended"));

    let end = || {
        let metrics = http::request("GET", "/metrics", &[], b"");
        let (answer, _) = exchange(&node.address, authority.client(None), &metrics).ok()?;
        let text = String::from_utf8(answer.body).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix("tollgate_tls_certificate_end_timestamp_seconds "));
        value?.parse::<f64>().ok()
    };
    let begin = |day: Date| day.to_zoned(TimeZone::UTC).unwrap().timestamp();
    let soon = Timestamp::from_microsecond(unix_micros() as i64).unwrap().to_zoned(TimeZone::UTC).date();
    let soon = soon.checked_add(2.days()).unwrap();
    authority.sign_until("node", soon);
    wait_until("the end of the second is told", || end() == Some(begin(soon).as_second() as f64));
    wait_until("it is told that it ends soon", || log().contains("the certificate of `tls` ends soon"));
    authority.sign("node");
    wait_until("the end of the third is told", || end() == Some(begin(date(4096, 1, 1)).as_second() as f64));
}

/// The node drops a client that is silent or speaks no TLS, and serves others meanwhile.
#[test]
fn client_without_tls_delays_no_other() {
    let authority = Authority::new();
    let node = node(&authority, "");
    let mut silent: Vec<_> = (0..20).map(|_| TcpStream::connect(&node.address).unwrap()).collect();
    assert_eq!(exchange(&node.address, authority.client(None), &check()).unwrap().0.status, 200);
    for stream in &mut silent {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the handshake has an end");
    }
}

/// The shutdown waits for responses. A client without a handshake has sent no request.
#[test]
fn silent_client_does_not_block_shutdown() {
    let authority = Authority::new();
    let mut node = node(&authority, "");
    let _silent = TcpStream::connect(&node.address).unwrap();
    // A response on a later connection shows that the node has accepted the first.
    assert_eq!(exchange(&node.address, authority.client(None), &check()).unwrap().0.status, 200);
    let begun = now_ms();
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    let took = now_ms() - begun;
    assert!(took < 8000, "less than the 10 s that a client has: {took} ms");
}

#[tokio::test]
async fn http2_is_negotiated_by_alpn() {
    let authority = Authority::new();
    let node = node(&authority, "");
    let mut config = authority.client(None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = tokio::net::TcpStream::connect(&node.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post("https://localhost/v1/check")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(br#"{"policy": "p", "key": "k"}"#)))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(br#"{"allowed":true"#), "{body:?}");
}
