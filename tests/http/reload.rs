//! A node reloads policies while it runs: as a whole, without losing a count, and never with a
//! fault.

use std::fs::File;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::clock::Clock;
use tollgate::config::{Overrides, Source, built_in, load};
use tollgate::engine::fallback::FallbackStore;
use tollgate::engine::{Changes, Engine};
use tollgate::limit::decision::decide;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::state::State;
use tollgate::prefilter::Prefilter;
use tollgate::store::Generations;
use tollgate::store::Taken;
use tollgate::store::{MemoryStore, Store};

use crate::support::chaos::now_ms;
use crate::support::{Node, TOLLGATE, file_with, http, wait_until};

struct Fixture {
    node: Node,
    file: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    fn begin(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my.yaml");
        std::fs::write(&file, text).unwrap();
        let node = Node::with_config(&file);
        Self { node, file, _folder: folder }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.file, text).unwrap();
    }

    fn reload(&self, text: &str) -> http::Answer {
        self.write(text);
        reload(&self.node)
    }
}

fn reload(node: &Node) -> http::Answer {
    http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b""))
}

fn policies(node: &Node) -> Value {
    http::get(&node.address, "/v1/policies").json()
}

fn limit(node: &Node) -> Value {
    policies(node)["policies"][0]["quotas"][0]["limit"].clone()
}

fn p(limit: u64) -> String {
    format!("policies:\n  p: {{quotas: [{limit} per 1h]}}\n")
}

/// A preloaded library that delays `statx` of the file `SLOW` while the file `HANG` exists, at most
/// two minutes. It simulates a network file system whose server is gone.
const HANGING: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <unistd.h>

    int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
        int (*real)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
        for (int left = 12000; left > 0 && !strcmp(path, getenv("SLOW")) && !access(getenv("HANG"), F_OK); left--) {
            if (left == 12000) unlink(getenv("NOT_YET"));
            usleep(10000);
        }
        return real(folder, path, flags, mask, found);
    }
"#;

#[test]
fn hanging_file_system_delays_no_check() {
    let folder = tempfile::tempdir().unwrap();
    let [file, source, library, hang, not_yet] =
        ["my.yaml", "hanging.c", "hanging.so", "hang", "not_yet"].map(|name| folder.path().join(name));
    let text = |limit| format!("limits: {{request_timeout: 1s}}\n{}", p(limit));
    std::fs::write(&file, text(10)).unwrap();
    std::fs::write(&source, HANGING).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(built.success());
    let mut program = Command::new(TOLLGATE);
    program.env("LD_PRELOAD", &library).env("SLOW", &file).env("HANG", &hang).env("NOT_YET", &not_yet);
    let mut node = Node::start_by(program, &["--config", file.to_str().unwrap()]);
    std::fs::write(&not_yet, "").unwrap();
    std::fs::write(&hang, "").unwrap();
    wait_until("the node hangs on its file", || !not_yet.exists());
    assert_eq!(node.check("p", "k", 1)["remaining"], 9);
    // Reload calls that are cut off do not occupy one more thread each.
    let before = node.threads();
    for _ in 0..4 {
        let cut_off = http::try_exchange(&node.address, &http::request("POST", "/v1/reload", &[], b"")).unwrap_err();
        // The node ends the call, not the client.
        assert_ne!(cut_off.kind(), ErrorKind::WouldBlock);
    }
    assert!(node.threads() <= before + 1, "{} threads, {before} before", node.threads());

    std::fs::remove_file(&hang).unwrap();
    std::fs::write(&file, text(20)).unwrap();
    wait_until("the change is seen", || limit(&node) == 20);
    std::fs::write(&not_yet, "").unwrap();
    std::fs::write(&hang, "").unwrap();
    wait_until("it hangs again", || !not_yet.exists());
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
}

