//! Commands, pipelines and the two versions of the protocol.

use redis::Value;

use super::{POLICY, command, door, encoded, numbers};
use crate::support::unique;

#[test]
fn pipelines_are_answered_in_order() {
    let door = door(POLICY);
    let key = unique("pipeline");
    let pipeline = [
        encoded(&["PING"]),
        encoded(&["CL.THROTTLE", &key, "1", "1", "3600"]),
        "ECHO 'two words'\r\n".to_owned(),
        encoded(&["NOPE", "a"]),
        encoded(&["cl.throttle", &key, "1", "1", "3600", "2"]),
        encoded(&["TG.CHECK", "nope", "k"]),
        "*0\r\n\r\n".to_owned(),
        encoded(&["CL.THROTTLE", &key, "1", "1", "3600"]),
        encoded(&["QUIT"]),
        encoded(&["PING"]),
    ];
    // The wait of a denial includes later charges of the pipeline.
    let expected = "+PONG\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:3600\r\n$9\r\ntwo words\r\n\
                    -ERR unknown command 'NOPE', with args beginning with: 'a' \r\n\
                    *5\r\n:1\r\n:2\r\n:1\r\n:7200\r\n:3600\r\n-ERR there is no policy named \"nope\"\r\n\
                    *5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:7200\r\n+OK\r\n";
    assert_eq!(door.exchange(pipeline.concat()), expected);
}

#[test]
fn long_pipelines_decide_each_command_in_order() {
    let door = door("policies: {p: {algorithm: fixed-window, quotas: [1000 per 1h]}}");
    let key = unique("long");
    let answers = door.exchange(encoded(&["TG.CHECK", "p", &key]).repeat(3000));
    let limited: Vec<&str> = answers.split("*6\r\n").skip(1).map(|answer| &answer[..2]).collect();
    assert_eq!(limited.len(), 3000);
    let expected: Vec<&str> = (0..3000).map(|place| if place < 1000 { ":0" } else { ":1" }).collect();
    assert_eq!(limited, expected);
}

#[test]
fn each_command_of_a_client_has_an_answer() {
    let door = door(POLICY);
    let mut connection = door.connect();
    let ok = || Value::Okay;
    let text = |text: &str| Value::BulkString(text.into());
    for (words, expected) in [
        ("PING", Value::SimpleString("PONG".into())),
        ("ping hello", text("hello")),
        ("ECHO hello", text("hello")),
        ("SELECT 0", ok()),
        ("CLIENT GETNAME", Value::Nil),
        ("CLIENT SETNAME shop", ok()),
        ("client getname", text("shop")),
        ("CLIENT SETINFO LIB-NAME test", ok()),
        ("COMMAND DOCS", Value::Array(Vec::new())),
        ("COMMAND COUNT", Value::Int(24)),
        ("READONLY", ok()),
        ("READWRITE", ok()),
        ("COMMAND INFO nope", Value::Array(vec![Value::Nil])),
        ("AUTH default anything", ok()),
        ("RESET", Value::SimpleString("RESET".into())),
        ("CLIENT GETNAME", Value::Nil),
    ] {
        assert_eq!(command(&mut connection, words).unwrap(), expected, "{words}");
    }
    let info: String = redis::from_redis_value(command(&mut connection, "INFO").unwrap()).unwrap();
    assert!(info.contains("\r\nloading:0\r\n"), "{info}");
    let id = |connection: &mut redis::Connection| command(connection, "CLIENT ID").unwrap();
    assert_ne!(id(&mut connection), id(&mut door.connect()));
}

/// Some drivers give up when the node refuses one of these.
#[test]
fn handshakes_of_drivers_are_accepted() {
    let door = door(POLICY);
    for words in [
        &["CLIENT", "TRACKING", "ON", "OPTIN"][..],
        &["client", "tracking", "on", "optin", "noloop"],
        &["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a", "PREFIX", "b", "REDIRECT", "7"],
        &["CLIENT", "TRACKING", "OFF"],
        &["CLIENT", "CACHING", "YES"],
        &["CLIENT", "NO-EVICT", "ON"],
        &["CLIENT", "NO-TOUCH", "OFF"],
        &["CLIENT", "REPLY", "ON"],
    ] {
        assert_eq!(door.exchange(encoded(words)), "+OK\r\n", "{words:?}");
    }
    for words in [
        &["CLIENT", "TRACKING", "MAYBE"][..],
        &["CLIENT", "TRACKING", "ON", "PREFIX"],
        &["CLIENT", "TRACKING", "ON", "NOPE"],
        &["CLIENT", "CACHING", "ON"],
        &["CLIENT", "REPLY", "NEVER"],
    ] {
        assert_eq!(door.exchange(encoded(words)), "-ERR syntax error\r\n", "{words:?}");
    }
}

