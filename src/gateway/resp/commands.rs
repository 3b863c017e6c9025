//! The commands, one row each. Redis clients send most of them when they connect. The texts of the
//! errors are those of Redis.

use std::borrow::Cow;
use std::num::NonZeroU64;

use super::decode::{Words, number};
use super::reply::{Replies, Version};
use super::session::Session;
use super::{handshake, policy_check, throttle};
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
}

/// The form of the answer to a check.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// That of redis-cell, with this limit.
    Throttle(NonZeroU64),
    Policy,
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
}

impl Refusal {
    pub(super) fn text(text: String) -> Self {
        Self::Text(text.into())
    }
}

type Run = fn(&mut Session, &Words<'_>, &mut Replies<'_>) -> Result<Outcome, Refusal>;

/// A command.
pub(super) struct Command {
    /// In small letters.
    pub(super) name: &'static str,
    /// Its number of words, or the least number as a negative one, as `COMMAND` reports it.
    pub(super) arity: i64,
    /// The place of its key, or 0.
    pub(super) key: i64,
    /// Whether clients may send it before they authenticate.
    pub(super) is_open: bool,
    run: Run,
}

pub(super) const COMMANDS: [Command; 12] = [
    Command { name: "cl.throttle", arity: -1, key: 1, is_open: false, run: cl_throttle },
    Command { name: "tg.check", arity: -3, key: 2, is_open: false, run: tg_check },
    Command { name: "ping", arity: -1, key: 0, is_open: false, run: ping },
    Command { name: "echo", arity: 2, key: 0, is_open: false, run: echo },
    Command { name: "select", arity: 2, key: 0, is_open: false, run: select },
    Command { name: "hello", arity: -1, key: 0, is_open: true, run: handshake::hello },
    Command { name: "auth", arity: -2, key: 0, is_open: true, run: handshake::auth },
    Command { name: "client", arity: -2, key: 0, is_open: false, run: handshake::client },
    Command { name: "info", arity: -1, key: 0, is_open: false, run: handshake::info },
    Command { name: "command", arity: -1, key: 0, is_open: false, run: handshake::command },
    Command { name: "reset", arity: 1, key: 0, is_open: true, run: reset },
    Command { name: "quit", arity: -1, key: 0, is_open: true, run: quit },
];

/// The command of that name, in any case.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Runs a command, which has one word at least. Its answer, if it has one yet, is in `replies`.
pub(super) fn run(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    let command = find(&words[0]).ok_or_else(|| unknown(words))?;
    if !command.is_open {
        let permitted = session.permit();
        permitted.map_err(|reason| {
            session.service.refusals.refused(reason, session.service.caller);
            Refusal::NoAuth
        })?;
    }
    let count = i64::try_from(words.len()).unwrap_or(i64::MAX);
    if count < -command.arity || command.arity > 0 && count != command.arity {
        return Err(Refusal::Arity(command.name));
    }
    (command.run)(session, words, replies)
}

/// The text of an unknown command is cut: it is the client's.
fn unknown(words: &Words<'_>) -> Refusal {
    const SHOWN: usize = 128;
    let cut = |word: &[u8]| String::from_utf8_lossy(&word[..word.len().min(SHOWN)]).into_owned();
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        if arguments.len() >= SHOWN {
            break;
        }
        arguments += &format!("'{}' ", cut(word));
    }
    Refusal::text(format!("ERR unknown command '{}', with args beginning with: {arguments}", cut(&words[0])))
}

fn cl_throttle(_: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    throttle::check(words).map(|(check, limit)| Outcome::Check(check, Form::Throttle(limit)))
}

fn tg_check(_: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    policy_check::check(words).map(|check| Outcome::Check(check, Form::Policy))
}

fn ping(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    match &words[1..] {
        [] => replies.simple("PONG"),
        [text] => replies.bulk(text),
        _ => return Err(Refusal::Arity("ping")),
    }
    Ok(Outcome::Answered)
}

fn echo(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    replies.bulk(&words[1]);
    Ok(Outcome::Answered)
}

fn select(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    match number(&words[1]) {
        Some(0) => replies.simple("OK"),
        Some(_) => return Err(Refusal::Text("ERR DB index is out of range".into())),
        None => return Err(Refusal::Text("ERR value is not an integer or out of range".into())),
    }
    Ok(Outcome::Answered)
}

fn reset(session: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    session.reset();
    replies.version = Version::default();
    replies.simple("RESET");
    Ok(Outcome::Answered)
}

fn quit(_: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Result<Outcome, Refusal> {
    replies.simple("OK");
    Ok(Outcome::End)
}

/// A partition key.
pub(super) fn key(word: &[u8]) -> Result<String, Refusal> {
    let key = text("key", word)?;
    check_length(key).map_err(|wrong| Refusal::text(format!("ERR the key {wrong}")))?;
    Ok(key.to_owned())
}

pub(super) fn text<'a>(name: &str, word: &'a [u8]) -> Result<&'a str, Refusal> {
    std::str::from_utf8(word).map_err(|_| Refusal::text(format!("ERR the {name} must be UTF-8")))
}
