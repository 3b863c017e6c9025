//! `tollgate replay` with filters and `--propose`: the part of a log, and the smallest limit for it.

use std::fmt::Write as _;

use serde_json::json;

use crate::replay::{COMMON, folder, report, run, verdicts};
/// Requests by method, path and status, each as its server writes it.
#[test]
fn filters_select_requests_of_every_format() {
    let access =
        |request: &str, status: u16| format!("192.0.2.1 - - [21/Nov/2026:10:00:00 +0000] \"{request}\" {status} 1\n");
    let common = access("POST /login?x=1 HTTP/1.1", 200)
        + &access("GET /login HTTP/1.1", 200)
        + &access("POST /login HTTP/1.1", 404);
    let iis = "#Fields: date time cs-method cs-uri-stem c-ip sc-status
2026-11-21 10:00:00 POST /login 192.0.2.1 200
2026-11-21 10:00:00 GET /login 192.0.2.1 200
2026-11-21 10:00:00 POST /login 192.0.2.1 404
";
    let alb = |request: &str, status: u16| {
        format!(
            "h2 2026-11-21T10:00:00.1Z app/lb/50dc 192.0.2.1:2817 10.0.0.1:80 0.0 0.1 0.0 {status} 200 0 60 \"{request}\" \"curl\" - - arn:a\n"
        )
    };
    let alb = alb("POST https://x.example:443/login HTTP/2.0", 200)
        + &alb("GET https://x.example:443/login HTTP/2.0", 200)
        + &alb("POST https://x.example:443/login HTTP/2.0", 404);
    let json = |line: &str, key: &str| -> String {
        let of =
            |method: &str, status: &str| line.replace("METHOD", method).replace("STATUS", status).replace("KEY", key);
        [("POST", "200"), ("GET", "200"), ("POST", "404")]
            .map(|(method, status)| of(method, status) + "\n")
            .concat()
    };
    let caddy =
        r#"{"ts":1795255200.5,"request":{"client_ip":"KEY","method":"METHOD","uri":"/login?a=b"},"status":STATUS}"#;
    let nginx = r#"{"msec":"1795255200.123","remote_addr":"KEY","request":"METHOD /login HTTP/1.1","status":"STATUS"}"#;
    let named = r#"{"time":1795255200,"key":"KEY","request_method":"METHOD","request_uri":"/login","status":STATUS}"#;
    for (log, flags) in [
        (common, ""),
        (iis.to_owned(), ""),
        (alb, ""),
        (json(caddy, "192.0.2.1"), "--key request.client_ip"),
        (json(nginx, "192.0.2.1"), "--key remote_addr"),
        (json(named, "192.0.2.1"), ""),
    ] {
        let folder = folder(&[("a.log", &log)]);
        for (filters, requests) in [
            ("--method post --status 2xx --path /login", 1),
            ("--method POST", 2),
            ("--method POST --method GET", 3),
            ("--status 404", 1),
            ("--status 404 --status 200", 3),
            ("--path /log*", 3),
        ] {
            let told = report(&folder, &format!("--policy three --log a.log {flags} {filters}"));
            let counted = (&told["requests"], &told["filtered"]);
            assert_eq!(counted, (&json!(requests), &json!(3 - requests)), "{filters} of {log}");
        }
        let (code, out, error) = run(&folder, &format!("--policy three --log a.log {flags} --path /other"));
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        assert!(error.contains("none of 3 requests passes --path, --method and --status"), "{error}");
    }
    let folder = folder(&[("access.log", COMMON)]);
    let (code, _, error) = run(&folder, "--policy three --log access.log --status 20");
    assert!(
        code == 2 && error.contains("it must be three digits such as `404`, or a class such as `2xx`"),
        "{error}"
    );
}

