//! HTTP/1.1 by hand, so that a test can also send what no client library would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::openapi;

pub(crate) struct Connection<S = TcpStream> {
    stream: BufReader<S>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl Connection {
    pub(crate) fn open(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub(crate) fn receive(&mut self, with_body: bool) -> std::io::Result<Answer> {
        let status = self.line()?.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let mut answer = Answer { status, headers: Vec::new(), body: Vec::new() };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            answer.headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if with_body {
            answer.body.resize(length, 0);
            self.stream.read_exact(&mut answer.body)?;
        }
        Ok(answer)
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

pub(crate) fn json_request(path: &str, body: &[u8]) -> Vec<u8> {
    request("POST", path, &[("Content-Type", "application/json")], body)
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Sends one request on a separate connection. The response must match the OpenAPI document.
pub(crate) fn exchange(address: &str, request: &[u8]) -> Answer {
    let answer = try_exchange(address, request).expect("the node answers");
    openapi::holds(request, &answer);
    answer
}

/// The same for a node that may have a reason not to answer.
pub(crate) fn try_exchange(address: &str, request: &[u8]) -> std::io::Result<Answer> {
    let mut connection = Connection::open(address)?;
    connection.send(request)?;
    connection.receive(!request.starts_with(b"HEAD"))
}

pub(crate) fn get(address: &str, path: &str) -> Answer {
    exchange(address, &request("GET", path, &[], b""))
}

pub(crate) fn call(address: &str, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
    exchange(address, &request(method, path, &headers, body.as_bytes()))
}

pub(crate) fn post(address: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
    exchange(address, &json_request(path, body.as_ref()))
}
