//! Where a node listens, and who may reach it there.

use std::net::SocketAddr;

use crate::access::Access;

use super::fault::{Faults, Place};
use super::scalar::excerpt;
use super::section::Section;
use super::source::Overrides;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);

const ADDRESS: &str = "an IP address and a port, such as `127.0.0.1:7070`";

/// What would be right for checks, and for operators.
const CHECKS_BEYOND_LOOPBACK: &str = "name `auth: {check_token_files: [FILE]}` (`tollgate token new` makes a token), or \
     write `auth: {allow_anonymous: true}` to let everyone in";
const OPERATORS_BEYOND_LOOPBACK: &str =
    "or name `auth: {admin_token_files: [FILE]}` (`tollgate token new` makes a token)";

/// An address and where it was written.
#[derive(Debug, Clone, Copy)]
struct Written {
    address: SocketAddr,
    place: Place,
}

/// Where checks are answered, and where operators ask unless it is the same. `access` is none after a fault of it.
pub(super) fn listen(
    root: &Section<'_>,
    access: Option<&Access>,
    overrides: &Overrides,
    faults: &mut Faults,
) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let flag = Place::Flag("--listen or TOLLGATE_LISTEN");
    let checks = address(root, "listen", flag, overrides.listen.as_deref(), faults);
    let flag = Place::Flag("--admin-listen or TOLLGATE_ADMIN_LISTEN");
    let admin = address(root, "admin_listen", flag, overrides.admin_listen.as_deref(), faults);
    if let Some(access) = access {
        if let Some(Some(written)) = checks
            && access.check.is_empty()
            && !access.allow_anonymous
        {
            refuse_beyond_loopback(written, CHECKS_BEYOND_LOOPBACK, faults);
        }
        // That is about checks: who may do what operators do only tokens can say.
        let is_apart = |written: &Written| checks.flatten().is_none_or(|checks| apart(written.address, checks.address));
        if let Some(Some(written)) = admin
            && access.admin.is_empty()
            && (!access.allow_anonymous || is_apart(&written))
        {
            refuse_beyond_loopback(written, OPERATORS_BEYOND_LOOPBACK, faults);
        }
    }
    let checks = checks?.map_or(DEFAULT_LISTEN, |written| written.address);
    let admin = admin?.map(|written| written.address);
    Some((checks, admin.filter(|admin| apart(*admin, checks))))
}

/// Whether these are two listeners: port 0 is another one each time.
fn apart(admin: SocketAddr, checks: SocketAddr) -> bool {
    admin != checks || admin.port() == 0
}

/// What the flag says, or else the file; the outer None after a fault, the inner one when neither says anything.
fn address(
    root: &Section<'_>,
    key: &str,
    flag: Place,
    flagged: Option<&str>,
    faults: &mut Faults,
) -> Option<Option<Written>> {
    let node = root.member(key);
    let written = node.map(|node| parsed(node.text(ADDRESS, faults)?, node.place, faults));
    let flagged = flagged.map(|text| parsed(text, flag, faults));
    flagged.or(written).map_or(Some(None), |address| address.map(Some))
}

fn parsed(text: &str, place: Place, faults: &mut Faults) -> Option<Written> {
    let address = text.parse().ok().map(|address| Written { address, place });
    if address.is_none() {
        faults.note(place, format!("the address to listen on must be {ADDRESS}, not `{}`", excerpt(text)));
    }
    address
}

/// Whether other machines may reach it.
pub(super) fn is_beyond_loopback(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Everyone who reaches the port may ask, so without tokens only this machine does; `or` is what else would be right.
fn refuse_beyond_loopback(Written { address, place }: Written, or: &str, faults: &mut Faults) {
    if is_beyond_loopback(address) {
        let sentence = format!(
            "{address} can be reached from other machines and nobody is asked for a token: \
             listen on a loopback address such as 127.0.0.1, {or}"
        );
        faults.note(place, sentence);
    }
}
