//! TLS of a command towards a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cli::bounded::{self, PEM_BYTES};

// TLS towards a node, verified with the authority of its certificate.
#[derive(Debug, clap::Args)]
pub(super) struct Tls {
    /// For https: the authority that signed the node's certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate to show, where the node asks for one, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CERT_FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_KEY_FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
}

impl Tls {
    /// Starts TLS with `host`.
    ///
    /// # Errors
    /// When a file is missing or wrong, or the node's certificate does not match.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        connector.connect(name, stream).await.map_err(|error| error.to_string())
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let file = self.ca_file.as_ref().ok_or("name the authority of the node's certificate by --ca-file")?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(file)?);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let (Some(cert_file), Some(key_file)) = (&self.cert_file, &self.key_file) else {
            return Ok(config.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(&bounded::read(key_file, PEM_BYTES)?);
        let key = key.map_err(|error| format!("{}: {error}", key_file.display()))?;
        config.with_client_auth_cert(certificates(cert_file)?, key).map_err(|error| error.to_string())
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bounded::read(file, PEM_BYTES)?).collect();
    match read {
        Ok(read) if read.is_empty() => Err(format!("{} holds no certificate in PEM", file.display())),
        read => read.map_err(|error| format!("{}: {error}", file.display())),
    }
}
