//! The command line: one file per command.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

mod serve;

mod envoy_ratelimit;

mod descriptors;

mod check;

mod settle;

mod validate;

mod explain;

mod import;

mod usage;

mod refund;

mod reload;

mod policies;

mod overrides;

mod health;

mod scripts;

mod top;

mod token;

mod documents;

pub mod bearer;

mod bench;

mod offline;

mod replay;

mod diff;

mod client;

mod bounded;

mod shown;

pub mod target;

mod load;

mod log;

/// A rate limiter that services call over HTTP.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer checks.
    Serve(serve::Args),
    /// Answer Envoy by the variables of envoyproxy/ratelimit, in its place.
    EnvoyRatelimit(envoy_ratelimit::Args),
    /// Ask a running node for one check. Exit code: 0 allowed, 1 denied, 2 failed.
    Check(check::Args),
    /// Show what a key has used on a running node, without a charge. Exit code: 0 shown, 1 not.
    Usage(usage::Args),
    /// Give a charge back on a running node, by its id or by its cost. Exit code: 0 done, 1 not.
    Refund(refund::Args),
    /// Forget the counts of a key on a running node. Exit code: 0 done, 1 not.
    Reset(usage::ResetArgs),
    /// Make a running node load its configuration again. Exit code: 0 loaded, 1 not.
    Reload(reload::Args),
    /// End the hold of a check with its true cost. Exit code: 0 settled, 1 not, 2 failed.
    Settle(settle::Settle),
    /// Keep the hold of a check open. Exit code: 0 renewed, 1 not, 2 failed.
    Renew(settle::Hold),
    /// Read a configuration file and report every fault. Exit code: 0 none, 1 faults.
    Validate(validate::Args),
    /// Say what a policy of a file or of a running node does with a key: list or override, quotas,
    /// Redis keys. With
    /// `--gate`: what a gate does with a request. With `--domain`: which rule decides a descriptor
    /// of Envoy. Exit code: 0 explained, 1 the file, the policy or the key is wrong.
    Explain(explain::Args),
    /// Convert the limits of another program.
    Import(import::Args),
    /// Show the policies of a running node. Exit code: 0 shown, 1 not.
    Policies(policies::Args),
    /// List and change the overrides of a running node. Exit code: 0 done, 1 not.
    Overrides(overrides::Args),
    /// Ask a running node whether it is ready. Exit code: 0 ready, 1 not.
    Health(health::Args),
    /// Print a script that servers run, with its keys, arguments and reply. Without a name: the
    /// names of all. Exit code: 0 printed, 1 not.
    Scripts(scripts::Args),
    /// Watch running nodes: rates, decisions, the keys denied most, the shards. Exit code: 0 ended,
    /// 1 no node answered.
    Top(top::Args),
    /// Make tokens for callers.
    Token(token::Args),
    /// Print the completions of a shell, for its own folder of them.
    Completions(documents::Completions),
    /// Print the man page of the program, or of a command.
    Man(documents::Man),
    /// Print the JSON Schema of the configuration, for editors.
    Schema,
    /// Put load on a running node, by the program `tollgate-bench`.
    #[command(hide = true)]
    Bench(bench::Args),
    /// Try policies on a log, offline. Exit code: 0 replayed, 1 wrongly asked, 2 the log cannot be
    /// read.
    Replay(replay::Args),
    /// Compare the decisions of two files on a log, offline. Exit code: 0 compared, 1 more newly
    /// denied than `--fail-over` permits, 2 failed.
    Diff(diff::Args),
}

/// Parses the command line of this process. An error is printed and ends the process.
///
/// An empty variable counts as unset, because templates leave unused variables empty.
pub fn parse<P: Parser>() -> P {
    let matches = with_variables(P::command()).try_get_matches_from(arguments());
    matches.and_then(|matches| P::from_arg_matches(&matches)).unwrap_or_else(|told| exit(&told))
}

/// The arguments of this process. As a link with the name of the reference the program is its stand-in.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let is_link = |program: &OsString| Path::new(program).file_name() == Some(OsStr::new(envoy_ratelimit::PROGRAM));
    if arguments.first().is_some_and(is_link) {
        arguments.insert(1, "envoy-ratelimit".into());
    }
    arguments
}

/// Prints clap's output and ends the process: the help, the version, or an error.
fn exit(told: &clap::Error) -> ! {
    let code = match written(show(told)) {
        Err(reason) if !told.use_stderr() => {
            complain(&reason);
            1
        }
        _ => told.exit_code(),
    };
    std::process::exit(code)
}

