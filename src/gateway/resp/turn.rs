//! A turn of a connection: the commands that have arrived, decided together and answered in order.

use smallvec::SmallVec;

use super::commands;
use super::decode::{Words, decode};
use super::outcome::{Form, Outcome};
use super::reply::{Replies, Version};
use super::session::Session;
use super::{policy_check, throttle};
use crate::engine::{Answer, Check, CheckError};

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
    /// The answers that need no decision, one after the other.
    texts: Vec<u8>,
    /// The connection ends after the answers.
    pub(super) is_last: bool,
}

#[derive(Debug)]
enum Step {
    /// The next of `texts`, up to this place.
    Text(usize),
    /// The next check's answer.
    Decision(Form, Version),
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
                        turn.run(session, &words);
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

    fn run(&mut self, session: &mut Session, words: &Words<'_>) {
        let mut replies = Replies { out: &mut self.texts, version: session.version };
        let ran = commands::run(session, words, &mut replies);
        match ran {
            Ok(Outcome::Check(check, form)) => {
                self.checks.push(check);
                self.steps.push(Step::Decision(form, session.version));
                return;
            }
            Ok(Outcome::Answered) => {}
            Ok(Outcome::End) => self.is_last = true,
            Err(refusal) => replies.error(&refusal.to_string()),
        }
        self.steps.push(Step::Text(self.texts.len()));
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
        for step in self.steps {
            match step {
                Step::Text(end) => {
                    out.extend_from_slice(&self.texts[written..end]);
                    written = end;
                }
                Step::Decision(form, version) => {
                    write_decision(form, decisions.next(), &mut Replies { out, version });
                }
            }
        }
    }
}

fn write_decision(form: Form, answer: Option<&Answer>, replies: &mut Replies<'_>) {
    match (answer, form) {
        (Some(Ok(decision)), Form::Throttle(limit)) => throttle::answer(replies, limit, decision),
        (Some(Ok(decision)), Form::Policy) => policy_check::answer(replies, decision),
        (Some(Err(error @ CheckError::InvalidKey(_))), _) => replies.error(&format!("ERR the key {error}")),
        (Some(Err(error)), _) => replies.error(&format!("ERR {error}")),
        (None, _) => replies.error("ERR the store gave no decision"),
    }
}
