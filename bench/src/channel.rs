//! An HTTP/2 connection that clients share: each call is a stream. A lost connection is reopened by
//! the next call.

use std::io;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, Reason, SendStream, client};
use http::Request;
use tokio::sync::Mutex;

use tollgate::cli::target::Target;

use super::connection::{MAX_ANSWER, TIMEOUT, connect};
use super::grpc::{self, Answer};
use super::verdicts::Failure;

#[derive(Debug)]
pub(super) struct Channel {
    target: Target,
    /// The head of each call.
    head: Request<()>,
    /// The lock makes all calls wait for one new connection.
    sender: Mutex<SendRequest<Bytes>>,
}

impl Channel {
    /// # Errors
    /// When the target cannot be reached, or does not speak HTTP/2.
    pub(super) async fn open(target: &Target, token: Option<&str>) -> Result<Self, String> {
        let head = grpc::head(target, token)?;
        let sender = open(target).await.map_err(|error| format!("{target}: {error}"))?;
        Ok(Self { target: target.clone(), head, sender: Mutex::new(sender) })
    }

    /// Sends one message and reads the answer.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub(super) async fn call(&self, message: &[u8]) -> Result<Answer, Failure> {
        let (response, mut stream) = self.begin().await?;
        stream.send_data(Bytes::copy_from_slice(message), true).map_err(broken)?;
        let (head, mut stream) = response.await.map_err(broken)?.into_parts();
        let mut body = Vec::new();
        while let Some(chunk) = stream.data().await {
            let chunk = chunk.map_err(broken)?;
            stream.flow_control().release_capacity(chunk.len()).map_err(broken)?;
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(Failure::Malformed);
            }
            body.extend_from_slice(&chunk);
        }
        let trailers = stream.trailers().await.map_err(broken)?;
        Ok(Answer { status: head.status.as_u16(), fields: trailers.unwrap_or(head.headers), body })
    }

    /// Opens a stream. A connection that has ended since the last call is no failure.
    async fn begin(&self) -> Result<(ResponseFuture, SendStream<Bytes>), Failure> {
        let mut sender = self.sender.lock().await;
        // While its last stream waits for room at the server, a sender refuses another. A clone
        // queues it.
        if let Ok(begun) = sender.clone().send_request(self.head.clone(), false) {
            return Ok(begun);
        }
        *sender = open(&self.target).await?;
        sender.clone().send_request(self.head.clone(), false).map_err(broken)
    }
}

/// A task of its own drives the connection, until it is lost or nothing uses it any more.
async fn open(target: &Target) -> io::Result<SendRequest<Bytes>> {
    let (sender, mut connection) = client::handshake(connect(target).await?).await.map_err(not_http2)?;
    let pings = connection.ping_pong();
    tokio::spawn(connection);
    if let Some(mut pings) = pings {
        let too_late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer by HTTP/2 within 5 seconds");
        tokio::time::timeout(TIMEOUT, pings.ping(Ping::opaque()))
            .await
            .map_err(too_late)?
            .map_err(not_http2)?;
    }
    Ok(sender)
}

fn not_http2(error: h2::Error) -> io::Error {
    let reason = format!("no HTTP/2 ({error}): the URL must have the port of the gRPC service");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// The report lists each cause, so a cause has no text of a library or server.
fn broken(error: h2::Error) -> Failure {
    match (error.get_io(), error.reason()) {
        (Some(io), _) => Failure::Broken(io.kind().to_string()),
        (None, Some(Reason::NO_ERROR)) => Failure::Closed,
        (None, Some(reason)) => Failure::Broken(reason.description().to_owned()),
        (None, None) => Failure::Malformed,
    }
}
