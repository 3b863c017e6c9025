//! The commands, one row each. Redis clients send most of them when they connect. The texts of the
//! errors are those of Redis.

use super::decode::{Words, number};
use super::outcome::{Form, MAX_SHOWN, Outcome, Ran, Refusal, help, shown, unknown_subcommand};
use super::reply::{Replies, Version};
use super::session::Session;
use super::transaction::{self, Transaction};
use super::{cluster, handshake, holds, keys, policy_check, throttle};
use crate::access::Need;
use crate::config::THROTTLE;

type Run = fn(&mut Session, &Words<'_>, &mut Replies<'_>) -> Ran;

/// A command.
pub(super) struct Command {
    /// In small letters.
    pub(super) name: &'static str,
    /// Its number of words, or the least number as a negative one, as `COMMAND` reports it.
    pub(super) arity: i64,
    /// The place of its key, or 0.
    pub(super) key: i64,
    /// Clients may send those that need nothing before they authenticate.
    need: Need,
    run: Run,
}

pub(super) const COMMANDS: [Command; 24] = [
    Command { name: "cl.throttle", arity: -1, key: 1, need: Need::Check, run: cl_throttle },
    Command { name: "tg.check", arity: -3, key: 2, need: Need::Check, run: tg_check },
    Command { name: "tg.settle", arity: -4, key: 2, need: Need::Settle, run: holds::settle },
    Command { name: "tg.renew", arity: 4, key: 2, need: Need::Check, run: holds::renew },
    Command { name: "del", arity: -2, key: 1, need: Need::Operate, run: keys::forget },
    Command { name: "unlink", arity: -2, key: 1, need: Need::Operate, run: keys::forget },
    Command { name: "exists", arity: -2, key: 1, need: Need::Usage, run: keys::exists },
    Command { name: "ttl", arity: 2, key: 1, need: Need::Usage, run: keys::time_to_live },
    Command { name: "multi", arity: 1, key: 0, need: Need::Known, run: transaction::multi },
    Command { name: "exec", arity: 1, key: 0, need: Need::Known, run: transaction::exec },
    Command { name: "discard", arity: 1, key: 0, need: Need::Known, run: transaction::discard },
    Command { name: "cluster", arity: -2, key: 0, need: Need::Known, run: cluster::cluster },
    Command { name: "readonly", arity: 1, key: 0, need: Need::Known, run: cluster::read_mode },
    Command { name: "readwrite", arity: 1, key: 0, need: Need::Known, run: cluster::read_mode },
    Command { name: "ping", arity: -1, key: 0, need: Need::Known, run: ping },
    Command { name: "echo", arity: 2, key: 0, need: Need::Known, run: echo },
    Command { name: "select", arity: 2, key: 0, need: Need::Known, run: select },
    Command { name: "hello", arity: -1, key: 0, need: Need::Nothing, run: handshake::hello },
    Command { name: "auth", arity: -2, key: 0, need: Need::Nothing, run: handshake::auth },
    Command { name: "client", arity: -2, key: 0, need: Need::Known, run: handshake::client },
    Command { name: "info", arity: -1, key: 0, need: Need::Known, run: handshake::info },
    Command { name: "command", arity: -1, key: 0, need: Need::Known, run: command },
    Command { name: "reset", arity: 1, key: 0, need: Need::Nothing, run: reset },
    Command { name: "quit", arity: -1, key: 0, need: Need::Nothing, run: quit },
];

/// The command of that name, in any case.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Runs a command, which has one word at least. Its answer, if it has one yet, is in `replies`.
/// After `MULTI` a valid command waits.
pub(super) fn run(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let permitted = permitted(session, words);
    let Some(transaction) = &mut session.transaction else { return (permitted?.run)(session, words, replies) };
    match permitted {
        Ok(command) if Transaction::is_exempt(command.name) => (command.run)(session, words, replies),
        Ok(_) => transaction.add(words, replies),
        Err(refusal) => {
            transaction.break_off();
            Err(refusal)
        }
    }
}

