//! The scripts. Each consists of parts, and servers know it by the SHA-1 of the whole.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Cmd;

use super::call::By;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::MAX_QUOTAS;
use crate::store::{Over, Work};

/// A part of a script.
macro_rules! lua {
    ($($path:literal),+) => {
        concat!($(include_str!(concat!("../scripts/", $path))),+)
    };
}

/// The parts of an algorithm's scripts, apart from those of their tasks.
#[derive(Clone, Copy)]
struct Parts {
    /// Begins each script, and defines the state of a key.
    state: &'static str,
    /// The results of a charge, for reservations and ids.
    noted: &'static str,
    check: &'static str,
    back: &'static str,
    drain: &'static str,
}

/// The parts by [`Algorithm`], in its order.
const PARTS: [Parts; 5] = [
    Parts {
        state: lua!("shared/head.lua", "shared/state.lua", "window/window_state.lua"),
        noted: lua!("window/window_noted.lua"),
        check: lua!("window/window_check.lua"),
        back: lua!("window/window_back.lua"),
        drain: lua!("window/window_drain.lua"),
    },
    Parts {
        state: lua!(
            "shared/head.lua",
            "shared/state.lua",
            "fixed/fixed.lua",
            "pair/pair_state.lua",
            "fixed/fixed_pairs.lua"
        ),
        noted: lua!("pair/pair_noted.lua", "fixed/fixed_noted.lua"),
        check: lua!("pair/pair_check.lua"),
        back: lua!("pair/pair_noted.lua", "pair/pair_quotas.lua", "pair/pair_back.lua", "fixed/fixed_back.lua"),
        drain: lua!("pair/pair_quotas.lua", "fixed/fixed_drain.lua", "pair/pair_drain.lua"),
    },
    Parts {
        state: lua!(
            "shared/head.lua",
            "shared/state.lua",
            "bucket/bucket.lua",
            "pair/pair_state.lua",
            "bucket/bucket_pairs.lua"
        ),
        noted: lua!("pair/pair_noted.lua", "bucket/bucket_noted.lua"),
        check: lua!("pair/pair_check.lua"),
        back: lua!("pair/pair_noted.lua", "pair/pair_quotas.lua", "pair/pair_back.lua", "bucket/bucket_back.lua"),
        drain: lua!("pair/pair_quotas.lua", "bucket/bucket_drain.lua", "pair/pair_drain.lua"),
    },
    Parts {
        state: lua!("log/log_head.lua"),
        noted: lua!("log/log_noted.lua"),
        check: lua!("log/log_charge.lua", "log/log.lua"),
        back: lua!("log/log_back.lua"),
        drain: lua!("log/log_charge.lua", "log/log_drain.lua"),
    },
    Parts {
        state: lua!("counter/counter_head.lua"),
        noted: lua!("counter/counter_noted.lua"),
        check: lua!("counter/counter.lua", "counter/counter_charge.lua", "counter/counter_note.lua"),
        back: lua!("counter/counter_back.lua"),
        drain: lua!("counter/counter_drain.lua", "counter/counter_charge.lua", "counter/counter_after.lua"),
    },
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
    /// A check whose charges are recorded ahead: [`Policy::ahead`].
    CheckAhead,
    Reserve,
    Lease,
    Once,
    TakeBack,
    ReadLog,
    Drain,
    DrainOnce,
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingWindow,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

const TASKS: [Task; 9] = [
    Task::Check,
    Task::CheckAhead,
    Task::Reserve,
    Task::Lease,
    Task::Once,
    Task::TakeBack,
    Task::ReadLog,
    Task::Drain,
    Task::DrainOnce,
];

impl ScriptId {
    pub fn of(policy: &Policy, work: &Work) -> Self {
        let task = match work {
            Work::Take(_) | Work::Look(_) if work.ahead(policy) > 0 => Task::CheckAhead,
            Work::Take(_) | Work::Look(_) => Task::Check,
            Work::Reserve { .. } => Task::Reserve,
            Work::Lease { .. } => Task::Lease,
            Work::Drain(_) => Task::Drain,
            Work::Once { over: Over::Deny, .. } => Task::Once,
            Work::Once { over: Over::Drain, .. } => Task::DrainOnce,
            Work::GiveBack(_) | Work::Return(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => Task::TakeBack,
            // A plain read of ticks has no script.
            Work::ReadLog(_) | Work::ReadTicks { .. } => Task::ReadLog,
        };
        let is_written_out = !matches!(policy.algorithm, Algorithm::SlidingLog | Algorithm::SlidingCounter)
            && matches!(task, Task::Check | Task::CheckAhead | Task::Reserve | Task::Lease | Task::Once);
        let quotas = if is_written_out { policy.quotas.len().clamp(1, MAX_QUOTAS) } else { 1 };
        Self { algorithm: policy.algorithm, task, quotas }
    }

    /// Whether it records charges ahead of TIME.
    pub fn records_ahead(self) -> bool {
        let pair = matches!(self.algorithm, Algorithm::FixedWindow | Algorithm::TokenBucket);
        matches!(self.task, Task::CheckAhead | Task::Lease) && !pair
    }

    /// Whether the time ahead is an argument of its own. Sliding windows have it among the numbers
    /// of each check, since their checks share calls.
    pub fn takes_instant_apart(self) -> bool {
        self.records_ahead() && self.algorithm != Algorithm::SlidingWindow
    }

    /// Joins the parts of the script.
    fn parts(self) -> String {
        let Parts { state, noted, check, back, drain } = PARTS[self.algorithm as usize];
        let check = check.replace("-- decide\n", lua!("shared/decide.lua"));
        let kept = |section: &str| if self.records_ahead() { section.to_owned() } else { String::new() };
        let [check, drain] = [&*check, drain].map(|part| replaced(part, "ahead", kept));
        let (check, drain) = (&*check, &*drain);
        let ahead = if self.takes_instant_apart() { lua!("reserve/ahead_head.lua") } else { "" };
        match self.task {
            Task::Check | Task::CheckAhead => {
                [ahead, state, &replaced(check, "noted", |_| String::new()), "return reply\n"].concat()
            }
            Task::Reserve | Task::Lease => {
                let (head, hold) = (lua!("reserve/hold_head.lua"), lua!("reserve/hold.lua"));
                [head, ahead, state, noted, hold, check, "return reply\n"].concat()
            }
            Task::Drain => [state, noted, &replaced(drain, "noted", |_| String::new()), "return reply\n"].concat(),
            Task::DrainOnce => {
                let head = lua!("shared/record.lua", "once/once_head.lua");
                [head, state, noted, drain, lua!("drain/drain_once.lua")].concat()
            }
            Task::Once => {
                let head = lua!("shared/record.lua", "once/once_head.lua");
                [head, state, noted, lua!("once/once_note.lua"), check, lua!("once/once.lua")].concat()
            }
            Task::TakeBack => {
                [lua!("shared/record.lua", "refund/back_head.lua"), state, back, lua!("refund/back.lua")].concat()
            }
            Task::ReadLog => lua!("log/log_read.lua").to_owned(),
        }
    }

    /// Returns the source, which repeats some parts for each quota.
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
            let source = replaced(&self.parts(), "each", |each| {
                let of = |quota: usize| each.replace("[_q", &format!("[{quota}")).replace("_q", &format!("_{quota}"));
                (1..=self.quotas).map(of).collect()
            });
            let hash = redis::Script::new(&source).get_hash().to_owned();
            Loaded { source, hash, used: AtomicBool::new(false) }
        })
    }
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
    let is_usual = |ScriptId { algorithm, task, quotas }: &ScriptId| match (algorithm, task) {
        (_, Task::Drain | Task::DrainOnce | Task::CheckAhead | Task::Lease) => false,
        (Algorithm::SlidingLog, _) => *quotas == 1,
        (Algorithm::SlidingCounter, task) => *quotas == 1 && *task != Task::ReadLog,
        (_, Task::Check) => *quotas <= USUAL_QUOTAS,
        (_, task) => *quotas == 1 && *task != Task::ReadLog,
    };
    let tasks = ALGORITHMS.into_iter().flat_map(|algorithm| TASKS.map(|task| (algorithm, task)));
    tasks
        .flat_map(|(algorithm, task)| (1..=USUAL_QUOTAS).map(move |quotas| ScriptId { algorithm, task, quotas }))
        .filter(is_usual)
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
