use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::Error;
use crate::node::Call;

/// The end of a check of [`Client::fake`](crate::Client::fake).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fake {
    /// The check is allowed.
    Allow,
    /// The check is denied, and its cost fits after this time.
    Deny(Duration),
    /// The check has no decision: it is [`Unavailable`](crate::Unavailable).
    Fail,
}

/// Answers calls without a node.
#[derive(Debug)]
pub(crate) struct Fakes(Mutex<VecDeque<Fake>>);

/// The life of a hold, in ms.
const HOLD_MS: u64 = 60_000;

impl Fakes {
    pub fn new(ends: impl IntoIterator<Item = Fake>) -> Self {
        Self(Mutex::new(ends.into_iter().collect()))
    }

    pub fn answer(&self, call: &Call<'_>) -> Result<Bytes, Error> {
        let asked = serde_json::from_slice(call.body.as_deref().unwrap_or(b"{}")).map_err(Error::unavailable)?;
        let answer = match call.target {
            "/v1/check" => self.decide(&asked),
            // A decision has another member of this name.
            "/v1/refund" => self.other(&asked, json!({"refunded": 0})),
            _ => self.other(&asked, json!({})),
        }?;
        Ok(answer.to_string().into())
    }

    fn other(&self, asked: &Value, own: Value) -> Result<Value, Error> {
        let checks = asked["checks"].as_array().into_iter().flatten();
        let results = checks.map(|check| self.decide(check)).collect::<Result<Vec<_>, _>>()?;
        let denied: Vec<_> = (0..results.len()).filter(|place| results[*place]["allowed"] == false).collect();
        let mut answer = decision(&json!({}), None);
        let more = json!({
            "allowed": denied.is_empty(), "denied_by": denied, "results": results, "settled": true, "renewed": true,
            "expires_in_ms": HOLD_MS,
        });
        merge(&mut answer, more);
        merge(&mut answer, own);
        Ok(answer)
    }

    /// The last end goes on.
    fn decide(&self, check: &Value) -> Result<Value, Error> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = if ends.len() > 1 { ends.pop_front() } else { ends.front().copied() };
        match end.unwrap_or(Fake::Allow) {
            Fake::Allow => Ok(decision(check, None)),
            Fake::Deny(wait) => Ok(decision(check, Some(wait))),
            Fake::Fail => Err(Error::unavailable("a fake failure")),
        }
    }
}

fn decision(check: &Value, wait: Option<Duration>) -> Value {
    let cost = check["cost"].as_u64().unwrap_or(1);
    let is_allowed = wait.is_none();
    let mut decision = json!({
        "allowed": is_allowed, "policy": check["policy"].as_str().unwrap_or("default"),
        "key": check["key"].as_str().unwrap_or_default(), "cost": cost,
        "charged": if is_allowed && check["look"] != true { cost } else { 0 }, "limit": 100,
        "remaining": if is_allowed { 99 } else { 0 }, "retry_after_ms": wait.unwrap_or_default().as_millis() as u64,
        "reset_after_ms": HOLD_MS, "quota": "1m", "source": "store",
        "reason": if is_allowed { "ok" } else { "over_limit" },
    });
    if is_allowed && check["id"].is_string() && check["wait_ms"].is_null() {
        merge(&mut decision, json!({"hold": {"expires_in_ms": HOLD_MS}}));
    }
    decision
}

fn merge(object: &mut Value, more: Value) {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
}
