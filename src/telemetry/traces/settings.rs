//! The standard variables of OpenTelemetry, `OTEL_*`.

use std::cell::Cell;
use std::env::VarError;
use std::ops::RangeInclusive;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::Sampler;

use super::pairs::{pairs, require_headers};

/// The prefix of an endpoint, in upper or lower case.
const SCHEME: &str = "http://";

/// The default fraction of traced requests.
const DEFAULT_RATIO: f64 = 0.01;

/// The default length of the queue, spans.
const DEFAULT_QUEUE: u64 = 2048;

/// The valid lengths of the queue, spans. The SDK allocates it at the start, and delivers nothing
/// without one.
const QUEUES: RangeInclusive<u64> = 1..=1_000_000;

/// The valid times, ms: up to an hour. The SDK accepts zero as no time at all.
const TIMES: RangeInclusive<u64> = 1..=3_600_000;

/// The variables of those times.
const TIMED: [&str; 4] = [
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
];

/// The variables of headers for the collector.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];

/// The variables of numbers that the SDK reads in 32 bits.
const COUNTS: [&str; 3] =
    ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"];

/// The variables of flags: others than `true` count as `false`.
const FLAGS: [&str; 3] = ["OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"];

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
    /// The most spans that wait for delivery.
    pub(super) queue: u64,
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

impl Settings {
    /// Reads the environment. `None` unless an endpoint for traces is set.
    ///
    /// # Errors
    /// A variable has an unknown or unusable value.
    pub fn from_environment() -> Result<Option<Self>, InvalidVariable> {
        let unreadable = Cell::new(None);
        let read = Self::read(&|name| match std::env::var(name) {
            Ok(value) => Some(value).filter(|value| !value.is_empty()),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                unreadable.set(Some(name));
                None
            }
        });
        match unreadable.get() {
            Some(variable) => Err(InvalidVariable { variable, wrong: "must be UTF-8".to_owned() }),
            None => read,
        }
    }

    fn read(variable: &dyn Fn(&'static str) -> Option<String>) -> Result<Option<Self>, InvalidVariable> {
        let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
        let either =
            |name, common| variable(name).map(|value| (name, value)).or_else(|| Some((common, variable(common)?)));
        let endpoint = either("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT");
        let Some((endpoint_variable, endpoint)) = endpoint.filter(|_| !disabled) else { return Ok(None) };
        if let Some(value) = variable("OTEL_TRACES_EXPORTER").filter(|value| value != "otlp") {
            let wrong = format!("must be `otlp` or `none`, not `{value}`");
            return Err(InvalidVariable { variable: "OTEL_TRACES_EXPORTER", wrong });
        }
        if endpoint.contains('@') {
            // The log prints an endpoint that is down, and errors print rejected values, so no
            // password is allowed.
            let wrong = "must be http://host:port without a user and password".to_owned();
            return Err(InvalidVariable { variable: endpoint_variable, wrong });
        }
        if !is_endpoint(&endpoint) {
            let wrong = format!("must be http://host:port, not `{endpoint}`; for TLS send to a collector nearby");
            return Err(InvalidVariable { variable: endpoint_variable, wrong });
        }
        let protocol = match either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") {
            None => Protocol::Grpc,
            Some((_, value)) if value == "grpc" => Protocol::Grpc,
            Some((_, value)) if value == "http/protobuf" => Protocol::Http,
            Some((variable, value)) => {
                return Err(InvalidVariable {
                    variable,
                    wrong: format!("must be `grpc` or `http/protobuf`, not `{value}`"),
                });
            }
        };
        if let Some((variable, value)) =
            either("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
                .filter(|(_, value)| value != "none")
        {
            return Err(InvalidVariable {
                variable,
                wrong: format!("must be `none`, not `{value}`: traces are not compressed"),
            });
        }
        // The SDK reads all of them too, and silently uses its default for malformed values.
        let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUES, variable)?.unwrap_or(DEFAULT_QUEUE);
        number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", QUEUES, variable)?;
        number("OTEL_BSP_MAX_CONCURRENT_EXPORTS", QUEUES, variable)?;
        for name in TIMED {
            number(name, TIMES, variable)?;
        }
        for name in COUNTS {
            number(name, 0..=u32::MAX.into(), variable)?;
        }
        for name in FLAGS {
            flag(name, variable)?;
        }
        for name in HEADERS {
            require_headers(name, &variable(name).unwrap_or_default())?;
        }
        let (roots, follows_parents) = sampling(variable)?;
        let sampler = Sampler::TraceIdRatioBased(roots);
        let sampler = if follows_parents { Sampler::ParentBased(Box::new(sampler)) } else { sampler };
        Ok(Some(Self {
            endpoint,
            endpoint_variable,
            protocol,
            sampler,
            follows_parents,
            roots,
            resource: resource(variable)?,
            queue,
            keep_denials: 0.0,
        }))
    }
}

/// Whether the text is `http://host:port`, perhaps with a path, or without the port. The SDK starts
/// with an impossible port and never delivers.
fn is_endpoint(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_at_checked(SCHEME.len()) else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse().is_ok_and(|port: u16| port > 0);
    let is_authority = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => !host.is_empty() && is_port(port),
        _ => !authority.is_empty(),
    };
    scheme.eq_ignore_ascii_case(SCHEME) && is_authority
}

