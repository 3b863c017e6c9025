//! `MULTI`, `EXEC` and `DISCARD`: commands that wait and run together. Nothing is rolled back, and
//! commands of other clients may run between them.

use std::borrow::Cow;
use std::sync::Arc;

use super::decode::Words;
use super::outcome::{Outcome, Ran, Refusal};
use super::reply::Replies;
use super::session::Session;
use crate::node::{Budget, Counted, Holdings};

/// The most commands that wait on a connection.
const MAX_COMMANDS: usize = 256;

/// The most bytes of their words, with [`WORD`] for each.
const MAX_BYTES: usize = 32 * 1024;

/// The size of a word beside its bytes.
const WORD: usize = 24;

/// The commands after `MULTI`.
#[derive(Debug)]
pub(super) struct Transaction {
    commands: Vec<Words<'static>>,
    bytes: usize,
    /// Counts the bytes as unfinished input.
    counted: Counted,
    /// One of them was refused, so none runs.
    is_broken: bool,
}

impl Transaction {
    fn new(holdings: &Arc<Holdings>) -> Self {
        Self { commands: Vec::new(), bytes: 0, counted: Counted::new(holdings, Budget::Bodies), is_broken: false }
    }

    /// Whether a command runs at once, although others wait.
    pub(super) fn is_exempt(name: &str) -> bool {
        matches!(name, "multi" | "exec" | "discard" | "reset" | "quit")
    }

    /// Keeps a command for `EXEC`.
    pub(super) fn add(&mut self, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
        self.bytes += words.iter().map(|word| word.len() + WORD).sum::<usize>();
        if self.commands.len() == MAX_COMMANDS || self.bytes > MAX_BYTES {
            self.break_off();
            let text = format!("ERR a transaction may have at most {MAX_COMMANDS} commands and {MAX_BYTES} bytes");
            return Err(Refusal::text(text));
        }
        if !self.is_broken && !self.counted.set(self.bytes) {
            self.break_off();
            return Err(Refusal::Overloaded);
        }
        if !self.is_broken {
            self.commands.push(words.iter().map(|word| Cow::Owned(word.to_vec())).collect());
        }
        replies.simple("QUEUED");
        Ok(Outcome::Answered)
    }

    /// Drops the commands that wait. None of the transaction runs.
    pub(super) fn break_off(&mut self) {
        (self.commands, self.bytes, self.is_broken) = (Vec::new(), 0, true);
        self.counted.set(0);
    }
}

pub(super) fn multi(session: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    if session.transaction.is_some() {
        return Err(Refusal::Text("ERR MULTI calls can not be nested".into()));
    }
    session.transaction = Some(Box::new(Transaction::new(&session.service.holdings)));
    replies.simple("OK");
    Ok(Outcome::Answered)
}

pub(super) fn exec(session: &mut Session, _: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    match session.transaction.take() {
        None => Err(Refusal::Text("ERR EXEC without MULTI".into())),
        Some(transaction) if transaction.is_broken => {
            Err(Refusal::Text("EXECABORT Transaction discarded because of previous errors.".into()))
        }
        Some(transaction) => Ok(Outcome::Exec(transaction.commands)),
    }
}

pub(super) fn discard(session: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    if session.transaction.take().is_none() {
        return Err(Refusal::Text("ERR DISCARD without MULTI".into()));
    }
    replies.simple("OK");
    Ok(Outcome::Answered)
}
