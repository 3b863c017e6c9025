//! The credentials for Redis: a user and password, and TLS.

use std::path::PathBuf;

use super::fault::{Faults, Place};
use super::files::Files;
use super::login::{Login, Password};
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

/// The credentials as written beside the URLs.
#[derive(Debug)]
pub(super) struct CredentialsSpec {
    place: Place,
    username: Option<String>,
    password_file: Option<PathBuf>,
    tls: Option<ClientTls>,
}

/// Reads `username`, `password_file` and `tls` of `store`.
pub(super) fn spec(
    place: Place,
    section: &Section<'_>,
    files: &mut Files,
    faults: &mut Faults,
) -> Option<CredentialsSpec> {
    let username = section.member("username").map(|node| {
        let name = node.text("a user of Redis", faults)?;
        if name.is_empty() { node.refuse("a user of Redis", faults) } else { Some(name.to_owned()) }
    });
    let password_file = section.member("password_file").map(|node| {
        const WHAT: &str = "a file with the password";
        let password = files.text(node, WHAT, faults)?;
        files.warn_of_secret_readers(node);
        match password.trim_end_matches(['\r', '\n']) {
            "" => return node.note_file_fault("holds no password", faults),
            line if line.contains(['\r', '\n']) => {
                return node.note_file_fault("must hold the password alone, on one line", faults);
            }
            line if line.starts_with('\u{feff}') => {
                return node.note_file_fault("begins with a byte order mark: save it without", faults);
            }
            _ => {}
        }
        files.path(node, WHAT, faults)
    });
    let tls = section.member("tls").map(|node| {
        let section = Section::open(node, &store_tls::SHAPE, faults)?;
        tls(&section, files, faults)
    });
    Some(CredentialsSpec {
        place,
        username: absent_or_valid(username)?,
        password_file: absent_or_valid(password_file)?,
        tls: absent_or_valid(tls)?,
    })
}

fn tls(section: &Section<'_>, files: &mut Files, faults: &mut Faults) -> Option<ClientTls> {
    let ca_file = section.member("ca_file").map(|node| {
        authorities(node, files, faults)?;
        files.path(node, "a file", faults)
    });
    let identity = match (section.member("cert_file"), section.member("key_file")) {
        (None, None) => None,
        (Some(certificate), Some(secret)) => Some({
            let (chain, read) = (certificates(certificate, files, faults), key(secret, files, faults));
            let paths = (files.path(certificate, "a file", faults), files.path(secret, "a file", faults));
            chain.and(read).and(paths.0.zip(paths.1))
        }),
        (Some(one), None) | (None, Some(one)) => {
            faults.note(one.place, "`cert_file` and `key_file` belong together: name both");
            Some(None)
        }
    };
    Some(ClientTls { ca_file: absent_or_valid(ca_file)?, identity: absent_or_valid(identity)? })
}

/// An absent value is valid, a value with a fault is not.
fn absent_or_valid<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(None) => None,
        Some(value) => Some(value),
    }
}

/// Combines the URLs, if any, with the members beside them.
pub(super) fn credentials(
    seeds: &[(Place, Seed)],
    spec: Option<CredentialsSpec>,
    faults: &mut Faults,
) -> Option<Credentials> {
    let first_tls = seeds.first().is_some_and(|(_, seed)| seed.tls);
    let has_tls = spec.as_ref().is_some_and(|spec| spec.tls.is_some());
    if let Some((place, _)) = seeds.iter().find(|(_, seed)| !has_tls && seed.tls != first_tls) {
        faults.note(*place, "`redis://` and `rediss://` together: either all URLs are with TLS or none");
        return None;
    }
    let of_urls = seeds.iter().find_map(|(place, seed)| Some((place, seed.login.as_ref()?)));
    let differs =
        |(_, seed): &&(Place, Seed)| seed.login.is_some() && seed.login.as_ref() != of_urls.map(|(_, login)| login);
    if let Some((place, _)) = seeds.iter().find(differs) {
        faults.note(*place, "another user or password than in the URL before: all servers of a store know the same");
        return None;
    }
    let Some(CredentialsSpec { place: store, username, password_file, tls }) = spec else {
        return Some(Credentials {
            login: of_urls.map(|(_, login)| login.clone()),
            tls: first_tls.then(ClientTls::default),
        });
    };
    let login = match (of_urls, username, password_file) {
        (of_urls, None, None) => of_urls.map(|(_, login)| login.clone()),
        (None, username, Some(file)) => Some(Login { username, password: Password::File(file) }),
        (None, Some(_), None) => {
            faults.note(store, "`username` needs a password: add `password_file`");
            return None;
        }
        (Some((place, _)), ..) => {
            let sentence = "a password in the URL, and `username` or `password_file` beside it: leave one of them out";
            faults.note(*place, sentence);
            return None;
        }
    };
    // `store.tls` turns TLS on, even where no URL does.
    Some(Credentials { login, tls: tls.or_else(|| first_tls.then(ClientTls::default)) })
}