/// The command, if the client may run it with so many words.
fn permitted(session: &mut Session, words: &Words<'_>) -> Result<&'static Command, Refusal> {
    let command = find(&words[0]).ok_or_else(|| unknown(words))?;
    session.permit(command.need).map_err(|rejected| {
        session.refuse(&rejected);
        match (&rejected.token, rejected.reason.is_unknown_caller()) {
            (_, true) => Refusal::NoAuth,
            (name, false) => Refusal::NoPermission(name.clone().unwrap_or("default".into()), command.name),
        }
    })?;
    let count = i64::try_from(words.len()).unwrap_or(i64::MAX);
    if count < -command.arity || command.arity > 0 && count != command.arity {
        return Err(Refusal::Arity(command.name));
    }
    Ok(command)
}

/// The text of an unknown command is cut: it is the client's.
fn unknown(words: &Words<'_>) -> Refusal {
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        if arguments.len() >= MAX_SHOWN {
            break;
        }
        arguments += &format!("'{}' ", shown(word));
    }
    Refusal::text(format!("ERR unknown command '{}', with args beginning with: {arguments}", shown(&words[0])))
}

fn cl_throttle(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    session.permit_policy(THROTTLE)?;
    throttle::check(words).map(|(check, limit)| Outcome::Check(check, Form::Throttle(limit)))
}

fn tg_check(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    let check = policy_check::check(words)?;
    session.permit_policy(&check.policy)?;
    Ok(Outcome::Check(check, Form::Policy))
}

fn ping(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    match &words[1..] {
        [] => replies.simple("PONG"),
        [text] => replies.bulk(text),
        _ => return Err(Refusal::Arity("ping")),
    }
    Ok(Outcome::Answered)
}

fn echo(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    replies.bulk(&words[1]);
    Ok(Outcome::Answered)
}

fn select(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    match number(&words[1]) {
        Some(0) => replies.simple("OK"),
        Some(_) => return Err(Refusal::Text("ERR DB index is out of range".into())),
        None => return Err(Refusal::Text("ERR value is not an integer or out of range".into())),
    }
    Ok(Outcome::Answered)
}

fn reset(session: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    session.reset();
    replies.version = Version::default();
    replies.simple("RESET");
    Ok(Outcome::Answered)
}

fn quit(_: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    replies.simple("OK");
    Ok(Outcome::End)
}

const HELP: &[&str] = &[
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the number of commands.",
    "LIST",
    "    Return the names of all commands.",
    "INFO [<command-name> ...]",
    "    Return details about commands.",
    "DOCS [<command-name> ...]",
    "    Return no descriptions: clients show their own.",
    "HELP",
    "    Print this help.",
];

/// `COMMAND [COUNT | LIST | DOCS | INFO names | HELP]`. Clients have descriptions of their own.
fn command(_: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let is = |name: &str| words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    match words.len() {
        1 => list(replies, &COMMANDS.each_ref().map(Some)),
        2 if is("COUNT") => replies.integer(COMMANDS.len().try_into().unwrap_or(i64::MAX)),
        2 if is("LIST") => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| replies.bulk(command.name.as_bytes()));
        }
        2 if is("INFO") => list(replies, &COMMANDS.each_ref().map(Some)),
        _ if is("INFO") => list(replies, &words[2..].iter().map(|name| find(name)).collect::<Vec<_>>()),
        _ if is("DOCS") => replies.map(0),
        2 if is("HELP") => help(replies, HELP),
        _ => return Err(unknown_subcommand("COMMAND", &words[1])),
    }
    Ok(Outcome::Answered)
}

fn list(replies: &mut Replies<'_>, commands: &[Option<&Command>]) {
    replies.array(commands.len());
    for command in commands {
        let Some(command) = command else {
            replies.null();
            continue;
        };
        replies.array(6);
        replies.bulk(command.name.as_bytes());
        replies.integer(command.arity);
        replies.array(1);
        replies.simple(if command.key > 0 { "write" } else { "fast" });
        replies.integer(command.key);
        replies.integer(command.key);
        replies.integer(command.key.signum());
    }
}
