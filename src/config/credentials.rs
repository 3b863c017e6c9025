//! The credentials for Redis: a user and password, and TLS.

use std::fmt;
use std::path::PathBuf;

use super::fault::{Fault, Place};
use super::node::Node;
use super::section::Section;
use super::settings::store_tls;
use super::tls::{authorities, certificates, key};
use super::url::Seed;

/// How a node authenticates and verifies the servers: the same for all servers of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// None: the default user, without a password.
    pub login: Option<Login>,
    /// None: no TLS.
    pub tls: Option<ClientTls>,
}

/// TLS towards the servers. Each new connection reads the files, so they can be renewed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority of the servers' certificates, in PEM. None: the authorities that this machine
    /// trusts.
    pub ca_file: Option<PathBuf>,
    /// The node's client certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The user that a node logs in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// None: the default user.
    pub username: Option<String>,
    pub password: Password,
}

/// A password, or the file that holds it. Each new connection reads that file, so the password can
/// change.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    Text(String),
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => out.write_str("Text(..)"),
            Self::File(path) => write!(out, "File({})", path.display()),
        }
    }
}

/// The credentials as written beside the URLs.
#[derive(Debug)]
pub(super) struct CredentialsSpec<'a> {
    /// The section that has them.
    node: &'a Node,
    username: Option<String>,
    password_file: Option<PathBuf>,
    tls: Option<ClientTls>,
}

/// Reads `username`, `password_file` and `tls` of `store`; none after a fault.
pub(super) fn spec<'a>(node: &'a Node, section: &Section<'a>) -> Option<CredentialsSpec<'a>> {
    node.reading.checked(|| CredentialsSpec {
        node,
        username: section.member("username").and_then(|node| node.word("a user of Redis")).map(str::to_owned),
        password_file: section.member("password_file").and_then(password_file),
        tls: section.member("tls").map(tls),
    })
}

fn password_file(node: &Node) -> Option<PathBuf> {
    const WHAT: &str = "a file with the password";
    let password = node.text_of_file(WHAT)?;
    node.warn_of_secret_readers();
    match password.trim_end_matches(['\r', '\n']) {
        "" => node.note_file_fault("holds no password"),
        line if line.contains(['\r', '\n']) => node.note_file_fault("must hold the password alone, on one line"),
        line if line.starts_with('\u{feff}') => node.note_file_fault("begins with a byte order mark: save it without"),
        _ => node.path(WHAT),
    }
}

fn tls(node: &Node) -> ClientTls {
    client_tls(&node.section(&store_tls::SHAPE))
}

/// The files of TLS towards servers.
pub(super) fn client_tls(section: &Section<'_>) -> ClientTls {
    let ca_file = section.member("ca_file").and_then(|node| authorities(node).and(node.path("a file")));
    let identity = match (section.member("cert_file"), section.member("key_file")) {
        (None, None) => None,
        (Some(certificate), Some(secret)) => {
            let (_, _) = (certificates(certificate), key(secret));
            certificate.path("a file").zip(secret.path("a file"))
        }
        (Some(one), None) | (None, Some(one)) => {
            one.note("`cert_file` and `key_file` belong together: name both");
            None
        }
    };
    ClientTls { ca_file, identity }
}

/// Combines the URLs, if any, with the members beside them.
///
/// # Errors
/// Members that contradict each other.
pub(super) fn credentials(seeds: &[(Place, Seed)], spec: Option<CredentialsSpec<'_>>) -> Result<Credentials, Fault> {
    let first_tls = seeds.first().is_some_and(|(_, seed)| seed.tls);
    let has_tls = spec.as_ref().is_some_and(|spec| spec.tls.is_some());
    if let Some((place, _)) = seeds.iter().find(|(_, seed)| !has_tls && seed.tls != first_tls) {
        return Err(Fault::at(*place, "`redis://` and `rediss://` together: either all URLs are with TLS or none"));
    }
    let mut logins = seeds.iter().filter_map(|(place, seed)| Some((*place, seed.login.as_ref()?)));
    let of_urls = logins.next();
    if let Some((place, _)) = logins.find(|(_, login)| Some(*login) != of_urls.map(|(_, first)| first)) {
        return Err(Fault::at(
            place,
            "another user or password than in the URL before: all servers of a store know the same",
        ));
    }
    let (login, tls) = match spec {
        None => (None, None),
        Some(CredentialsSpec { node, username: Some(_), password_file: None, .. }) if of_urls.is_none() => {
            return Err(Fault::at(node.place, "`username` needs a password: add `password_file`"));
        }
        Some(CredentialsSpec { username, password_file, tls, .. }) => {
            if let Some((place, _)) = of_urls.filter(|_| username.is_some() || password_file.is_some()) {
                let sentence =
                    "a password in the URL, and `username` or `password_file` beside it: leave one of them out";
                return Err(Fault::at(place, sentence));
            }
            (password_file.map(|file| Login { username, password: Password::File(file) }), tls)
        }
    };
    // `store.tls` turns TLS on, even where no URL does.
    Ok(Credentials {
        login: login.or_else(|| of_urls.map(|(_, login)| login.clone())),
        tls: tls.or_else(|| first_tls.then(ClientTls::default)),
    })
}
