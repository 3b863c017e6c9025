//! The program: parses the command line and exits with the result of one function.

use std::process::ExitCode;

use tollgate::cli::{parse, run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run(parse())
}
