//! The answers to Redis clients while the store is away.

use super::{command, door, numbers};
use crate::support::{free_port, unique};

fn answers(mode: &str) -> super::Door {
    let policy = format!(
        "{{algorithm: token-bucket, quotas: [{{rate: 1 per 1s, burst: 1}}], inline: true, wait: {{}}, on_store_failure: {mode}}}"
    );
    let store = format!("store: {{redis: [\"redis://127.0.0.1:{}\"], timeout: 50ms}}", free_port());
    door(&format!("{store}\npolicies: {{cl.throttle: {policy}}}"))
}

#[test]
fn cl_throttle_answers_by_on_store_failure_of_its_policy() {
    let key = unique("away");
    for (mode, first, second) in [
        ("local", [0, 1, 0, -1, 3600], [1, 1, 0, 3600, 3600]),
        ("allow", [0, 1, 1, -1, 0], [0, 1, 1, -1, 0]),
        ("deny", [1, 1, 0, 1, 0], [1, 1, 0, 1, 0]),
    ] {
        let mut connection = answers(mode).connect_owned();
        assert_eq!(numbers(&mut connection.1, &format!("CL.THROTTLE {key} 0 1 3600")), first, "{mode}");
        assert_eq!(numbers(&mut connection.1, &format!("CL.THROTTLE {key} 0 1 3600")), second, "{mode}");
    }
    let mut connection = answers("error").connect_owned();
    let error = command(&mut connection.1, &format!("CL.THROTTLE {key} 0 1 3600")).unwrap_err().to_string();
    assert!(error.contains("the store gave no decision"), "{error}");
    assert!(command(&mut connection.1, "PING").is_ok(), "the connection goes on");
}

/// An answer without the store would say that a key has no debt.
#[test]
fn operations_on_keys_fail_without_a_decision_of_the_store() {
    for mode in ["allow", "deny", "error"] {
        let mut connection = answers(mode).connect_owned();
        for words in ["EXISTS k", "TTL k", "DEL k"] {
            let error = command(&mut connection.1, words).unwrap_err().to_string();
            assert!(error.contains("the store gave no decision"), "{mode}, {words}: {error}");
        }
    }
    let mut connection = answers("local").connect_owned();
    let key = unique("away");
    numbers(&mut connection.1, &format!("CL.THROTTLE {key} 0 1 3600"));
    assert_eq!(command(&mut connection.1, &format!("EXISTS {key}")).unwrap(), redis::Value::Int(1));
    assert!(command(&mut connection.1, &format!("DEL {key}")).is_err());
}

#[test]
fn cl_throttle_counts_on_this_node_by_default() {
    let store = format!("store: {{redis: [\"redis://127.0.0.1:{}\"], timeout: 50ms}}", free_port());
    let door = door(&format!("{store}\npolicies: {{p: {{quotas: [5 per 1h]}}}}"));
    let (mut connection, key) = (door.connect(), unique("away"));
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[0], 0);
    assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[0], 1);
}

impl super::Door {
    /// A connection together with its node.
    fn connect_owned(self) -> (Self, redis::Connection) {
        let connection = self.connect();
        (self, connection)
    }
}
