//! The pure core: policies and how they decide. It has no async, I/O, clock or serialisation. Time
//! is a parameter, and all arithmetic is in integers.

pub mod time;

pub mod calendar;

pub mod rate;

pub mod ticks;

pub mod quota;

pub mod address;

pub mod key;

pub mod lease;

pub mod notify;

pub mod policy;

pub mod network;

pub mod matches;

pub mod lists;

pub mod counts;

pub mod window;

pub mod fixed;

pub mod receipt;

pub mod ledger;

pub mod bucket;

pub mod carried;

pub mod log;

pub mod digest;

pub mod counter;

pub mod history;

pub mod state;

pub mod decision;

pub mod drain;

pub mod line;

pub mod refunds;

pub mod hold;

pub mod slot;
