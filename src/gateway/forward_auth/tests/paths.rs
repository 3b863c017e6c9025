//! Paths that backends read in several ways.

use super::{gates_of, keys};

#[test]
fn path_that_a_backend_may_read_by_another_rule_is_denied() {
    let rules = |policy| {
        format!(
            "    rules:
      - {{match: {{paths: [/open/*]}}, checks: []}}
      - {{match: {{paths: [/account/free/*]}}, checks: [{{policy: {policy}, key: free}}]}}
      - {{match: {{paths: [/account/*]}}, checks: [{{policy: {policy}, key: account}}]}}
      - {{checks: [{{policy: {policy}, key: rest}}]}}
"
        )
    };
    let gates = gates_of(&format!("  edge:\n{}  tried:\n{}", rules("text"), rules("tried")));
    let ambiguous = Err("the path has several readings, which match different rules".to_owned());
    for (path, expected) in [
        // Express keeps dot segments.
        ("/account/../x", None),
        ("/account/..", None),
        ("/account/%2e%2e/open/x", None),
        ("/x/../account/%2e%2e/x", None),
        ("/account/../account/7", Some(&["account"][..])),
        ("/x/../account/7", Some(&["account"])),
        ("/x/../open/x", None),
        ("/open/x/../y", Some(&[])),
        // `..` removes the empty segment, or `account`.
        ("/x/../account//../y", None),
        ("//x/account/7", None),
        ("///x/account/7", None),
        ("//open/x", None),
        ("//account/7", Some(&["account"])),
        ("/x/;/../account/7", None),
        // A segment `free/x` of the account.
        ("/account/free%2fx", None),
        ("/account/free/%2fx", Some(&["free"])),
        ("/open%2fx", None),
        ("/open/x%2fy", Some(&[])),
        ("/account%2f7", Some(&["account"])),
    ] {
        let expected =
            expected.map_or(ambiguous.clone(), |keys| Ok(keys.iter().map(|key| (*key).to_owned()).collect()));
        assert_eq!(keys(&gates.0["edge"], "10.0.0.1", "GET", path, &[]), expected, "{path}");
        assert!(keys(&gates.0["tried"], "10.0.0.1", "GET", path, &[]).is_ok(), "{path}");
    }
}

#[test]
fn a_rule_matches_other_spellings_if_it_says_so() {
    let gates = gates_of(
        "  edge:
    rules:
      - {match: {paths: [/Login, /v1/*], ignore_case: true, strip_parameters: true}, checks: [{policy: text, key: login}]}
      - {checks: [{policy: text, key: rest}]}
",
    );
    for (path, expected) in [
        ("/login", "login"),
        ("/LOGIN;x=1", "login"),
        ("/;a/login;b/", "login"),
        ("/V1;x/a", "login"),
        ("/log%C4%B1n", "login"),
        ("/logins", "rest"),
        ("/login;x/y", "rest"),
    ] {
        assert_eq!(keys(&gates.0["edge"], "10.0.0.1", "GET", path, &[]).unwrap(), [expected], "{path}");
    }
}
