//! Parses the reply to CLUSTER SLOTS: the owner of each slot, and the ids of all nodes.

use std::collections::{BTreeSet, HashSet};

use redis::Value;

use super::address::{Address, is_host};
use super::failure::{Failure, Kind};
use super::reply::text;
use crate::limit::slot::SLOTS;

/// The most primaries of a cluster. Redis recommends at most 1000 nodes.
pub const MAX_PRIMARIES: usize = 1000;

/// The most bytes of a node's id. Redis uses 40.
const MAX_ID: usize = 128;

/// The most ids that are kept.
const MAX_IDS: usize = 10_000;

/// Returns the owner of each range of slots as `(first, last, primary)`. The source is CLUSTER
/// SLOTS, which every version has. Ranges without an owner's address are omitted.
///
/// # Errors
/// When the answer fits no cluster: more ranges than slots, overlapping ranges, or too many
/// primaries.
pub fn owners(reply: &Value, asked: &Address) -> Result<Vec<(u16, u16, Address)>, Failure> {
    let Value::Array(ranges) = reply else { return Err(Failure::unfit("CLUSTER SLOTS")) };
    if ranges.len() > usize::from(SLOTS) {
        return Err(wrong_slots("names more ranges than there are slots"));
    }
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else { return None };
        let [host, Value::Int(port), more @ ..] = primary.as_slice() else { return None };
        let (first, last, port) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, u16::try_from(*port).ok()?);
        let host = match text(host) {
            // The node that replies: the server does not know the name by which it is called.
            None | Some("") => Some(&*asked.host),
            // The node has not announced its name. Its address follows.
            Some("?") => ip(more),
            named => named.filter(|host| is_host(host)),
        };
        let address = host.filter(|_| port > 0).map(|host| Address { host: host.to_owned(), port });
        Some((first, last, address))
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(range).collect();
    let ranges = ranges.ok_or_else(|| Failure::unfit("CLUSTER SLOTS"))?;
    let mut is_owned = vec![false; usize::from(SLOTS)];
    for (first, last, _) in &ranges {
        let slots = is_owned.get_mut(usize::from(*first)..=usize::from(*last)).filter(|slots| !slots.is_empty());
        let slots = slots.ok_or_else(|| wrong_slots("names a slot that there is not"))?;
        if slots.iter_mut().any(|is_owned| std::mem::replace(is_owned, true)) {
            return Err(wrong_slots("names two owners of one slot"));
        }
    }
    let owners: Vec<_> =
        ranges.into_iter().filter_map(|(first, last, address)| Some((first, last, address?))).collect();
    if owners.iter().map(|(.., address)| address).collect::<HashSet<_>>().len() > MAX_PRIMARIES {
        return Err(wrong_slots("names more than 1000 primaries"));
    }
    Ok(owners)
}

fn wrong_slots(what: &str) -> Failure {
    Failure::new(Kind::NotRedis, format!("the server's answer to CLUSTER SLOTS {what}"))
}

/// Returns the ids of all nodes in CLUSTER SLOTS, primaries and replicas. An id identifies a node
/// at any address.
pub fn ids(reply: &Value) -> BTreeSet<String> {
    let Value::Array(ranges) = reply else { return BTreeSet::new() };
    let parts = ranges
        .iter()
        .filter_map(|range| if let Value::Array(parts) = range { parts.get(2..) } else { None });
    let mut ids = BTreeSet::new();
    for node in parts.flatten() {
        let Value::Array(node) = node else { continue };
        let id = node.get(2).and_then(text).filter(|id| (1..=MAX_ID).contains(&id.len()));
        if let Some(id) = id.filter(|id| ids.len() < MAX_IDS && !ids.contains(*id)) {
            ids.insert(id.to_owned());
        }
    }
    ids
}

/// Returns a node's address from the values after its port in CLUSTER SLOTS. These are its id and,
/// from Redis 7 on, names and values.
fn ip(more: &[Value]) -> Option<&str> {
    let [_, Value::Array(members), ..] = more else { return None };
    let (members, _) = members.as_chunks::<2>();
    members
        .iter()
        .find_map(|[name, value]| text(value).filter(|ip| text(name) == Some("ip") && is_host(ip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn unnamed_node_has_its_own_address() {
        let asked = Address { host: "asked".into(), port: 7001 };
        let slots = |primary: Vec<Value>| {
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), Value::Array(primary)]);
            owners(&Value::Array(vec![range]), &asked).ok()
        };
        let members = || Value::Array(vec![bulk("hostname"), bulk("x"), bulk("ip"), bulk("127.0.0.2")]);
        let at = |host: &str| Some(vec![(0, 9, Address { host: host.into(), port: 7001 })]);
        let port = || Value::Int(7001);
        assert_eq!(slots(vec![bulk("named"), port(), bulk("id")]), at("named"));
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id"), members()]), at("127.0.0.2"));
        // Redis before version 7 sends no members. A later server may send an empty list.
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id")]), Some(vec![]));
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id"), Value::Array(vec![])]), Some(vec![]));
        for unknown in [bulk(""), Value::Nil] {
            assert_eq!(slots(vec![unknown.clone(), port(), bulk("id"), members()]), at("asked"));
            assert_eq!(slots(vec![unknown, Value::Int(0), bulk("id")]), Some(vec![]), "it has no address");
        }
    }

    #[test]
    fn ids_of_all_nodes_are_read() {
        let node = |id: &str| Value::Array(vec![bulk("host"), Value::Int(7001), bulk(id)]);
        let range = |nodes: &[&str]| {
            let bounds = [Value::Int(0), Value::Int(9)].into_iter();
            Value::Array(bounds.chain(nodes.iter().map(|id| node(id))).collect())
        };
        let told = ids(&Value::Array(vec![range(&["a", "b"]), range(&["c"]), range(&["a", ""]), range(&[])]));
        assert_eq!(told.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(ids(&Value::Nil).is_empty());
    }
}
