//! The way to a collector by OTLP, which traces and metrics share: the standard variables `OTEL_*`,
//! the resource, and the log of failures.
//!
//! The SDK uses its default for a malformed variable, and skips a malformed header. This file
//! checks only values after which every delivery would fail without a word, or the node would.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::KeyValue;
pub use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use percent_encoding::percent_decode_str;

use super::traces::random;

/// The prefix of an endpoint, in upper or lower case.
const SCHEME: &str = "http://";

/// The variable of the endpoint of all signals. Over HTTP each has its own path below it.
pub(super) const COMMON_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

const COMMON_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

const COMMON_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Reads a variable.
pub(super) type Variables<'a> = &'a dyn Fn(&'static str) -> Option<String>;

/// The variables of one signal, which beat those of all.
#[derive(Debug)]
pub(super) struct Signal {
    pub endpoint: &'static str,
    pub protocol: &'static str,
    pub headers: &'static str,
}

/// A collector.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub url: String,
    /// The variable that sets the URL.
    pub variable: &'static str,
    pub protocol: Protocol,
    /// Their values are not shown.
    pub headers: HeaderMap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

/// A variable with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {wrong}")]
pub struct InvalidVariable {
    pub(super) variable: &'static str,
    pub(super) wrong: String,
}

impl InvalidVariable {
    pub(super) fn new(variable: &'static str, wrong: impl Into<String>) -> Self {
        Self { variable, wrong: wrong.into() }
    }
}

/// A variable of the environment. An empty one counts as absent.
pub(super) fn environment(name: &'static str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether OpenTelemetry is switched off.
pub(super) fn is_disabled(variable: Variables<'_>) -> bool {
    variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The variable of the signal with its value, or else the common one.
pub(super) fn either(
    variable: Variables<'_>,
    own: &'static str,
    common: &'static str,
) -> Option<(&'static str, String)> {
    [own, common].into_iter().find_map(|name| Some((name, variable(name)?)))
}

impl Endpoint {
    /// `None` unless a variable names one.
    pub(super) fn read(signal: &Signal, variable: Variables<'_>) -> Result<Option<Self>, InvalidVariable> {
        let Some((name, url)) = either(variable, signal.endpoint, COMMON_ENDPOINT) else { return Ok(None) };
        // The log prints an endpoint that is down, and errors print rejected values, so no password
        // is allowed.
        if url.contains('@') {
            return Err(InvalidVariable::new(name, "must be http://host:port without a user and password"));
        }
        if !url.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME)) {
            let wrong = format!("must be http://host:port, not `{url}`; for TLS send to a collector nearby");
            return Err(InvalidVariable::new(name, wrong));
        }
        let protocol = match either(variable, signal.protocol, COMMON_PROTOCOL) {
            None => Protocol::Grpc,
            Some((_, value)) if value == "grpc" => Protocol::Grpc,
            Some((_, value)) if value == "http/protobuf" => Protocol::Http,
            Some((name, value)) => {
                let wrong = format!("must be `grpc` or `http/protobuf`, not `{value}`");
                return Err(InvalidVariable::new(name, wrong));
            }
        };
        let [own, common] = [signal.headers, COMMON_HEADERS].map(|name| {
            let text = variable(name);
            text.map(|text| headers(name, &text)).transpose()
        });
        let (own, common) = (own?, common?);
        Ok(Some(Self { url, variable: name, protocol, headers: own.or(common).unwrap_or_default() }))
    }
}

/// Reads headers. The SDK skips malformed ones: the collector would then refuse every delivery.
/// Errors never repeat a header, since it may hold a token.
fn headers(variable: &'static str, text: &str) -> Result<HeaderMap, InvalidVariable> {
    let header = |entry: &str| {
        let (name, value) = entry.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let is_sendable = !value.is_empty() && value.is_ascii();
        let mut value = HeaderValue::from_str(&value).ok().filter(|_| is_sendable)?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.trim()).ok()?, value))
    };
    let entries = text.split(',').filter(|entry| !entry.trim().is_empty()).enumerate();
    let headers = entries.map(|(place, entry)| {
        header(entry).ok_or_else(|| {
            let place = place + 1;
            let wrong = "is no header: write `key=value,key=value`, with `%2C` for a comma and `%25` for `%`";
            InvalidVariable::new(variable, format!("entry {place} {wrong}"))
        })
    });
    headers.collect()
}

/// The resource of this process: the SDK's, but for the default of the name.
pub fn resource() -> Resource {
    named(environment("OTEL_SERVICE_NAME"))
}

fn named(name: Option<String>) -> Resource {
    Resource::builder()
        .with_service_name("tollgate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", instance()))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(name.map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// A name of this process, 128 random bits in hexadecimal.
fn instance() -> String {
    blake3::hash(&random()).to_hex()[..32].to_owned()
}

/// Logs the first failure of deliveries, and their return.
#[derive(Debug)]
pub(super) struct Deliveries {
    /// `traces` or `metrics`.
    signal: &'static str,
    endpoint: String,
    failing: AtomicBool,
}

impl Deliveries {
    pub(super) fn new(signal: &'static str, endpoint: &Endpoint) -> Self {
        Self { signal, endpoint: endpoint.url.clone(), failing: AtomicBool::new(false) }
    }

    pub(super) fn ended(&self, delivered: Result<(), impl Display>) {
        let Self { signal, endpoint, failing } = self;
        match (&delivered, failing.swap(delivered.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(
                endpoint, %error,
                "{signal} cannot be delivered and are dropped until they can; checks are answered as ever"
            ),
            (Ok(()), true) => tracing::info!(endpoint, "{signal} are delivered again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_a_name() {
        let name = |name: Option<&str>| {
            let resource = named(name.map(str::to_owned));
            resource.get(&opentelemetry::Key::new("service.name")).map(|value| value.to_string())
        };
        assert_eq!(name(None).as_deref(), Some("tollgate"));
        assert_eq!(name(Some("limits")).as_deref(), Some("limits"));
    }
}
