//! The calls that envoyproxy/ratelimit has over HTTP: `POST /json`, for clients without gRPC. The
//! body and the answer are the messages of the protocol as JSON.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prost_types::Struct;
use prost_types::value::Kind;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::head::is_of_a_page;
use super::problem::Problem;
use super::request::body;
use super::rights::Routed;
use super::shed::permit;
use crate::access::Refused;
use crate::gateway::envoy::messages::{
    self, Code, CurrentLimit, DescriptorStatus, Entry, HeaderValue, RateLimitRequest, RateLimitResponse, Unit,
};
use crate::gateway::envoy::{RateLimitError, Unavailable, should_rate_limit};

/// The largest body, bytes.
const MAX_BYTES: usize = 64 * 1024;

/// Decides a request: 200, or 429 if it is over a limit. As with the reference the type of the body
/// does not matter, but no page in a browser may call so.
pub(super) async fn json(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    if is_of_a_page(&head.headers) {
        return Err(Problem::refused(&Refused::Page.into()));
    }
    let body = body::of_any_type(body, MAX_BYTES).await?;
    let _turn = permit(&node.load, body.len(), || rights.holder(&head.headers)).await?;
    let request: JsonRequest = serde_json::from_slice(&body).map_err(|error| Problem::malformed(error.to_string()))?;
    let request = request.message().map_err(Problem::malformed)?;
    let turns = node.load.checks(rights.holder(&head.headers));
    let deciding = should_rate_limit(&node.engine, &request, None, rights.token.as_deref(), &turns);
    let response = deciding.await.map_err(|error| match error {
        RateLimitError::Rejected(rejected) => rights.refuse(&node, &rejected),
        RateLimitError::Invalid(reason) => Problem::malformed(reason),
        RateLimitError::Unavailable(Unavailable::Check(error)) => node.refused(&error),
        RateLimitError::Unavailable(reason) => Problem::unavailable(reason.to_string()),
    })?;
    let is_over = response.overall_code == i32::from(Code::OverLimit);
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    Ok((status, [(header::CONTENT_TYPE, "application/json")], rendered(&response).to_string()).into_response())
}

/// `RateLimitRequest` in JSON. Names are in either spelling, and numbers may be texts.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<JsonUnit>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonUnit {
    Number(i32),
    Name(String),
}

impl Number {
    fn read<T: TryFrom<u64>>(self, name: &str) -> Result<T, String> {
        let number = match self {
            Self::Plain(number) => Some(number),
            Self::Text(text) => text.parse().ok(),
        };
        let bits = 8 * size_of::<T>();
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("`{name}` must be an integer from 0 that fits {bits} bits"))
    }
}

impl JsonRequest {
    fn message(self) -> Result<RateLimitRequest, String> {
        let descriptors = self.descriptors.unwrap_or_default().into_iter().map(JsonDescriptor::message);
        Ok(RateLimitRequest {
            domain: self.domain.unwrap_or_default(),
            descriptors: descriptors.collect::<Result<_, _>>()?,
            hits_addend: self.hits_addend.map_or(Ok(0), |hits| hits.read("hitsAddend"))?,
        })
    }
}

impl JsonDescriptor {
    fn message(self) -> Result<messages::RateLimitDescriptor, String> {
        let entry = |JsonEntry { key, value }: JsonEntry| Entry {
            key: key.unwrap_or_default(),
            value: value.unwrap_or_default(),
        };
        let hits = self.hits_addend.map(|hits| hits.read("hitsAddend")).transpose()?;
        Ok(messages::RateLimitDescriptor {
            entries: self.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: self.limit.map(JsonLimit::message).transpose()?,
            hits_addend: hits,
            is_negative_hits: self.is_negative_hits.unwrap_or_default(),
        })
    }
}

impl JsonLimit {
    fn message(self) -> Result<messages::RateLimitOverride, String> {
        let unit = match self.unit {
            None => 0,
            Some(JsonUnit::Number(number)) => number,
            Some(JsonUnit::Name(name)) if name == "UNKNOWN" => 0,
            Some(JsonUnit::Name(name)) => match Unit::ALL.into_iter().find(|unit| in_json(*unit) == name) {
                Some(unit) => unit.into(),
                None => return Err("`unit` must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR".to_owned()),
            },
        };
        let requests_per_unit = self.requests_per_unit.map_or(Ok(0), |number| number.read("requestsPerUnit"))?;
        Ok(messages::RateLimitOverride { requests_per_unit, unit })
    }
}

/// `RateLimitResponse` in JSON: members with a default value are left out.
fn rendered(response: &RateLimitResponse) -> Value {
    let field = |HeaderValue { key, value }: &HeaderValue| json!({"key": key, "value": value});
    let fields: Vec<Value> = response.response_headers_to_add.iter().map(field).collect();
    without_defaults(json!({
        "overallCode": code(response.overall_code),
        "statuses": response.statuses.iter().map(status).collect::<Vec<_>>(),
        "responseHeadersToAdd": (!fields.is_empty()).then_some(fields),
        "dynamicMetadata": response.dynamic_metadata.as_ref().map(object),
    }))
}

fn status(status: &DescriptorStatus) -> Value {
    let limit = status.current_limit.as_ref().map(|CurrentLimit { name, requests_per_unit, unit }| {
        let unit = Unit::try_from(*unit).map(in_json).unwrap_or_default();
        without_defaults(json!({"name": name, "requestsPerUnit": requests_per_unit, "unit": unit}))
    });
    without_defaults(json!({
        "code": code(status.code),
        "currentLimit": limit,
        "limitRemaining": status.limit_remaining,
        "durationUntilReset": status.duration_until_reset.map(|reset| format!("{}s", reset.seconds)),
    }))
}

fn without_defaults(mut members: Value) -> Value {
    if let Value::Object(members) = &mut members {
        members.retain(|_, value| ![Value::Null, json!(0), json!("")].contains(value));
    }
    members
}

fn in_json(unit: Unit) -> String {
    unit.name().to_ascii_uppercase()
}

fn code(code: i32) -> Value {
    match Code::try_from(code) {
        Ok(Code::Ok) => json!("OK"),
        Ok(Code::OverLimit) => json!("OVER_LIMIT"),
        _ => json!("UNKNOWN"),
    }
}

fn object(fields: &Struct) -> Value {
    fields
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), self::value(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(items)) => items.values.iter().map(self::value).collect(),
    }
}
