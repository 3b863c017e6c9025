//! What a node shows to a server to be let in: a user and password, TLS. Files are read for each connection anew, so
//! that what they hold can be changed while the node runs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    RedisResult, TlsCertificates,
};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;

use super::server::Address;
use crate::config::{ClientTls, Credentials, Login, Password};

/// The most bytes of a file of credentials.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// What opens connections to a server.
///
/// # Errors
/// When a file cannot be read. No error holds what a file holds.
pub(super) async fn client(address: &Address, credentials: &Credentials) -> RedisResult<Client> {
    let Address { host, port } = address.clone();
    let target = match credentials.tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
    };
    let settings = match &credentials.login {
        Some(login) => settings(login).await?,
        None => RedisConnectionInfo::default(),
    };
    // Without CLIENT SETINFO, which servers before 7.2 do not know and which would be one more command to allow.
    let info = target
        .into_connection_info()?
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(settings.set_skip_set_lib_name());
    match &credentials.tls {
        None => Client::open(info),
        Some(tls) => Client::build_with_tls(info, certificates(tls).await?),
    }
}

async fn settings(login: &Login) -> RedisResult<RedisConnectionInfo> {
    let settings = match &login.password {
        Password::Text(password) => RedisConnectionInfo::default().set_password(password),
        Password::File(path) => {
            let text = String::from_utf8(read(path).await?);
            let text = text.map_err(|_| wrong(path, "is not UTF-8"))?;
            RedisConnectionInfo::default().set_password(text.trim_end_matches(['\r', '\n']))
        }
    };
    Ok(match &login.username {
        Some(username) => settings.set_username(username),
        None => settings,
    })
}

async fn certificates(tls: &ClientTls) -> RedisResult<TlsCertificates> {
    let root_cert = match &tls.ca_file {
        Some(path) => read(path).await?,
        None => {
            let roots = apart(system_roots).await.unwrap_or_default();
            if roots.is_empty() {
                let right = "name `store.tls.ca_file`".to_owned();
                return Err((ErrorKind::InvalidClientConfig, "this machine trusts no authority", right).into());
            }
            roots
        }
    };
    let client_tls = match &tls.identity {
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate).await?, client_key: read(key).await? })
        }
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: Some(root_cert) })
}

/// The certificates that this system trusts, as PEM; those that cannot be read are left out.
fn system_roots() -> Vec<u8> {
    let mut readable = RootCertStore::empty();
    let certificates = rustls_native_certs::load_native_certs().certs.into_iter();
    let certificates = certificates.filter(|certificate| readable.add(certificate.clone()).is_ok());
    let pem = |certificate: CertificateDer<'_>| {
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(certificate))
    };
    certificates.map(pem).collect::<String>().into_bytes()
}

async fn read(path: &Path) -> RedisResult<Vec<u8>> {
    let file = path.to_owned();
    let bytes = apart(move || bounded(&file)).await.unwrap_or_else(|| Err(std::io::ErrorKind::Other.into()));
    bytes.map_err(|error| wrong(path, &format!("cannot be read: {error}")))
}

/// The file may be another one than the configuration was checked with, and may never end.
fn bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if length as u64 > MAX_BYTES {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Does what may wait for a disk on a thread that may wait. One that waits for ever is not given up by its thread, so
/// there are few of them at once; none when it panicked.
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

fn wrong(path: &Path, what: &str) -> RedisError {
    (ErrorKind::InvalidClientConfig, "a file of the credentials", format!("{} {what}", path.display())).into()
}
