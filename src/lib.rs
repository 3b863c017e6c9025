//! Tollgate: a rate limiter that services ask over HTTP.

pub mod clock;

pub mod limit;

pub mod store;

pub mod config;

pub mod prefilter;

pub mod engine;

pub mod http;

pub mod serve;

pub mod cli;
