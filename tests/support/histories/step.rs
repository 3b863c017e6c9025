//! The steps of a history.

use std::sync::Arc;

use tollgate::limit::time::Micros;
use tollgate::store::Over;

use super::file::File;
use crate::support::steps::START;

/// The files of its nodes, and what happens under them.
#[derive(Debug, Clone)]
pub struct History {
    pub files: Vec<File>,
    pub steps: Vec<Step>,
}

/// One call of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// us after the start by the store's clock, which may step back.
    pub after: i64,
    /// The file of the node that is asked. A reload changes it, and nodes may differ.
    pub file: usize,
    pub by: By,
    pub op: Op,
}

/// The limits that the key has at this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Policy,
    /// The check names a plan.
    Plan(usize),
    /// An override is in force, which beats a plan.
    Override,
}

/// The number of an id, or of a charge without one.
pub type Number = u32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Checks of one batch.
    Take(Vec<u64>),
    Look(u64),
    /// `GET /v1/usage`.
    Usage(u64),
    Drain(u64),
    Check {
        id: Number,
        cost: u64,
        over: Over,
        life: Option<Micros>,
        repeated: bool,
    },
    Wait {
        id: Option<Number>,
        cost: u64,
        longest: Micros,
    },
    /// `/v1/check/all` with these checks of the key. `refused`: another key denies it.
    All {
        checks: Vec<Part>,
        refused: bool,
    },
    /// Parts of a `/v1/check/all`, with steps of others between them.
    Reserve {
        number: Number,
        cost: u64,
    },
    GiveBack(Number),
    Undo(Number),
    /// A node buys a lease beside checks, and returns some of its units.
    Buy {
        number: Number,
        costs: Vec<u64>,
        units: u64,
    },
    Return {
        number: Number,
        units: u64,
    },
    /// A caller buys a lease.
    Sell {
        id: Number,
        units: u64,
    },
    /// Ends the hold or the caller's lease of an id.
    Settle {
        id: Number,
        cost: Option<u64>,
    },
    Renew(Number),
    Refund(u64),
    RefundId(Number),
    Reset,
}

/// A check of `/v1/check/all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub by: By,
    pub cost: u64,
    pub id: Option<Number>,
}

impl Step {
    /// The instant by the store's clock, us.
    pub fn now(&self) -> Micros {
        START.saturating_add_signed(self.after)
    }
}

/// The name of an id. Some bytes are escaped in the names of keys.
pub fn name(id: Number) -> Arc<str> {
    format!("id%{id}\n").into()
}
