//! The policies that a gate names.

use crate::config::Policies;
use crate::config::fault::Faults;
use crate::config::raw::{Node, Value};
use crate::config::scalar::{excerpt, listed, nearest};
use crate::config::section::Section;

/// The policies that a gate may name. The names are known even if a policy has a fault.
#[derive(Debug, Clone)]
pub(super) struct Known<'a> {
    names: Vec<&'a str>,
    pub(super) policies: Option<&'a Policies>,
}

fn names<'a>(root: &Section<'a>) -> Vec<&'a str> {
    match root.member("policies").map(|node| &node.value) {
        Some(Value::Mapping(members)) => members.iter().map(|member| member.key.as_str()).collect(),
        _ => Vec::new(),
    }
}

impl<'a> Known<'a> {
    /// `policies` is none after a fault in them.
    pub(super) fn new(root: &Section<'a>, policies: Option<&'a Policies>) -> Self {
        Self { names: names(root), policies }
    }
}

/// A policy that the file has.
pub(super) fn policy_name<'a>(node: &'a Node, known: &Known<'_>, faults: &mut Faults) -> Option<&'a str> {
    let name = node.text("the name of a policy", faults)?;
    if known.names.contains(&name) {
        return Some(name);
    }
    let shown = excerpt(name);
    let sentence = match nearest(name, known.names.iter().copied()) {
        Some(meant) => format!("there is no policy `{shown}`: did you mean `{meant}`?"),
        None => format!("there is no policy `{shown}`: there are {}", listed(&known.names)),
    };
    faults.note(node.place, sentence);
    None
}