#[test]
fn client_without_replies_is_charged_and_hears_nothing() {
    let door = door(POLICY);
    let key = unique("silent");
    let throttle = encoded(&["CL.THROTTLE", &key, "4", "1", "3600"]);
    let reply = |mode: &str| encoded(&["CLIENT", "REPLY", mode]);
    let sent = [
        &*reply("SKIP"),
        &throttle,
        &encoded(&["PING"]),
        &reply("OFF"),
        &throttle,
        &encoded(&["NOPE"]),
        &encoded(&["EXISTS", &key]),
        &encoded(&["MULTI"]),
        &throttle,
        &encoded(&["EXEC"]),
        &reply("SKIP"),
        &reply("ON"),
        &throttle,
    ];
    assert_eq!(door.exchange(sent.concat()), "+PONG\r\n+OK\r\n*5\r\n:0\r\n:5\r\n:1\r\n:-1\r\n:14400\r\n");
}

#[test]
fn help_lists_the_subcommands() {
    let door = door(POLICY);
    for (command, subcommand) in [("CLIENT", "TRACKING"), ("COMMAND", "DOCS"), ("CLUSTER", "SLOTS")] {
        let help = door.exchange(encoded(&[command, "HELP"]));
        assert!(help.starts_with('*') && help.contains(&format!("\r\n+{subcommand}")), "{help}");
        let unknown = door.exchange(encoded(&[command, "NOPE"]));
        assert_eq!(unknown, format!("-ERR unknown subcommand 'NOPE'. Try {command} HELP.\r\n"));
    }
}

#[test]
fn node_is_a_cluster_that_owns_all_slots() {
    let door = door(POLICY);
    let (host, port) = door.address.rsplit_once(':').unwrap();
    let mut connection = door.connect();
    let mut ask = |words: &str| command(&mut connection, words).unwrap();
    let text = |text: &str| Value::BulkString(text.into());
    let id = ask("CLUSTER MYID");
    let node = Value::Array(vec![text(host), Value::Int(port.parse().unwrap()), id.clone()]);
    assert_eq!(
        ask("CLUSTER SLOTS"),
        Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16_383), node])])
    );
    let Value::BulkString(id) = id else { panic!() };
    let id = String::from_utf8(id).unwrap();
    assert_eq!(
        ask("CLUSTER NODES"),
        text(&format!("{id} {host}:{port}@0 myself,master - 0 0 1 connected 0-16383\n"))
    );
    let shards = door.exchange(encoded(&["CLUSTER", "SHARDS"]));
    assert!(shards.contains(host) && shards.contains("\r\n:16383\r\n"), "{shards}");
    let info = door.exchange(encoded(&["CLUSTER", "INFO"]));
    assert!(info.contains("cluster_state:ok\r\n"), "{info}");
}