#[test]
fn raised_limit_keeps_usage() {
    let fixture = Fixture::begin(&p(100));
    assert_eq!(fixture.node.check("p", "k", 80)["remaining"], 20);
    assert_eq!(fixture.reload(&p(200)).status, 200);
    assert_eq!(fixture.node.check("p", "k", 0)["remaining"], 120);
    assert_eq!(fixture.node.check("p", "k", 120)["allowed"], true);
    assert_eq!(fixture.node.check("p", "k", 1)["allowed"], false);
    assert_eq!(fixture.reload(&p(100)).status, 200);
    let less = fixture.node.check("p", "k", 0);
    assert_eq!((&less["limit"], &less["remaining"]), (&json!(100), &json!(0)));
}

#[test]
fn known_denials_of_unchanged_policy_stay() {
    let fixture = Fixture::begin("policies: {p: {quotas: [1 per 1h]}, q: {quotas: [1 per 1h]}}");
    assert_eq!(fixture.node.check("p", "k", 1)["allowed"], true);
    assert_eq!(fixture.node.check("p", "k", 1)["source"], "prefilter");
    let told = fixture
        .reload("policies: {p: {quotas: [{name: 1h, limit: 1, per: 60m}]}, q: {quotas: [2 per 1h]}}")
        .json();
    assert_eq!(told["restart_needed"], json!([]));
    assert_eq!(fixture.node.check("p", "k", 1)["source"], "prefilter");
    let listed = |above: &str| format!("{above}policies: {{p: {{quotas: [1 per 1h], deny: {{keys: [mallory]}}}}}}");
    assert_eq!(fixture.reload(&listed("")).json()["changed"], json!(["p"]));
    assert_eq!(fixture.node.check("p", "k", 1)["source"], "store");
    let moved = fixture.reload(&listed("# a line above the lists\n")).json();
    assert_eq!(
        (&moved["changed"], &fixture.node.check("p", "k", 1)["source"]),
        (&json!([]), &json!("prefilter")),
        "{moved}"
    );
    assert_eq!(fixture.reload("policies: {p: {quotas: [1 per 1h], timeout: 50ms}}").status, 200);
    let denied = fixture.node.check("p", "k", 1);
    assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("store")));
}

#[test]
fn reload_names_changed_policies() {
    let policies = |text: &str| {
        let source = Source { origin: "test".into(), text: format!("policies: {{{text}}}"), file: None };
        load(&source, &Overrides::default(), 0).unwrap().policies
    };
    let store = || MemoryStore::new(Clock::system(), 10);
    let prefilter = Prefilter::new(10, Duration::from_secs(1), Arc::new(Generations::default()));
    let began = policies("a: {quotas: [1 per 1s]}, b: {quotas: [1 per 1s]}, c: {quotas: [1 per 1s]}");
    let fallback = FallbackStore::new(store(), NonZeroU64::MIN);
    let engine = Engine::new(began, prefilter, Store::Memory(store()), fallback, Clock::system());
    let (a, b) = (engine.policies().by_name["a"].clone(), engine.policies().by_name["b"].clone());
    let changes = engine.replace(policies("d: {quotas: [1 per 1s]}, b: {quotas: [2 per 1s]}, a: {quotas: [1 per 1s]}"));
    let names = |name: &str| vec![name.to_owned()];
    assert_eq!(changes, Changes { added: names("d"), changed: names("b"), removed: names("c") });
    assert!(Arc::ptr_eq(&a, &engine.policies().by_name["a"]));
    assert!(!Arc::ptr_eq(&b, &engine.policies().by_name["b"]));
}

/// The node sends the question under the old policy, and the answer arrives after the reload.
#[test]
fn pending_answer_is_not_learned_for_new_policy() {
    let policy = |limit: u64| {
        let mut policy = built_in(&Overrides::default(), 0).unwrap().policies.by_name["five-per-minute"].clone();
        Arc::make_mut(&mut policy).quotas[0].limit = NonZeroU64::new(limit).unwrap();
        policy
    };
    let (old, new) = (policy(1), policy(2));
    let prefilter = Prefilter::new(10, Duration::from_secs(60), Arc::new(Generations::default()));
    let fingerprint = Fingerprinter::default().fingerprint("five-per-minute", "k");
    let question = prefilter.question(0, 1_000_000_000);
    let mut states = [State::new(&old.quotas[0])];
    let ruling = decide(&old, &mut states, 1_000_000_000, &[1, 1]);
    prefilter.learn(fingerprint, &old, question, &Taken { ruling, at: 1_000_000_000, tentative: false }, 1_000_000_001);
    assert!(prefilter.denial(fingerprint, &old, 1, 1_000_000_002).is_some());
    assert!(prefilter.denial(fingerprint, &new, 1, 1_000_000_002).is_none());
}

