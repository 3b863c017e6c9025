//! Doors besides the JSON API. Each maps the requests of another protocol to checks, asks the
//! engine, and renders its decisions. No rule of limiting lives in a door.

pub mod envoy;
