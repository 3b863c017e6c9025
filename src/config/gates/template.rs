//! The template of a key: placeholders and literal text.

use crate::limit::key::{KeyType, MAX_KEY_BYTES};

use super::names;
use crate::config::gate::{KeyPart, Template};

/// The placeholders in faults.
const PLACEHOLDERS: &str = "`{client_ip}`, `{header.NAME}`, `{host}`, `{method}` or `{rule}`";

impl Template {
    /// # Errors
    /// The fault, as a sentence.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (part, after) = match rest.strip_prefix('{') {
                Some(inside) => {
                    let (name, after) = inside
                        .split_once('}')
                        .ok_or("a `{` without its `}`: write a placeholder such as `{client_ip}`")?;
                    (placeholder(name)?, after)
                }
                None => literal(rest)?,
            };
            let is_literal = |part: Option<&KeyPart>| matches!(part, Some(KeyPart::Literal(_)));
            if !parts.is_empty() && !is_literal(parts.last()) && !is_literal(Some(&part)) {
                return Err("two placeholders need a text between them, such as `{host}:{method}`".to_owned());
            }
            parts.push(part);
            rest = after;
        }
        if text.len() > MAX_KEY_BYTES || parts.is_empty() {
            return Err(format!("a template has 1 to {MAX_KEY_BYTES} bytes, such as `{{client_ip}}`"));
        }
        Ok(Self(parts))
    }

    pub(super) fn names_rule(&self) -> bool {
        self.0.contains(&KeyPart::Rule)
    }

    pub(super) fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Checks that keys of this template can have the policy's type.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub(super) fn check_type(&self, policy: &str, key_type: KeyType) -> Result<(), String> {
        match (key_type, self.0.as_slice()) {
            (KeyType::Text, _) | (KeyType::Ip { .. }, [KeyPart::ClientIp | KeyPart::Header(_)]) => Ok(()),
            (KeyType::Ip { .. }, _) => Err(format!(
                "the policy `{policy}` counts addresses: its template is `{{client_ip}}` or one `{{header.NAME}}`"
            )),
        }
    }
}

fn literal(text: &str) -> Result<(KeyPart, &str), String> {
    let (literal, after) = text.split_at(text.find('{').unwrap_or(text.len()));
    if literal.contains(['}', '%']) {
        return Err("the text of a template has no `}` and no `%`".to_owned());
    }
    Ok((KeyPart::Literal(literal.to_owned()), after))
}

fn placeholder(name: &str) -> Result<KeyPart, String> {
    match name {
        "client_ip" => Ok(KeyPart::ClientIp),
        "host" => Ok(KeyPart::Host),
        "method" => Ok(KeyPart::Method),
        "rule" => Ok(KeyPart::Rule),
        _ => match name.strip_prefix("header.") {
            Some(header) => names::header(header).map(KeyPart::Header),
            None => Err(unknown(name)),
        },
    }
}

fn unknown(name: &str) -> String {
    use crate::config::scalar::{excerpt, nearest};
    let shown = excerpt(name);
    if name == "path" {
        return "`{path}` would count each path for itself: name the rule, and write `{rule}`".to_owned();
    }
    match nearest(name, ["client_ip", "host", "method", "rule"]) {
        Some(meant) => format!("unknown placeholder `{{{shown}}}`: did you mean `{{{meant}}}`?"),
        None => format!("unknown placeholder `{{{shown}}}`: expected {PLACEHOLDERS}"),
    }
}
