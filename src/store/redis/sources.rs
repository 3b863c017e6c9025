//! The scripts: each is put together from parts, and known to servers by the SHA-1 of the whole.

use std::sync::LazyLock;

use crate::limit::policy::Algorithm;
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

/// The same with their SHA-1.
static SCRIPTS: LazyLock<[[redis::Script; 4]; 5]> =
    LazyLock::new(|| SOURCES.map(|scripts| scripts.map(redis::Script::new)));

/// The script for one kind of work under one algorithm, or one of those for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script(usize, usize);

impl Script {
    pub const LOG_READ: Self = Self(4, 0);
    pub const FIRST_WINDOW: Self = Self(4, 1);
    pub const FIRST_WINDOW_BACK: Self = Self(4, 2);
    pub const FIRST_PAIR_BACK: Self = Self(4, 3);

    pub fn of(algorithm: Algorithm, work: &Work) -> Self {
        let algorithm = match algorithm {
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
        Self(algorithm, work)
    }

    pub fn source(self) -> &'static str {
        SOURCES[self.0][self.1]
    }

    pub fn hash(self) -> &'static str {
        SCRIPTS[self.0][self.1].get_hash()
    }
}

/// Every source: what a connection loads.
pub fn all() -> impl Iterator<Item = &'static str> {
    SOURCES.into_iter().flatten()
}
