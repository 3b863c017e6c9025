//! The scripts. Each consists of parts, and servers know it by the SHA-1 of the whole.
//!
//! Each algorithm has a script for checks, and one for all other operations. A third one does both
//! under policies with holds, and a fourth one sells leases to callers. Checks are frequent, so
//! those of strings are written out for each number of quotas (ADR 6). `tollgate scripts` lists and
//! prints what runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Cmd;

use super::call::By;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::MAX_QUOTAS;
use crate::store::Work;

/// The parts of a script.
macro_rules! lua {
    ($($path:literal),+) => {
        concat!($(include_str!(concat!("../scripts/", $path))),+)
    };
}

/// The parts of an algorithm's scripts.
#[derive(Clone, Copy)]
struct Parts {
    /// Defines the state of a key.
    state: &'static str,
    check: &'static str,
    operation: &'static str,
}

/// The parts by [`Algorithm`], in its order.
const PARTS: [Parts; ALGORITHMS.len()] = [
    Parts {
        state: lua!("shared/head.lua", "shared/state.lua", "window/window_state.lua"),
        check: lua!("window/window_check.lua"),
        operation: lua!("window/window.lua"),
    },
    Parts {
        state: lua!(
            "shared/head.lua",
            "shared/state.lua",
            "fixed/fixed.lua",
            "pair/pair_state.lua",
            "pair/pair_columns.lua"
        ),
        check: lua!("pair/pair_check.lua"),
        operation: lua!("pair/pair.lua", "fixed/fixed_operations.lua"),
    },
    Parts {
        state: lua!(
            "shared/head.lua",
            "shared/state.lua",
            "bucket/bucket.lua",
            "pair/pair_state.lua",
            "bucket/bucket_carry.lua",
            "pair/pair_columns.lua"
        ),
        check: lua!("pair/pair_check.lua"),
        operation: lua!("bucket/bucket_line.lua", "pair/pair.lua", "bucket/bucket_operations.lua"),
    },
    Parts { state: lua!("log/log_head.lua"), check: lua!("log/log_check.lua"), operation: lua!("log/log.lua") },
    Parts {
        state: lua!("counter/counter_head.lua"),
        check: lua!("counter/counter_check.lua"),
        operation: lua!("counter/counter.lua"),
    },
];

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingWindow,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// The script for one task under one algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptId {
    algorithm: Algorithm,
    task: Task,
    /// The number of quotas that it is written out for, from 1.
    quotas: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Check,
    /// A check of sliding windows that records its charges ahead ([`Policy::ahead`]), or sells a
    /// lease.
    CheckAhead,
    Operation,
    /// Any operation, a check too, under a policy with holds; and the undo of an id.
    Hold,
    /// The sale of a lease to a caller, and its settle.
    Sale,
    ReadLog,
}

const TASKS: [Task; 6] = [Task::Check, Task::CheckAhead, Task::Operation, Task::Hold, Task::Sale, Task::ReadLog];

impl ScriptId {
    pub fn of(policy: &Policy, work: &Work) -> Self {
        let is_window = policy.algorithm == Algorithm::SlidingWindow;
        let task = match work {
            // A plain read of ticks has no script.
            Work::ReadLog(_) | Work::ReadTicks { .. } => Task::ReadLog,
            _ if work.is_held(policy) => Task::Hold,
            _ if work.is_of_caller(policy) => Task::Sale,
            Work::Lease { .. } if is_window => Task::CheckAhead,
            Work::Take(_) | Work::Look(_) if is_window && policy.ahead() > 0 => Task::CheckAhead,
            Work::Take(_) | Work::Look(_) => Task::Check,
            _ => Task::Operation,
        };
        let quotas = if is_written_out(policy.algorithm, task) { policy.quotas.len().clamp(1, MAX_QUOTAS) } else { 1 };
        Self { algorithm: policy.algorithm, task, quotas }
    }