/// In colour, unless the text contains characters that are unsafe on a terminal.
fn show(told: &clap::Error) -> std::io::Result<()> {
    let text = told.render().to_string();
    match shown::lines(&text) {
        shown if shown == text => told.print(),
        shown => {
            say(shown.trim_end());
            Ok(())
        }
    }
}

/// Ignores empty variables, and hides the values of all others in help texts: a URL may have a
/// password.
fn with_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if arg.get_env().is_some_and(is_empty) { arg.env(Resettable::Reset) } else { arg })
        .mut_args(|arg| arg.hide_env_values(true))
        .mut_subcommands(with_variables)
}

/// Runs the command. Each has its own exit code for a failure.
pub fn run(cli: Cli) -> ExitCode {
    let (result, failed) = match cli.command {
        Command::Serve(args) => return serve::run(args),
        Command::EnvoyRatelimit(args) => return envoy_ratelimit::run(&args),
        Command::Replay(args) => return replay::run(&args),
        Command::Diff(args) => return diff::run(&args),
        Command::Check(args) => (check::run(&args), 2),
        Command::Usage(args) => (usage::run(&args), 1),
        Command::Refund(args) => (refund::run(&args), 1),
        Command::Reset(args) => (usage::reset(&args), 1),
        Command::Reload(args) => (reload::run(&args), 1),
        Command::Settle(args) => (settle::settle(&args), 2),
        Command::Renew(args) => (settle::renew(&args), 2),
        Command::Validate(args) => (validate::run(&args), 1),
        Command::Explain(args) => (explain::run(&args), 1),
        Command::Import(args) => (import::run(&args), 1),
        Command::Policies(args) => (policies::run(&args), 1),
        Command::Overrides(args) => (overrides::run(&args), 1),
        Command::Health(args) => (health::run(&args), 1),
        Command::Scripts(args) => (scripts::run(&args), 1),
        Command::Top(args) => (top::run(args), 1),
        Command::Token(args) => (token::run(&args), 1),
        Command::Completions(args) => (documents::completions(&args), 1),
        Command::Man(args) => (documents::man(&args), 1),
        Command::Schema => (documents::schema(), 1),
        Command::Bench(args) => (bench::run(&args), 2),
    };
    result.unwrap_or_else(|reason| fail(&reason, failed))
}

/// Runs a future to its end. A name look-up or a sweep may still be running then.
fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// A message for each of these signals. A few may wait.
fn signals(kinds: &[SignalKind]) -> std::io::Result<mpsc::Receiver<()>> {
    let (sender, received) = mpsc::channel(16);
    for kind in kinds {
        let (mut signal, sender) = (signal(*kind)?, sender.clone());
        tokio::spawn(async move { while signal.recv().await.is_some() && sender.send(()).await.is_ok() {} });
    }
    Ok(received)
}

/// Prints the result of a command and returns `code`, or `failed` if the write fails.
fn tell(text: &str, code: ExitCode, failed: u8) -> ExitCode {
    match print(text) {
        Ok(()) => code,
        Err(reason) => fail(&reason, failed),
    }
}

/// Reports why a command failed and returns `code`.
fn fail(reason: &str, code: u8) -> ExitCode {
    complain(reason);
    ExitCode::from(code)
}

/// Writes to standard output, escaped for a terminal. A closed pipe is no failure.
///
/// # Errors
/// When the write fails, for instance on a full disk.
pub fn print(text: &str) -> Result<(), String> {
    print_to_reader(text).map(|_| ())
}

/// The same. Returns whether somebody still reads.
///
/// # Errors
/// As [`print`].
fn print_to_reader(text: &str) -> Result<bool, String> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    written(out.write_all(shown::lines(text).as_bytes()).and_then(|()| out.flush()))
}

fn written(result: std::io::Result<()>) -> Result<bool, String> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("standard output: {error}")),
        Ok(()) => Ok(true),
    }
}

/// Reports on standard error why a command failed; ignores write errors.
fn complain(reason: &str) {
    say(&format!("tollgate: {reason}"));
}

/// Writes lines to standard error, escaped for a terminal.
fn say(lines: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("{}\n", shown::lines(lines)).as_bytes());
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    /// `tollgate COMMAND --help` describes the other flags.
    #[test]
    fn every_flag_of_serve_and_of_who_asks_a_node_is_in_the_document() {
        let document = include_str!("../../docs/configuration.md");
        let rows: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
        for command in
            [serve::Args::augment_args(clap::Command::new("")), client::Node::augment_args(clap::Command::new(""))]
        {
            let flags: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            assert!(flags.len() > 3, "misread: {flags:?}");
            for flag in flags {
                let is_told = |row: &&str| row.contains(&format!("`--{flag} "));
                assert!(rows.iter().any(is_told), "docs/configuration.md has no row for --{flag}");
            }
        }
    }
}
