//! The replies of the registry's scripts, and the messages of its channel.

use std::collections::HashMap;

use redis::Value;

use super::{LoggedChange, PARTS, RecordChanges, RecordState, RecordWritten, Restored};
use crate::store::redis::protocol::reply::text;

/// The longest line of a subscription, bytes.
const MOST_LINE: usize = 4096;

pub(super) fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// The version in the id of a change.
fn version(value: &Value) -> Option<u64> {
    text(value)?.split_once('-')?.0.parse().ok()
}

/// The state of a part; none for a text of another program.
fn state(line: &str) -> Option<RecordState> {
    let mut words = line.split(' ');
    let generation = words.next()?.into();
    let mut next = || words.next()?.parse().ok();
    Some(RecordState { generation, birth: next()?, newest: next()?, dropped: next()? })
}

/// The state of a part as HGET or MGET return it; none for a missing one.
pub(super) fn state_of(value: &Value) -> Option<RecordState> {
    text(value).and_then(state)
}

pub(super) fn written(reply: &Value) -> Option<RecordWritten> {
    let (word, rest) = items(reply)?.split_first()?;
    Some(match (text(word)?, rest) {
        ("ok", [version, at, before, after]) => RecordWritten::Done {
            version: number(version)?,
            at: number(at)?,
            before: text(before)?.to_owned(),
            after: text(after)?.to_owned(),
        },
        ("stale", [present]) => RecordWritten::Stale(text(present)?.to_owned()),
        ("full", []) => RecordWritten::Full,
        ("none", []) => RecordWritten::Nothing,
        ("lost", []) => RecordWritten::Lost,
        _ => return None,
    })
}

pub(super) fn changes(reply: &Value) -> Option<RecordChanges> {
    let [now, newest, line, is_damaged, fields, changes] = items(reply)? else { return None };
    Some(RecordChanges {
        now: number(now)?,
        newest: number(newest)?,
        state: state(text(line)?),
        is_damaged: number(is_damaged)? != 0,
        fields: number(fields)?,
        changes: items(changes)?.iter().filter_map(logged).collect(),
    })
}

pub(super) fn restored(reply: &Value) -> Option<Restored> {
    let [records, removals, rest @ ..] = items(reply)? else { return None };
    let sealed = match rest {
        [line, before] => Some((state(text(line)?)?, number(before)?)),
        _ => None,
    };
    Some(Restored { records: number(records)?, removals: number(removals)?, sealed })
}

/// The parts that may have changed, by the bytes that a subscription brings, which are none at its
/// end. A message names the stream of a part. One of an earlier version is empty and means all
/// parts, as do the beginning and the end. `rest` keeps a line that has not arrived whole.
pub(super) fn named(bytes: &[u8], rest: &mut Vec<u8>, streams: &[String]) -> Vec<usize> {
    rest.extend_from_slice(bytes);
    let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines: Vec<u8> = rest.drain(..end).collect();
    if bytes.is_empty() || rest.len() > MOST_LINE {
        rest.clear();
        return (0..PARTS).collect();
    }
    let parts = |line: &[u8]| match line.trim_ascii_end() {
        b"" | b"subscribe" => 0..PARTS,
        name => streams.iter().position(|stream| stream.as_bytes() == name).map_or(0..0, |part| part..part + 1),
    };
    lines.split_inclusive(|byte| *byte == b'\n').flat_map(parts).collect()
}

pub(super) fn page(reply: &Value) -> Option<(u64, Vec<(String, String)>)> {
    let [cursor, records] = items(reply)? else { return None };
    let record = |pair: &[Value]| Some((text(&pair[0])?.to_owned(), text(&pair[1])?.to_owned()));
    Some((number(cursor)?, items(records)?.chunks_exact(2).filter_map(record).collect()))
}

/// Names and versions of removals.
pub(super) fn removals(reply: &Value) -> Option<Vec<(String, u64)>> {
    let removal = |pair: &[Value]| Some((text(&pair[0])?.to_owned(), score(&pair[1])?));
    Some(items(reply)?.chunks_exact(2).filter_map(removal).collect())
}

/// A version as a sorted set has it, such as `1.795e+15`.
fn score(value: &Value) -> Option<u64> {
    let score: f64 = text(value)?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "versions are exact doubles")]
    Some(score as u64)
}

pub(super) fn logged(entry: &Value) -> Option<LoggedChange> {
    let [id, fields] = items(entry)? else { return None };
    let field = |pair: &[Value]| Some((text(&pair[0])?.to_owned(), text(&pair[1])?.to_owned()));
    let mut fields: HashMap<String, String> = items(fields)?.chunks_exact(2).filter_map(field).collect();
    let last = fields.remove("last")?.split_once('-')?.0.parse().ok()?;
    Some(LoggedChange { version: version(id)?, last, fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_part_that_changed() {
        let streams: Vec<String> = (0..PARTS).map(|part| format!("{{ratelimit:%o{part}}}changes")).collect();
        let message = |text: &str| format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n{text}\r\n", text.len());
        let (mut rest, all): (_, Vec<usize>) = (Vec::new(), (0..PARTS).collect());
        let mut read = |bytes: &[u8]| named(bytes, &mut rest, &streams);
        assert_eq!(read(b"+OK\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), all);
        assert_eq!(read((message(&streams[7]) + &message(&streams[63])).as_bytes()), [7, 63]);
        // A message arrives in pieces.
        let (first, last) = (&message(&streams[17])[..40], &message(&streams[17])[40..]);
        assert_eq!((read(first.as_bytes()), read(last.as_bytes())), (vec![], vec![17]));
        assert_eq!(read(message("").as_bytes()), all, "a node of an earlier version");
        assert_eq!(read(message("another program").as_bytes()), [0; 0]);
        assert_eq!(read(&[b'x'; MOST_LINE + 1]), all);
        assert_eq!(read(&[]), all, "the connection ended");
    }

    #[test]
    fn state_of_another_program_is_none() {
        let told = state("0af3 1795000000000000 1795000000000001 7 3 1");
        let known = RecordState {
            generation: "0af3".into(),
            birth: 1_795_000_000_000_000,
            newest: 1_795_000_000_000_001,
            dropped: 7,
        };
        assert_eq!(told, Some(known));
        assert_eq!(["", "x", "x 1 2", "x 1 2 y 4 5"].map(state), [None, None, None, None]);
    }
}