#[test]
fn faulty_file_keeps_running_policies() {
    let fixture = Fixture::begin(&p(5));
    let began = policies(&fixture.node);
    assert_eq!(began["last_reload"]["successful"], true);
    let refused =
        fixture.reload("policies:\n  p: {quotas: [5 per 1h], algoritm: fixed-window}\n  q: {quotas: [0 per 1s]}\n");
    assert_eq!((refused.status, refused.header("content-type")), (422, Some("application/problem+json")));
    let problem = refused.json();
    assert_eq!(problem["type"], "urn:tollgate:problem:invalid-configuration");
    let places: Vec<_> = problem["violations"].as_array().unwrap().iter().map(|fault| &fault["line"]).collect();
    assert_eq!(places, [&json!(2), &json!(3)], "{problem}");
    assert!(
        problem["violations"][0]["detail"].as_str().unwrap().contains("did you mean `algorithm`?"),
        "{problem}"
    );
    let kept = policies(&fixture.node);
    assert_eq!((&kept["version"], &kept["policies"]), (&began["version"], &began["policies"]));
    assert_eq!(kept["last_reload"]["successful"], false);
    assert_eq!(kept["last_reload"]["faults"], problem["violations"]);
    assert_eq!(fixture.node.check("p", "k", 1)["allowed"], true);
    assert_eq!(fixture.reload(&p(6)).status, 200);
    let mended = policies(&fixture.node);
    assert_eq!((&mended["last_reload"]["successful"], &mended["last_reload"]["faults"]), (&json!(true), &json!([])));
    assert_ne!(mended["version"], began["version"]);
}

#[test]
fn missing_file_is_a_fault() {
    let fixture = Fixture::begin(&p(5));
    std::fs::remove_file(&fixture.file).unwrap();
    let refused = reload(&fixture.node);
    assert_eq!(refused.status, 422);
    assert!(refused.json()["violations"][0]["detail"].as_str().unwrap().starts_with("cannot be read"));
    assert_eq!(fixture.node.check("p", "k", 1)["allowed"], true);
}

#[test]
fn sighup_reloads_without_ending_the_node() {
    let fixture = Fixture::begin(&p(5));
    fixture.write(&p(6));
    fixture.node.hang_up();
    wait_until("the limit is 6", || limit(&fixture.node) == 6);
    let mut without_file = Node::start();
    without_file.hang_up();
    wait_until("the policies are the same", || http::get(&without_file.address, "/v1/policies").status == 200);
    assert!(without_file.is_alive());
}

/// The node loads a changed file without a call. The file may be rewritten, renamed into place, or
/// swapped by its folder's link.
#[test]
fn changed_file_is_reloaded() {
    let fixture = Fixture::begin(&p(5));
    fixture.write(&p(6));
    wait_until("the written file is loaded", || limit(&fixture.node) == 6);
    let other = fixture.file.with_extension("new");
    std::fs::write(&other, p(7)).unwrap();
    std::fs::rename(&other, &fixture.file).unwrap();
    wait_until("the renamed file is loaded", || limit(&fixture.node) == 7);
    fixture.write("policies: {p: {quotas: [0 per 1s]}}");
    wait_until("the fault is told", || policies(&fixture.node)["last_reload"]["successful"] == false);
    assert_eq!(limit(&fixture.node), 7);
    fixture.write(&p(8));
    wait_until("the mended file is loaded", || limit(&fixture.node) == 8);
}

