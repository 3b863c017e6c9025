//! The pure core: what a policy is and how it decides. No async, no I/O, no clock, no serialisation; time is
//! a parameter and everything is integer arithmetic.

pub mod time;

pub mod calendar;

pub mod quota;

pub mod key;

pub mod policy;

pub mod network;

pub mod matches;

pub mod lists;

pub mod window;

pub mod fixed;

pub mod ledger;

pub mod bucket;

pub mod log;

pub mod digest;

pub mod history;

pub mod state;

pub mod decision;

pub mod amend;

pub mod slot;
