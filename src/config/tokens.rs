//! Reads `tokens`: each has a name, secrets of its own, and the calls that it is for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::access::{Door, Scope, Token, TokenHash};
use crate::limit::time::Micros;

use super::auth::{Tokens, hashes_of};
use super::node::Node;
use super::section::Section;
use super::setting::{Choice, Values};
use super::settings::root::TOKENS;
use super::settings::token::{DOORS, EXPIRES, FILE, NAME, PLANS, POLICIES, SCOPES, SHAPE};

/// Reads `tokens`. `policies` has the names of the policies, and `others` the tokens without names.
pub(super) fn named(root: &Section<'_>, policies: &[&str], others: &Tokens) -> Tokens {
    let plans = super::plans::names(root);
    let owners = others.iter().map(|(hash, token)| (*hash, token.name.clone())).collect();
    let mut reader = Reader { policies, plans, names: HashSet::new(), owners };
    root.each(TOKENS.name, &format!("[{}]", SHAPE.example), |node| reader.token(node)).concat()
}

struct Reader<'a> {
    policies: &'a [&'a str],
    plans: Vec<String>,
    names: HashSet<String>,
    /// The name of each secret's token.
    owners: HashMap<TokenHash, String>,
}

impl Reader<'_> {
    fn token(&mut self, node: &Node) -> Option<Tokens> {
        let section = node.section(&SHAPE);
        let name = section.required(NAME.name, "a token needs a `name`, such as `name: ci`");
        let name = name.and_then(|node| self.name(node));
        let file = section.required(FILE.name, "a token needs a `file` with its hash, such as `file: ci.token`");
        let hashes = file.and_then(|node| self.hashes(node, name.as_deref().unwrap_or_default()));
        let scopes = section.required(SCOPES.name, "a token needs `scopes`, such as `scopes: [check]`");
        let scopes = scopes.map(|node| words(node, "[check, read]", Scope::WORDS));
        let own = section.given(POLICIES.name);
        let of_all = scopes.iter().flatten().find(|scope| matches!(scope, Scope::Admin | Scope::Metrics));
        if let (Some(node), Some(scope)) = (own, of_all) {
            node.note(format!("the scope `{}` is for all policies: leave it or `policies` out", scope.name()));
        }
        let policy = |item| Node::policy(item, self.policies).map(str::to_owned);
        let policies = own.map(|_| section.some(POLICIES.name, "[api, login]", policy).into_iter().collect());
        let known: Vec<&str> = self.plans.iter().map(String::as_str).collect();
        let plan = |item| Node::name_of(item, "plan", &known).map(str::to_owned);
        let plans = section.given(PLANS.name);
        let plans = plans.map(|_| section.some(PLANS.name, "[free, pro]", plan).into_iter().collect());
        let doors = section.given(DOORS.name).map(|node| words(node, "[http, gate]", Door::WORDS));
        let expires = section.given(EXPIRES.name).map(instant);
        let expires = if let Some(end) = expires { Some(end?) } else { None };
        let token = Arc::new(Token { name: name?, scopes: scopes?, policies, plans, doors, expires });
        Some(hashes?.into_iter().map(|hash| (hash, token.clone())).collect())
    }

    /// A name that no other token has.
    fn name(&mut self, node: &Node) -> Option<String> {
        let name = node.identifier()?;
        if !self.names.insert(name.to_owned()) {
            return node.noted(Err(format!("another token has the name `{name}`: give each its own")));
        }
        Some(name.to_owned())
    }

    /// The secrets of a token, which no other one has: its rights would be ambiguous.
    fn hashes(&mut self, file: &Node, name: &str) -> Option<Vec<TokenHash>> {
        let hashes = hashes_of(file)?;
        for hash in &hashes {
            if let Some(other) = self.owners.insert(*hash, name.to_owned()).filter(|other| other != name) {
                return file.note_file_fault(&format!("holds a secret that the token `{other}` has, too"));
            }
        }
        Some(hashes)
    }
}

/// A list of one or more of these words.
fn words<T: Copy>(node: &Node, example: &str, words: &'static [(&'static str, T)]) -> Vec<T> {
    let empty = format!("{} is empty: name one or more, such as `{example}`", node.name);
    let read = |item| Choice(words, words.first()?.1).read(item);
    node.filled_list(example, empty).iter().filter_map(read).collect()
}

/// The start of a day in UTC, or an instant with its offset, in us since the Unix epoch.
fn instant(node: &Node) -> Option<Micros> {
    let what = "a date such as `2027-01-01`, or an instant such as `2027-01-01T09:00:00Z`";
    node.parsed(what, |text| {
        let day = || text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok().map(|day| day.timestamp());
        let instant = text.parse::<Timestamp>().ok().or_else(day)?;
        u64::try_from(instant.as_microsecond()).ok()
    })
}
