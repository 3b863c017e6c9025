//! A turn of a connection: the commands that have arrived, decided together and answered in order.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::commands;
use super::decode::{Words, decode};
use super::holds::{HoldAnswer, HoldWork};
use super::keys::{KeyError, KeyWork};
use super::outcome::{Form, Outcome};
use super::reply::{Replies, Version};
use super::session::{Replying, Session};
use super::{policy_check, throttle};
use crate::engine::{Answer, Check, CheckError, Engine};
use crate::shares::CallerTurns;

/// The most commands of a turn, which a worker decides in under a millisecond. The rest of a longer
/// pipeline is the next turn.
const MAX_COMMANDS: usize = 256;

/// A turn ends when its answers have this many bytes. The last one may have as many again.
const MAX_ANSWERS: usize = 64 * 1024;

/// The commands of a turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Decided together, in order.
    pub(super) checks: Vec<Check>,
    /// The answers of commands, in order.
    steps: SmallVec<[Step; 1]>,
    /// The other operations, each with the number of checks before it, and its answer.
    works: Vec<(usize, Operation)>,
    done: Vec<Done>,
    /// The answers that need no decision, one after the other.
    texts: Vec<u8>,
    /// The connection ends after the answers.
    pub(super) is_last: bool,
}

/// An operation beside checks.
#[derive(Debug)]
enum Operation {
    Keys(KeyWork),
    Hold(HoldWork),
}

/// Its answer.
#[derive(Debug)]
enum Done {
    Keys(Result<i64, KeyError>),
    Hold(Result<HoldAnswer, CheckError>),
}

impl Operation {
    async fn run(&self, engine: &Arc<Engine>, turns: &impl Fn() -> CallerTurns) -> Done {
        match self {
            Self::Keys(work) => Done::Keys(work.run(engine, turns).await),
            Self::Hold(work) => Done::Hold(work.run(engine).await),
        }
    }
}

impl Done {
    fn write(&self, replies: &mut Replies<'_>) {
        match self {
            Self::Keys(Ok(number)) => replies.integer(*number),
            Self::Keys(Err(KeyError::Check(error))) | Self::Hold(Err(error)) => replies.error(&failure(error)),
            Self::Keys(Err(error)) => replies.error(&format!("ERR {error}")),
            Self::Hold(Ok(answer)) => answer.write(replies),
        }
    }
}

#[derive(Debug)]
enum Step {
    /// The next of `texts`, up to this place.
    Text(usize),
    /// The next check's answer.
    Decision(Form, Version),
    /// The answer to the next operation, if the client wants it.
    Done { is_silent: bool, version: Version },
}

impl Turn {
    /// Runs the commands in `input` as far as they need no decision. Returns the turn, and the
    /// number of decoded bytes.
    pub(super) fn gather(session: &mut Session, input: &[u8]) -> (Self, usize) {
        let (mut turn, mut at) = (Self::default(), 0);
        while turn.steps.len() < MAX_COMMANDS && turn.texts.len() < MAX_ANSWERS && !turn.is_last {
            match decode(&input[at..]) {
                Ok(None) => break,
                Ok(Some((words, length))) => {
                    at += length;
                    if !words.is_empty() {
                        turn.run(session, &words, false);
                    }
                }
                Err(error) => {
                    session.service.refusals.malformed_resp(session.service.caller);
                    turn.text(session.version, |replies| replies.error(&format!("ERR Protocol error: {error}")));
                    turn.is_last = true;
                }
            }
        }
        (turn, at)
    }

