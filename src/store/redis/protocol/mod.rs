//! The protocol with the scripts: arguments and replies as bytes, without sockets or tasks.

pub mod keys;

pub mod script;

pub mod check;

pub mod log;

pub(super) mod amend;

pub(super) mod failure;

pub(super) mod quota_args;

pub(super) mod sources;

pub(super) mod states;
