//! The standard variables of OpenTelemetry, `OTEL_*`, as far as the SDK does not read them itself.
//!
//! The SDK uses its default for a malformed variable, and skips a malformed header. This file
//! checks only values after which every delivery would fail without a word, or the node would.

use std::ops::RangeInclusive;

use hyper::header::{HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;

use super::key_names::random;

/// The prefix of an endpoint, in upper or lower case.
const SCHEME: &str = "http://";

/// The default fraction of traced requests.
const DEFAULT_RATIO: f64 = 0.01;

/// The variable of the length of the queue.
const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";

/// The valid lengths of the queue, spans. The SDK allocates it at the start, and delivers nothing
/// without one.
const QUEUES: RangeInclusive<u64> = 1..=1_000_000;

/// The variables of headers for the collector.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];

/// The settings of tracing.
#[derive(Debug)]
pub struct Settings {
    pub(super) endpoint: String,
    /// The variable that sets the endpoint.
    pub(super) endpoint_variable: &'static str,
    pub(super) protocol: Protocol,
    pub(super) sampler: Sampler,
    pub(super) follows_parents: bool,
    /// The fraction of requests without a parent that is traced, 0 to 1.
    pub(super) roots: f64,
    pub(super) resource: Resource,
    /// See [`super::Tracing`].
    pub keep_denials: f64,
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
    fn new(variable: &'static str, wrong: impl Into<String>) -> Self {
        Self { variable, wrong: wrong.into() }
    }
}

impl Settings {
    /// Reads the environment. `None` unless an endpoint for traces is set.
    ///
    /// # Errors
    /// A variable has an unknown or unusable value.
    pub fn from_environment() -> Result<Option<Self>, InvalidVariable> {
        Self::read(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(variable: &dyn Fn(&'static str) -> Option<String>) -> Result<Option<Self>, InvalidVariable> {
        let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
        let either =
            |name, common| variable(name).map(|value| (name, value)).or_else(|| Some((common, variable(common)?)));
        let endpoint = either("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT");
        let Some((endpoint_variable, endpoint)) = endpoint.filter(|_| !is_disabled) else { return Ok(None) };
        // The log prints an endpoint that is down, and errors print rejected values, so no password
        // is allowed.
        if endpoint.contains('@') {
            let wrong = "must be http://host:port without a user and password";
            return Err(InvalidVariable::new(endpoint_variable, wrong));
        }
        if !endpoint.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME)) {
            let wrong = format!("must be http://host:port, not `{endpoint}`; for TLS send to a collector nearby");
            return Err(InvalidVariable::new(endpoint_variable, wrong));
        }
        let protocol = match either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") {
            None => Protocol::Grpc,
            Some((_, value)) if value == "grpc" => Protocol::Grpc,
            Some((_, value)) if value == "http/protobuf" => Protocol::Http,
            Some((variable, value)) => {
                let wrong = format!("must be `grpc` or `http/protobuf`, not `{value}`");
                return Err(InvalidVariable::new(variable, wrong));
            }
        };
        if let Some(text) = variable(QUEUE).filter(|text| !text.parse().is_ok_and(|length| QUEUES.contains(&length))) {
            let (least, most) = (QUEUES.start(), QUEUES.end());
            return Err(InvalidVariable::new(QUEUE, format!("must be {least} to {most}, not `{text}`")));
        }
        for name in HEADERS {
            require_headers(name, &variable(name).unwrap_or_default())?;
        }
        let (roots, follows_parents) = sampling(variable)?;
        let sampler = Sampler::TraceIdRatioBased(roots);
        let sampler = if follows_parents { Sampler::ParentBased(Box::new(sampler)) } else { sampler };
        let resource = resource(variable("OTEL_SERVICE_NAME"));
        let settings = Self {
            endpoint,
            endpoint_variable,
            protocol,
            sampler,
            follows_parents,
            roots,
            resource,
            keep_denials: 0.0,
        };
        Ok(Some(settings))
    }
}

/// Checks the headers, which the SDK skips if they are malformed: the collector would then refuse
/// every delivery. Errors never repeat a header, since it may hold a token.
fn require_headers(variable: &'static str, text: &str) -> Result<(), InvalidVariable> {
    let is_header = |entry: &str| {
        entry.split_once('=').is_some_and(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().unwrap_or_default();
            let is_sendable = !value.is_empty() && value.is_ascii() && HeaderValue::from_str(&value).is_ok();
            is_sendable && HeaderName::try_from(name.trim()).is_ok()
        })
    };
    let entries = text.split(',').filter(|entry| !entry.trim().is_empty());
    match entries.enumerate().find(|(_, entry)| !is_header(entry)) {
        None => Ok(()),
        Some((place, _)) => Err(InvalidVariable::new(
            variable,
            format!(
                "entry {} is no header: write `key=value,key=value`, with `%2C` for a comma and `%25` for `%`",
                place + 1
            ),
        )),
    }
}

