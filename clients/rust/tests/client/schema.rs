//! The types of answers keep each member of the node's schema, and need only those that every
//! answer has. The types of calls write only members of the schema.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tollgate_limiter::{
    AllAnswer, Check, Decision, HoldName, Over, Problem, QuotaSpec, Refund, RefundAnswer, RenewAnswer, SettleAnswer,
    Usage,
};

use crate::browser::Browser;
use crate::node::Node;

struct Schemas(Value);

/// Members of a feature that this client does not have.
const ABSENT: [&str; 1] = ["entry"];

#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Full,
    /// Required members only, and null where it is possible.
    Least,
}

#[tokio::test]
async fn types_match_the_schema_of_a_node() {
    let node = Node::start("cases.yaml");
    let document = Browser::new().json(&format!("{}/openapi.json", node.url())).await;
    let schemas = Schemas(document["components"]["schemas"].clone());
    schemas.verify_answer::<Decision>("CheckAnswer");
    schemas.verify_answer::<AllAnswer>("TogetherAnswer");
    schemas.verify_answer::<RefundAnswer>("RefundAnswer");
    schemas.verify_answer::<Usage>("Usage");
    schemas.verify_answer::<SettleAnswer>("SettleResult");
    schemas.verify_answer::<RenewAnswer>("RenewResult");
    schemas.verify_answer::<Problem>("Problem");

    let quotas = [QuotaSpec::limit(1, "1h").name("a"), QuotaSpec::rate("1 per 1h", 2).name("b")];
    let mut check = Check::new("k").policy("p").cost(3).meta("m").id("i").over(Over::Drain).look(true).quotas(quotas);
    // An older node knows no plans.
    if !schemas.0["Check"]["properties"]["plan"].is_null() {
        check = check.plan("pro");
    }
    schemas.verify_call("Check", &check);
    let written = serde_json::to_value(&check).unwrap();
    let names: Vec<_> = written.as_object().unwrap().keys().collect();
    let known = schemas.0["Check"]["properties"].as_object().unwrap().keys();
    let known: Vec<_> = known.filter(|name| !ABSENT.contains(&name.as_str())).collect();
    // Only the client writes `id_ttl_ms`, `repeated` and `wait_ms`.
    assert_eq!(names.len() + 3, known.len(), "the type has {names:?}, and the node {known:?}");
    schemas.verify_call("CheckTogether", &Check::new("k").policy("p").cost(0).meta("m"));
    schemas.verify_call("Refund", &Refund::by_cost("k", 1).policy("p"));
    schemas.verify_call("Refund", &Refund::by_id("k", "i").policy("p"));
    schemas.verify_call("HoldId", &HoldName::new("k", "i").policy("p"));
}

impl Schemas {
    fn verify_answer<T: Serialize + DeserializeOwned>(&self, name: &str) {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        let full = self.sample(&schema, Extent::Full);
        let read: T = serde_json::from_value(full.clone()).unwrap_or_else(|error| panic!("{name}: {error}: {full}"));
        assert_eq!(serde_json::to_value(read).unwrap(), full, "{name} loses a member");
        let least = self.sample(&schema, Extent::Least);
        serde_json::from_value::<T>(least.clone()).unwrap_or_else(|error| panic!("{name}: {error}: {least}"));
    }

    fn verify_call(&self, name: &str, call: &impl Serialize) {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        let call = serde_json::to_value(call).unwrap();
        assert!(self.permits(&schema, &call), "{name} does not permit {call}");
    }

    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(path) => &self.0[path.rsplit('/').next().unwrap()],
            None => schema,
        }
    }

    /// Makes a value that the schema permits.
    fn sample(&self, schema: &Value, extent: Extent) -> Value {
        let schema = self.resolved(schema);
        if let Some(parts) = schema["allOf"].as_array() {
            let members = parts.iter().flat_map(|part| match self.sample(part, extent) {
                Value::Object(members) => members,
                other => panic!("no object: {other}"),
            });
            return Value::Object(members.collect::<Map<_, _>>());
        }
        if let Some(first) = schema["anyOf"].as_array().and_then(|parts| parts.first()) {
            return self.sample(first, extent);
        }
        let kinds = kinds(schema);
        if extent == Extent::Least && kinds.contains(&"null") {
            return Value::Null;
        }
        match kinds.first() {
            Some(&"object") => self.object(schema, extent),
            Some(&"array") if extent == Extent::Full => json!([self.sample(&schema["items"], extent)]),
            Some(&"array") => json!([]),
            Some(&"boolean") => json!(true),
            Some(&"integer") => json!(schema["minimum"].as_u64().unwrap_or(0).max(7)),
            Some(&"string") => schema["x-extensible-enum"].as_array().map_or(json!("text"), |values| values[0].clone()),
            _ => panic!("no kind: {schema}"),
        }
    }

    fn object(&self, schema: &Value, extent: Extent) -> Value {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let members = schema["properties"].as_object().unwrap().iter();
        let chosen = members
            .filter(|(name, _)| !ABSENT.contains(&name.as_str()))
            .filter(|(name, _)| extent == Extent::Full || required.contains(&name.as_str()));
        Value::Object(chosen.map(|(name, schema)| (name.clone(), self.sample(schema, extent))).collect())
    }

    fn permits(&self, schema: &Value, value: &Value) -> bool {
        let schema = self.resolved(schema);
        for alternatives in ["oneOf", "anyOf"] {
            if let Some(parts) = schema[alternatives].as_array() {
                return parts.iter().any(|part| self.permits(part, value));
            }
        }
        let kinds = kinds(schema);
        match value {
            Value::Object(members) => {
                let required = schema["required"].as_array().into_iter().flatten();
                let properties = &schema["properties"];
                kinds.contains(&"object")
                    && required.into_iter().all(|name| members.contains_key(name.as_str().unwrap()))
                    && members
                        .iter()
                        .all(|(name, value)| properties.get(name).is_some_and(|schema| self.permits(schema, value)))
            }
            Value::Array(items) => {
                kinds.contains(&"array") && items.iter().all(|item| self.permits(&schema["items"], item))
            }
            Value::String(_) => {
                let values = schema["enum"].as_array();
                kinds.contains(&"string") && values.is_none_or(|values| values.contains(value))
            }
            Value::Number(_) => kinds.contains(&"integer"),
            Value::Bool(_) => kinds.contains(&"boolean"),
            Value::Null => kinds.contains(&"null"),
        }
    }
}

fn kinds(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}
