//! A client: it sends a call at each of its turns, and reconnects after a failure.

use std::sync::Arc;
use std::time::Duration;

use tollgate::cli::target::Target;

use super::channel::Channel;
use super::connection::Connection;
use super::dialect::Dialect;
use super::random::Random;
use super::response::{failure_text, problem_text, verdicts};
use super::template::Template;
use super::turns::{Turn, Turns};
use super::verdicts::{Failure, Verdicts};
use super::{grpc, resp};

/// The client ends after this number of consecutive broken connections.
const MAX_BROKEN: u32 = 10;

#[derive(Debug)]
pub(super) struct Client {
    link: Link,
    template: Template,
    random: Random,
}

/// The connection of a client.
#[derive(Debug)]
pub(super) enum Link {
    /// Its own; none after it is lost.
    Own(Target, Option<Connection>),
    Shared(Arc<Channel>),
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        let connection = Connection::open(target).await.map_err(|error| format!("{target}: {error}"))?;
        Ok(Self::Own(target.clone(), Some(connection)))
    }

    async fn ask(&mut self, request: &[u8], turns: &Turns) -> Result<Verdicts, Failure> {
        match self {
            Self::Own(target, connection) => {
                let mut open = match connection.take() {
                    Some(open) => open,
                    None => Connection::open(target).await?,
                };
                let dialect = &turns.plan.dialect;
                let answer = match dialect {
                    Dialect::Resp { pipeline, throttle } => {
                        open.exchange_pipeline(request, (*pipeline).into(), resp::form(*throttle)).await?
                    }
                    _ => open.exchange(request).await?,
                };
                let kept = answer.kept;
                let verdicts = verdicts(dialect, answer.status, answer.body);
                if verdicts.is_err() {
                    turns.note_failure(|| failure_text(dialect, answer.body));
                }
                *connection = kept.then_some(open);
                verdicts
            }
            Self::Shared(channel) => {
                let answer = channel.call(request).await?;
                let verdicts = grpc::verdicts(&answer);
                if verdicts.is_err() {
                    turns.note_failure(|| grpc::status_text(&answer).or_else(|| problem_text(&answer.body)));
                }
                verdicts
            }
        }
    }
}

impl Client {
    pub(super) fn new(link: Link, template: Template, random: Random) -> Self {
        Self { link, template, random }
    }

    pub(super) async fn run(mut self, turns: Arc<Turns>) {
        let mut broken = 0;
        while let Some(turn) = turns.next().await {
            let call = Call { turns: &turns, turn: Some(turn) };
            let (keys, random) = (&turns.plan.keys, &mut self.random);
            let outcome = self.link.ask(self.template.render(|| keys.pick(random)), &turns).await;
            let lost = outcome.as_ref().is_err_and(Failure::is_lost);
            call.end(outcome);
            broken = if lost { broken + 1 } else { 0 };
            if broken == MAX_BROKEN {
                return;
            }
            if broken > 0 {
                // 10, 20, 40 ... ms, about 5 s in all.
                tokio::time::sleep(Duration::from_millis(5 << broken)).await;
            }
        }
    }
}

struct Call<'a> {
    turns: &'a Turns,
    /// None after it is recorded.
    turn: Option<Turn>,
}

impl Call<'_> {
    fn end(mut self, outcome: Result<Verdicts, Failure>) {
        if let Some(turn) = self.turn.take() {
            self.turns.record(turn, outcome);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.turns.record_unanswered(turn);
        }
    }
}
