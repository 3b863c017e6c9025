//! TLS of the listeners: certificate and key, and the authority of client certificates.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};

use super::node::Node;
use super::section::Section;
use super::settings::envoy_tls;
use super::settings::tls::{CLIENT_CA_FILE, SHAPE};
use crate::limit::time::{MICROS_PER_SECOND, Micros};

const CERTIFICATE: &str = "a file with certificates in PEM, such as `node.pem`";

/// TLS of the listeners, read from its files.
#[derive(Debug, Clone)]
pub struct ServerTls {
    pub server: Arc<ServerConfig>,
    /// The node's certificate, and the authorities between it and one that clients know.
    chain: Vec<CertificateDer<'static>>,
    /// When clients begin to reject the certificate: the earliest expiry in the chain, in us since
    /// the Unix epoch; none if no certificate reveals one.
    pub ends_at: Option<Micros>,
    /// The authorities that sign client certificates. None: clients need no certificate.
    clients: Option<Arc<RootCertStore>>,
}

impl ServerTls {
    /// Whether clients must present a certificate.
    pub fn asks_clients(&self) -> bool {
        self.clients.is_some()
    }
}

impl PartialEq for ServerTls {
    /// Whether the files hold the same; another key implies another certificate.
    fn eq(&self, other: &Self) -> bool {
        let roots = |tls: &Self| tls.clients.as_ref().map(|clients| clients.roots.clone());
        self.chain == other.chain && roots(self) == roots(other)
    }
}

/// Reads `tls`.
pub(super) fn tls(node: &Node) -> Option<ServerTls> {
    server(&node.section(&SHAPE), CLIENT_CA_FILE.name, &[b"h2", b"http/1.1"])
}

/// Reads `envoy.tls`.
pub(super) fn of_envoy(node: &Node) -> Option<ServerTls> {
    server(&node.section(&envoy_tls::SHAPE), envoy_tls::CA_FILE.name, &[b"h2"])
}

/// Reads the files of a listener that speaks `protocols`. `authority` is the member with the
/// authority of client certificates.
fn server(section: &Section<'_>, authority: &str, protocols: &[&[u8]]) -> Option<ServerTls> {
    let sentence = "`tls` needs `cert_file` and `key_file`, such as `{cert_file: node.pem, key_file: node.key}`";
    let certificate = section.required("cert_file", sentence);
    let key_node = section.required("key_file", sentence);
    let (chain, key) = (certificate.and_then(certificates), key_node.and_then(key));
    let (clients, verifier) = match section.member(authority) {
        Some(node) => {
            let clients = Arc::new(authorities(node)?);
            (Some(clients.clone()), verifier(node, clients)?)
        }
        None => (None, WebPkiClientVerifier::no_client_auth()),
    };
    let (chain, key) = (chain?, key?);
    let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().ok()?;
    let config = config.with_client_cert_verifier(verifier).with_single_cert(chain.clone(), key);
    let refuse = |error| key_node?.note_file_fault::<()>(&format!("does not go with `cert_file`: {error}"));
    let mut config = config.map_err(refuse).ok()?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let ends_at = chain.iter().filter_map(ends_at).min();
    Some(ServerTls { server: Arc::new(config), chain, ends_at, clients })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates in a file, at least one.
pub(super) fn certificates(node: &Node) -> Option<Vec<CertificateDer<'static>>> {
    let bytes = node.bytes(CERTIFICATE)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(chain) if !chain.is_empty() => Some(chain),
        _ => node.note_file_fault("must hold one or more certificates in PEM"),
    }
}

/// The expiry of a certificate. The verifier reports an expired certificate before it checks
/// anything else. So a verification at the end of time reveals the expiry.
fn ends_at(certificate: &CertificateDer<'_>) -> Option<Micros> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], end_of_time, &[]) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs().saturating_mul(MICROS_PER_SECOND))
        }
        _ => None,
    }
}

/// The private key in a file.
pub(super) fn key(node: &Node) -> Option<PrivateKeyDer<'static>> {
    let bytes = node.bytes("a file with a private key in PEM, such as `node.key`")?;
    node.warn_of_secret_readers();
    PrivateKeyDer::from_pem_slice(&bytes)
        .ok()
        .or_else(|| node.note_file_fault("must hold one private key in PEM"))
}

/// The authorities in a file.
pub(super) fn authorities(node: &Node) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates(node)?) {
        (_, 0) => Some(roots),
        _ => node.note_file_fault("holds a certificate that is none of an authority"),
    }
}

fn verifier(node: &Node, roots: Arc<RootCertStore>) -> Option<Arc<dyn ClientCertVerifier>> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    verifier.map_or_else(|error| node.note_file_fault(&format!("does not serve: {error}")), Some)
}
