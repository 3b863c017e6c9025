//! Compares the rights of the user in Redis with the commands that the scripts and the node call.
//! `UPDATE_DOCS=1 cargo test --lib page::` writes them to `docs/security.md` and `cluster/secure`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::protocol::sources::ScriptId;

const PAGE: &str = "docs/security.md";
const SECURE: &str = "cluster/secure";

/// The text before the commands in both files.
const USER: &str = "~{ratelimit:* resetchannels &{ratelimit:* -@all";

/// The head of the table of rights that may be absent.
const HEAD: &str = "| right | needed by |\n|---|---|\n";

/// The commands that the node sends beside those in scripts.
const OWN: [&str; 10] = [
    "evalsha",
    "eval",
    "script|load",
    "info",
    "time",
    "client|setname",
    "cluster|info",
    "cluster|slots",
    "asking",
    "wait",
];

const OVERRIDES: &str = "[overrides](overrides.md#where-they-are-kept): without them the node runs without";

/// The rest of them.
const OWN_OF_OVERRIDES: [&str; 2] = ["hscan", "subscribe"];

/// Commands without a right in the line. Every user may log in, a sentinel has a user of its own,
/// and SCAN adds only a number.
const EXEMPT: [&str; 3] = ["auth", "sentinel", "scan"];

/// The commands of a script: words in capitals that are the first argument of a call.
fn commands(script: &str) -> BTreeSet<String> {
    let code: String = script.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let code = code.replace('"', "'");
    let first = code.split("('").skip(1).filter_map(|rest| rest.split('\'').next());
    let is_command = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    first.filter(is_command).map(str::to_lowercase).collect()
}

/// The features that need a script; none if every user needs it.
fn needs(script: ScriptId) -> BTreeSet<&'static str> {
    let name = script.name();
    let is_of = |(part, _): &(&str, &str)| name.contains(part);
    let parts = [
        ("sliding-log", "`sliding-log`"),
        ("sliding-counter", "`sliding-counter`"),
        ("-hold", "[holds](holds.md)"),
        ("-sale", "[leases of callers](leases.md#callers)"),
    ];
    parts.into_iter().filter(is_of).map(|(_, need)| need).collect()
}

/// The commands of all scripts, by what needs them. An empty text stands for every user.
fn by_need() -> BTreeMap<String, BTreeSet<String>> {
    let mut counts: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for script in ScriptId::all() {
        for command in commands(script.source()) {
            let all = needs(script);
            counts.entry(command).and_modify(|needs| needs.retain(|need| all.contains(need))).or_insert(all);
        }
    }
    let own = OWN_OF_OVERRIDES.map(str::to_owned);
    let of_registry = files("src/store/redis/scripts/registry", "lua").into_iter();
    let of_overrides: BTreeSet<_> = of_registry.flat_map(|(_, script)| commands(&script)).chain(own).collect();
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for command in counts.keys().chain(&of_overrides).filter(|command| !OWN.contains(&command.as_str())) {
        let needs = counts.get(command).map(|needs| needs.iter().copied().collect::<Vec<_>>().join(", "));
        let need = match (needs, of_overrides.contains(command)) {
            (None, _) => OVERRIDES.to_owned(),
            (Some(needs), true) if !needs.is_empty() => format!("{needs}, and overrides"),
            (Some(needs), _) => needs,
        };
        all.entry(need).or_default().insert(command.clone());
    }
    all
}

fn line() -> String {
    let own = OWN.into_iter().map(str::to_owned);
    let all = own.chain(by_need().into_values().flatten()).map(|command| format!(" +{command}"));
    format!("{USER}{}", all.collect::<String>())
}

fn table() -> String {
    let rows = by_need().into_iter().filter(|(need, _)| !need.is_empty()).map(|(need, commands)| {
        let commands: Vec<_> = commands.iter().map(|command| format!("`{command}`")).collect();
        format!("| {} | {need} |\n", commands.join(", "))
    });
    format!(
        "{HEAD}| `cluster`, `asking` | a cluster |\n| `wait` | `durability: replica` |\n\
         | `eval`, or `evalsha` with `script\\|load` | one of both suffices; overrides need `eval` |\n{}\
         | `&{{ratelimit:*`, `publish`, `subscribe` | changes of overrides at once; without them within a second |\n",
        rows.collect::<String>()
    )
}

/// The text with another line of rights.
fn with_line(text: &str) -> String {
    let (before, rest) = text.split_once(USER).unwrap();
    let (_, after) = rest.split_once('\n').unwrap();
    format!("{before}{}\n{after}", line())
}

#[test]
fn documented_rights_are_those_of_the_scripts() {
    let page = with_line(&fs::read_to_string(PAGE).unwrap());
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let files =
        [(PAGE, format!("{before}{}\n{after}", table())), (SECURE, with_line(&fs::read_to_string(SECURE).unwrap()))];
    for (file, text) in files {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(file, text).unwrap();
            continue;
        }
        let is_right = fs::read_to_string(file).unwrap() == text;
        assert!(is_right, "UPDATE_DOCS=1 cargo test --lib page:: writes the rights into {file}: {}", line());
    }
}

#[test]
fn each_command_of_the_node_is_among_its_rights() {
    let line = format!("{} ", line());
    let mut found = BTreeSet::new();
    for (file, code) in files("src/store/redis", "rs") {
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        let sent = code.split("cmd(\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_lowercase);
        found.extend(sent.map(|command| (command, file.clone())));
    }
    for (file, script) in files("src/store/redis/scripts", "lua") {
        found.extend(commands(&script).into_iter().map(|command| (command, file.clone())));
    }
    assert!(found.len() > 40, "{found:?}");
    let is_right = |name: &str| line.contains(&format!(" +{name} ")) || line.contains(&format!(" +{name}|"));
    let missing: Vec<_> =
        found.into_iter().filter(|(name, _)| !is_right(name) && !EXEMPT.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "no rights for {missing:?}");
}

/// The files of a kind below a folder, with their texts.
fn files(folder: &str, kind: &str) -> Vec<(PathBuf, String)> {
    let (mut folders, mut files) = (vec![PathBuf::from(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == kind) && !path.ends_with("rights_page.rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}
