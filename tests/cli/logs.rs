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

fn access(head: &str) -> String {
    format!("{head} [21/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 1\n")
}

/// The keys by no flag, by `--key client` and by `--key forwarded`; `-` is no key.
fn keys(head: &str) -> [Result<String, String>; 3] {
    let folder = folder(&[("access.log", &access(head).repeat(4))]);
    ["", "--key client", "--key forwarded"].map(|flag| {
        let (code, out, error) = run(&folder, &format!("--policy three --log access.log --json {flag}"));
        if code != 0 {
            return if error.contains("no line has the key") { Ok("-".to_owned()) } else { Err(error) };
        }
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(verdicts(&told), (3, 1), "{head}");
        Ok(top_key(&told).as_str().unwrap().to_owned())
    })
}

/// Log formats write X-Forwarded-For before the peer of the server, or behind that.
#[test]
fn forwarded_client_beside_the_address_that_connected_is_the_key() {
    for head in [
        "A, 10.0.0.1 10.0.0.2 - -",
        "A,10.0.0.1 10.0.0.2 - ann",
        "A, 10.0.0.1, 10.0.0.3 10.0.0.2 - ann lee",
        "A , 10.0.0.1 10.0.0.2 - -",
        "A:5001, 10.0.0.1:80 10.0.0.2:5001 - -",
        "A, unknown 10.0.0.2 - -",
        "\"A, 10.0.0.1\" 10.0.0.2 - -",
        "\"A\" 10.0.0.2 - -",
        "\"A\" - -",
        "(A, 10.0.0.1) 10.0.0.2 - -",
        "(A) 10.0.0.2 - -",
        "(A) - -",
        "10.0.0.2 A, 10.0.0.1 - -",
        "10.0.0.2 \"A, 10.0.0.1\" - -",
        "10.0.0.2 \"A\" - -",
        "10.0.0.2 (A, 10.0.0.1) - -",
        "10.0.0.2 (A) - -",
        "- A, 10.0.0.1 - -",
        "www.example.org A, 10.0.0.1 10.0.0.2 - -",
        "www.example.org:443 A, 10.0.0.1 10.0.0.2 - -",
        "www.example.org:443 10.0.0.2 (A) - -",
        "10.0.0.9:443 \"A\" 10.0.0.2 - -",
        "A, 10.0.0.1 - -",
    ] {
        for client in ["203.0.113.1", "2001:db8::1"] {
            let head = head.replace('A', if head.contains("A:") { "203.0.113.1" } else { client });
            let client = if head.contains("2001") { client } else { "203.0.113.1" };
            assert_eq!(keys(&head), [(); 3].map(|()| Ok(client.to_owned())), "{head}");
        }
    }
}

#[test]
fn user_is_found_behind_each_pair_of_addresses() {
    for pair in [
        "203.0.113.1, 10.0.0.1 10.0.0.2",
        "(203.0.113.1) 10.0.0.2",
        "10.0.0.2 \"203.0.113.1\"",
        "10.0.0.2 (-)",
        "- 10.0.0.2",
        "203.0.113.1 10.0.0.2",
        "www.example.org:443 203.0.113.1, 10.0.0.1 10.0.0.2",
    ] {
        for user in ["ann", "ann lee"] {
            let folder = folder(&[("access.log", &access(&format!("{pair} - {user}")).repeat(4))]);
            let told = report(&folder, "--policy three --log access.log --key user");
            assert_eq!(top_key(&told), user, "{pair}");
        }
    }
}

/// A health check of a proxy has no X-Forwarded-For: the address that connected is the client.
#[test]
fn request_without_forwarded_addresses_counts_for_the_address_that_connected() {
    for head in ["- A - -", "\"-\" A - -", "(-) A - -", "A \"-\" - -", "A (-) - -", "vhost:80 (-) A - -"] {
        let key = Ok("10.0.0.2".to_owned());
        let found = keys(&head.replace('A', "10.0.0.2"));
        assert_eq!(found, [key.clone(), key, Ok("-".to_owned())], "{head}");
    }
    assert_eq!(keys("client.example (-) - -")[0], Ok("client.example".to_owned()));
    for head in ["unknown, 10.0.0.1 10.0.0.2 - -", "(unknown) 10.0.0.2 - -", "unknown 10.0.0.2 - -"] {
        assert_eq!(keys(head), [(); 3].map(|()| Ok("-".to_owned())), "{head}");
    }
}

/// Either may be the client, behind the address of a server or in front of that of a proxy.
#[test]
fn two_addresses_need_a_choice() {
    for (first, second) in [
        ("203.0.113.1", "10.0.0.2"),
        ("2001:db8::1", "10.0.0.2"),
        ("2001:db8::1:443", "10.0.0.2"),
        ("203.0.113.1:51234", "10.0.0.2"),
        ("[2001:db8::1]:51234", "10.0.0.2"),
        ("10.0.0.2", "203.0.113.1"),
    ] {
        for server in ["", "www.example.org:443 ", "www.example.org "] {
            let [none, client, forwarded] = keys(&format!("{server}{first} {second} - -"));
            let reason = none.unwrap_err();
            for part in ["access.log:1: two addresses", "`--key forwarded`", "`--key client`"] {
                assert!(reason.contains(part), "{first}: {reason}");
            }
            assert_eq!(client, Ok(second.to_owned()));
            let address = first.trim_end_matches(":51234").trim_matches(['[', ']']);
            assert_eq!(forwarded, Ok(address.to_owned()));
        }
    }
    let folder = folder(&[("access.log", &access("203.0.113.1 10.0.0.2 - ann"))]);
    assert_eq!(report(&folder, "--policy one --log access.log --key user")["requests"], 1);
}

