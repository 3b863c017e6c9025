//! Renders the OpenAPI document: the table of calls gives the paths, `openapi.json` all else.

use serde_json::{Map, Value, json};

use super::call::{Call, Listener};
use super::shed;
use crate::access::Need;

/// The document without its paths.
const FRAME: &str = include_str!("openapi.json");

/// The member of [`FRAME`] that the paths replace.
const NO_PATHS: &str = r#""paths": {}"#;

/// The document, as JSON.
pub(super) fn document(calls: &[Call]) -> String {
    let mut paths = Map::new();
    for call in calls {
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        path[call.method.as_str().to_ascii_lowercase()] = operation(call);
    }
    FRAME.replacen(NO_PATHS, &format!(r#""paths": {}"#, Value::Object(paths)), 1)
}

fn operation(call: &Call) -> Value {
    let operation = &call.operation;
    let tag = if call.listener == Listener::Checks { "checks" } else { "operators" };
    let mut described = json!({
        "operationId": operation.id,
        "tags": [tag],
        "summary": operation.summary,
        "security": security(call.need),
        "parameters": parameters(call),
        "responses": responses(call),
    });
    if !operation.description.is_empty() {
        described["description"] = operation.description.into();
    }
    if let Some(schema) = operation.body {
        described["requestBody"] = json!({"required": true, "content": content("application/json", schema)});
    }
    described
}

fn security(need: Need) -> Value {
    match need {
        Need::Nothing => json!([{}]),
        Need::Admin => json!([{}, {"adminToken": []}]),
        Need::Metrics | Need::Check | Need::Policies => json!([{}, {"token": []}, {"adminToken": []}]),
    }
}

fn parameters(call: &Call) -> Vec<Value> {
    let query = call.operation.query.iter().copied();
    let denial = call.operation.denial.map(|_| "DenyStatus");
    let traceparent = call.span.map(|_| "Traceparent");
    let all = denial.into_iter().chain(query).chain(["RequestId"]).chain(traceparent);
    all.map(|name| reference("parameters", name)).collect()
}

fn responses(call: &Call) -> Map<String, Value> {
    let operation = &call.operation;
    let mut responses = Map::new();
    let mut add = |status: &str, name| responses.insert(status.into(), reference("responses", name));
    if operation.body.is_some() {
        add("400", "MalformedJson");
        add("408", "RequestTimeout");
        add("413", "TooLarge");
        add("415", "UnsupportedMediaType");
    }
    if operation.body.is_some() || !operation.query.is_empty() {
        add("422", "InvalidRequest");
    }
    if call.need != Need::Nothing {
        add("401", "Unauthorized");
        add("403", "Forbidden");
    }
    if shed::is_counted(call.path) {
        add("503", "Unavailable");
    }
    operation.failures.iter().for_each(|(status, name)| _ = add(status, name));
    add("default", "Other");
    responses.insert("200".into(), answer(call));
    if let Some(schema) = operation.denial {
        responses.extend(denials(call, schema));
    }
    responses
}

fn answer(call: &Call) -> Value {
    let answer = &call.operation.answer;
    json!({
        "description": answer.description,
        "headers": fields(answer.fields),
        "content": content(answer.media, answer.schema),
    })
}

/// Denials with the status of `deny_status`. Two of them share the status of a problem.
fn denials(call: &Call, schema: &str) -> [(String, Value); 3] {
    let problems = [
        ("401", "; or `unauthorized`: no token, or one that is not known"),
        ("403", "; or `forbidden`: this call needs an admin token"),
        ("429", ""),
    ];
    problems.map(|(status, problem)| {
        let mut fields = fields(call.operation.answer.fields);
        let mut content = content("application/json", schema);
        if !problem.is_empty() {
            content["application/problem+json"] = json!({"schema": reference("schemas", "Problem")});
        }
        if status == "401" {
            fields["WWW-Authenticate"] = reference("headers", "WWW-Authenticate");
        }
        let description = format!("A denial, by `deny_status={status}`{problem}.");
        (status.into(), json!({"description": description, "headers": fields, "content": content}))
    })
}

fn fields(names: &[&str]) -> Value {
    let fields = ["X-Request-Id"].iter().chain(names).map(|name| ((*name).into(), reference("headers", name)));
    Value::Object(fields.collect())
}

fn content(media: &str, schema: &str) -> Value {
    json!({media: {"schema": reference("schemas", schema)}})
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

#[cfg(test)]
mod tests {
    use super::super::request::fields::{MAX_ALL, MAX_BATCH, MAX_ID_BYTES, MAX_META_BYTES};
    use super::*;
    use crate::engine::{Cause, Reason, Source};
    use crate::limit::key::MAX_KEY_BYTES;
    use crate::limit::policy::OnStoreFailure;
    use crate::limit::quota::{MAX_QUOTAS, MAX_UNITS};

    fn at(pointer: &str) -> Value {
        let frame: Value = serde_json::from_str(FRAME).unwrap();
        frame.pointer(&format!("/components/schemas/{pointer}")).unwrap_or(&Value::Null).clone()
    }

    #[test]
    fn schemas_have_the_bounds_of_the_readers() {
        for (pointer, bound) in [
            ("Key/maxLength", MAX_KEY_BYTES),
            ("Check/properties/meta/maxLength", MAX_META_BYTES),
            ("Check/properties/id/maxLength", MAX_ID_BYTES),
            ("Quotas/maxItems", MAX_QUOTAS),
            ("Batch/properties/checks/maxItems", MAX_BATCH),
            ("Together/properties/checks/maxItems", MAX_ALL),
        ] {
            assert_eq!(at(pointer), bound, "{pointer}");
        }
        assert_eq!(at("Check/properties/cost/maximum"), MAX_UNITS);
    }

    #[test]
    fn schemas_have_the_words_of_the_engine() {
        for (pointer, words) in [
            ("Decision/properties/source", Source::ALL.map(Source::name).to_vec()),
            ("Decision/properties/reason", Reason::ALL.map(Reason::name).to_vec()),
            ("Fallback/properties/mode", OnStoreFailure::ALL.map(OnStoreFailure::name).to_vec()),
            ("Fallback/properties/cause", Cause::ALL.map(Cause::name).to_vec()),
        ] {
            assert_eq!(at(&format!("{pointer}/x-extensible-enum")), json!(words), "{pointer}");
        }
    }
}