#[test]
fn failed_commands_have_the_words_of_redis_and_end_nothing() {
    let door = door(POLICY);
    let long = "k".repeat(1025);
    for (words, error) in [
        (&["NOPE"][..], "ERR unknown command 'NOPE', with args beginning with: "),
        (&["ECHO"], "ERR wrong number of arguments for 'echo' command"),
        (&["ECHO", "a", "b"], "ERR wrong number of arguments for 'echo' command"),
        (&["SELECT", "1"], "ERR DB index is out of range"),
        (&["SELECT", "x"], "ERR value is not an integer or out of range"),
        (&["HELLO", "4"], "NOPROTO unsupported protocol version"),
        (&["HELLO", "x"], "ERR Protocol version is not an integer or out of range"),
        (&["HELLO", "3", "NOPE"], "ERR Syntax error in HELLO option 'NOPE'"),
        (&["CLIENT", "LIST"], "ERR unknown subcommand 'LIST'. Try CLIENT HELP."),
        (
            &["CLIENT", "SETNAME", "a b"],
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (
            &["AUTH", "pass"],
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        ),
        (&["TG.CHECK", "p"], "ERR wrong number of arguments for 'tg.check' command"),
        (&["TG.CHECK", "p", "k", "-1"], "ERR the cost must be an integer from 0 to 1000000000000000"),
        (&["TG.CHECK", "p", "k", "1", "WAIT"], "ERR wrong number of arguments for 'tg.check' command"),
        (&["TG.CHECK", "p", "k", "wait", "3600001"], "ERR the wait must be an integer from 0 to 3600000"),
        (
            &["TG.CHECK", "p", "k", "1", "LATER", "1"],
            "ERR the options of tg.check are ID and WAIT with a number of milliseconds",
        ),
        (
            &["TG.CHECK", "by-ip", "zzz"],
            "ERR the key must be an IP address such as 203.0.113.7 or 2001:db8::1, as all keys of this policy",
        ),
        (&["TG.CHECK", "p", ""], "ERR the key must have 1 to 1024 bytes, not 0"),
        (
            &["CL.THROTTLE", &long, "1", "1", "1"],
            "ERR the key must have 1 to 1024 bytes, not 1025: hash longer keys, for example with SHA-256",
        ),
    ] {
        let answers = door.exchange(encoded(words) + &encoded(&["PING"]));
        assert_eq!(answers, format!("-{error}\r\n+PONG\r\n"));
    }
    let answers = door.exchange(b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\n\xff\xfe\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n");
    assert_eq!(answers, "-ERR the key must be UTF-8\r\n");
}

#[test]
fn hello_switches_between_the_versions() {
    let door = door(POLICY);
    let answers =
        door.exchange("HELLO 3 SETNAME shop\r\nCLIENT GETNAME\r\nHELLO\r\nRESET\r\nCLIENT GETNAME\r\nHELLO 2\r\n");
    let (first, rest) = answers.split_once("$4\r\nshop\r\n").unwrap();
    assert!(first.starts_with("%7\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n"), "{first}");
    assert!(first.contains("$5\r\nproto\r\n:3\r\n"), "{first}");
    let (second, third) = rest.split_once("+RESET\r\n").unwrap();
    assert!(second.contains("proto\r\n:3\r\n"), "{second}");
    assert!(third.starts_with("$-1\r\n*14\r\n") && third.contains("proto\r\n:2\r\n"), "{third}");
}

#[test]
fn policy_checks_answer_in_milliseconds() {
    let door = door(
        "policies: {p: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 2}], wait: {}, \
         deny: {keys: [mallory]}, allow: {keys: [root]}}}",
    );
    let mut connection = door.connect();
    let key = unique("k");
    let mut checked = |words: &str| {
        let Value::Array(items) = command(&mut connection, &format!("TG.CHECK p {words}")).unwrap() else { panic!() };
        items
    };
    let source = |name: &str| Value::BulkString(name.into());
    let int = Value::Int;
    assert_eq!(checked(&key), [int(0), int(2), int(1), int(-1), int(3_600_000), source("store")]);
    assert_eq!(checked(&format!("{key} 3"))[..4], [int(1), int(2), int(1), int(-1)]);
    let denied = checked(&format!("{key} 2"));
    assert_eq!(denied[..3], [int(1), int(2), int(1)]);
    assert!(matches!(denied[3], Value::Int(3_590_000..=3_600_000)), "{denied:?}");
    let waits = checked(&format!("{key} 2 WAIT 3600000"));
    assert_eq!((&waits[0], waits.len()), (&int(0), 7), "{waits:?}");
    assert!(matches!(waits[6], Value::Int(3_590_000..=3_600_000)), "{waits:?}");
    assert!(matches!(checked(&format!("{key} wait 1000"))[..], [Value::Int(1), ..]));
    let nothing = Value::Nil;
    assert_eq!(
        checked("mallory"),
        [int(1), nothing.clone(), nothing.clone(), int(-1), nothing.clone(), source("list")]
    );
    assert_eq!(checked("root"), [int(0), nothing.clone(), nothing.clone(), int(-1), nothing, source("list")]);
}

#[test]
fn configured_policy_of_cl_throttle_has_its_lists_and_shadow() {
    let options = "algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 1}], inline: true, wait: {queue: 1000}";
    let door = door(&format!(
        "policies: {{cl.throttle: {{{options}, deny: {{keys: [mallory]}}, allow: {{keys: [root]}}}}}}"
    ));
    let mut connection = door.connect();
    assert_eq!(numbers(&mut connection, "CL.THROTTLE mallory 15 30 60"), [1, 16, 0, -1, 0]);
    assert_eq!(numbers(&mut connection, "CL.THROTTLE root 15 30 60 99"), [0, 16, 16, -1, 0]);
    let door = super::door(&format!("policies: {{cl.throttle: {{{options}, shadow: true}}}}"));
    let mut connection = door.connect();
    let key = unique("shadow");
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600")), [0, 1, 0, -1, 3600]);
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[..4], [0, 1, 0, -1]);
}
