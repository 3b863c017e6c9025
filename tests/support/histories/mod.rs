//! Random histories of one key, made from all options at once, and their judges.
//!
//! A history is concrete: each step has an instant, the limits in force and an operation. So a
//! history that fails can lose steps, and still says the same. `choices` writes the next step from
//! the answers so far, `engine` runs it as the engine does, and judges look at every answer.

pub mod alike;

pub mod book;

pub mod bucket_ledger;

pub mod buckets;

pub mod choices;

pub mod engine;

pub mod exact_log;

pub mod expiring;

pub mod file;

pub mod fixed;

pub mod hunt;

pub mod known;

pub mod ledger;

pub mod line;

pub mod options;

pub mod search;

pub mod step;

pub mod told;

pub mod trial;

pub mod waits;