/// Three clients with bursts of 9, 4 and 2 requests in a second, and one at leisure.
#[test]
fn proposal_is_the_smallest_limit_that_denies_few_clients() {
    let mut log = String::new();
    for second in 0..120 {
        for (client, burst, every) in [("a", 9, 60), ("b", 4, 30), ("c", 2, 10), ("d", 1, 40)] {
            if second % every == 0 {
                (0..burst)
                    .for_each(|_| _ = writeln!(log, "{{\"time\": {}, \"key\": \"{client}\"}}", 1_000_000 + second));
            }
        }
    }
    let folder = folder(&[("a.jsonl", &log)]);
    let propose = |arguments: &str| report(&folder, &format!("--policy three --log a.jsonl {arguments}"));
    let told = propose("--propose 25%");
    let rows: Vec<_> = told["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["quota"].as_str().unwrap().to_owned(),
                row["denied_clients"].as_u64().unwrap(),
                row["highest_use"].as_u64().unwrap(),
            )
        })
        .collect();
    let row = |quota: &str, denied, highest| (quota.to_owned(), denied, highest);
    // Windows beyond the two minutes of the log are left out. In a minute a has 18, c 14, b 12, d 2.
    assert_eq!(rows, [row("4 per 1s", 1, 9), row("4 per 10s", 1, 9), row("14 per 1m", 1, 18)], "{told}");
    assert_eq!((&told["clients"], &told["checks"], &told["at_most"]), (&json!(4), &json!(61), &json!("25%")));
    assert_eq!(propose("--propose 0 --window 1s")["proposals"][0]["limit"], 9);
    assert_eq!(propose("--propose 100% --window 1s")["proposals"][0]["limit"], 1);
    let (code, out, _) = run(&folder, "--policy three --log a.jsonl --propose 25%");
    assert!(
        code == 0 && out.contains("three: the smallest limit of each window that denies at most 25% of 4 clients"),
        "{out}"
    );
    assert!(
        out.contains("4 per 1s                            1   25.00 %             10   16.39 %             9\n"),
        "{out}"
    );
    for (arguments, reason) in [
        ("--policy three --policy one --log a.jsonl --propose 1%", "--propose: name one policy"),
        (
            "--policy bucket --log a.jsonl --propose 1%",
            "`bucket` is of `token-bucket`: name a policy of `sliding-window`",
        ),
        ("--policy three --log a.jsonl --propose 1% --window 1y", "--window 1y: "),
        ("--policy three --log a.jsonl --window 1m", "--propose"),
    ] {
        let (code, out, error) = run(&folder, arguments);
        assert!(code != 0 && out.is_empty() && error.contains(reason), "{arguments}: {error}");
    }
}

/// Each proposal, replayed, denies exactly what it said. One less denies more clients than asked.
#[test]
fn replayed_proposal_denies_what_it_said() {
    let mut dice = crate::support::dice::Dice::new(7);
    let (mut log, mut time) = (String::new(), 1_800_000_000_000_u64);
    for _ in 0..4_000 {
        time += dice.below(900);
        let client = dice.below(20) * dice.below(6);
        let cost = 1 + dice.below(3);
        writeln!(log, "{{\"time\": {time}, \"key\": \"client-{client}\", \"cost\": {cost}}}").unwrap();
    }
    let folder = folder(&[("a.jsonl", &log)]);
    for algorithm in [
        "sliding-window",
        "sliding-counter, tick: 1s",
        "fixed-window, anchor: first-hit",
        "fixed-window, anchor: clock",
    ] {
        let apply = |quota: &str| {
            let policy = format!("policies:\n  p: {{algorithm: {algorithm}, quotas: [{quota}]}}\n");
            std::fs::write(folder.path().join("policies.yaml"), policy).unwrap();
        };
        apply("5 per 1m");
        let told = report(&folder, "--policy p --log a.jsonl --propose 10%");
        let rows = told["proposals"].as_array().unwrap();
        assert_eq!(rows.len(), if algorithm.contains("tick") { 3 } else { 4 }, "{told}");
        let most = told["clients"].as_u64().unwrap() / 10;
        for row in rows {
            let quota = row["quota"].as_str().unwrap();
            apply(quota);
            let replayed = report(&folder, "--policy p --log a.jsonl --top 1000");
            let denied = replayed["policies"][0]["top_denied_keys"].as_array().unwrap().len() as u64;
            assert_eq!(
                (&json!(denied), &json!(verdicts(&replayed).1)),
                (&row["denied_clients"], &row["denied"]),
                "{row}"
            );
            assert!(denied <= most, "{row}");
            let (limit, window) = quota.split_once(' ').unwrap();
            apply(&format!("{} {window}", limit.parse::<u64>().unwrap() - 1));
            let less = report(&folder, "--policy p --log a.jsonl --top 1000");
            assert!(less["policies"][0]["top_denied_keys"].as_array().unwrap().len() as u64 > most, "{row}");
        }
    }
}
