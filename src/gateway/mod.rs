//! The doors besides the JSON API. Each maps the requests of another protocol to checks, asks the
//! engine and renders the decisions. No rule of limiting lives here.

pub mod envoy;

pub mod forward_auth;

pub mod resp;