/// A file that changes continuously, such as a feed's list, takes effect within a second or two,
/// whether each version is written in place or renamed into place.
#[test]
fn constantly_changing_file_is_reloaded() {
    let other = |path: &Path| path.with_extension("new");
    let in_place = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let by_rename = |path: &Path, text: &str| {
        in_place(&other(path), text);
        std::fs::rename(other(path), path).unwrap();
    };
    for (is_renamed, every) in [(false, 0), (false, 300), (true, 0), (true, 300)] {
        let fixture = Fixture::begin(&p(1));
        let (mut limits, begun) = (2..99_999, now_ms());
        wait_until("some version of it is loaded", || {
            let text = p(limits.next().unwrap());
            if is_renamed {
                by_rename(&fixture.file, &text)
            } else {
                in_place(&fixture.file, &text)
            }
            std::thread::sleep(Duration::from_millis(every));
            limit(&fixture.node) != 1
        });
        let took = now_ms() - begun;
        assert!(took < 10_000, "it took {took} ms, with a change every {every} ms");
    }
}

#[test]
fn pipe_in_place_of_file_delays_no_check() {
    let mut fixture = Fixture::begin(&p(5));
    std::fs::remove_file(&fixture.file).unwrap();
    assert!(Command::new("mkfifo").arg(&fixture.file).status().unwrap().success());
    let refused = reload(&fixture.node);
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["violations"][0]["detail"], "it is no file");
    std::fs::remove_file(&fixture.file).unwrap();
    fixture.write(&p(6));
    wait_until("the file is loaded", || limit(&fixture.node) == 6);
    fixture.node.terminate();
    assert_eq!(fixture.node.ended().code(), Some(0));
}

/// The node cannot read a pipe twice, which is no fault of the configuration.
#[test]
fn configuration_from_pipe_cannot_be_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = pipe.clone();
    let writing = std::thread::spawn(move || std::fs::write(writer, p(5)).unwrap());
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "warn").stderr(File::create(folder.path().join("log")).unwrap());
    let node = Node::start_by(program, &["--config", pipe.to_str().unwrap()]);
    writing.join().unwrap();
    let refused = reload(&node);
    assert_eq!((refused.status, &refused.json()["type"]), (409, &json!("urn:tollgate:problem:nothing-to-reload")));
    assert!(refused.json()["detail"].as_str().unwrap().contains("from a pipe"), "{refused:?}");
    assert_eq!(policies(&node)["last_reload"]["successful"], true);
    assert_eq!(node.check("p", "k", 1)["remaining"], 4);
    // The node does not watch the pipe, and so does not log again. Another one watches its file.
    let file = file_with(&p(5));
    let watching = Node::with_config(&file);
    for limit in [6, 7] {
        std::fs::write(&file, p(limit)).unwrap();
        wait_until("a watched file is loaded", || watching.check("p", "k", 0)["limit"] == limit);
    }
    let told = std::fs::read_to_string(folder.path().join("log")).unwrap().matches("nothing to load again").count();
    assert_eq!(told, 1, "by the call");
}

/// Kubernetes updates files this way: the file is a link through `..data`, a link to a swapped
/// folder.
#[test]
fn swapped_config_map_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let version = |name: &str, limit: u64| {
        let inner = folder.path().join(name);
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("my.yaml"), p(limit)).unwrap();
    };
    let point_at = |name: &str| {
        let link = folder.path().join("..data_tmp");
        symlink(Path::new(name), &link).unwrap();
        std::fs::rename(&link, folder.path().join("..data")).unwrap();
    };
    version("..one", 5);
    point_at("..one");
    let file = folder.path().join("my.yaml");
    symlink("..data/my.yaml", &file).unwrap();
    let node = Node::with_config(&file);
    for (name, limit_then) in [("..two", 6), ("..three", 7)] {
        version(name, limit_then);
        point_at(name);
        wait_until(&format!("{name} is loaded"), || limit(&node) == limit_then);
    }
}

