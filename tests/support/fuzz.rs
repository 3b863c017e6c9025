//! Fuzzing: mutations of the files in `tests/fixtures`. Nothing panics, and each error is reported.
//! `scripts/fuzz` runs millions where the suite runs thousands.

use std::fs;
use std::path::Path;

/// Cases of a target: `few` in the suite, multiplied by the variable in the long run.
pub(crate) fn cases(few: u64) -> u64 {
    let times = std::env::var("TOLLGATE_FUZZ").ok().and_then(|text| text.parse().ok());
    few * times.unwrap_or(1)
}

/// Every file in these folders of `tests/fixtures`, in the order of their names.
pub(crate) fn corpus(folders: &[&str]) -> Vec<Vec<u8>> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<_> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(all.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "nothing in {folders:?}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}