    /// Whether it is the one for operations other than checks.
    pub fn is_operation(self) -> bool {
        matches!(self.task, Task::Operation | Task::Hold | Task::Sale)
    }

    /// Whether its checks have the time ahead and the mark of a lease among their numbers.
    pub fn records_ahead(self) -> bool {
        self.task == Task::CheckAhead
    }

    /// All scripts.
    pub fn all() -> impl Iterator<Item = Self> {
        let tasks = ALGORITHMS.into_iter().flat_map(|algorithm| TASKS.map(|task| (algorithm, task)));
        let exists = |(algorithm, task): &(Algorithm, Task)| match task {
            Task::CheckAhead => *algorithm == Algorithm::SlidingWindow,
            Task::ReadLog => *algorithm == Algorithm::SlidingLog,
            Task::Check | Task::Operation | Task::Hold | Task::Sale => true,
        };
        tasks.filter(exists).flat_map(|(algorithm, task)| {
            let most = if is_written_out(algorithm, task) { MAX_QUOTAS } else { 1 };
            (1..=most).map(move |quotas| Self { algorithm, task, quotas })
        })
    }

    /// The name for people, such as `sliding-window-check-2`.
    pub fn name(self) -> String {
        let task = match self.task {
            Task::Check => "check",
            Task::CheckAhead => "check-ahead",
            Task::Operation => "operation",
            Task::Hold => "hold",
            Task::Sale => "sale",
            Task::ReadLog => "read",
        };
        let quotas =
            if is_written_out(self.algorithm, self.task) { format!("-{}", self.quotas) } else { String::new() };
        format!("{}-{task}{quotas}", self.algorithm.name())
    }

    /// Joins the parts of the script, which repeat some lines for each quota.
    fn write_out(self) -> String {
        let Parts { state, check, operation } = PARTS[self.algorithm as usize];
        let source = match self.task {
            Task::Check | Task::CheckAhead => {
                let check = check.replace("-- decide\n", lua!("shared/decide.lua"));
                let ahead = |section: &str| if self.records_ahead() { section.to_owned() } else { String::new() };
                [state, &replaced(&check, "ahead", ahead)].concat()
            }
            Task::Operation | Task::Hold | Task::Sale => {
                let (head, end) = (lua!("operation/operation_head.lua"), lua!("operation/operation.lua"));
                let is_held = self.task == Task::Hold;
                let hold = if is_held { lua!("operation/hold.lua") } else { "" };
                // The holds of the key have read TIME.
                let state = if is_held { state.replace(TIME, "now = called_at") } else { state.to_owned() };
                let source = [head, hold, &state, operation, end].concat();
                let own =
                    |name| move |section: &str| if name == self.task { section.to_owned() } else { String::new() };
                let sections = [("plain", Task::Operation), ("hold", Task::Hold), ("sale", Task::Sale)];
                sections.into_iter().fold(source, |source, (name, task)| replaced(&source, name, own(task)))
            }
            Task::ReadLog => lua!("log/log_read.lua").to_owned(),
        };
        replaced(&source, "each", |each| {
            let of = |quota: usize| each.replace("[_q", &format!("[{quota}")).replace("_q", &format!("_{quota}"));
            (1..=self.quotas).map(of).collect()
        })
    }

    /// Returns the source.
    pub fn source(self) -> &'static str {
        &self.loaded().source
    }

    /// Returns the hash for a call, and marks the script as used.
    pub fn hash(self) -> &'static str {
        let script = self.loaded();
        if !script.used.load(Ordering::Relaxed) {
            script.used.store(true, Ordering::Relaxed);
        }
        &script.hash
    }

    fn loaded(self) -> &'static Loaded {
        SCRIPTS[self.algorithm as usize][self.task as usize][self.quotas - 1].get_or_init(|| {
            let source = self.write_out();
            let hash = redis::Script::new(&source).get_hash().to_owned();
            Loaded { source, hash, used: AtomicBool::new(false) }
        })
    }
}

