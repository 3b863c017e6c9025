//! The result of a command, and of its words.

use std::borrow::Cow;
use std::num::NonZeroU64;

use super::decode::Words;
use super::holds::HoldWork;
use super::keys::KeyWork;
use super::reply::Replies;
use crate::engine::Check;
use crate::limit::key::check_length;

/// The result of a command.
pub(super) enum Outcome {
    /// It is answered.
    Answered,
    /// It is answered, and the connection ends.
    End,
    /// The engine decides.
    Check(Check, Form),
    /// The engine answers with an integer.
    Keys(KeyWork),
    /// The engine ends or extends a hold.
    Hold(HoldWork),
    /// These commands run now, and their answers are one array.
    Exec(Vec<Words<'static>>),
}

/// The form of the answer to a check.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// That of redis-cell, with this limit.
    Throttle(NonZeroU64),
    Policy,
    /// The client wants no answer.
    Silent,
}

/// A command that is not run, and the answer to it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Text(Cow<'static, str>),
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    #[error("NOAUTH Authentication required.")]
    NoAuth,
    #[error("NOPERM User {0} has no permissions to run the '{1}' command")]
    NoPermission(String, &'static str),
    #[error("ERR the node is overloaded: try again later")]
    Overloaded,
}

impl Refusal {
    pub(super) fn text(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// The outcome of a command that may be refused.
pub(super) type Ran = Result<Outcome, Refusal>;

/// A partition key.
pub(super) fn key(word: &[u8]) -> Result<&str, Refusal> {
    let key = text("key", word)?;
    check_length(key).map_err(|wrong| Refusal::text(format!("ERR the key {wrong}")))?;
    Ok(key)
}

pub(super) fn text<'a>(name: &str, word: &'a [u8]) -> Result<&'a str, Refusal> {
    std::str::from_utf8(word).map_err(|_| Refusal::text(format!("ERR the {name} must be UTF-8")))
}

/// The answer to `HELP`.
pub(super) fn help(replies: &mut Replies<'_>, lines: &[&str]) {
    replies.array(lines.len());
    lines.iter().for_each(|line| replies.simple(line));
}

/// The refusal of a subcommand.
pub(super) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Refusal {
    Refusal::text(format!("ERR unknown subcommand '{}'. Try {command} HELP.", shown(subcommand)))
}

/// The most bytes of a client's text that an error repeats.
pub(super) const MAX_SHOWN: usize = 128;

/// The beginning of a client's text.
pub(super) fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(MAX_SHOWN)]).into_owned()
}
