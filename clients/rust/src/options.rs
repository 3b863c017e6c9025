use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderValue, Uri};

use crate::tls::{self, Tls};

/// The node of a client without [`Options::nodes`].
pub(crate) const DEFAULT_NODE: &str = "http://127.0.0.1:7070";

/// The default deadline for each node. A node answers by its fallback after `store.timeout`, 100 ms
/// by default, and needs some time on a busy machine.
const DEADLINE_OF_A_NODE: Duration = Duration::from_millis(300);

/// The longest default deadline.
const MAX_DEFAULT_DEADLINE: Duration = Duration::from_secs(1);

/// Options of a [`Client`](crate::Client). The default calls a node on this machine.
#[derive(Clone)]
pub struct Options {
    nodes: Vec<String>,
    token: Option<String>,
    ca_file: Option<PathBuf>,
    deadline: Option<Duration>,
    pub(crate) denial_cache: Duration,
    pub(crate) retry: bool,
    pub(crate) coalesce: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: vec![DEFAULT_NODE.to_owned()],
            token: None,
            ca_file: None,
            deadline: None,
            denial_cache: Duration::from_secs(1),
            retry: true,
            coalesce: true,
        }
    }
}

impl Options {
    /// Base URLs of the nodes, in the order of preference. The default is `http://127.0.0.1:7070`.
    #[must_use]
    pub fn nodes<T: Into<String>>(mut self, nodes: impl IntoIterator<Item = T>) -> Self {
        self.nodes = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// The longest duration of a call with its retry. The default is 300 ms for each node, and at
    /// most 1 s. It has to exceed the time in which a node answers while its store is away.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long the client repeats a denial of a node without asking again. The default is 1 s, and
    /// 0 turns it off. A raised limit is seen that much later.
    #[must_use]
    pub fn denial_cache(mut self, longest: Duration) -> Self {
        self.denial_cache = longest;
        self
    }

    /// A bearer token of the nodes.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A PEM file with the authorities of the nodes' certificates. The default is those of the
    /// platform.
    #[must_use]
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Whether a call goes once more after a broken connection, or to the next node. It is on by
    /// default. A repeated check may be charged twice, unless it has an id or [`Check::once`]. It is
    /// never allowed twice.
    ///
    /// [`Check::once`]: crate::Check::once
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// Whether concurrent checks share a call. It is on by default.
    #[must_use]
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    pub(crate) fn longest(&self) -> Duration {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.deadline.unwrap_or_else(|| DEADLINE_OF_A_NODE.saturating_mul(nodes).min(MAX_DEFAULT_DEADLINE))
    }

    pub(crate) fn addresses(&self) -> Result<Vec<Address>, InvalidOptions> {
        if self.nodes.is_empty() {
            return Err(InvalidOptions(format!("`nodes` must have a URL such as {DEFAULT_NODE}")));
        }
        self.nodes.iter().map(|text| Address::parse(text)).collect()
    }

    /// The value of the header `Authorization`.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, InvalidOptions> {
        let Some(token) = &self.token else { return Ok(None) };
        let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| is_visible);
        let mut value = value.ok_or_else(|| {
            InvalidOptions("`token` must be visible ASCII characters; remove a final newline".to_owned())
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Nothing if no node uses TLS. A file is read all the same, so that its faults show at once.
    pub(crate) fn tls(&self, addresses: &[Address]) -> Result<Option<Tls>, InvalidOptions> {
        match &self.ca_file {
            Some(file) => tls::with_authorities_of(file).map(Some),
            None if addresses.iter().any(|address| address.secure) => tls::with_those_of_the_platform().map(Some),
            None => Ok(None),
        }
        .map_err(InvalidOptions)
    }
}

/// Omits the token.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("nodes", &self.nodes)
            .field("deadline", &self.deadline)
            .field("ca_file", &self.ca_file)
            .field("retry", &self.retry)
            .field("coalesce", &self.coalesce)
            .finish_non_exhaustive()
    }
}

/// The parsed base URL of a node.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub secure: bool,
    /// Host and port as in the URL, for the header `Host`.
    pub authority: HeaderValue,
    /// A name, or an IP address without brackets.
    pub host: String,
    pub port: u16,
    /// The path that precedes that of each call, without a final slash.
    pub path: String,
}

impl Address {
    fn parse(text: &str) -> Result<Self, InvalidOptions> {
        let no_url = || InvalidOptions(format!("node `{text}` must be a URL such as {DEFAULT_NODE}"));
        let uri: Uri = text.parse().map_err(|_| no_url())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(no_url()),
        };
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(no_url)?;
        if uri.query().is_some() || text.contains(['#', '@']) {
            return Err(InvalidOptions(format!("node `{text}` must have a host and at most a path")));
        }
        Ok(Self {
            secure,
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| no_url())?,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// An option of a client is invalid. The text has its name, and a valid form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOptions(pub(crate) String);

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOptions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_urls_with_at_most_a_path() {
        for (text, host, port, path) in [
            ("http://127.0.0.1:7070", "127.0.0.1", 7070, ""),
            ("https://tollgate.internal/", "tollgate.internal", 443, ""),
            ("http://[::1]/limits/", "::1", 80, "/limits"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port, address.path.as_str()), (host, port, path), "{text}");
        }
        for text in ["127.0.0.1:7070", "ftp://host", "http://", "http://h?x=1", "http://u:p@h", "http://h#x", ""] {
            assert!(Address::parse(text).unwrap_err().0.contains("node"), "{text}");
        }
        assert!(Options::default().nodes([""; 0]).addresses().is_err());
    }

    #[test]
    fn token_has_visible_ascii_and_stays_out_of_debug() {
        for token in ["abc\n", "", "a b", "ü"] {
            let fault = Options::default().token(token).authorization().unwrap_err();
            assert!(fault.0.contains("`token`"), "{fault}");
        }
        let options = Options::default().token("secret");
        assert!(!format!("{options:?} {:?}", options.authorization()).contains("secret"));
    }

    #[test]
    fn ca_file_must_have_certificates() {
        for file in ["absent.pem", "Cargo.toml"] {
            let fault = Options::default().ca_file(file).tls(&[]).err().unwrap();
            assert!(fault.0.contains("`ca_file`") && fault.0.contains(file), "{fault}");
        }
    }
}
