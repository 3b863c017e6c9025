//! Loads every configuration below `tests/fixtures/config`. The good ones load. Each bad one
//! reports exactly the faults in its `.expected`, as `line:column: message`. New configuration
//! rules get a fixture here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tollgate::config::{Config, Faults, Overrides, Source, load};

#[test]
fn bad_configurations_report_expected_faults() {
    let bad = files("bad", "yaml").unwrap();
    assert!(!bad.is_empty(), "no .yaml in tests/fixtures/config/bad");
    let wrong: String = bad.iter().filter_map(|path| differences(path)).collect();
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn good_configurations_load() {
    let good = files("good", "yaml").unwrap();
    assert!(!good.is_empty(), "no .yaml in tests/fixtures/config/good");
    let refused: String =
        good.iter().filter_map(|path| loaded(path).err()).map(|faults| format!("{faults}\n")).collect();
    assert!(refused.is_empty(), "\n{refused}");
}

#[test]
fn every_expected_file_has_its_configuration() {
    let mut alone = files("bad", "expected").unwrap();
    alone.retain(|path| !path.with_extension("yaml").exists());
    assert!(alone.is_empty(), "no .yaml beside {alone:?}");
}

fn loaded(path: &Path) -> Result<Config, Faults> {
    load(&Source::read(path)?, &Overrides::default(), 0)
}

/// The differences between the faults of the file and its expected faults.
fn differences(path: &Path) -> Option<String> {
    let Ok(expected) = fs::read_to_string(path.with_extension("expected")) else {
        return Some(format!("{}\n  has no .expected beside it\n", path.display()));
    };
    let expected: Vec<&str> = expected.lines().collect();
    let found = loaded(path).map_or_else(|faults| faults.iter().map(ToString::to_string).collect(), |_| Vec::new());
    let missing = expected.iter().filter(|line| !found.iter().any(|found| found == *line));
    let unexpected = found.iter().filter(|line| !expected.contains(&line.as_str()));
    let missing = missing.map(|line| format!("  expected: {line}\n"));
    let unexpected = unexpected.map(|line| format!("  found:    {line}\n"));
    let lines: String = missing.chain(unexpected).collect();
    let note = if lines.is_empty() { "  the lines of .expected in another order or number, or none\n" } else { "" };
    (expected != found || expected.is_empty()).then(|| format!("{}\n{lines}{note}", path.display()))
}

/// The files of one folder with that extension, by name.
fn files(folder: &str, extension: &str) -> io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config").join(folder);
    let paths: io::Result<Vec<PathBuf>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut found = paths?;
    found.retain(|path| path.extension().is_some_and(|own| own == extension));
    found.sort();
    Ok(found)
}