/// The file system recovers, or a descriptor becomes free; neither changes the file.
#[test]
fn unreadable_file_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let [file, log] = ["my.yaml", "log"].map(|name| folder.path().join(name));
    std::fs::write(&file, p(5)).unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stderr(File::create(&log).unwrap());
    let node = Node::start_by(program, &["--config", file.to_str().unwrap()]);
    // Without free descriptors the node cannot accept connections.
    let mut connection = http::Connection::open(&node.address).unwrap();
    let mut last_reload = || {
        connection.send(&http::request("GET", "/v1/policies", &[], b"")).unwrap();
        connection.receive(true).unwrap().json()["last_reload"].clone()
    };
    assert_eq!(last_reload()["successful"], true);
    let pid = rustix::process::Pid::from_raw(node.pid().try_into().unwrap());
    let limit_files = |limit| rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap();
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    let before = limit_files(Rlimit { current: Some(3), maximum: most });
    std::fs::write(&file, p(6)).unwrap();
    wait_until("it cannot be read", || last_reload()["successful"] == false);
    let told = last_reload();
    assert!(
        told["faults"][0]["detail"].as_str().unwrap().contains("cannot be read: Too many open files"),
        "{told}"
    );
    wait_until("it is tried again", || last_reload()["at"] != told["at"]);
    limit_files(before);
    wait_until("it is loaded", || limit(&node) == 6);
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("the configuration has faults").count(), 1, "{log}");
}

/// A Secret may arrive later than the configuration that names it.
#[test]
fn late_token_file_completes_the_reload() {
    let fixture = Fixture::begin(&p(5));
    fixture.write(&format!("auth: {{admin_token_files: [late.tokens]}}\n{}", p(6)));
    wait_until("the fault is told", || policies(&fixture.node)["last_reload"]["successful"] == false);
    let tokens = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
    let line = String::from_utf8(tokens).unwrap().lines().last().unwrap().to_owned();
    std::fs::write(fixture.file.with_file_name("late.tokens"), line).unwrap();
    let reset = http::request("DELETE", "/v1/usage?policy=p&key=k", &[], b"");
    wait_until("operators need a token", || http::exchange(&fixture.node.address, &reset).status == 401);
}

#[test]
fn settings_that_need_restart_are_reported_and_unchanged() {
    let fixture = Fixture::begin(&p(5));
    let other = "admin_listen: 127.0.0.1:1\nstore: {redis: [redis://127.0.0.1:1]}\nshutdown: {delay: 1s}\n";
    let told = fixture.reload(&format!("{other}{}", p(6)));
    let waiting = json!(["admin_listen", "store", "shutdown"]);
    assert_eq!((told.status, &told.json()["restart_needed"]), (200, &waiting));
    assert_eq!(policies(&fixture.node)["last_reload"]["restart_needed"], waiting);
    assert_eq!(fixture.node.health()["store"]["kind"], "embedded");
    assert_eq!(limit(&fixture.node), 6);
    assert_eq!(fixture.reload(&p(6)).json()["restart_needed"], json!([]));
}

#[test]
fn reload_reports_changed_tokens_only() {
    let fixture = Fixture::begin(&p(5));
    let new = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap().stdout;
    let new = String::from_utf8(new).unwrap();
    let (token, line) = new.trim_end().split_once('\n').unwrap();
    std::fs::write(fixture.file.with_file_name("tokens"), line).unwrap();
    let auth = "auth: {check_token_files: [tokens], admin_token_files: [tokens]}\n";
    assert_eq!(fixture.reload(&p(6)).json()["settings"], json!([]));
    let told = fixture.reload(&format!("{auth}{}", p(6))).json();
    assert_eq!((&told["settings"], &told["changed"]), (&json!(["auth"]), &json!([])), "{told}");
    let again = http::call(&fixture.node.address, "POST", "/v1/reload", Some(token), "").json();
    assert_eq!((&again["settings"], &again["restart_needed"]), (&json!([]), &json!([])), "{again}");
}

#[test]
fn built_in_policies_cannot_be_reloaded() {
    let refused = reload(&Node::start());
    assert_eq!((refused.status, &refused.json()["type"]), (409, &json!("urn:tollgate:problem:nothing-to-reload")));
}
