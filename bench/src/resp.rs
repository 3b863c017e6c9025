//! RESP: pipelines of `TG.CHECK` or of throttlecrab's `THROTTLE`, and their answers.

use tollgate::config::visible;

use super::dialect::{Subject, Throttle};
use super::verdicts::{Failure, SOURCES, Verdicts};

/// An answer with a decision.
#[derive(Debug)]
pub(super) struct Form {
    head: &'static [u8],
    allowed: &'static [u8],
    denied: &'static [u8],
    /// The head has one line, an integer one, a text two. An error has one line in all.
    lines: usize,
}

/// Five integers, and the source.
const CHECK: Form = Form { head: b"*6", allowed: b":0", denied: b":1", lines: 8 };

/// Five integers.
const THROTTLE: Form = Form { head: b"*5", allowed: b":1", denied: b":0", lines: 6 };

/// The form of the answers to [`commands`].
pub(super) fn form(throttle: Option<Throttle>) -> &'static Form {
    if throttle.is_some() { &THROTTLE } else { &CHECK }
}

/// The commands of a pipeline.
pub(super) fn commands(subject: &Subject, key: &str, pipeline: u32, throttle: Option<Throttle>) -> Vec<u8> {
    let Subject { policy, cost, .. } = subject;
    let cost = cost.to_string();
    let command = match throttle {
        None => command(&["TG.CHECK", policy, key, &cost]),
        Some(Throttle { limit, seconds }) => {
            let (limit, seconds) = (limit.to_string(), seconds.to_string());
            command(&["THROTTLE", key, &limit, &limit, &seconds, &cost])
        }
    };
    command.repeat(pipeline as usize).into_bytes()
}

fn command(words: &[&str]) -> String {
    let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
}

/// The length of `answers` answers; none while they are incomplete.
pub(super) fn length(bytes: &[u8], answers: u64, form: &Form) -> Option<usize> {
    let mut at = 0;
    for _ in 0..answers {
        let lines = if *bytes.get(at)? == b'*' { form.lines } else { 1 };
        for _ in 0..lines {
            at += memchr::memchr(b'\n', &bytes[at..])? + 1;
        }
    }
    Some(at)
}

/// The answers to a pipeline.
///
/// # Errors
/// When one of them holds no decision: this fails the call.
pub(super) fn verdicts(body: &[u8], form: &Form) -> Result<Verdicts, Failure> {
    let mut verdicts = Verdicts::default();
    let mut lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    while let Some(head) = lines.next().filter(|head| !head.is_empty()) {
        if head != form.head {
            return Err(Failure::Refused);
        }
        match lines.next() {
            Some(first) if first == form.allowed => verdicts.allowed += 1,
            Some(first) if first == form.denied => verdicts.denied += 1,
            _ => return Err(Failure::Malformed),
        }
        let last = lines.nth(form.lines - 3).unwrap_or_default();
        if let Some(known) = SOURCES.iter().position(|name| last == name.as_bytes()) {
            verdicts.by[known] += 1;
        }
    }
    Ok(verdicts)
}

/// The text of the first error.
pub(super) fn error_text(body: &[u8]) -> Option<String> {
    let line = body.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"-"))?;
    Some(visible(&String::from_utf8_lossy(line.trim_ascii_end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<Throttle> = Some(Throttle { limit: 5, seconds: 60 });

    #[test]
    fn a_pipeline_has_a_command_for_each_check() {
        let subject = Subject { policy: "p".into(), key_prefix: String::new(), cost: 12 };
        let check = "*4\r\n$8\r\nTG.CHECK\r\n$1\r\np\r\n$2\r\nk7\r\n$2\r\n12\r\n";
        assert_eq!(commands(&subject, "k7", 2, None), check.repeat(2).into_bytes());
        let throttle = "*6\r\n$8\r\nTHROTTLE\r\n$2\r\nk7\r\n$1\r\n5\r\n$1\r\n5\r\n$2\r\n60\r\n$2\r\n12\r\n";
        assert_eq!(commands(&subject, "k7", 3, RATE), throttle.repeat(3).into_bytes());
    }

    #[test]
    fn answers_of_a_pipeline_are_counted_one_by_one() {
        let answers = b"*6\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:9\r\n$5\r\nstore\r\n*6\r\n:1\r\n:5\r\n:0\r\n:7\r\n:9\r\n$9\r\nprefilter\r\n";
        assert_eq!((0..answers.len()).find_map(|end| length(&answers[..end], 2, &CHECK)), None);
        assert_eq!(length(answers, 2, &CHECK), Some(answers.len()));
        assert_eq!(verdicts(answers, &CHECK), Ok(Verdicts { allowed: 1, denied: 1, by: [1, 1, 0, 0, 0] }));
    }

    /// Its first number is 1 for an allowed call, where `TG.CHECK` has 0.
    #[test]
    fn throttlecrab_answers_with_five_numbers() {
        let answers = b"*5\r\n:1\r\n:5\r\n:4\r\n:12\r\n:0\r\n*5\r\n:0\r\n:5\r\n:0\r\n:60\r\n:12\r\n*5\r\n:0\r\n:5\r\n:0\r\n:60\r\n:12\r\n";
        assert_eq!((0..answers.len()).find_map(|end| length(&answers[..end], 3, &THROTTLE)), None);
        assert_eq!(length(answers, 3, &THROTTLE), Some(answers.len()));
        assert_eq!(verdicts(answers, &THROTTLE), Ok(Verdicts { allowed: 1, denied: 2, ..Verdicts::default() }));
        assert_eq!(verdicts(answers, &CHECK), Err(Failure::Refused));
    }

    #[test]
    fn an_error_fails_the_call_and_has_a_text() {
        let answers = b"*5\r\n:1\r\n:5\r\n:4\r\n:12\r\n:0\r\n-ERR a\r\n";
        assert_eq!(length(answers, 2, &THROTTLE), Some(answers.len()));
        assert_eq!(verdicts(answers, &THROTTLE), Err(Failure::Refused));
        assert_eq!(error_text(answers).as_deref(), Some("ERR a"));
        assert_eq!(error_text(b"*6\r\n:-1\r\n"), None);
    }
}
