//! Every configuration below `tests/fixtures/config`: the good ones load, each bad one says exactly what its
//! `.expected` says, `line:column: message` for every fault. New rules of the configuration get a fixture here.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate::config::{Config, Faults, Overrides, Source, load};

#[test]
fn every_bad_configuration_is_refused_in_its_own_words() {
    let wrong: Vec<String> = fixtures("bad").iter().filter_map(|path| differences(path)).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_good_configuration_loads() {
    let refused = fixtures("good").into_iter().filter_map(|path| loaded(&path).err());
    let refused: Vec<String> = refused.map(|faults| faults.to_string()).collect();
    assert!(refused.is_empty(), "\n{}", refused.join("\n"));
}

#[test]
fn every_expectation_has_its_configuration() {
    let is_alone = |path: &PathBuf| !path.with_extension("yaml").exists();
    let alone: Vec<PathBuf> = files("bad", "expected").into_iter().filter(is_alone).collect();
    assert!(alone.is_empty(), "no .yaml beside {alone:?}");
}

fn loaded(path: &Path) -> Result<Config, Faults> {
    load(&Source::read(path)?, &Overrides::default(), 0)
}

/// What differs between the faults of the file and those expected of it.
fn differences(path: &Path) -> Option<String> {
    let expected = fs::read_to_string(path.with_extension("expected"))
        .unwrap_or_else(|error| panic!("{} needs its .expected beside it: {error}", path.display()));
    let found: Vec<String> = match loaded(path) {
        Ok(_) => Vec::new(),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    };
    let expected: Vec<&str> = expected.lines().collect();
    let only_in = |sign: &str, line: &str| format!("  {sign} {line}\n");
    let missing = expected.iter().filter(|line| !found.iter().any(|other| other == *line));
    let unexpected = found.iter().filter(|line| !expected.contains(&line.as_str()));
    let lines: String = missing
        .map(|line| only_in("expected:", line))
        .chain(unexpected.map(|line| only_in("   found:", line)))
        .collect();
    let same = expected.iter().copied().eq(found.iter().map(String::as_str));
    let order = if lines.is_empty() { "  the same lines in another order or number\n" } else { "" };
    (!same || expected.is_empty()).then(|| format!("{}\n{lines}{order}", path.display()))
}

/// The configurations of one folder, at least one.
fn fixtures(folder: &str) -> Vec<PathBuf> {
    let found = files(folder, "yaml");
    assert!(!found.is_empty(), "no .yaml in tests/fixtures/config/{folder}");
    found
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|own| own == extension)).collect();
    found.sort();
    found
}
