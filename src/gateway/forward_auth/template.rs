//! Renders the key of a check.

use std::borrow::Cow;
use std::net::IpAddr;

use super::facts::Facts;
use super::missing::Missing;
use crate::config::{GateRule, KeyPart, Template};
use crate::limit::key::{check_length, push_escaped};

/// The beginning of the key of an address that stands in for a missing key.
const ADDRESS: &str = "ip:";

/// The beginning of the key of a text that is too long.
const HASH: &str = "blake3:";

/// The key of an address that stands in for a missing key of a policy of texts.
pub(super) fn of_address(address: IpAddr) -> String {
    format!("{ADDRESS}{address}")
}

/// The key, or the fact that it lacks.
///
/// In a template of several parts the values are escaped, so two requests have one key only if all
/// their values agree. A key over 1024 bytes is hashed: a client must not make its key missing. A
/// text that looks like the key of an address or a hash gets a `%` in front, so no client can count
/// under either.
pub(super) fn render<'a>(template: &'a Template, rule: &'a GateRule, facts: &Facts<'a>) -> Result<String, Missing<'a>> {
    let key = match template.0.as_slice() {
        [part] => value(part, rule, facts)?.into_owned(),
        parts => {
            let special = special(parts);
            let mut key = String::new();
            for part in parts {
                match part {
                    KeyPart::Literal(text) => key.push_str(text),
                    part => push_escaped(&mut key, &value(part, rule, facts)?, &special),
                }
            }
            key
        }
    };
    let is_own = match template.0.as_slice() {
        [KeyPart::Literal(text), KeyPart::ClientIp] => text == ADDRESS,
        parts => parts.iter().all(|part| matches!(part, KeyPart::Literal(_))),
    };
    let key = if !is_own && is_reserved(&key) { format!("%{key}") } else { key };
    Ok(if check_length(&key).is_ok() { key } else { format!("{HASH}{}", blake3::hash(key.as_bytes()).to_hex()) })
}

/// Whether a text could be taken for the key of an address or a hash, also after `%` in front.
fn is_reserved(key: &str) -> bool {
    let text = key.trim_start_matches('%');
    let is_hash = |digits: &str| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.strip_prefix(ADDRESS).is_some_and(|address| address.parse::<IpAddr>().is_ok())
        || text.strip_prefix(HASH).is_some_and(is_hash)
}

fn value<'a>(part: &'a KeyPart, rule: &'a GateRule, facts: &Facts<'a>) -> Result<Cow<'a, str>, Missing<'a>> {
    match part {
        KeyPart::Literal(text) => Ok(Cow::Borrowed(text)),
        KeyPart::ClientIp => facts.client.clone().map(|address| Cow::Owned(address.to_string())),
        KeyPart::Header(name) => facts.fields.only(name, Cow::Borrowed(name)).map(Cow::Borrowed),
        KeyPart::Host => facts.host.clone().map(Cow::Owned),
        KeyPart::Method => facts.method.clone().map(Cow::Owned),
        KeyPart::Rule => Ok(Cow::Borrowed(rule.name.as_deref().unwrap_or_default())),
    }
}

/// The bytes to escape: `%` and those of the literals.
fn special(parts: &[KeyPart]) -> Vec<u8> {
    let literals = parts.iter().filter_map(|part| match part {
        KeyPart::Literal(text) => Some(text.bytes()),
        _ => None,
    });
    std::iter::once(b'%').chain(literals.flatten()).collect()
}