/// The variable's number within `range`, or `None` if it is unset.
fn number(
    name: &'static str,
    range: RangeInclusive<u64>,
    variable: &dyn Fn(&'static str) -> Option<String>,
) -> Result<Option<u64>, InvalidVariable> {
    let Some(text) = variable(name) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| range.contains(number));
    let (least, most) = (range.start(), range.end());
    let wrong = || InvalidVariable { variable: name, wrong: format!("must be {least} to {most}, not `{text}`") };
    number.map(Some).ok_or_else(wrong)
}

fn flag(name: &'static str, variable: &dyn Fn(&'static str) -> Option<String>) -> Result<(), InvalidVariable> {
    match variable(name) {
        Some(text) if !["true", "false"].iter().any(|word| text.eq_ignore_ascii_case(word)) => {
            Err(InvalidVariable { variable: name, wrong: format!("must be `true` or `false`, not `{text}`") })
        }
        _ => Ok(()),
    }
}

/// The fraction of traced requests, and whether a caller's decision is final.
fn sampling(variable: &dyn Fn(&'static str) -> Option<String>) -> Result<(f64, bool), InvalidVariable> {
    let ratio = match variable("OTEL_TRACES_SAMPLER_ARG") {
        None => DEFAULT_RATIO,
        Some(text) => {
            let ratio = text.parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
            let wrong = || InvalidVariable {
                variable: "OTEL_TRACES_SAMPLER_ARG",
                wrong: format!("must be 0 to 1, not `{text}`"),
            };
            ratio.ok_or_else(wrong)?
        }
    };
    let name = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_traceidratio".into());
    let sampling = match name.as_str() {
        "always_on" => (1.0, false),
        "always_off" => (0.0, false),
        "traceidratio" => (ratio, false),
        "parentbased_always_on" => (1.0, true),
        "parentbased_always_off" => (0.0, true),
        "parentbased_traceidratio" => (ratio, true),
        other => {
            let wrong = format!(
                "must be always_on, always_off, traceidratio, or one of them behind parentbased_, not `{other}`"
            );
            return Err(InvalidVariable { variable: "OTEL_TRACES_SAMPLER", wrong });
        }
    };
    Ok(sampling)
}

/// The builder reads `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, but decodes no values.
fn resource(variable: &dyn Fn(&'static str) -> Option<String>) -> Result<Resource, InvalidVariable> {
    const NAME: &str = "service.name";
    let text = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let attributes = pairs("OTEL_RESOURCE_ATTRIBUTES", &text)?;
    let is_attribute = attributes.iter().any(|(key, _)| *key == NAME);
    let name = variable("OTEL_SERVICE_NAME").or_else(|| (!is_attribute).then(|| "tollgate".into()));
    let decoded = attributes.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value));
    Ok(Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(decoded)
        .with_attributes(name.map(|name| KeyValue::new(NAME, name)))
        .build())
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
    fn otel_variables_read_as_other_programs_read_them() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "HTTP://127.0.0.1:4317");
        let times = [("OTEL_BSP_SCHEDULE_DELAY", "500"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")];
        let settings = read(&[endpoint, ("OTEL_TRACES_EXPORTER", "otlp"), times[0], times[1]]);
        assert_eq!(settings.unwrap().unwrap().endpoint, endpoint.1);
    }

    #[test]
    fn endpoints_need_no_port() {
        for endpoint in ["http://collector", "http://[::1]", "http://[::1]:4317", "HTTP://c:4318/v1/traces"] {
            assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).is_ok(), "{endpoint}");
        }
    }

    #[test]
    fn the_variables_for_traces_beat_the_common_ones() {
        let settings = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.protocol, settings.follows_parents), (Protocol::Http, false));
        assert_eq!(settings.endpoint, "http://127.0.0.1:4318/v1/traces");
    }

    #[test]
    fn unsupported_variables_are_rejected_by_name() {
        let cases = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://example.com:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "18446744073709551615"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "-1"),
            ("OTEL_TRACES_EXPORTER", "console"),
            ("OTEL_TRACES_EXPORTER", "otlp,console"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "foo"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:secret@127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http:///v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:port"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:99999"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:/v1/traces"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=secret%2"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a b=secret"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a="),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b;c:secret, d"),
            ("OTEL_RESOURCE_ATTRIBUTES", "load=50%"),
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "no"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "4294967296"),
            ("OTEL_BSP_MAX_CONCURRENT_EXPORTS", "1.5"),
        ];
        for (variable, value) in cases {
            let fault = read(&[ENDPOINT, (variable, value)]).unwrap_err();
            assert_eq!(fault.variable, variable, "{value}");
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
        // The sampler's argument counts even if this sampler needs none.
        let sampler = [("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_TRACES_SAMPLER_ARG", "half")];
        assert!(read(&[ENDPOINT, sampler[0], sampler[1]]).is_err());
    }

    #[test]
    fn resource_attributes_are_decoded() {
        let attribute = |variables: &[(&str, &str)], key: &'static str| {
            let settings = read(&[&[ENDPOINT], variables].concat()).unwrap().unwrap();
            settings
                .resource
                .get(&opentelemetry::Key::new(key))
                .map(|value| value.to_string())
                .unwrap_or_default()
        };
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "team=a%2Cb%20%C3%A4 , service.name=edge%2D1");
        assert_eq!(attribute(&[attributes], "team"), "a,b ä");
        assert_eq!(attribute(&[attributes], "service.name"), "edge-1");
        assert_eq!(attribute(&[attributes, ("OTEL_SERVICE_NAME", "limits")], "service.name"), "limits");
        assert_eq!(attribute(&[], "service.name"), "tollgate");
    }
}
