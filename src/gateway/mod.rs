//! The doors besides the JSON API. Each maps the requests of another protocol to checks, and limits
//! nothing itself.

pub mod forward_auth;
