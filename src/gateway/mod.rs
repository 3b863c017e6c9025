//! The doors for programs that do not call the JSON API. Each maps its requests to checks, asks the
//! engine and renders the decisions. No rule of limiting lives here.

pub mod resp;
