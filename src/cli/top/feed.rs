//! The connection to one node. It begins again, after a pause, whenever it ends.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::events::Events;
use super::snapshot::{Holder, Holders, Snapshot, Top};
use crate::cli::client::{Access, Answer, TIMEOUT, encoded};
use crate::cli::target::Target;

/// The pause after a failure: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// A node sends a snapshot each second.
const SILENCE: Duration = Duration::from_secs(10);

/// How often `GET /v1/top` is asked.
const TOP_INTERVAL: Duration = Duration::from_secs(2);

/// The keys that `GET /v1/top` returns: more than a terminal has lines.
const TOP_KEYS: usize = 100;

/// One node, and where its news go.
#[derive(Debug, Clone)]
pub(super) struct Feed {
    /// Its place among the nodes.
    pub(super) place: usize,
    pub(super) target: Target,
    pub(super) access: Arc<Access>,
    pub(super) news: mpsc::Sender<(usize, News)>,
}

/// The news of a node.
#[derive(Debug)]
pub(super) enum News {
    Snapshot(Box<Snapshot>),
    Top(KeyQuestion, Top),
    Holders(KeyName, Vec<Holder>),
    /// The connection has ended, or there is none.
    Lost(String),
}

/// The keys of other spans than the last minute of all policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyQuestion {
    pub(super) minutes: u64,
    pub(super) policy: Option<String>,
}

/// The policy and the key.
pub(super) type KeyName = (String, String);

/// The questions whose answers no snapshot has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) keys: Option<KeyQuestion>,
    /// The key whose holders are shown.
    pub(super) holders: Option<KeyName>,
}

impl Feed {
    /// Sends the snapshots of the node, with the `seconds` before the first one, until their
    /// receiver is gone.
    pub(super) async fn follow(self, mut seconds: u64) {
        let mut pause = PAUSE.0;
        loop {
            let Err(reason) = self.read(&mut seconds, &mut pause).await else { return };
            if self.news.send((self.place, News::Lost(reason))).await.is_err() {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Ends without an error when the receiver is gone. The next connection leaves out a history
    /// that is too long.
    async fn read(&self, seconds: &mut u64, pause: &mut Duration) -> Result<(), String> {
        let path = format!("/v1/live?seconds={seconds}");
        let connection = &mut None;
        let sent = self.access.send(connection, &self.target, Method::GET, &path, Bytes::new());
        let response = timeout(TIMEOUT, sent).await.unwrap_or_else(|_| Err("no answer within 5 seconds".into()))?;
        if response.status() != StatusCode::OK {
            let read = timeout(TIMEOUT, Answer::read(response)).await;
            return Err(read.unwrap_or_else(|_| Err("no answer within 5 seconds".into()))?.failure());
        }
        let (mut body, mut events) = (response.into_body(), Events::new(*seconds));
        loop {
            let frame = timeout(SILENCE, body.frame()).await.map_err(|_| "no snapshot for 10 seconds")?;
            let frame = frame.ok_or("the node has ended the stream")?.map_err(|error| error.to_string())?;
            let mut found = Vec::new();
            if let Some(bytes) = frame.data_ref() {
                events.push(bytes, |event| found.push(event)).map_err(|fault| {
                    *seconds = 1;
                    fault.to_string()
                })?;
            }
            for event in found {
                let snapshot = serde_json::from_str(&event);
                let snapshot = snapshot.map_err(|error| format!("the node sends another kind of snapshot: {error}"))?;
                if self.news.send((self.place, News::Snapshot(snapshot))).await.is_err() {
                    return Ok(());
                }
                *pause = PAUSE.0;
            }
        }
    }

    /// Asks the node for its heaviest keys and the holders of one, as long as there is a question.
    pub(super) async fn ask_keys(self, mut question: watch::Receiver<Question>) {
        loop {
            let Question { keys, holders } = question.borrow_and_update().clone();
            if let Some(asked) = keys
                && let Some(top) = self.top(&asked).await
                && self.news.send((self.place, News::Top(asked, top))).await.is_err()
            {
                return;
            }
            if let Some(name) = holders
                && let Some(Holders { holds }) = self.holders(&name).await
                && self.news.send((self.place, News::Holders(name, holds))).await.is_err()
            {
                return;
            }
            if let Ok(Err(_)) = timeout(TOP_INTERVAL, question.changed()).await {
                return;
            }
        }
    }

    async fn top(&self, KeyQuestion { minutes, policy }: &KeyQuestion) -> Option<Top> {
        let mut path = format!("/v1/top?minutes={minutes}&n={TOP_KEYS}");
        if let Some(policy) = policy {
            path += &format!("&policy={}", encoded(policy));
        }
        self.asked(&path).await
    }

    async fn holders(&self, (policy, key): &KeyName) -> Option<Holders> {
        self.asked(&format!("/v1/usage?policy={}&key={}", encoded(policy), encoded(key))).await
    }

    async fn asked<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let connection = &mut None;
        let asked = timeout(TIMEOUT, self.access.ask(connection, &self.target, Method::GET, path, Bytes::new()));
        // The stream of snapshots reports why a node does not answer.
        let answer = asked.await.ok()?.ok().filter(|answer| answer.status == StatusCode::OK)?;
        serde_json::from_slice(&answer.body).ok()
    }
}
