//! The settings of tracing, by the standard variables of OpenTelemetry.

use std::ops::RangeInclusive;

use opentelemetry_sdk::trace::Sampler;

use crate::telemetry::otlp::{Endpoint, InvalidVariable, Signal, Variables, environment, is_disabled};

/// The default fraction of traced requests.
const DEFAULT_RATIO: f64 = 0.01;

/// The variable of the length of the queue.
const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";

/// The valid lengths of the queue, spans. The SDK allocates it at the start, and delivers nothing
/// without one.
const QUEUES: RangeInclusive<u64> = 1..=1_000_000;

const TRACES: Signal = Signal {
    endpoint: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    headers: "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
};

/// The settings of tracing.
#[derive(Debug)]
pub struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) sampler: Sampler,
    pub(super) follows_parents: bool,
    /// The fraction of requests without a parent that is traced, 0 to 1.
    pub(super) roots: f64,
    /// See [`super::Tracing`].
    pub keep_denials: f64,
}

impl Settings {
    /// Reads the environment. `None` unless an endpoint for traces is set.
    ///
    /// # Errors
    /// A variable has an unknown or unusable value.
    pub fn from_environment() -> Result<Option<Self>, InvalidVariable> {
        Self::read(&environment)
    }

    fn read(variable: Variables<'_>) -> Result<Option<Self>, InvalidVariable> {
        if is_disabled(variable) || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none") {
            return Ok(None);
        }
        let Some(endpoint) = Endpoint::read(&TRACES, variable)? else { return Ok(None) };
        if let Some(text) = variable(QUEUE).filter(|text| !text.parse().is_ok_and(|length| QUEUES.contains(&length))) {
            let (least, most) = (QUEUES.start(), QUEUES.end());
            return Err(InvalidVariable::new(QUEUE, format!("must be {least} to {most}, not `{text}`")));
        }
        let (roots, follows_parents) = sampling(variable)?;
        let sampler = Sampler::TraceIdRatioBased(roots);
        let sampler = if follows_parents { Sampler::ParentBased(Box::new(sampler)) } else { sampler };
        Ok(Some(Self { endpoint, sampler, follows_parents, roots, keep_denials: 0.0 }))
    }
}

/// The fraction of traced requests, and whether a caller's decision is final.
fn sampling(variable: Variables<'_>) -> Result<(f64, bool), InvalidVariable> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::otlp::Protocol;

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
        assert_eq!((settings.endpoint.protocol, settings.follows_parents), (Protocol::Grpc, true));
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
        assert_eq!((settings.endpoint.protocol, settings.follows_parents), (Protocol::Http, false));
        assert_eq!(settings.endpoint.url, "HTTP://127.0.0.1:4318/v1/traces");
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
}
