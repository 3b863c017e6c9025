//! The file of the overrides: whatever happens to it while the node runs, no override is lost.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Node, TOLLGATE, http, wait_until};

/// A node with a file for overrides.
struct Fixture {
    node: Node,
    config: PathBuf,
    folder: TempDir,
}

impl Fixture {
    fn start() -> Self {
        Self::start_by(Command::new(TOLLGATE))
    }

    fn start_by(program: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("my.yaml");
        std::fs::create_dir(folder.path().join("kept")).unwrap();
        std::fs::write(&config, "overrides: {file: kept/overrides.jsonl}\npolicies: {p: {quotas: [5 per 1h]}}\n")
            .unwrap();
        let node = Node::start_by(program, &["--config", config.to_str().unwrap()]);
        Self { node, config, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("kept/overrides.jsonl")
    }

    fn put(&self, key: &str, grant: &Value) -> http::Answer {
        let mut body = grant.clone();
        body["match"] = json!({"key": key});
        http::call(&self.node.address, "PUT", "/v1/overrides/p", None, &body.to_string())
    }

    fn reason(&self, key: &str) -> Value {
        self.node.check("p", key, 0)["reason"].clone()
    }

    fn restored(&self) -> Vec<Value> {
        http::get(&self.node.address, "/v1/audit?kind=restore").json()["entries"]
            .as_array()
            .unwrap()
            .clone()
    }

    fn restart(&mut self) {
        self.node.terminate();
        self.node.ended();
        self.node = Node::with_config(&self.config);
    }
}

/// A name, and what somebody does to the file.
type Harm = (&'static str, fn(&PathBuf));

#[test]
fn file_that_others_change_is_written_anew() {
    let mut fixture = Fixture::start();
    assert_eq!(fixture.put("abuser", &json!({"deny": true, "reason": "abuse"})).status, 200);
    let before = std::fs::read(fixture.file()).unwrap();
    let harms: [Harm; 5] = [
        ("truncated", |file| std::fs::File::create(file).map(drop).unwrap()),
        ("cut", |file| std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(7).unwrap()),
        ("replaced", |file| {
            std::fs::write(file.with_extension("new"), "").unwrap();
            std::fs::rename(file.with_extension("new"), file).unwrap();
        }),
        ("removed", |file| std::fs::remove_file(file).unwrap()),
        ("appended to", |file| {
            let longer = [std::fs::read(file).unwrap(), b"no line of a node\n".to_vec()].concat();
            std::fs::write(file, longer).unwrap();
        }),
    ];
    for (number, (how, harm)) in harms.into_iter().enumerate() {
        let before = fixture.restored().len();
        harm(&fixture.file());
        wait_until(&format!("the file that was {how} is there again"), || fixture.restored().len() > before);
        assert_eq!(fixture.reason("abuser"), "deny_listed", "{how}");
        assert_eq!(fixture.node.health()["status"], "ok", "{how}");
        // Also an override that is made before the node has looked.
        harm(&fixture.file());
        assert_eq!(fixture.put(&format!("after-{number}"), &json!({"allow": true})).status, 200, "{how}");
        fixture.restart();
        assert_eq!(fixture.reason("abuser"), "deny_listed", "{how}");
        assert_eq!(fixture.reason(&format!("after-{number}")), "allow_listed", "{how}");
        let kept = http::get(&fixture.node.address, "/v1/audit").json().to_string();
        assert!(kept.contains("\"abuse\""), "{kept}");
    }
    assert!(std::fs::read(fixture.file()).unwrap().len() > before.len());
}

/// After a rollback the file has grants and acts that only the later version knows.
#[test]
fn lines_of_a_later_version_are_kept_and_count_as_no_grant() {
    let mut fixture = Fixture::start();
    assert_eq!(fixture.put("later", &json!({"deny": true, "reason": "abuse"})).status, 200);
    assert_eq!(fixture.put("own", &json!({"allow": true})).status, 200);
    fixture.node.terminate();
    fixture.node.ended();
    let grant = r#""throttle":{"x":1.50},"zz":[1,2]"#;
    let text = std::fs::read_to_string(fixture.file()).unwrap().replace(r#""deny":true"#, grant);
    assert!(text.contains(grant), "{text}");
    let act = r#"{"change":{"version":9000000000000000,"at":1,"kind":"tuned","by":"later","policy":"p"}}"#;
    std::fs::write(fixture.file(), format!("{text}{act}\n")).unwrap();
    fixture.node = Node::with_config(&fixture.config);
    let named = || {
        let health = fixture.node.health();
        health["overrides"]["reason"].as_str().is_some_and(|reason| reason.contains("only a later version"))
    };
    wait_until("health names it", named);
    assert_eq!((fixture.reason("later"), fixture.reason("own")), (json!("ok"), json!("allow_listed")));
    let listed = http::get(&fixture.node.address, "/v1/overrides/p?match=key:later").json();
    assert_eq!(
        (&listed["entries"][0]["throttle"], &listed["entries"][0]["zz"]),
        (&json!({"x": 1.5}), &json!([1, 2])),
        "{listed}"
    );
    // Versions grow beyond those of the later version.
    let set = fixture.put("other", &json!({"deny": true})).json();
    assert!(set["version"].as_u64() > Some(9_000_000_000_000_000), "{set}");
    std::fs::remove_file(fixture.file()).unwrap();
    wait_until("the file is there again", || fixture.restored().len() == 1);
    let text = std::fs::read_to_string(fixture.file()).unwrap();
    assert!(text.contains(r#""throttle":{"x":1.5"#) && text.contains(r#""zz":[1,2]"#), "{text}");
    // The next change replaces it.
    assert_eq!(fixture.put("later", &json!({"deny": true})).status, 200);
    wait_until("health is ok", || fixture.node.health()["status"] == "ok");
}

/// The volume goes away, and comes back empty.
#[test]
fn file_that_cannot_be_written_is_a_reason_in_health_until_it_can() {
    let fixture = Fixture::start();
    assert_eq!(fixture.put("abuser", &json!({"deny": true})).status, 200);
    let folder = fixture.folder.path().join("kept");
    std::fs::remove_dir_all(&folder).unwrap();
    wait_until("health names the file", || {
        let health = fixture.node.health();
        health["overrides"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("file of the overrides"))
    });
    let refused = fixture.put("other", &json!({"deny": true}));
    assert_eq!((refused.status, fixture.reason("other")), (503, json!("ok")), "{refused:?}");
    assert_eq!(fixture.reason("abuser"), "deny_listed");
    std::fs::create_dir(&folder).unwrap();
    wait_until("health is ok", || fixture.node.health()["status"] == "ok");
    assert!(std::fs::read_to_string(fixture.file()).unwrap().contains("abuser"));
    assert!(fixture.node.metrics().contains("tollgate_overrides_restored_total 1"));
}

/// The system bounds the size of the file, as a full disk does.
#[test]
fn override_that_the_disk_does_not_take_is_not_in_force() {
    let mut program = Command::new("sh");
    program.args(["-c", r#"trap "" XFSZ; ulimit -f 8; exec "$0" "$@""#, TOLLGATE]);
    let mut fixture = Fixture::start_by(program);
    let put = |fixture: &Fixture, number: u32| {
        fixture.put(&format!("k{number}"), &json!({"deny": true, "reason": "r".repeat(200)})).status
    };
    let full = (0..200).find(|number| put(&fixture, *number) != 200).expect("the disk is full");
    assert!(full > 3, "{full}");
    for number in full..full + 3 {
        assert_eq!(put(&fixture, number), 503);
        assert_eq!(fixture.reason(&format!("k{number}")), "ok");
    }
    assert_eq!(fixture.reason(&format!("k{}", full - 1)), "deny_listed");
    // With room again the next one follows whole lines.
    fixture.restart();
    assert_eq!(fixture.reason(&format!("k{}", full - 1)), "deny_listed");
    assert_eq!(fixture.reason(&format!("k{full}")), "ok");
    assert_eq!(put(&fixture, full), 200);
    fixture.restart();
    assert_eq!(fixture.reason(&format!("k{full}")), "deny_listed");
}
