//! The addresses that a node listens on, and the check that protects public ones.

use std::net::SocketAddr;

use crate::access::{Access, Scope};

use super::fault::{Place, Reading};
use super::node::Node;
use super::scalar::excerpt;
use super::section::Section;
use super::settings::root::{ADMIN_LISTEN, LISTEN, METRICS_LISTEN};
use super::source::Overrides;

const ADDRESS: &str = "an IP address and a port, such as `127.0.0.1:7070`";

/// Corrections for a public address without tokens: for checks, for operators, and for Envoy.
pub(super) const CHECKS_BEYOND_LOOPBACK: &str = "name `auth: {check_token_files: [FILE]}` (`tollgate token new` makes a token), or \
     write `auth: {allow_anonymous: true}` to let everyone in";
const OPERATORS_BEYOND_LOOPBACK: &str =
    "or name `auth: {admin_token_files: [FILE]}` (`tollgate token new` makes a token)";
pub(super) const ENVOY_BEYOND_LOOPBACK: &str = "name `ca_file` in `envoy.tls` for client certificates, or \
     `auth: {check_token_files: [FILE]}`, or write `auth: {allow_anonymous: true}` to let everyone in";

/// The address for checks, and the one for operators if it differs. `access` is none after a fault
/// in it.
pub(super) fn listen(
    root: &Section<'_>,
    access: Option<&Access>,
    overrides: &Overrides,
) -> (SocketAddr, Option<SocketAddr>) {
    let flag = Place::Flag("--listen or TOLLGATE_LISTEN");
    let checks = Listener::of(root, LISTEN.name, flag, overrides.listen.as_deref());
    let flag = Place::Flag("--admin-listen or TOLLGATE_ADMIN_LISTEN");
    let admin = Listener::of(root, ADMIN_LISTEN.name, flag, overrides.admin_listen.as_deref());
    if let Some(access) = access {
        checks.iter().for_each(|checks| checks.refuse_open(access, CHECKS_BEYOND_LOOPBACK));
        // `allow_anonymous` covers checks only: a separate public operator address needs tokens.
        let is_apart = |admin: &Listener<'_>| checks.as_ref().is_none_or(|checks| apart(admin.address, checks.address));
        if let Some(admin) = &admin
            && !access.has_operators()
            && (!access.allow_anonymous || is_apart(admin))
        {
            admin.refuse_beyond_loopback(OPERATORS_BEYOND_LOOPBACK);
        }
    }
    let checks = checks.map_or(LISTEN.kind.0, |checks| checks.address);
    let admin = admin.map(|admin| admin.address);
    (checks, admin.filter(|admin| apart(*admin, checks)))
}

/// The address for metrics alone.
pub(super) fn metrics_listen(root: &Section<'_>) -> Option<SocketAddr> {
    Listener::read(root.member(METRICS_LISTEN.name)?, ADDRESS).map(|listener| listener.address)
}

/// Whether the addresses are two listeners: port 0 is a new port each time.
fn apart(admin: SocketAddr, checks: SocketAddr) -> bool {
    admin != checks || admin.port() == 0
}

/// Whether other machines can reach the address.
pub(super) fn is_beyond_loopback(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// An address to listen on, and its place in the source.
pub(super) struct Listener<'a> {
    pub address: SocketAddr,
    place: Place,
    reading: &'a Reading,
}

impl<'a> Listener<'a> {
    /// The address of the flag, otherwise of the file.
    fn of(root: &Section<'a>, key: &str, flag: Place, flagged: Option<&str>) -> Option<Self> {
        let of_file = root.member(key).map(|node| Self::read(node, ADDRESS));
        let flagged = flagged.map(|text| Self::parsed(&root.node.reading, flag, text));
        flagged.or(of_file).flatten()
    }

    /// An address that was read at a node.
    pub(super) fn at(node: &'a Node, address: SocketAddr) -> Self {
        Self { address, place: node.place, reading: &node.reading }
    }

    /// The address at a node; `what` describes it.
    pub(super) fn read(node: &'a Node, what: &str) -> Option<Self> {
        Self::parsed(&node.reading, node.place, node.text(what)?)
    }

    fn parsed(reading: &'a Reading, place: Place, text: &str) -> Option<Self> {
        let address = text.parse().ok();
        if address.is_none() {
            reading.note(place, format!("the address to listen on must be {ADDRESS}, not `{}`", excerpt(text)));
        }
        Some(Self { address: address?, place, reading })
    }

    /// Notes an address for checks that other machines reach without a token. `or` is the
    /// alternative correction.
    pub(super) fn refuse_open(&self, access: &Access, or: &str) {
        if !access.lists(Scope::Check) && !access.allow_anonymous {
            self.refuse_beyond_loopback(or);
        }
    }

    /// Without tokens every client that reaches the port may call, so only loopback is allowed.
    /// `or` is the alternative correction.
    fn refuse_beyond_loopback(&self, or: &str) {
        let address = self.address;
        if is_beyond_loopback(address) {
            let sentence = format!(
                "{address} can be reached from other machines and nobody is asked for a token: \
                 listen on a loopback address such as 127.0.0.1, {or}"
            );
            self.reading.note(self.place, sentence);
        }
    }
}
