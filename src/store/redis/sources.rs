//! The scripts: each is put together from parts, and known to servers by the SHA-1 of the whole.

use std::sync::LazyLock;

use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::MAX_QUOTAS;
use crate::store::Work;

/// The parts of one algorithm's scripts in order, for taking and for what is built around it.
macro_rules! scripts {
    (take: [$($take:literal),*], noted: [$($noted:literal),*], back: [$($back:literal),*]) => {
        [
            concat!($(include_str!($take),)* "return reply\n"),
            concat!(include_str!("hold_head.lua"), $(include_str!($take),)* $(include_str!($noted),)* include_str!("hold.lua")),
            concat!(include_str!("once_head.lua"), $(include_str!($take),)* $(include_str!($noted),)* include_str!("once.lua")),
            concat!(include_str!("back_head.lua"), $(include_str!($back),)* include_str!("back.lua")),
        ]
    };
}

/// By algorithm, and then: taking, reserving, charging once, taking back.
const SOURCES: [[&str; 4]; 5] = [
    // What takes without more is `window_check.lua`.
    scripts!(
        take: ["window_head.lua", "window.lua"],
        noted: ["window_noted.lua"],
        back: ["window_head.lua", "window_back.lua"]
    ),
    scripts!(
        take: ["pair_head.lua", "fixed.lua", "pair_read.lua", "pair.lua"],
        noted: ["fixed_noted.lua"],
        back: ["pair_head.lua", "fixed.lua", "pair_read.lua", "fixed_back.lua", "pair_back.lua"]
    ),
    scripts!(
        take: ["pair_head.lua", "bucket.lua", "pair_read.lua", "pair.lua"],
        noted: ["bucket_noted.lua"],
        back: ["pair_head.lua", "bucket.lua", "pair_read.lua", "bucket_back.lua", "pair_back.lua"]
    ),
    scripts!(
        take: ["log_head.lua", "log.lua"],
        noted: ["log_noted.lua"],
        back: ["log_head.lua", "log_back.lua"]
    ),
    [
        // What a log tells people.
        include_str!("log_read.lua"),
        // What charges first, and gives back, while a slot moves.
        include_str!("first_window.lua"),
        include_str!("first_window_back.lua"),
        include_str!("first_pair_back.lua"),
    ],
];

/// Every script with its SHA-1: those above, and the check of sliding windows for 1, 2, ... quotas.
static SCRIPTS: LazyLock<Vec<Loaded>> = LazyLock::new(|| {
    let written = SOURCES.into_iter().flatten().map(str::to_owned);
    written.chain((1..=MAX_QUOTAS).map(window_check)).map(Loaded::new).collect()
});

/// A source and its SHA-1, in hex.
#[derive(Debug)]
struct Loaded {
    source: String,
    hash: String,
}

impl Loaded {
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// The check of sliding windows, written out for that many quotas.
fn window_check(quotas: usize) -> String {
    let mut source = String::new();
    let mut rest = include_str!("window_check.lua");
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

/// What comes before the next part that is for each quota, that part, and what comes after it.
fn parts(source: &str) -> Option<(&str, (&str, &str))> {
    let (before, rest) = source.split_once("-- each\n")?;
    Some((before, rest.split_once("-- end each\n")?))
}

/// The script for one kind of work under one algorithm, or one of those for all: its place among all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script(usize);

/// Scripts of one algorithm.
const KINDS: usize = SOURCES[0].len();

impl Script {
    pub const LOG_READ: Self = Self::place(4, 0);
    pub const FIRST_WINDOW: Self = Self::place(4, 1);
    pub const FIRST_WINDOW_BACK: Self = Self::place(4, 2);
    pub const FIRST_PAIR_BACK: Self = Self::place(4, 3);

    const fn place(algorithm: usize, kind: usize) -> Self {
        Self(algorithm * KINDS + kind)
    }

    pub fn of(policy: &Policy, work: &Work) -> Self {
        if is_window_check(policy, work) {
            return Self(SOURCES.len() * KINDS + policy.quotas.len().clamp(1, MAX_QUOTAS) - 1);
        }
        let algorithm = match policy.algorithm {
            Algorithm::SlidingWindow => 0,
            Algorithm::FixedWindow => 1,
            Algorithm::TokenBucket => 2,
            Algorithm::SlidingLog => 3,
        };
        let work = match work {
            Work::Take(_) | Work::Look(_) => 0,
            Work::Reserve { .. } => 1,
            Work::Once { .. } => 2,
            Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => 3,
        };
        Self::place(algorithm, work)
    }

    pub fn source(self) -> &'static str {
        &SCRIPTS[self.0].source
    }

    pub fn hash(self) -> &'static str {
        &SCRIPTS[self.0].hash
    }
}

/// Whether the work is done by a script that is written out for the policy's number of quotas.
pub fn is_window_check(policy: &Policy, work: &Work) -> bool {
    policy.algorithm == Algorithm::SlidingWindow && matches!(work, Work::Take(_) | Work::Look(_))
}

/// Every source: what a connection loads.
pub fn all() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|script| script.source.as_str())
}
