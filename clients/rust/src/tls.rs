use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Verifies the certificates of nodes.
pub(crate) type Tls = TlsConnector;

pub(crate) fn with_authorities_of(file: &Path) -> Result<Tls, String> {
    let fault = |cause: &dyn std::fmt::Display| format!("`ca_file` {}: {cause}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(|cause| fault(&cause))?;
    let mut authorities = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|cause| fault(&cause))?;
        authorities.add(certificate).map_err(|cause| fault(&cause))?;
    }
    if authorities.is_empty() {
        return Err(fault(&"it must have certificates in PEM form"));
    }
    connector(authorities)
}

pub(crate) fn with_those_of_the_platform() -> Result<Tls, String> {
    let mut authorities = RootCertStore::empty();
    // A platform may list some that no program can read.
    authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if authorities.is_empty() {
        return Err("this platform has no authorities for TLS; set `ca_file`".to_owned());
    }
    connector(authorities)
}

fn connector(authorities: RootCertStore) -> Result<Tls, String> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|cause| format!("TLS: {cause}"))?
        .with_root_certificates(authorities)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
