//! The protocol with the servers: arguments and replies as bytes, without sockets or tasks.

pub mod call;

pub mod check;

pub mod keys;

pub mod log;

pub mod reply;

pub mod sources;

pub(super) mod address;

pub(super) mod cluster_slots;

pub(super) mod failure;

pub(super) mod info;

pub(super) mod sentinel;

pub(super) mod server_error;

pub(super) mod server_info;

mod counters;

mod holds;

mod operations;

mod pairs;

mod sales;

mod windows;
