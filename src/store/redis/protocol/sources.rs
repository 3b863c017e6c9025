//! The scripts. Each consists of parts, and servers know it by the SHA-1 of the whole.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Cmd;

use super::call::{By, is_check};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::MAX_QUOTAS;
use crate::store::Work;

/// A part of a script.
macro_rules! lua {
    ($path:literal) => {
        include_str!(concat!("../scripts/", $path))
    };
}

/// Joins the parts of one algorithm's scripts: reserve, charge once, take back, check, and for logs
/// read.
macro_rules! scripts {
    (take: [$($take:literal),*], noted: [$($noted:literal),*], back: [$($back:literal),*], check: [$($check:literal),*]
     $(, read: $read:literal)?) => {
        [
            concat!(lua!("reserve/hold_head.lua"), $(lua!($take),)* $(lua!($noted),)* lua!("reserve/hold.lua")),
            concat!(lua!("shared/record.lua"), lua!("once/once_head.lua"), $(lua!($take),)* $(lua!($noted),)* lua!("once/once.lua")),
            concat!(lua!("shared/record.lua"), lua!("refund/back_head.lua"), $(lua!($back),)* lua!("refund/back.lua")),
            concat!($(lua!($check),)* "return reply\n"),
            $(lua!($read))?
        ]
    };
}

/// The scripts by [`Algorithm`], in its order, then by [`Task`].
const SOURCES: [&[&str]; 5] = [
    &scripts!(
        take: ["shared/state.lua", "window/window_state.lua", "window/window_head.lua", "window/window.lua"],
        noted: ["window/window_noted.lua"],
        back: ["shared/state.lua", "window/window_state.lua", "window/window_head.lua", "window/window_back.lua"],
        check: ["shared/check_head.lua", "shared/state.lua", "window/window_state.lua", "window/window_check.lua"]
    ),
    &scripts!(
        take: ["shared/state.lua", "pair/pair_head.lua", "fixed/fixed.lua", "pair/pair_state.lua", "pair/pair_read.lua", "pair/pair.lua"],
        noted: ["fixed/fixed_noted.lua"],
        back: ["shared/state.lua", "pair/pair_head.lua", "fixed/fixed.lua", "pair/pair_state.lua", "pair/pair_read.lua", "pair/pair_back.lua", "fixed/fixed_back.lua"],
        check: ["shared/check_head.lua", "shared/state.lua", "fixed/fixed.lua", "pair/pair_state.lua", "pair/pair_check.lua"]
    ),
    &scripts!(
        take: ["shared/state.lua", "pair/pair_head.lua", "bucket/bucket.lua", "pair/pair_state.lua", "pair/pair_read.lua", "pair/pair.lua"],
        noted: ["bucket/bucket_noted.lua"],
        back: ["shared/state.lua", "pair/pair_head.lua", "bucket/bucket.lua", "pair/pair_state.lua", "pair/pair_read.lua", "pair/pair_back.lua", "bucket/bucket_back.lua"],
        check: ["shared/check_head.lua", "shared/state.lua", "bucket/bucket.lua", "pair/pair_state.lua", "pair/pair_check.lua"]
    ),
    &scripts!(
        take: ["log/log_head.lua", "log/log.lua"],
        noted: ["log/log_noted.lua"],
        back: ["log/log_head.lua", "log/log_back.lua"],
        check: ["log/log_head.lua", "log/log.lua"],
        read: "log/log_read.lua"
    ),
    &scripts!(
        take: ["counter/counter_head.lua", "counter/counter.lua"],
        noted: ["counter/counter_noted.lua"],
        back: ["counter/counter_head.lua", "counter/counter_back.lua"],
        check: ["counter/counter_head.lua", "counter/counter.lua", "counter/counter_check.lua"]
    ),
];

/// The index of the check among the scripts of an algorithm.
const CHECK: usize = 3;

/// The algorithms whose checks share calls, with one script for each number of quotas. They come
/// first.
const SHARING: usize = 3;

