//! One connection: asks whenever it is its turn, and connects again when it must.

use std::sync::Arc;
use std::time::Duration;

use tollgate::cli::target::Target;

use super::connection::Connection;
use super::crew::{Crew, Turn};
use super::random::Random;
use super::scan::{Failure, Verdicts, verdicts};
use super::template::Template;

/// So many broken connections in a row, and it gives up.
const MAX_BROKEN: u32 = 10;

#[derive(Debug)]
pub(super) struct Worker {
    target: Target,
    connection: Option<Connection>,
    template: Template,
    random: Random,
}

impl Worker {
    /// Connects.
    ///
    /// # Errors
    /// When nobody is there, in the words for a person.
    pub(super) async fn start(target: Target, template: Template, random: Random) -> Result<Self, String> {
        let connection = Connection::open(&target).await.map_err(|error| format!("{target}: {error}"))?;
        Ok(Self { target, connection: Some(connection), template, random })
    }

    pub(super) async fn run(mut self, crew: Arc<Crew>) {
        let mut broken = 0;
        while let Some(turn) = crew.turn().await {
            let call = Call { crew: &crew, turn: Some(turn) };
            let outcome = self.ask(&crew).await;
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

    async fn ask(&mut self, crew: &Crew) -> Result<Verdicts, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let opened = Connection::open(&self.target).await;
                opened.map_err(|error| Failure::Broken(error.kind().to_string()))?
            }
        };
        let (keys, random) = (&crew.plan.keys, &mut self.random);
        let answer = connection.exchange(self.template.render(|| keys.pick(random))).await?;
        let kept = answer.kept;
        let verdicts = verdicts(&crew.plan.dialect, answer.status, answer.body);
        if let Err(Failure::Status(_)) = verdicts {
            crew.note_complaint(answer.body);
        }
        self.connection = kept.then_some(connection);
        verdicts
    }
}

/// A call that goes out. One that is dropped before its end was not waited for any longer.
struct Call<'a> {
    crew: &'a Crew,
    /// None once it is recorded.
    turn: Option<Turn>,
}

impl Call<'_> {
    fn end(mut self, outcome: Result<Verdicts, Failure>) {
        if let Some(turn) = self.turn.take() {
            self.crew.record(turn, outcome);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.crew.give_up(turn);
        }
    }
}
