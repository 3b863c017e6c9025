//! Checks a key over a plain TCP connection: `client POLICY KEY [ADDRESS]`.
//!
//! It exits 0 if the check is allowed, 1 if it is denied, and 2 without a decision. A service would
//! use its HTTP client and keep the connection open.

use std::io::{Error, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than the default `store.timeout`, so the node's fallback answers first.
const TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (policy, key, address) = match arguments.as_slice() {
        [policy, key] => (policy, key, "127.0.0.1:7070"),
        [policy, key, address] => (policy, key, address.as_str()),
        _ => return failed("usage: client POLICY KEY [ADDRESS]"),
    };
    match check(address, policy, key) {
        Ok(decision) if decision["allowed"] == true => {
            println!("allowed, {} left", decision["remaining"]);
            ExitCode::SUCCESS
        }
        Ok(decision) => {
            println!("denied, retry after {} ms", decision["retry_after_ms"]);
            ExitCode::FAILURE
        }
        Err(error) => failed(&format!("no decision: {error}")),
    }
}

fn failed(message: &str) -> ExitCode {
    println!("{message}");
    ExitCode::from(2)
}

/// One check of cost 1. The caller chooses how to proceed after an error.
fn check(address: &str, policy: &str, key: &str) -> Result<Value, Error> {
    let body = json!({"policy": policy, "key": key}).to_string();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(|| Error::other("no HTTP response"))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(serde_json::from_str(body)?),
        _ => Err(Error::other(body)),
    }
}