    fn run(&mut self, session: &mut Session, words: &Words<'_>, is_silent: bool) {
        let (begin, skips) = (self.texts.len(), session.replying == Replying::Skip);
        if skips {
            session.replying = Replying::On;
        }
        let mut replies = Replies { out: &mut self.texts, version: session.version };
        let ran = commands::run(session, words, &mut replies);
        let is_silent = is_silent || skips || session.replying != Replying::On;
        let mut waiting = Vec::new();
        match ran {
            Ok(Outcome::Check(check, form)) => {
                self.checks.push(check);
                let form = if is_silent { Form::Silent } else { form };
                return self.steps.push(Step::Decision(form, session.version));
            }
            Ok(Outcome::Keys(work)) => return self.operate(Operation::Keys(work), is_silent, session.version),
            Ok(Outcome::Hold(work)) => return self.operate(Operation::Hold(work), is_silent, session.version),
            Ok(Outcome::Exec(commands)) => {
                replies.array(commands.len());
                waiting = commands;
            }
            Ok(Outcome::Answered) => {}
            Ok(Outcome::End) => self.is_last = true,
            Err(refusal) => replies.error(&refusal.to_string()),
        }
        if is_silent {
            self.texts.truncate(begin);
        }
        self.steps.push(Step::Text(self.texts.len()));
        for words in waiting {
            self.run(session, &words, is_silent);
        }
    }

    fn operate(&mut self, operation: Operation, is_silent: bool, version: Version) {
        self.works.push((self.checks.len(), operation));
        self.steps.push(Step::Done { is_silent, version });
    }

    /// Whether it has nothing for the engine.
    pub(super) fn is_decided(&self) -> bool {
        self.checks.is_empty() && self.works.is_empty()
    }

    /// The answers to its checks. Checks between two operations on keys are one batch. In a crowd
    /// a single one takes a turn, too.
    pub(super) async fn decide(
        &mut self,
        engine: &Arc<Engine>,
        turns: impl Fn() -> CallerTurns,
        is_crowded: bool,
    ) -> SmallVec<[Answer; 1]> {
        let decide = async |checks: &[Check]| -> SmallVec<[Answer; 1]> {
            match checks {
                [] => SmallVec::new(),
                [check] if !is_crowded => smallvec![engine.check(check).await],
                // The box keeps the task of a connection small.
                _ => Box::pin(engine.check_batch(checks, &turns())).await.into(),
            }
        };
        let (mut answers, mut from) = (SmallVec::new(), 0);
        for (until, work) in std::mem::take(&mut self.works) {
            answers.extend(decide(&self.checks[from..until]).await);
            self.done.push(Box::pin(work.run(engine, &turns)).await);
            from = until;
        }
        if from == 0 {
            return decide(&self.checks).await;
        }
        answers.extend(decide(&self.checks[from..]).await);
        answers
    }

    fn text(&mut self, version: Version, write: impl FnOnce(&mut Replies<'_>)) {
        write(&mut Replies { out: &mut self.texts, version });
        self.steps.push(Step::Text(self.texts.len()));
    }

    /// Whether there is nothing to answer.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Writes the answers in order. `answers` are those of the checks.
    pub(super) fn write(self, answers: &[Answer], out: &mut Vec<u8>) {
        let (mut written, mut decisions) = (0, answers.iter());
        let mut done = self.done.into_iter();
        for step in self.steps {
            match step {
                Step::Text(end) => {
                    out.extend_from_slice(&self.texts[written..end]);
                    written = end;
                }
                Step::Done { is_silent, version } => match done.next() {
                    _ if is_silent => {}
                    Some(done) => done.write(&mut Replies { out, version }),
                    None => Replies { out, version }.error(NO_DECISION),
                },
                Step::Decision(form, version) => {
                    write_decision(form, decisions.next(), &mut Replies { out, version });
                }
            }
        }
    }
}

fn write_decision(form: Form, answer: Option<&Answer>, replies: &mut Replies<'_>) {
    match (answer, form) {
        (_, Form::Silent) => {}
        (Some(Ok(decision)), Form::Throttle(limit)) => throttle::answer(replies, limit, decision),
        (Some(Ok(decision)), Form::Policy) => policy_check::answer(replies, decision),
        (Some(Err(error)), _) => replies.error(&failure(error)),
        (None, _) => replies.error(NO_DECISION),
    }
}

const NO_DECISION: &str = "ERR the store gave no decision";

fn failure(error: &CheckError) -> String {
    match error {
        CheckError::InvalidKey(_) => format!("ERR the key {error}"),
        _ => format!("ERR {error}"),
    }
}
