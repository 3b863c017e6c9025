//! The text format of Prometheus.
//!
//! The crate writes OpenMetrics: HELP and TYPE name a counter without its `_total`, and an end mark
//! closes the text. The older format, which every scraper reads, has the whole name there and no
//! mark. A counter whose name has no `_total` is of unknown type for the crate.

use std::borrow::Cow;

use prometheus_client::registry::Registry;

use super::Readings;

/// The content type of `GET /metrics`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, one series per line.
pub fn text(readings: Readings) -> String {
    let Readings { metrics, reference } = readings;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics));
    if let Some(reference) = reference {
        registry.register_collector(Box::new(reference));
    }
    let mut written = String::new();
    // Writing into a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut written, &registry);
    classic(&written)
}

fn classic(written: &str) -> String {
    let lines: Vec<&str> = written.lines().filter(|line| *line != "# EOF").collect();
    let mut text = String::with_capacity(written.len() + 64);
    for (place, line) in lines.iter().enumerate() {
        let kind = if line.starts_with("# HELP ") { lines.get(place + 1) } else { Some(line) };
        let counter = line.starts_with("# ") && kind.is_some_and(|kind| kind.ends_with(" counter"));
        let line = match line.strip_suffix(" unknown").filter(|line| line.starts_with("# TYPE ")) {
            Some(untyped) => Cow::Owned(format!("{untyped} counter")),
            None if counter => with_total(line),
            None => Cow::Borrowed(*line),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Changes `# HELP name rest` to `# HELP name_total rest`.
fn with_total(line: &str) -> Cow<'_, str> {
    let mut words = line.splitn(4, ' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(hash), Some(kind), Some(name), Some(rest)) => format!("{hash} {kind} {name}_total {rest}").into(),
        _ => line.into(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_have_their_whole_name_everywhere() {
        let open = "# HELP a Some.\n# TYPE a counter\na_total 1\n# HELP b A counter\n# TYPE b gauge\nb 2.0\n# TYPE c unknown\nc 3\n# EOF\n";
        let classic = "# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n# HELP b A counter\n# TYPE b gauge\nb 2.0\n# TYPE c counter\nc 3\n";
        assert_eq!(super::classic(open), classic);
    }
}
