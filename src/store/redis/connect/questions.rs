//! The questions that this node asks a server, apart from checks.

use std::time::Duration;

use redis::Value;

use super::connection::Connection;
use crate::limit::time::Micros;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::protocol::info::{info_of, time_of};
use crate::store::redis::protocol::server_error::{refuses, unless_error};

/// Returns the text of INFO.
///
/// # Errors
/// When the server does not answer, or refuses to.
pub async fn info(connection: &mut Connection) -> Result<String, Failure> {
    info_of(connection.send(&redis::cmd("INFO")).await?)
}

/// Returns the server's TIME, us.
///
/// # Errors
/// When it does not answer.
pub async fn time(connection: &mut Connection) -> Result<Micros, Failure> {
    time_of(connection.send(&redis::cmd("TIME")).await?)
}

/// Returns the answer to CLUSTER SLOTS.
///
/// # Errors
/// When it does not answer, or refuses to.
pub async fn slots(connection: &mut Connection) -> Result<Value, Failure> {
    connection.ask(redis::cmd("CLUSTER").arg("SLOTS")).await
}

/// Runs a script, as checks do, which writes an expiring key if `key` has a name. A server that
/// delays scripts, for example by CLIENT PAUSE, delays this call too. A server without EVALSHA or
/// EVAL runs it by the other. A proxy without EVALSHA breaks the connection.
///
/// # Errors
/// When it does not answer, runs no scripts or does not write.
pub async fn probe(connection: &mut Connection, key: Option<&str>) -> Result<(), Failure> {
    const WRITE: &str = "if KEYS[1] then redis.call('SET', KEYS[1], '', 'PX', 1000) end return 1";
    let keys = key.map_or(0, |_| 1);
    let call = |name: &str, script: &str| redis::cmd(name).arg(script).arg(keys).arg(key).to_owned();
    let by_hash = call("EVALSHA", redis::Script::new(WRITE).get_hash());
    let first = connection.send(&by_hash).await?;
    let reply = match &first {
        Value::ServerError(error) if error.code() == "NOSCRIPT" || refuses(error, "EVALSHA") => {
            connection.send(&call("EVAL", WRITE)).await?
        }
        _ => first,
    };
    let reply = match &reply {
        Value::ServerError(error) if refuses(error, "EVAL") => {
            let mut load = redis::pipe();
            load.cmd("SCRIPT").arg("LOAD").arg(WRITE).add_command(by_hash);
            let last = connection.send_all(&load).await?.pop();
            last.filter(|last| !matches!(last, Value::ServerError(_))).unwrap_or(reply)
        }
        _ => reply,
    };
    unless_error(reply).map(drop)
}

/// Names the connection in CLIENT LIST. The server may refuse this.
pub fn name() -> redis::Cmd {
    redis::cmd("CLIENT").arg("SETNAME").arg("tollgate").to_owned()
}

/// Bounds a call to a server by `timeout`.
///
/// # Errors
/// When it fails or takes longer.
pub async fn bounded<T>(timeout: Duration, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(Failure::late()))
}
