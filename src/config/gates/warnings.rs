//! Advice on gates that are valid, but may not do as their author expects.

use crate::config::gate::{ClientFrom, Gate, GateRule, Gates, RequestFrom};

impl Gates {
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.0
            .values()
            .flat_map(|gate| gate.warnings().into_iter().map(|advice| format!("gate `{}`: {advice}", gate.name)))
    }
}

impl Gate {
    fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.rules.last().is_some_and(|rule| rule.matches.is_some()) {
            found.push("the last rule has a `match`, so requests that match no rule pass uncounted".to_owned());
        }
        let first_open = self.rules.iter().position(|rule| rule.matches.is_none());
        if let Some(next) = first_open.and_then(|place| self.rules.get(place + 1)) {
            found.push(format!("no request reaches the rule in line {}: a rule before it matches all", next.line));
        }
        if let Some(all) = self.trusted_proxies.iter().find(|network| network.length() == 0) {
            found.push(format!("`trusted_proxies` has `{all}`, so every client chooses its own address and user"));
        }
        if self.trusted_proxies.is_empty() {
            found.extend(self.without_proxies());
        }
        let names = self.rules.iter().flat_map(GateRule::matched_headers);
        let unknown = names.filter(|name| !self.identity_headers.iter().any(|known| known == name));
        found.extend(unknown.map(|name| {
            format!(
                "a rule matches the header `{name}`, which is not in `identity_headers`: the proxy must set or strip it"
            )
        }));
        found
    }

    /// The settings that have no effect without trusted proxies.
    fn without_proxies(&self) -> Option<String> {
        let idle = [
            (self.anonymous, "`anonymous` serves nobody"),
            (self.request_from != RequestFrom::Request, "`request_from` finds no request"),
            (self.client_from != ClientFrom::Peer, "`client_from` is always the peer"),
            (!self.identity_headers.is_empty(), "`identity_headers` never count"),
        ];
        let idle: Vec<&str> = idle.into_iter().filter(|(is_idle, _)| *is_idle).map(|(_, words)| words).collect();
        (!idle.is_empty()).then(|| format!("without `trusted_proxies` {}", idle.join(", ")))
    }
}

impl GateRule {
    fn matched_headers(&self) -> impl Iterator<Item = &str> {
        self.matches.iter().flat_map(|matches| matches.headers.iter().map(|(name, _)| name.as_str()))
    }
}
