//! The log and `validate` warn of weak settings: open files, and reloads that let more callers in.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, http, wait_until};

fn write(folder: &Path, name: &str, text: &str, mode: u32) {
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
}

const POLICIES: &str = "policies: {p: {quotas: [5 per 1h]}}\n";

fn validated(file: &Path) -> (Option<i32>, Vec<String>) {
    let output = Command::new(TOLLGATE).arg("validate").arg(file).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), told.lines().map(str::to_owned).collect())
}

#[test]
fn validate_warns_of_files_open_to_others() {
    let authority = Authority::new();
    authority.sign("node");
    let folder = authority.folder.path();
    let hash = format!("sha256:{}\n", "0".repeat(64));
    let text = format!(
        "store: {{redis: [rediss://127.0.0.1:1], password_file: password, \
         tls: {{ca_file: ca.pem, cert_file: node.pem, key_file: client.key}}}}\n\
         tls: {{cert_file: node.pem, key_file: node.key}}\n\
         auth: {{check_token_files: [check.tokens]}}\n{POLICIES}"
    );
    let file = folder.join("my.yaml");
    let modes = |changed: &[(&str, u32)]| {
        write(folder, "my.yaml", &text, 0o644);
        write(folder, "password", "secret\n", 0o600);
        write(folder, "check.tokens", &hash, 0o644);
        fs::copy(folder.join("node.key"), folder.join("client.key")).unwrap();
        for (name, mode) in [("ca.pem", 0o644), ("node.pem", 0o644), ("node.key", 0o600), ("client.key", 0o400)] {
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in changed {
            fs::set_permissions(folder.join(name), Permissions::from_mode(*mode)).unwrap();
        }
    };
    modes(&[]);
    assert_eq!(validated(&file), (Some(0), Vec::new()));
    for (name, mode, words) in [
        ("node.key", 0o666, "every user of this machine may write it"),
        ("node.key", 0o644, "every user of this machine may read it"),
        ("node.key", 0o640, "its group may read it"),
        ("client.key", 0o604, "every user of this machine may read it"),
        ("password", 0o660, "its group may write it"),
        ("password", 0o644, "every user of this machine may read it"),
        ("check.tokens", 0o646, "every user of this machine may write it"),
        ("check.tokens", 0o664, "its group may write it"),
        ("ca.pem", 0o666, "every user of this machine may write it"),
        ("node.pem", 0o666, "every user of this machine may write it"),
        ("my.yaml", 0o666, "every user of this machine may write it"),
    ] {
        modes(&[(name, mode)]);
        let (code, told) = validated(&file);
        assert_eq!(code, Some(0));
        let expected = format!("/{name}: {words}");
        assert!(
            told.iter().any(|line| line.starts_with("warning: ") && line.contains(&expected)),
            "{mode:o}: {told:?}"
        );
        assert!(told.iter().all(|line| line.contains(name)), "{told:?}");
        fs::set_permissions(folder.join(name), Permissions::from_mode(0o600)).unwrap();
    }
    // A password in a URL makes the configuration a secret.
    let text = format!("store: {{redis: ['redis://u:hunter2@127.0.0.1:1']}}\n{POLICIES}");
    for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
        write(folder, "url.yaml", &text, mode);
        let (code, told) = validated(&folder.join("url.yaml"));
        assert_eq!((code, told.len()), (Some(0), warnings), "{told:?}");
        assert!(!told.concat().contains("hunter2"), "{told:?}");
    }
}

fn logged(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap()
}

fn node(folder: &TempDir) -> Node {
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "warn").stderr(File::create(folder.path().join("log")).unwrap());
    Node::start_by(program, &["--config", folder.path().join("my.yaml").to_str().unwrap()])
}

#[test]
fn start_and_reload_warn_of_writable_files() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "my.yaml", POLICIES, 0o666);
    let _node = node(&folder);
    wait_until("the start tells", || logged(&folder).contains("my.yaml: every user of this machine may write it"));

    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "my.yaml", POLICIES, 0o600);
    let node = node(&folder);
    assert_eq!(logged(&folder), "");
    write(folder.path(), "my.yaml", POLICIES, 0o622);
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
    wait_until("the reload tells", || logged(&folder).contains("my.yaml: every user of this machine may write it"));
}

#[test]
fn reload_that_widens_access_warns() {
    let made = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
    let made = String::from_utf8(made).unwrap();
    let (token, line) = made.trim_end().split_once('\n').unwrap();
    let both = "auth: {check_token_files: [tokens], admin_token_files: [tokens]}\n";
    for (before, after, words) in [
        (both, "", "there are no tokens any more"),
        (both, "auth: {admin_token_files: [tokens]}\n", "there are no check tokens any more"),
        ("auth: {admin_token_files: [tokens]}\n", "", "there are no tokens any more"),
        ("", "auth: {allow_anonymous: true}\n", "`allow_anonymous` is set"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "tokens", line, 0o600);
        write(folder.path(), "my.yaml", &format!("{before}{POLICIES}"), 0o600);
        let node = node(&folder);
        write(folder.path(), "my.yaml", &format!("{after}{POLICIES}"), 0o600);
        let token = Some(token).filter(|_| !before.is_empty());
        http::call(&node.address, "POST", "/v1/reload", token, "");
        wait_until("it is told", || {
            logged(&folder)
                .lines()
                .any(|line| line.contains("\"WARN\"") && line.contains("less access control") && line.contains(words))
        });
    }
}

#[test]
fn reachable_open_listener_warns() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "my.yaml",
        &format!("auth: {{allow_anonymous: true}}\nlisten: 0.0.0.0:0\n{POLICIES}"),
        0o600,
    );
    let mut program = Command::new(TOLLGATE);
    program
        .args(["serve", "--config"])
        .arg(folder.path().join("my.yaml"))
        .stderr(File::create(folder.path().join("log")).unwrap());
    let mut process = program.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_until("it is told", || logged(&folder).contains("everyone who reaches this node may check"));
    process.kill().unwrap();
    process.wait().unwrap();
}
