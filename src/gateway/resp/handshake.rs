//! The commands that clients send when they connect.

use std::borrow::Cow;

use super::decode::{Words, number};
use super::outcome::{Outcome, Ran, Refusal, help, shown, unknown_subcommand};
use super::reply::{Replies, Version};
use super::session::{Replying, Session};
use crate::access::{Need, Refused};

const OPEN: &str = "ERR AUTH <password> called without any password configured for the default user. \
                    Are you sure your configuration is correct?";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_NO_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                             <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                             RESP protocol version at the same time";
const SYNTAX: &str = "ERR syntax error";
const NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
pub(super) fn hello(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let version = match words.get(1) {
        None => session.version,
        Some(word) => version(word)?,
    };
    let (mut rest, mut name) = (words.get(2..).unwrap_or_default(), None);
    while let [option, after @ ..] = rest {
        rest = match after {
            [_, password, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                authenticate(session, password)?;
                after
            }
            [given, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(client_name(given)?);
                after
            }
            _ => return Err(Refusal::text(format!("ERR Syntax error in HELLO option '{}'", shown(option)))),
        };
    }
    session.permit(Need::Known).map_err(|rejected| {
        session.refuse(&rejected);
        Refusal::Text(HELLO_NO_AUTH.into())
    })?;
    session.name = name.unwrap_or(std::mem::take(&mut session.name));
    (session.version, replies.version) = (version, version);
    greet(session, replies);
    Ok(Outcome::Answered)
}

fn version(word: &[u8]) -> Result<Version, Refusal> {
    match number(word) {
        Some(2) => Ok(Version::Resp2),
        Some(3) => Ok(Version::Resp3),
        Some(_) => Err(Refusal::Text("NOPROTO unsupported protocol version".into())),
        None => Err(Refusal::Text("ERR Protocol version is not an integer or out of range".into())),
    }
}

fn greet(session: &Session, replies: &mut Replies<'_>) {
    replies.map(7);
    replies.entry("server", b"tollgate");
    replies.entry("version", env!("CARGO_PKG_VERSION").as_bytes());
    replies.number("proto", session.version as i64);
    replies.number("id", session.id);
    replies.entry("mode", b"standalone");
    replies.entry("role", b"master");
    replies.bulk(b"modules");
    replies.array(0);
}

/// `AUTH [user] password`. The name of the user says nothing.
pub(super) fn auth(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    match &words[1..] {
        [_] if session.is_open() => return Err(Refusal::Text(OPEN.into())),
        [password] | [_, password] => authenticate(session, password)?,
        _ => return Err(Refusal::Text(SYNTAX.into())),
    }
    replies.simple("OK");
    Ok(Outcome::Answered)
}

fn authenticate(session: &mut Session, password: &[u8]) -> Result<(), Refusal> {
    session.authenticate(password).map_err(|rejected| {
        session.refuse(&rejected);
        match rejected.reason {
            Refused::NoToken | Refused::UnknownToken => Refusal::Text(WRONG_PASS.into()),
            // The client has the right secret, and its operator must change the token.
            Refused::ExpiredToken => Refusal::text(format!("WRONGPASS {rejected}")),
            _ => Refusal::text(format!("NOPERM {rejected}")),
        }
    })
}

const HELP: &[&str] = &[
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ID",
    "    Return the ID of the current connection.",
    "GETNAME",
    "    Return the name of the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Accepted without effect.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> ...] [OPTIN] [OPTOUT] [NOLOOP]",
    "    Accepted without effect: no answer can be cached.",
    "CACHING (YES|NO)",
    "    Accepted without effect.",
    "NO-EVICT (ON|OFF)",
    "    Accepted without effect.",
    "NO-TOUCH (ON|OFF)",
    "    Accepted without effect.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the answers to the current connection.",
    "HELP",
    "    Print this help.",
];

/// `CLIENT subcommand ...`. Drivers send these when they connect, and some give up at an error.
pub(super) fn client(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let is = |name: &str| words[1].eq_ignore_ascii_case(name.as_bytes());
    match &words[2..] {
        [] if is("ID") => replies.integer(session.id),
        [] if is("GETNAME") && session.name.is_empty() => replies.null(),
        [] if is("GETNAME") => replies.bulk(&session.name),
        [name] if is("SETNAME") => {
            session.name = client_name(name)?;
            replies.simple("OK");
        }
        [attribute, _] if is("SETINFO") => {
            let is_known = ["lib-name", "lib-ver"].iter().any(|name| attribute.eq_ignore_ascii_case(name.as_bytes()));
            if !is_known {
                return Err(Refusal::text(format!("ERR Unrecognized option '{}'", shown(attribute))));
            }
            replies.simple("OK");
        }
        [switch, options @ ..] if is("TRACKING") => {
            one_of(switch, &["ON", "OFF"])?;
            tracking(options)?;
            replies.simple("OK");
        }
        [switch] if is("CACHING") => {
            one_of(switch, &["YES", "NO"])?;
            replies.simple("OK");
        }
        [switch] if is("NO-EVICT") || is("NO-TOUCH") => {
            one_of(switch, &["ON", "OFF"])?;
            replies.simple("OK");
        }
        [mode] if is("REPLY") => {
            session.replying = match one_of(mode, &["ON", "OFF", "SKIP"])? {
                "ON" => Replying::On,
                "OFF" => Replying::Off,
                // Without answers there is none to skip.
                _ if session.replying == Replying::Off => Replying::Off,
                _ => Replying::Skip,
            };
            replies.simple("OK");
        }
        [] if is("HELP") => help(replies, HELP),
        _ => return Err(unknown_subcommand("CLIENT", &words[1])),
    }
    Ok(Outcome::Answered)
}

/// The options of `CLIENT TRACKING`. No key has a value that a client could cache.
fn tracking(mut options: &[Cow<'_, [u8]>]) -> Result<(), Refusal> {
    while let [option, rest @ ..] = options {
        options = match (one_of(option, &["REDIRECT", "PREFIX", "BCAST", "OPTIN", "OPTOUT", "NOLOOP"])?, rest) {
            ("REDIRECT" | "PREFIX", [_, rest @ ..]) => rest,
            ("REDIRECT" | "PREFIX", []) => return Err(Refusal::Text(SYNTAX.into())),
            _ => rest,
        };
    }
    Ok(())
}

/// The one of `words` that a client has sent, in any case.
fn one_of(word: &[u8], words: &[&'static str]) -> Result<&'static str, Refusal> {
    let known = words.iter().find(|known| word.eq_ignore_ascii_case(known.as_bytes()));
    known.copied().ok_or(Refusal::Text(SYNTAX.into()))
}

fn client_name(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    let is_valid = name.len() <= 256 && name.iter().all(u8::is_ascii_graphic);
    is_valid.then(|| name.to_vec()).ok_or(Refusal::Text(NAME.into()))
}

/// Some clients wait until `loading` is 0.
pub(super) fn info(_: &mut Session, _: &Words<'_>, replies: &mut Replies<'_>) -> Ran {
    let text = concat!(
        "# Server\r\nserver_name:tollgate\r\ntollgate_version:",
        env!("CARGO_PKG_VERSION"),
        "\r\nredis_mode:standalone\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n",
    );
    replies.bulk(text.as_bytes());
    Ok(Outcome::Answered)
}
