//! The addresses that a node listens on, and the check that protects public ones.

use std::net::SocketAddr;

use crate::access::Access;

use super::fault::{Faults, Place};
use super::scalar::excerpt;
use super::section::Section;
use super::settings::root::{ADMIN_LISTEN, LISTEN};
use super::source::Overrides;

const ADDRESS: &str = "an IP address and a port, such as `127.0.0.1:7070`";

/// Corrections for a public address without tokens: for checks, for operators, and for Envoy.
pub(super) const CHECKS_BEYOND_LOOPBACK: &str = "name `auth: {check_token_files: [FILE]}` (`tollgate token new` makes a token), or \
     write `auth: {allow_anonymous: true}` to let everyone in";
const OPERATORS_BEYOND_LOOPBACK: &str =
    "or name `auth: {admin_token_files: [FILE]}` (`tollgate token new` makes a token)";
pub(super) const ENVOY_BEYOND_LOOPBACK: &str = "name `ca_file` in `envoy.tls` for client certificates, or \
     `auth: {check_token_files: [FILE]}`, or write `auth: {allow_anonymous: true}` to let everyone in";

/// An address, and its place in the source.
pub(super) type AddressSpec = (SocketAddr, Place);

/// The address for checks, and the one for operators if it differs. `access` is none after a fault
/// in it.
pub(super) fn listen(
    root: &Section<'_>,
    access: Option<&Access>,
    overrides: &Overrides,
    faults: &mut Faults,
) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let flag = Place::Flag("--listen or TOLLGATE_LISTEN");
    let checks = address(root, LISTEN.name, flag, overrides.listen.as_deref(), faults);
    let flag = Place::Flag("--admin-listen or TOLLGATE_ADMIN_LISTEN");
    let admin = address(root, ADMIN_LISTEN.name, flag, overrides.admin_listen.as_deref(), faults);
    if let Some(access) = access {
        if let Some(Some(written)) = checks {
            refuse_open(written, access, CHECKS_BEYOND_LOOPBACK, faults);
        }
        // `allow_anonymous` covers checks only: a separate public operator address needs tokens.
        let is_apart = |written: &AddressSpec| checks.flatten().is_none_or(|checks| apart(written.0, checks.0));
        if let Some(Some(written)) = admin
            && access.admin.is_empty()
            && (!access.allow_anonymous || is_apart(&written))
        {
            refuse_beyond_loopback(written, OPERATORS_BEYOND_LOOPBACK, faults);
        }
    }
    let checks = checks?.map_or(LISTEN.kind.0, |(address, _)| address);
    let admin = admin?.map(|(address, _)| address);
    Some((checks, admin.filter(|admin| apart(*admin, checks))))
}

/// Notes an address for checks that other machines reach without a token. `or` is the alternative
/// correction.
pub(super) fn refuse_open(written: AddressSpec, access: &Access, or: &str, faults: &mut Faults) {
    if access.check.is_empty() && !access.allow_anonymous {
        refuse_beyond_loopback(written, or, faults);
    }
}

/// Whether the addresses are two listeners: port 0 is a new port each time.
fn apart(admin: SocketAddr, checks: SocketAddr) -> bool {
    admin != checks || admin.port() == 0
}

/// The address of the flag, otherwise of the file. The outer None marks a fault, the inner one an
/// absent address.
fn address(
    root: &Section<'_>,
    key: &str,
    flag: Place,
    flagged: Option<&str>,
    faults: &mut Faults,
) -> Option<Option<AddressSpec>> {
    let node = root.member(key);
    let written = node.map(|node| parsed(node.text(ADDRESS, faults)?, node.place, faults));
    let flagged = flagged.map(|text| parsed(text, flag, faults));
    flagged.or(written).map_or(Some(None), |address| address.map(Some))
}

pub(super) fn parsed(text: &str, place: Place, faults: &mut Faults) -> Option<AddressSpec> {
    let address = text.parse().ok().map(|address| (address, place));
    if address.is_none() {
        faults.note(place, format!("the address to listen on must be {ADDRESS}, not `{}`", excerpt(text)));
    }
    address
}

/// Whether other machines can reach the address.
pub(super) fn is_beyond_loopback(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Without tokens every client that reaches the port may call, so only loopback is allowed. `or` is
/// the alternative correction.
fn refuse_beyond_loopback((address, place): AddressSpec, or: &str, faults: &mut Faults) {
    if is_beyond_loopback(address) {
        let sentence = format!(
            "{address} can be reached from other machines and nobody is asked for a token: \
             listen on a loopback address such as 127.0.0.1, {or}"
        );
        faults.note(place, sentence);
    }
}
