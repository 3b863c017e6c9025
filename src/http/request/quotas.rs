//! The inline quotas of a check as written, since their meaning depends on the policy.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use super::raw::{each_member, integer, kind, string};
use crate::engine::QuotaSpec;

/// The most quotas of one check. Policies accept fewer; callers must not make the node keep
/// thousands.
const MAX_ITEMS: usize = 32;

/// The most members of one quota. It is several times the real number, so that a few wrong members
/// are reported by name.
const MAX_MEMBERS: usize = 32;

/// Reads quotas in the first parse. The second reading reports the faults.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<QuotaSpec>>, D::Error> {
    let value = <&RawValue>::deserialize(deserializer)?;
    written(value).map(Some).map_err(D::Error::custom)
}

/// Reads an array of texts and objects.
pub(super) fn written(value: &RawValue) -> Result<Vec<QuotaSpec>, String> {
    if !value.get().starts_with('[') {
        return Err(format!("must be an array such as [\"10 per 1s\"], not {}", kind(value)));
    }
    let items: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
    if items.len() > MAX_ITEMS {
        return Err(format!("must hold up to {MAX_ITEMS} quotas, not {}", items.len()));
    }
    items.into_iter().map(item).collect()
}

fn item(value: &RawValue) -> Result<QuotaSpec, String> {
    if !value.get().starts_with('{') {
        return scalar(value);
    }
    let (mut members, mut count) = (Vec::new(), 0);
    each_member(value, |name, value| {
        count += 1;
        if count <= MAX_MEMBERS {
            members.push((name.into_owned(), value));
        }
    })?;
    if count > MAX_MEMBERS {
        return Err(format!("must hold objects of up to {MAX_MEMBERS} members, not {count}"));
    }
    let member = |(name, value)| match scalar(value)? {
        // In a file `5` and `true` are names, too.
        QuotaSpec::Word(_) if name == "name" => Err(format!("must have strings as names, not {}", kind(value))),
        scalar => Ok((name, scalar)),
    };
    members.into_iter().map(member).collect::<Result<_, _>>().map(QuotaSpec::Members)
}

/// A value without its contents: of a collection only the kind is kept.
fn scalar(value: &RawValue) -> Result<QuotaSpec, String> {
    Ok(match value.get().as_bytes().first() {
        Some(b'"') => QuotaSpec::Text(string(value)?),
        Some(b'{') => QuotaSpec::Members(Vec::new()),
        Some(b'[') => QuotaSpec::List,
        Some(b'n') => QuotaSpec::Nothing,
        _ => QuotaSpec::Word(integer(value).map_or_else(|| value.get().to_owned(), |number| number.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings() {
        for (name, is_valid) in [(r#""a""#, true), ("5", false), ("true", false)] {
            let quotas = format!(r#"[{{"name": {name}, "limit": 1, "per": "1m"}}]"#);
            assert_eq!(written(serde_json::from_str(&quotas).unwrap()).is_ok(), is_valid, "{name}");
        }
    }
}