/// The fraction of traced requests, and whether a caller's decision is final.
fn sampling(variable: &dyn Fn(&'static str) -> Option<String>) -> Result<(f64, bool), InvalidVariable> {
    let ratio = match variable("OTEL_TRACES_SAMPLER_ARG") {
        None => DEFAULT_RATIO,
        Some(text) => {
            let ratio = text.parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| {
                InvalidVariable::new("OTEL_TRACES_SAMPLER_ARG", format!("must be 0 to 1, not `{text}`"))
            })?
        }
    };
    let name = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_traceidratio".into());
    let (name, follows_parents) = name.strip_prefix("parentbased_").map_or((name.as_str(), false), |name| (name, true));
    let fraction = match name {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => ratio,
        _ => {
            let wrong = "must be always_on, always_off, traceidratio, or one of them behind parentbased_";
            return Err(InvalidVariable::new("OTEL_TRACES_SAMPLER", wrong));
        }
    };
    Ok((fraction, follows_parents))
}

/// The SDK's resource, but for the default of the name.
fn resource(name: Option<String>) -> Resource {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, InvalidVariable> {
        Settings::read(&|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");

    #[test]
    fn nothing_is_traced_without_an_endpoint_or_when_switched_off() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
    }

    #[test]
    fn traces_default_to_one_percent_over_grpc() {
        let settings = read(&[ENDPOINT]).unwrap().unwrap();
        assert_eq!((settings.protocol, settings.follows_parents), (Protocol::Grpc, true));
        assert!(format!("{:?}", settings.sampler).contains("TraceIdRatioBased(0.01)"), "{:?}", settings.sampler);
    }

    #[test]
    fn the_variables_for_traces_beat_the_common_ones() {
        let settings = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTP://127.0.0.1:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.protocol, settings.follows_parents), (Protocol::Http, false));
        assert_eq!(settings.endpoint, "HTTP://127.0.0.1:4318/v1/traces");
    }

    #[test]
    fn unusable_variables_are_rejected_by_name() {
        let cases = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://example.com:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:secret@127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "18446744073709551615"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0A"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secretä"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a b=secret"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a="),
        ];
        for (variable, value) in cases {
            let fault = read(&[ENDPOINT, (variable, value)]).unwrap_err();
            assert_eq!(fault.variable, variable, "{value}");
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
        let header = ("OTEL_EXPORTER_OTLP_HEADERS", " Authorization=Basic%20aHVudGVyMg==,,x-a=b c");
        assert!(read(&[ENDPOINT, header]).is_ok());
    }

    #[test]
    fn the_service_has_a_name() {
        let name = |name: Option<&str>| {
            let resource = resource(name.map(str::to_owned));
            resource.get(&opentelemetry::Key::new("service.name")).map(|value| value.to_string())
        };
        assert_eq!(name(None).as_deref(), Some("tollgate"));
        assert_eq!(name(Some("limits")).as_deref(), Some("limits"));
    }
}
