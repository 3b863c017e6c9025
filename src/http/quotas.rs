//! The quotas that a check brings along, as written: what they mean depends on the policy.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use super::inspect::{each_member, kind, string};
use crate::engine::Written;

/// Quotas of one check, of which a policy accepts fewer: a caller must not make the node keep thousands.
const MAX_ITEMS: usize = 32;

/// Members of one quota: several times as many as there are, so that what is wrong with a few is told by name.
const MAX_MEMBERS: usize = 32;

/// For the one parse of what is right; any fault is told by the second reading.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Written>>, D::Error> {
    let value = <&RawValue>::deserialize(deserializer)?;
    written(value).map(Some).map_err(D::Error::custom)
}

/// An array of texts and objects.
pub(super) fn written(value: &RawValue) -> Result<Vec<Written>, String> {
    if !value.get().starts_with('[') {
        return Err(format!("must be an array such as [\"10 per 1s\"], not {}", kind(value)));
    }
    let items: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
    if items.len() > MAX_ITEMS {
        return Err(format!("must hold up to {MAX_ITEMS} quotas, not {}", items.len()));
    }
    items.into_iter().map(item).collect()
}

fn item(value: &RawValue) -> Result<Written, String> {
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
    let member = |(name, value)| Ok((name, scalar(value)?));
    members.into_iter().map(member).collect::<Result<_, _>>().map(Written::Members)
}

/// Of a collection only that it is one.
fn scalar(value: &RawValue) -> Result<Written, String> {
    Ok(match value.get().as_bytes().first() {
        Some(b'"') => Written::Text(string(value)?),
        Some(b'{') => Written::Members(Vec::new()),
        Some(b'[') => Written::List,
        Some(b'n') => Written::Nothing,
        _ => Written::Word(value.get().to_owned()),
    })
}
