//! Connections to servers: names, login, TLS, and the checks before a server may keep counts.

pub mod connection;

pub mod server;

mod auth;

mod dns;
