//! Compares every response that a test receives with the OpenAPI document.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::http::Answer;

pub(crate) static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(tollgate::http::description()).unwrap());

/// Fails if the document has the call without this response: its status, header fields or members.
pub(crate) fn holds(request: &[u8], answer: &Answer) {
    let faults = faults_of(request, answer);
    assert!(faults.is_empty(), "openapi.json knows nothing of {faults:#?}\nin {answer:?}");
}

/// The parts of a response that the document lacks; empty for calls that it does not list.
pub(crate) fn faults_of(request: &[u8], answer: &Answer) -> Vec<String> {
    // A request that the HTTP layer rejects belongs to no call.
    if matches!(answer.status, 400 | 431) && answer.header("x-request-id").is_none() && answer.body.is_empty() {
        return Vec::new();
    }
    let line = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_lowercase(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    // Behind a gate is the path of a client.
    let path = if path.starts_with("/v1/gate/") { "/v1/gate/{gate}" } else { path };
    let path = if path.starts_with("/v1/overrides/") { "/v1/overrides/{policy}" } else { path };
    match DOCUMENT["paths"][path].get(&method) {
        Some(call) => answer_faults(call, answer),
        // A problem document has the same schema for every call.
        None if answer.header("content-type") == Some("application/problem+json") && !answer.body.is_empty() => {
            faults(&DOCUMENT["components"]["schemas"]["Problem"], &answer.json(), "")
        }
        None => Vec::new(),
    }
}

fn answer_faults(call: &Value, answer: &Answer) -> Vec<String> {
    let responses = &call["responses"];
    let response = resolve(responses.get(answer.status.to_string()).unwrap_or(&responses["default"]));
    let mut found = header_faults(response, answer);
    let media = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
    match response["content"].get(media) {
        None if media.is_empty() && answer.body.is_empty() && response.get("content").is_none() => {}
        None => found.push(format!("status {} as {media:?}", answer.status)),
        Some(content) if media.ends_with("json") => found.extend(faults(&content["schema"], &answer.json(), "")),
        Some(_) => {}
    }
    found
}

/// Required fields that a response lacks, and our fields that are not described.
fn header_faults(response: &Value, answer: &Answer) -> Vec<String> {
    let no_fields = Map::new();
    let described = response["headers"].as_object().unwrap_or(&no_fields);
    let named: BTreeMap<String, &Value> =
        described.iter().map(|(name, field)| (name.to_lowercase(), resolve(field))).collect();
    let missing = named.iter().filter(|(name, field)| field["required"] == true && answer.header(name).is_none());
    let ours = ["retry-after", "ratelimit", "ratelimit-policy", "www-authenticate", "allow", "x-request-id"];
    let unknown = ours.into_iter().filter(|name| answer.header(name).is_some() && !named.contains_key(*name));
    let missing = missing.map(|(name, _)| format!("an answer without {name}"));
    missing.chain(unknown.map(|name| format!("the field {name}"))).collect()
}

/// The places where `value` violates `schema`. An object may have only described members.
pub(crate) fn faults(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolve(schema);
    if let Some(one_of) = schema.get("oneOf").or(schema.get("anyOf")).and_then(Value::as_array) {
        let each: Vec<_> = one_of.iter().map(|one| faults(one, value, at)).collect();
        let fit = each.iter().filter(|faults| faults.is_empty()).count();
        let right = if schema.get("oneOf").is_some() { fit == 1 } else { fit > 0 };
        return if right { Vec::new() } else { vec![format!("{at}: {value} fits {fit} of {each:?}")] };
    }
    if !has_type(schema, value) {
        return vec![format!("{at}: {value} is no {}", schema["type"])];
    }
    match value {
        Value::Object(members) => member_faults(schema, members, at),
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.flat_map(|(place, item)| faults(&schema["items"], item, &format!("{at}/{place}"))).collect()
        }
        Value::Number(number) => {
            let (least, most) = (schema["minimum"].as_u64(), schema["maximum"].as_u64());
            let number = number.as_u64();
            let fits = least.is_none_or(|least| number >= Some(least)) && most.is_none_or(|most| number <= Some(most));
            if fits { Vec::new() } else { vec![format!("{at}: {value} is out of range")] }
        }
        Value::String(_) => match schema.get("x-extensible-enum").and_then(Value::as_array) {
            Some(words) if !words.contains(value) => vec![format!("{at}: the word {value}")],
            _ => Vec::new(),
        },
        Value::Bool(_) | Value::Null => Vec::new(),
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    };
    match &schema["type"] {
        Value::Array(names) => names.iter().any(is),
        // For `allOf`, whose parts are objects here.
        Value::Null => schema.get("allOf").is_some() && value.is_object(),
        name => is(name),
    }
}

fn member_faults(schema: &Value, members: &Map<String, Value>, at: &str) -> Vec<String> {
    let (mut described, mut required) = (BTreeMap::new(), Vec::new());
    described_members(schema, &mut described, &mut required);
    let missing = required.into_iter().filter(|name| !members.contains_key(*name));
    let mut found: Vec<String> = missing.map(|name| format!("{at}: an object without {name}")).collect();
    for (name, value) in members {
        let at = format!("{at}/{name}");
        match described.get(name.as_str()) {
            None if schema["additionalProperties"] == true => {}
            None => found.push(format!("{at}: the member")),
            Some(schema) => found.extend(faults(schema, value, &at)),
        }
    }
    found
}

fn described_members<'a>(schema: &'a Value, described: &mut BTreeMap<&'a str, &'a Value>, required: &mut Vec<&'a str>) {
    let schema = resolve(schema);
    described.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, of)| (name.as_str(), of)));
    required.extend(schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str));
    schema["allOf"]
        .as_array()
        .into_iter()
        .flatten()
        .for_each(|part| described_members(part, described, required));
}

fn resolve(value: &Value) -> &Value {
    let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return value };
    let pointer = reference.strip_prefix('#').expect("a reference within the document");
    DOCUMENT.pointer(pointer).unwrap_or_else(|| panic!("nothing at {reference}"))
}
