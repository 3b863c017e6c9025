//! Connections to servers: names, login, TLS, and the checks before a server may keep counts.

pub mod attempt;

pub mod connection;

pub mod preflight;

pub mod questions;

pub mod sentinel;

pub mod auth;

mod bounded;

mod broken;

pub mod dns;

mod stream;

pub mod subscription;