/// Where the part of each algorithm reads TIME.
const TIME: &str = "local time = redis.call('TIME')\n  now = time[1] * 1000000 + time[2]";

/// Whether the script is written out for each number of quotas.
fn is_written_out(algorithm: Algorithm, task: Task) -> bool {
    let is_string = !matches!(algorithm, Algorithm::SlidingLog | Algorithm::SlidingCounter);
    is_string && matches!(task, Task::Check | Task::CheckAhead)
}

/// Replaces each section of a source that lies between `-- <name>` and `-- end <name>`.
fn replaced(source: &str, name: &str, by: impl Fn(&str) -> String) -> String {
    let (begin, end) = (format!("-- {name}\n"), format!("-- end {name}\n"));
    let mut pieces = source.split(&begin);
    let before = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(before, |before, piece| {
        let (section, after) = piece.split_once(&end).unwrap_or((piece, ""));
        before + &by(section) + after
    })
}

/// A source and its SHA-1, in hex.
#[derive(Debug)]
struct Loaded {
    source: String,
    hash: String,
    /// Whether this process has called it.
    used: AtomicBool,
}

/// The scripts by algorithm, task and number of quotas.
static SCRIPTS: [[[OnceLock<Loaded>; MAX_QUOTAS]; TASKS.len()]; PARTS.len()] =
    [const { [const { [const { OnceLock::new() }; MAX_QUOTAS] }; TASKS.len()] }; PARTS.len()];

/// Most policies have at most this many quotas.
const USUAL_QUOTAS: usize = 3;

/// Returns the scripts that a connection loads. These are the scripts that this process has called,
/// or at first the usual ones. Each costs the server 0.4 ms while checks wait. A call by EVAL later
/// brings a missing script.
pub fn wanted() -> Vec<&'static str> {
    let known = SCRIPTS.iter().flatten().flatten().filter_map(OnceLock::get);
    let used = known.filter(|script| script.used.load(Ordering::Relaxed));
    let used: Vec<&str> = used.map(|script| script.source.as_str()).collect();
    if used.is_empty() { usual().map(ScriptId::source).collect() } else { used }
}

/// Returns the scripts that a new process is likely to call.
fn usual() -> impl Iterator<Item = ScriptId> {
    ScriptId::all()
        .filter(|script| script.quotas <= USUAL_QUOTAS && matches!(script.task, Task::Check | Task::Operation))
}

/// The room that most calls need, so that they are written without growing.
const ARGUMENTS: usize = 16;
const BYTES: usize = 512;

/// Begins a call.
pub fn begin(by: By, script: ScriptId) -> Cmd {
    let mut cmd = Cmd::with_capacity(ARGUMENTS, BYTES);
    cmd.arg(by.command()).arg(match by {
        By::Hash | By::Load => script.hash(),
        By::Source => script.source(),
    });
    cmd
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The parts of a script share one scope, so a later part must not hide a name of an earlier
    /// one. The number of quotas is the same in each.
    #[test]
    fn no_part_hides_a_name_of_another() {
        let mut twice = Vec::new();
        for script in ScriptId::all() {
            let mut names = HashSet::new();
            for line in script.source().lines().filter_map(|line| line.strip_prefix("local ")) {
                let line = line.strip_prefix("function ").unwrap_or(line);
                let declared = line.split(['=', '(']).next().unwrap_or_default();
                for name in declared.split(',').map(str::trim).filter(|name| !["_", "quotas"].contains(name)) {
                    if !names.insert(name) {
                        twice.push((script.name(), name));
                    }
                }
            }
            assert!(!names.is_empty(), "{}", script.name());
        }
        assert_eq!(twice, []);
    }

    #[test]
    fn holds_of_each_algorithm_read_time_once() {
        for script in ScriptId::all().filter(|script| script.task == Task::Hold) {
            let source = script.source();
            assert!(source.contains("now = called_at"), "{}", script.name());
            assert!(!source.contains(TIME), "{}", script.name());
        }
    }
}
