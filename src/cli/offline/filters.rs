//! Selects the requests of a log by path, method and status.

use std::str::FromStr;

/// The requests that count; all without a filter.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Filters {
    /// Count only requests of this path, or with `*` at its end of all paths that begin so. Give
    /// several to count each.
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// Count only requests with this method. Give several to count each.
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<String>,
    /// Count only requests with this status, such as `404` or `2xx`. Give several to count each.
    #[arg(long = "status", value_name = "STATUS")]
    statuses: Vec<Status>,
}

/// Three digits, or `x` for any digit.
#[derive(Debug, Clone)]
struct Status([u8; 3]);

/// The parts of a request that filters see. A part that the log lacks is empty.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestParts<'a> {
    pub(super) method: &'a [u8],
    /// Without its query.
    pub(super) path: &'a [u8],
    pub(super) status: &'a [u8],
}

impl Filters {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.methods.is_empty() && self.statuses.is_empty()
    }

    /// Whether a request counts.
    pub(super) fn pass(&self, RequestParts { method, path, status }: RequestParts<'_>) -> bool {
        let is_path = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => path.starts_with(begin.as_bytes()),
            None => path == pattern.as_bytes(),
        };
        any(&self.paths, is_path)
            && any(&self.methods, |wanted| wanted.as_bytes().eq_ignore_ascii_case(method))
            && any(&self.statuses, |wanted| wanted.is(status))
    }
}

/// Whether one of the patterns fits, if there are some.
fn any<T>(patterns: &[T], fits: impl Fn(&T) -> bool) -> bool {
    patterns.is_empty() || patterns.iter().any(fits)
}

impl Status {
    fn is(&self, status: &[u8]) -> bool {
        status.len() == 3 && self.0.iter().zip(status).all(|(wanted, digit)| *wanted == b'x' || wanted == digit)
    }
}

impl FromStr for Status {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pattern = <[u8; 3]>::try_from(text.to_ascii_lowercase().as_bytes()).ok();
        let is_known = |byte: &u8| byte.is_ascii_digit() || *byte == b'x';
        let pattern = pattern.filter(|pattern| pattern[0].is_ascii_digit() && pattern.iter().all(is_known));
        pattern.map(Self).ok_or("it must be three digits such as `404`, or a class such as `2xx`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_given_filter_must_fit() {
        let status = |text: &str| text.parse::<Status>().unwrap();
        let (paths, methods) = (vec!["/api/*".to_owned(), "/".to_owned()], vec!["post".to_owned()]);
        let filters = Filters { paths, methods, statuses: vec![status("2xx"), status("404")] };
        let pass = |method: &str, path: &str, status: &str| {
            let [method, path, status] = [method, path, status].map(str::as_bytes);
            filters.pass(RequestParts { method, path, status })
        };
        assert!(pass("POST", "/api/x", "204") && pass("POST", "/", "404"));
        assert!(!pass("GET", "/api/x", "204") && !pass("POST", "/ap", "204") && !pass("POST", "/", "403"));
        assert!(!pass("POST", "/", "") && Filters::default().pass(RequestParts::default()));
        for wrong in ["", "20", "2000", "abc", "xxx", "2 0"] {
            assert!(wrong.parse::<Status>().is_err(), "{wrong}");
        }
    }
}