/// The scripts with their SHA-1.
static SCRIPTS: LazyLock<Vec<Vec<Loaded>>> = LazyLock::new(|| {
    let mut sources = SOURCES.map(|scripts| scripts.iter().map(|source| (*source).to_owned()).collect::<Vec<_>>());
    for scripts in &mut sources[..SHARING] {
        let check = scripts.split_off(CHECK).concat();
        scripts.extend((1..=MAX_QUOTAS).map(|quotas| written_out(&check, quotas)));
    }
    let loaded = |(place, source)| Loaded::new(source, place < CHECK + USUAL_QUOTAS);
    sources.into_iter().map(|scripts| scripts.into_iter().enumerate().map(loaded).collect()).collect()
});

/// Most policies have at most this many quotas.
const USUAL_QUOTAS: usize = 3;

/// A source and its SHA-1, in hex.
#[derive(Debug)]
struct Loaded {
    source: String,
    hash: String,
    /// Whether a new process is likely to call it.
    is_usual: bool,
    /// Whether this process has called it.
    used: AtomicBool,
}

impl Loaded {
    fn new(source: String, is_usual: bool) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash, is_usual, used: AtomicBool::new(false) }
    }
}

/// Writes a check out for this number of quotas.
fn written_out(check: &str, quotas: usize) -> String {
    let (mut source, mut rest) = (String::new(), check);
    while let Some((before, (each, after))) = parts(rest) {
        source.push_str(before);
        for quota in 1..=quotas {
            let number = quota.to_string();
            source.push_str(&each.replace("[_q", &format!("[{number}")).replace("_q", &format!("_{number}")));
        }
        rest = after;
    }
    source + rest
}

/// Returns the text before the next part that repeats for each quota, that part, and the text
/// after.
fn parts(source: &str) -> Option<(&str, (&str, &str))> {
    let (before, rest) = source.split_once("-- each\n")?;
    Some((before, rest.split_once("-- end each\n")?))
}

/// The script for one task under one algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptId {
    algorithm: Algorithm,
    task: Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Reserve,
    Once,
    TakeBack,
    /// Shared checks have one script for each number of quotas.
    Check {
        quotas: usize,
    },
    ReadLog,
}

impl ScriptId {
    pub fn of(policy: &Policy, work: &Work) -> Self {
        let task = match work {
            Work::Reserve { .. } => Task::Reserve,
            Work::Once { .. } => Task::Once,
            Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => Task::TakeBack,
            Work::Take(_) | Work::Look(_) if is_check(policy, work) => {
                Task::Check { quotas: policy.quotas.len().clamp(1, MAX_QUOTAS) }
            }
            Work::Take(_) | Work::Look(_) => Task::Check { quotas: 1 },
            // A plain read of ticks has no script.
            Work::ReadLog(_) | Work::ReadTicks(_) => {
                return Self { algorithm: Algorithm::SlidingLog, task: Task::ReadLog };
            }
        };
        Self { algorithm: policy.algorithm, task }
    }

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
        let place = match self.task {
            Task::Reserve => 0,
            Task::Once => 1,
            Task::TakeBack => 2,
            Task::Check { quotas } => CHECK + quotas - 1,
            Task::ReadLog => CHECK + 1,
        };
        &SCRIPTS[self.algorithm as usize][place]
    }
}

/// Returns the scripts that a connection loads. These are the scripts that this process has called,
/// or at first the usual ones. Each costs the server 0.4 ms while checks wait. A call by EVAL later
/// brings a missing script.
pub fn wanted() -> impl Iterator<Item = &'static str> {
    let used = |script: &&Loaded| script.used.load(Ordering::Relaxed);
    let is_new = !SCRIPTS.iter().flatten().any(|script| used(&script));
    SCRIPTS
        .iter()
        .flatten()
        .filter(move |script| used(script) || is_new && script.is_usual)
        .map(|script| script.source.as_str())
}

/// The room that most calls need, so that they are written without growing.
const ARGUMENTS: usize = 16;
const BYTES: usize = 512;

/// Begins a call.
pub fn begin(by: By, script: ScriptId) -> Cmd {
    let mut cmd = Cmd::with_capacity(ARGUMENTS, BYTES);
    cmd.arg(by.command()).arg(match by {
        By::Hash => script.hash(),
        By::Source => script.source(),
    });
    cmd
}
