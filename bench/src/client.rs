//! One connection: it sends a call at each of its turns, and reconnects after a failure.

use std::sync::Arc;
use std::time::Duration;

use tollgate::cli::target::Target;

use super::connection::Connection;
use super::dialect::Dialect;
use super::random::Random;
use super::resp;
use super::response::{failure_text, verdicts};
use super::template::Template;
use super::turns::{Turn, Turns};
use super::verdicts::{Failure, Verdicts};

/// The client ends after this number of consecutive broken connections.
const MAX_BROKEN: u32 = 10;

#[derive(Debug)]
pub(super) struct Client {
    target: Target,
    connection: Option<Connection>,
    template: Template,
    random: Random,
}

impl Client {
    pub(super) async fn start(target: Target, template: Template, random: Random) -> Result<Self, String> {
        let connection = Connection::open(&target).await.map_err(|error| format!("{target}: {error}"))?;
        Ok(Self { target, connection: Some(connection), template, random })
    }

    pub(super) async fn run(mut self, turns: Arc<Turns>) {
        let mut broken = 0;
        while let Some(turn) = turns.next().await {
            let call = Call { turns: &turns, turn: Some(turn) };
            let outcome = self.ask(&turns).await;
            let lost = matches!(outcome, Err(Failure::Broken(_) | Failure::Closed));
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

    async fn ask(&mut self, turns: &Turns) -> Result<Verdicts, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target).await?,
        };
        let (keys, random) = (&turns.plan.keys, &mut self.random);
        let request = self.template.render(|| keys.pick(random));
        let dialect = &turns.plan.dialect;
        let answer = match dialect {
            Dialect::Resp { pipeline, throttle } => {
                connection.exchange_pipeline(request, (*pipeline).into(), resp::form(*throttle)).await?
            }
            _ => connection.exchange(request).await?,
        };
        let kept = answer.kept;
        let verdicts = verdicts(dialect, answer.status, answer.body);
        if verdicts.is_err() {
            turns.note_failure(|| failure_text(dialect, answer.body));
        }
        self.connection = kept.then_some(connection);
        verdicts
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
