//! The login of a node at a server: user, password and TLS. Each connection reads the files anew,
//! so their content may change while the node runs.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use redis::Cmd;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::config::{ClientTls, Credentials, Password};
use crate::store::redis::protocol::failure::Failure;

/// The most bytes of a credentials file.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Returns the command that logs in, if any.
///
/// # Errors
/// When a file cannot be read. No error contains the content of a file.
pub async fn login(credentials: &Credentials) -> Result<Option<Cmd>, Failure> {
    let Some(login) = &credentials.login else { return Ok(None) };
    let mut command = redis::cmd("AUTH");
    command.arg(login.username.as_deref()).arg(password(&login.password).await?);
    Ok(Some(command))
}

/// Returns the text of a password.
///
/// # Errors
/// When its file cannot be read. No error contains the content of a file.
pub async fn password(password: &Password) -> Result<String, Failure> {
    match password {
        Password::Text(password) => Ok(password.clone()),
        Password::File(path) => {
            let text = String::from_utf8(read(path).await?);
            let text = text.map_err(|_| wrong(path, "is not UTF-8"))?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        }
    }
}

/// Builds this node's side of TLS.
///
/// # Errors
/// When a file cannot be read, or contains no certificate or key.
pub async fn connector(tls: &ClientTls) -> Result<TlsConnector, Failure> {
    let roots = match &tls.ca_file {
        Some(path) => {
            let (pem, mut roots) = (read(path).await?, RootCertStore::empty());
            for certificate in certificates(path, &pem)? {
                roots.add(certificate).map_err(|_| wrong(path, "holds a certificate that cannot be read"))?;
            }
            roots
        }
        None => {
            let roots = apart(system_roots).await.unwrap_or_else(RootCertStore::empty);
            if roots.is_empty() {
                return Err(Failure::connection("this machine trusts no authority: name `store.tls.ca_file`"));
            }
            roots
        }
    };
    let unusable = |_| Failure::connection("this node cannot begin TLS with its certificates");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        Some((certificate, key)) => {
            let chain = certificates(certificate, &read(certificate).await?)?;
            let key_read = PrivateKeyDer::from_pem_slice(&read(key).await?);
            let key = key_read.map_err(|_| wrong(key, "holds no private key in PEM"))?;
            config.with_client_auth_cert(chain, key).map_err(unusable)?
        }
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|_| wrong(path, "holds no certificate in PEM"))
}

/// Returns the authorities that this system trusts, except unreadable ones.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Returns the content of a file of the credentials.
///
/// # Errors
/// When it cannot be read.
pub async fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = path.to_owned();
    let bytes = apart(move || bounded(&file)).await.unwrap_or_else(|| Err(std::io::ErrorKind::Other.into()));
    bytes.map_err(|error| wrong(path, &format!("cannot be read: {}", error.kind())))
}

/// The file may have changed since the configuration was checked, and may never end.
fn bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if length as u64 > MAX_BYTES {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Runs work that may wait for a disk on a blocking thread. A thread cannot abandon endless work,
/// so few run at once. Returns none if the work panics.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static AT_ONCE: Semaphore = Semaphore::const_new(4);
    let permit = AT_ONCE.acquire().await.ok()?;
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    tokio::task::spawn_blocking(work).await.ok()
}

fn wrong(path: &Path, what: &str) -> Failure {
    Failure::connection(format!("the file {} of `store` {what}", path.display()))
}
