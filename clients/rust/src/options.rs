use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use derive_setters::Setters;
use http::{HeaderValue, Uri};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::decision::Decision;
use crate::monitor::OnDecision;
use crate::node::Node;

/// The node of a client without [`Options::nodes`].
pub(crate) const DEFAULT_NODE: &str = "http://127.0.0.1:7070";

/// The default deadline for each node. A node answers by its fallback after `store.timeout`, 100 ms
/// by default, and needs some time on a busy machine.
const DEADLINE_OF_A_NODE: Duration = Duration::from_millis(300);

/// The longest default deadline.
const MAX_DEFAULT_DEADLINE: Duration = Duration::from_secs(1);

/// Options of a [`Client`](crate::Client). The default calls a node on this machine.
#[derive(Clone, Setters)]
#[setters(strip_option)]
pub struct Options {
    #[setters(skip)]
    nodes: Vec<String>,
    /// A bearer token of the nodes.
    #[setters(into)]
    token: Option<String>,
    /// A PEM file with the authorities of the nodes' certificates. The default is those of the
    /// platform.
    #[setters(into)]
    ca_file: Option<PathBuf>,
    /// The longest duration of a call with its retry. The default is 300 ms for each node, and at
    /// most 1 s. It has to exceed the time in which a node answers while its store is away.
    deadline: Option<Duration>,
    /// How long the client repeats a denial of a node without asking again. The default is 1 s, and
    /// 0 turns it off. A raised limit is seen that much later.
    pub(crate) denial_cache: Duration,
    /// Whether a call goes once more after a broken connection, or to the next node. It is on by
    /// default. A repeated check may be charged twice, unless it has an id or [`Check::once`]. It is
    /// never allowed twice.
    ///
    /// [`Check::once`]: crate::Check::once
    pub(crate) retry: bool,
    /// Whether concurrent checks share a call. It is on by default.
    pub(crate) coalesce: bool,
    /// Whether the client buys units of busy keys, and decides their checks without a call. It is on
    /// by default, for policies whose `lease` has `callers`. A block, a reset and a lower limit reach
    /// the client at the latest when a lease ends.
    pub(crate) lease: bool,
    #[setters(skip)]
    pub(crate) on_decision: Option<OnDecision>,
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
            lease: true,
            on_decision: None,
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

    /// A function that gets each decision, also those that need no call. It must not block.
    #[must_use]
    pub fn on_decision(self, on_decision: impl Fn(&Decision) + Send + Sync + 'static) -> Self {
        Self { on_decision: Some(Arc::new(on_decision)), ..self }
    }

    pub(crate) fn longest(&self) -> Duration {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.deadline.unwrap_or_else(|| DEADLINE_OF_A_NODE.saturating_mul(nodes).min(MAX_DEFAULT_DEADLINE))
    }

    pub(crate) fn connect(&self) -> Result<Vec<Node>, InvalidOptions> {
        if self.nodes.is_empty() {
            return Err(InvalidOptions(format!("`nodes` must have a URL such as {DEFAULT_NODE}")));
        }
        let bases = self.nodes.iter().map(|text| base(text)).collect::<Result<Vec<_>, _>>()?;
        let (authorization, tls) = (self.authorization()?, self.tls().map_err(InvalidOptions)?);
        Ok(bases.into_iter().map(|base| Node::new(base, authorization.clone(), tls.clone())).collect())
    }

    /// The value of the header `Authorization`.
    fn authorization(&self) -> Result<Option<HeaderValue>, InvalidOptions> {
        let Some(token) = &self.token else { return Ok(None) };
        let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| is_visible);
        let mut value = value.ok_or_else(|| {
            InvalidOptions("`token` must be visible ASCII characters; remove a final newline".to_owned())
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// A file is read also if no node uses TLS, so that its faults show at once.
    fn tls(&self) -> Result<ClientConfig, String> {
        let mut authorities = RootCertStore::empty();
        if let Some(file) = &self.ca_file {
            let fault = |cause: &dyn fmt::Display| format!("`ca_file` {}: {cause}", file.display());
            for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| fault(&cause))? {
                authorities.add(certificate.map_err(|cause| fault(&cause))?).map_err(|cause| fault(&cause))?;
            }
            if authorities.is_empty() {
                return Err(fault(&"it must have certificates in PEM form"));
            }
        } else if self.nodes.iter().any(|node| node.starts_with("https")) {
            // A platform may list some that no program can read.
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if authorities.is_empty() {
                return Err("this platform has no authorities for TLS; set `ca_file`".to_owned());
            }
        }
        let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
        let config = config.with_safe_default_protocol_versions().map_err(|cause| format!("TLS: {cause}"))?;
        Ok(config.with_root_certificates(authorities).with_no_client_auth())
    }
}

/// The URL of a node, without a final slash.
fn base(text: &str) -> Result<String, InvalidOptions> {
    let uri = text.parse::<Uri>().ok().filter(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    let uri = uri.ok_or_else(|| InvalidOptions(format!("node `{text}` must be a URL such as {DEFAULT_NODE}")))?;
    if uri.query().is_some() || text.contains(['#', '@']) {
        return Err(InvalidOptions(format!("node `{text}` must have a host and at most a path")));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Omits the token.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("nodes", &self.nodes)
            .field("deadline", &self.deadline)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

/// An option of a client is invalid. The text has its name, and a valid form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidOptions(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_urls_with_at_most_a_path() {
        for (text, url) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("https://tollgate.internal/", "https://tollgate.internal"),
            ("http://[::1]/limits/", "http://[::1]/limits"),
        ] {
            assert_eq!(base(text).unwrap(), url);
        }
        for text in ["127.0.0.1:7070", "ftp://host", "http://", "http://h?x=1", "http://u:p@h", "http://h#x", ""] {
            assert!(base(text).unwrap_err().0.contains("node"), "{text}");
        }
        assert!(Options::default().nodes([""; 0]).connect().is_err());
    }

    #[test]
    fn token_has_visible_ascii_and_stays_out_of_debug() {
        for token in ["abc\n", "", "a b", "ü"] {
            let fault = Options::default().token(token).connect().unwrap_err();
            assert!(fault.0.contains("`token`"), "{fault}");
        }
        let options = Options::default().token("secret");
        assert!(!format!("{options:?} {:?}", options.connect()).contains("secret"));
    }

    #[test]
    fn ca_file_must_have_certificates() {
        for file in ["absent.pem", "Cargo.toml"] {
            let fault = Options::default().ca_file(file).connect().unwrap_err();
            assert!(fault.0.contains("`ca_file`") && fault.0.contains(file), "{fault}");
        }
    }
}
