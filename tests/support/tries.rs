//! Tests that a stall of a busy machine may spoil: a real fault spoils every try.

use std::io::Write;

/// Runs `test` until it passes, at most `most` times, and reports the number of tries. The runner
/// does not capture this line, so that the log of a green run shows how close it was.
pub(crate) fn passes_within(most: usize, mut test: impl FnMut() -> Result<(), String>) {
    let mut faults = Vec::new();
    while let Err(fault) = test() {
        faults.push(fault);
        assert!(faults.len() < most, "failed {most} times: {faults:#?}");
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "TRIES {name}: {} of {most} {faults:?}", faults.len() + 1);
}
