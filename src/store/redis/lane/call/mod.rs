//! The calls of a lane: the requests of one key, the script call that carries them, and the
//! pipeline of several calls.

pub mod key_batch;

pub mod pipeline;

pub mod script_call;
