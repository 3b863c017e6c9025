//! Nodes with a shifted clock.

use std::process::Command;

use super::TOLLGATE;

/// Runs the real program under Debian's libfaketime, which shifts its wall clock and its monotonic
/// clock. The `faketime` command would add a process between the test and the program.
pub(crate) fn shifted() -> Command {
    let library = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|folder| folder.path().join("faketime"));
    let library = library.map(|folder| folder.join("libfaketimeMT.so.1")).find(|library| library.exists());
    let mut program = Command::new(TOLLGATE);
    program.env("LD_PRELOAD", library.expect("libfaketime is missing: apt-get install faketime"));
    program
}
