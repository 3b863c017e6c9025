//! Private certificates for tests, and a client that speaks TLS.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::{Date, date};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use super::http::{Answer, Connection};

/// An authority and a folder with its certificates: `ca.pem`, and `NAME.pem` and `NAME.key` of
/// each.
pub(crate) struct Authority {
    pub(crate) folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), own.pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// Signs a new certificate for this machine, in place of the former one of that name.
    pub(crate) fn sign(&self, name: &str) {
        self.sign_until(name, date(4096, 1, 1));
    }

    /// The same; it expires when this day begins.
    pub(crate) fn sign_until(&self, name: &str, end: Date) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.not_after = rcgen::date_time_ymd(end.year().into(), end.month() as u8, end.day() as u8);
        // OpenSSL treats a certificate with equal subject and issuer as self-signed.
        params.distinguished_name.push(DnType::CommonName, name);
        let own = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), own.pem()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same, as an argument.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn client(&self, shows: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&self.path("ca.pem")));
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match shows {
            None => config.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                config.with_client_auth_cert(certificates(&self.path(&format!("{name}.pem"))), key).unwrap()
            }
        }
    }
}

pub(crate) fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().collect::<Result<_, _>>().unwrap()
}

pub(crate) fn exchange(
    address: &str,
    config: ClientConfig,
    request: &[u8],
) -> io::Result<(Answer, CertificateDer<'static>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    session.complete_io(&mut stream)?;
    let shown = session.peer_certificates().and_then(|shown| shown.first()).unwrap().clone().into_owned();
    let mut connection = Connection::over(StreamOwned::new(session, stream));
    connection.send(request)?;
    Ok((connection.receive(true)?, shown))
}