#[test]
fn server_before_the_client_needs_no_choice() {
    for server in
        ["www.example.org:443", "vhost", "vhost:8080", "10.0.0.1:80", "127.0.1.1:8080", "[::1]:443", "\"vhost\""]
    {
        for client in ["203.0.113.7", "2001:db8::1"] {
            let found = keys(&format!("{server} {client} - -"));
            assert_eq!(found[..2], [Ok(client.to_owned()), Ok(client.to_owned())], "{server}");
        }
    }
}

/// Another address there would be a client that does not count.
#[test]
fn address_in_another_place_is_unreadable() {
    for head in [
        "203.0.113.1 10.0.0.1 10.0.0.2 - -",
        "203.0.113.1, 10.0.0.1 10.0.0.2 10.0.0.3 - -",
        "10.0.0.2 - (203.0.113.1) -",
        "10.0.0.2 - - (203.0.113.1)",
        "10.0.0.2 - - \"203.0.113.1, 10.0.0.1\"",
        "10.0.0.2 - - 203.0.113.1, 10.0.0.1",
        "10.0.0.2 - 203.0.113.1,10.0.0.1 -",
        "10.0.0.2 {203.0.113.1} - -",
        "10.0.0.2 xff=203.0.113.1 - -",
    ] {
        for key in keys(head) {
            let reason = key.unwrap_err();
            assert!(reason.contains("access.log:1: an address in the place of the user"), "{head}: {reason}");
        }
    }
    for first in ["<203.0.113.1>", "'203.0.113.1'", "203.0.113.1;", "xff=203.0.113.1", "\"for=203.0.113.1\""] {
        for key in keys(&format!("{first} 10.0.0.2 - -")) {
            let reason = key.unwrap_err();
            assert!(reason.contains("access.log:1: the first word is neither"), "{first}: {reason}");
        }
    }
}

fn json_keys(lines: &[&str], flags: &str) -> (i32, String, String) {
    let folder = folder(&[("a.jsonl", &(lines.join("\n") + "\n"))]);
    let (code, out, error) = run(&folder, &format!("--policy three --log a.jsonl --json {flags}"));
    let from =
        serde_json::from_str::<Value>(&out).map_or(String::new(), |told| told["from"].as_str().unwrap().to_owned());
    (code, from, error)
}

/// Servers also name the duration of a request `time`.
#[test]
fn duration_in_a_member_named_time_is_no_time() {
    for duration in ["0.011", "231", "0", "231000", "231000000", "\"0.011\"", "\"231\"", "\"12ms\"", "null", "1e11"] {
        for (name, instant) in [
            ("@timestamp", "\"2026-11-21T10:00:00Z\""),
            ("timestamp", "1795255200"),
            ("ts", "1795255200.0"),
            ("msec", "\"1795255200.000\""),
        ] {
            for line in [
                format!("{{\"time\":{duration},\"{name}\":{instant},\"key\":\"a\"}}"),
                format!("{{\"{name}\":{instant},\"key\":\"a\",\"time\":{duration}}}"),
            ] {
                let (code, from, error) = json_keys(&[&line], "");
                assert_eq!((code, &*from, &*error), (0, "2026-11-21T10:00:00Z", ""), "{line}");
            }
        }
    }
}

#[test]
fn time_that_differs_from_another_needs_a_choice() {
    // A duration of 1.2 s in ns is also an instant of 2008.
    for time in ["1200000000", "\"2026-11-21T09:00:00Z\"", "1795255203"] {
        let line = format!("{{\"time\":{time},\"@timestamp\":\"2026-11-21T10:00:00Z\",\"key\":\"a\"}}");
        let (code, _, error) = json_keys(&[&line], "");
        let reason = "a.jsonl:1: the time may be `time` or `@timestamp`, which differ: choose by --time";
        assert!(code == 2 && error.contains(reason), "{error}");
        assert_eq!(json_keys(&[&line], "--time @timestamp").1, "2026-11-21T10:00:00Z");
        assert_eq!(json_keys(&[&line], "--time time").0, 0);
    }
    let same = r#"{"time":1795255200,"@timestamp":"2026-11-21T10:00:01.5Z","key":"a"}"#;
    assert_eq!(json_keys(&[same], "").1, "2026-11-21T10:00:00Z");
}

#[test]
fn number_before_2000_alone_is_a_time() {
    for (value, from) in [
        ("0", "1970-01-01T00:00:00Z"),
        ("231.5", "1970-01-01T00:03:51.5Z"),
        ("946684800", "2000-01-01T00:00:00Z"),
        ("946684800000", "2000-01-01T00:00:00Z"),
        ("\"1999-12-31T23:59:59Z\"", "1999-12-31T23:59:59Z"),
    ] {
        assert_eq!(json_keys(&[&format!("{{\"time\":{value},\"key\":\"a\"}}")], "").1, from);
        let named = format!("{{\"at\":{value},\"key\":\"a\",\"time\":1795255200}}");
        assert_eq!(json_keys(&[&named], "--time at").1, from);
    }
}
