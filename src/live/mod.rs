//! The live view of operators: counts of the last minutes, the keys denied most, and recent checks.
//!
//! ```text
//! check -> recorders  one small table for each thread; no check waits for one
//! once a second       the counters of the engine, and the tables
//!   -> rings          counts of each second, 15 minutes, and of each minute, six hours
//!   -> top            denials and units by policy and key, the last 1, 5 and 15 minutes
//!   -> recent         the newest slow or denied checks
//! ```
//!
//! All memory is bounded: see [`space_saving::CAPACITY`], [`recorders::LAST`],
//! [`rings::SECONDS`], [`rings::MINUTES`] and [`recent::KEPT`].

pub mod space_saving;

pub mod recent;

pub mod recorders;

pub mod top;

pub mod rings;
