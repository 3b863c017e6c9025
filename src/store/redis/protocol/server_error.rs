//! The meaning of an error reply.

use redis::{ServerError, Value};

use super::failure::{Failure, Kind, cleaned, cut};

/// The reason to reject counts that another program wrote, or that a fault broke.
pub const CORRUPT_STATE: &str =
    "what is kept of the key is no count of this program; a reset (DELETE /v1/usage) ends it";

/// The reason to reject an id whose record another program wrote.
pub const CORRUPT_RECORD: &str =
    "what is kept of this id is no record of this program: use another id, or delete its key in Redis";

/// How servers and services say that they lack a command, or forbid it.
const UNAVAILABLE: [&str; 7] = [
    "nknown command",
    "nknown subcommand",
    "nknown CLUSTER subcommand",
    "nsupported command",
    "not available",
    "not support",
    "command is not allowed",
];

/// The most bytes of a server's own text in the log.
const SAID: usize = 200;

impl Failure {
    /// The meaning of an error reply.
    pub fn of_reply(error: &ServerError) -> Self {
        Self::of_error(error.code(), error.details().unwrap_or_default())
    }

    /// The meaning of an error line, which begins with a code.
    pub fn of_line(line: &str) -> Self {
        let (code, details) = line.split_once(' ').unwrap_or((line, ""));
        Self::of_error(code, details)
    }

    fn of_error(code: &str, details: &str) -> Self {
        // Before Redis 7.0, the error of a script is nested in another error.
        if let Some((_, inner)) = details.split_once("user_script: ").filter(|_| code == "ERR")
            && let Some((_, inner)) = inner.split_once(": -")
        {
            return Self::of_line(inner);
        }
        let known = |kind, sentence: &'static str| Self::new(kind, sentence);
        match code {
            "NOAUTH" => known(Kind::Login, "NOAUTH: the server asks for a password, and this node has none for it"),
            "WRONGPASS" => known(
                Kind::Login,
                "WRONGPASS: the server rejects the user name or the password of this node, or the user is off",
            ),
            "DENIED" => known(
                Kind::Login,
                "DENIED: the server is in protected mode and accepts clients of its own machine only",
            ),
            "NOPERM" => Self::without_right(details),
            "OOM" => known(Kind::Answer, "OOM: the memory of the server is full (maxmemory), so it makes no charges"),
            "NOREPLICAS" => known(
                Kind::Answer,
                "NOREPLICAS: the server has fewer replicas than min-replicas-to-write, so it makes no charges",
            ),
            "MISCONF" => {
                known(Kind::Answer, "MISCONF: the server cannot save its data to its disk, so it makes no charges")
            }
            "READONLY" => known(Kind::NotNow, "READONLY: the server is a replica, which makes no charges"),
            "LOADING" => known(Kind::NotNow, "LOADING: the server is loading its data and makes no charges yet"),
            "CLUSTERDOWN" => known(Kind::NotNow, "CLUSTERDOWN: the cluster is down, or this slot has no owner"),
            "MASTERDOWN" => known(Kind::NotNow, "MASTERDOWN: the server is a replica that has lost its primary"),
            "BUSY" => known(Kind::Answer, "BUSY: a script of another program keeps the server busy"),
            "NOSCRIPT" => known(Kind::Answer, "NOSCRIPT: the server does not keep the scripts of this node"),
            "TRYAGAIN" => known(Kind::Moved, "TRYAGAIN: the slot of the key is moving to another server"),
            "MOVED" | "ASK" => known(Kind::Moved, "the server redirects to another one, and no node leads there"),
            "CROSSSLOT" => known(Kind::Answer, "CROSSSLOT: the server is part of a cluster, and was not known to be"),
            "WRONGTYPE" => known(Kind::Key, CORRUPT_STATE),
            "ERR" | "AuthenticationFailed" => Self::of_text(details),
            _ => Self::unknown(code, details),
        }
    }

    /// Interprets an error without a code of its own.
    fn of_text(details: &str) -> Self {
        let has = |text: &str| details.contains(text);
        let known = |kind, sentence: &'static str| Self::new(kind, sentence);
        if has("max number of clients") || has("max number of connections") {
            known(Kind::Login, "the server has as many clients as it takes (maxclients)")
        } else if has("cluster support disabled") {
            known(Kind::NoCluster, "the server is part of no cluster")
        } else if has("without any password configured") {
            known(Kind::Login, "the server has no password for its default user, and this node sends one")
        } else if has("user executing the script can't") {
            known(
                Kind::Rights,
                "the user of this node lacks a right that the scripts need; docs/security.md lists them all",
            )
        } else if has("not allowed from script") || has("called from script") {
            known(
                Kind::Rights,
                "the server forbids a command that the scripts need, such as TIME, so this node cannot use it",
            )
        } else if UNAVAILABLE.iter().any(|text| details.contains(text)) {
            let name = quoted(details).map(|name| format!(" {name}")).unwrap_or_default();
            Self::new(Kind::Rights, format!("the server does not know the command{name}, which this node needs"))
        } else if has("foreign record") {
            known(Kind::Key, CORRUPT_RECORD)
        } else if details.starts_with("user_script:") || has(": user_script:") {
            // The script found a value that it cannot read.
            known(Kind::Key, CORRUPT_STATE)
        } else if has("string exceeds maximum") {
            known(Kind::Key, CORRUPT_STATE)
        } else {
            Self::unknown("ERR", details)
        }
    }

    fn without_right(details: &str) -> Self {
        let sentence = match quoted(details) {
            Some(command) => format!(
                "NOPERM: the user of this node may not call {command}; docs/security.md lists the rights that it needs"
            ),
            None if details.contains(" key") => {
                "NOPERM: the user of this node may not access keys that begin with {<key_prefix>:".into()
            }
            None => "NOPERM: the user of this node lacks a right; docs/security.md lists those that it needs".into(),
        };
        Self::new(Kind::Rights, sentence)
    }

    fn unknown(code: &str, details: &str) -> Self {
        let said = cleaned(&format!("{} {}", cut(code, SAID), cut(details, SAID)), SAID);
        let sentence = "the server refuses with an error that this node does not know; the log has its text";
        Self::new(Kind::Answer, sentence).with_text(said)
    }
}

/// Returns the reply unless it is an error.
///
/// # Errors
/// When the reply is an error.
pub fn unless_error(reply: Value) -> Result<Value, Failure> {
    match reply {
        Value::ServerError(error) => Err(Failure::of_reply(&error)),
        reply => Ok(reply),
    }
}

/// Whether the server refuses every call of this command, and so has not executed it.
pub fn refuses(error: &ServerError, command: &str) -> bool {
    let is_command = |name: &str| name.eq_ignore_ascii_case(command);
    matches!(error.code(), "NOPERM" | "ERR")
        && !is_from_inside(error)
        && error.details().and_then(quoted).is_some_and(is_command)
}

/// Returns the code of an error reply, or `ERR` where its text is no code.
pub fn code(error: &ServerError) -> &str {
    let is_code = |code: &&str| code.len() <= 32 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    Some(error.code()).filter(is_code).unwrap_or("ERR")
}

/// The first quoted word of a text, where it may be the name of a command.
fn quoted(text: &str) -> Option<&str> {
    let mut parts = text.split(['\'', '`']).skip(1);
    let word = parts.next()?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'|' | b'_' | b'-');
    (!word.is_empty() && word.len() <= 32 && word.bytes().all(is_name)).then_some(word)
}

/// Whether the script itself failed: the server then adds the place. A server or a proxy that
/// rejects calls for several keys does so before it runs them.
pub fn is_from_inside(error: &ServerError) -> bool {
    error.details().is_some_and(|details| details.contains("user_script"))
}

#[cfg(test)]
mod tests {
    use super::super::failure::MOST_TEXT;
    use super::*;

    fn error(line: &str) -> ServerError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        if let Value::ServerError(error) = reply { Some(error) } else { None }.unwrap()
    }

    #[test]
    fn each_error_line_becomes_one_sentence_with_the_likely_cause() {
        let inside = |text: &str| format!("{text} script: 5f, on @user_script:12.");
        let before_7 = |text: &str| format!("ERR Error running script (call to f_5f): @user_script:12: {text}");
        let rows: &[(&str, Kind, &str)] = &[
            ("NOAUTH Authentication required.", Kind::Login, "NOAUTH: the server asks for a password"),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                Kind::Login,
                "rejects the user name",
            ),
            ("DENIED Redis is running in protected mode because ...", Kind::Login, "protected mode"),
            ("ERR max number of clients reached", Kind::Login, "maxclients"),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure?",
                Kind::Login,
                "has no password for its default user",
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Kind::Rights,
                "may not call evalsha",
            ),
            (
                "NOPERM User a has no permissions to run the 'script|load' command",
                Kind::Rights,
                "call script|load;",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Kind::Rights,
                "may not access keys",
            ),
            (
                &inside("ERR The user executing the script can't run this command or subcommand"),
                Kind::Rights,
                "lacks a right that the scripts need",
            ),
            (&inside("OOM command not allowed when used memory > 'maxmemory'."), Kind::Answer, "OOM: the memory"),
            (&before_7("@user_script: 12: -OOM command not allowed when"), Kind::Answer, "OOM: the memory"),
            (&inside("NOREPLICAS Not enough good replicas to write."), Kind::Answer, "min-replicas-to-write"),
            (
                &inside("MISCONF Redis is configured to save RDB snapshots, but"),
                Kind::Answer,
                "cannot save its data",
            ),
            (&before_7("@user_script: 12: -MISCONF Redis is configured"), Kind::Answer, "cannot save its data"),
            (
                "READONLY You can't write against a read only replica.",
                Kind::NotNow,
                "READONLY: the server is a replica",
            ),
            ("LOADING Redis is loading the dataset in memory", Kind::NotNow, "loading its data"),
            ("CLUSTERDOWN The cluster is down", Kind::NotNow, "CLUSTERDOWN: the cluster is down"),
            ("CLUSTERDOWN Hash slot not served", Kind::NotNow, "CLUSTERDOWN: the cluster is down"),
            ("MASTERDOWN Link with MASTER is down", Kind::NotNow, "lost its primary"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::Moved, "is moving"),
            ("BUSY Redis is busy running a script.", Kind::Answer, "another program"),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: '5f' '1'",
                Kind::Rights,
                "command EVALSHA, which",
            ),
            (
                "ERR unknown command `EVALSHA`, with args beginning with: `5f`",
                Kind::Rights,
                "command EVALSHA, which",
            ),
            ("ERR unknown subcommand 'SLOTS'. Try CLUSTER HELP.", Kind::Rights, "command SLOTS, which"),
            (&inside("ERR This Redis command is not allowed from script"), Kind::Rights, "such as TIME"),
            (&inside("ERR Unknown Redis command called from script"), Kind::Rights, "such as TIME"),
            ("ERR Command is not available: 'INFO'. See https://example.com", Kind::Rights, "command INFO, which"),
            ("ERR unsupported command `EVALSHA`", Kind::Rights, "command EVALSHA, which"),
            ("ERR command 'script' not support for normal user", Kind::Rights, "command script, which"),
            ("ERR command is not allowed", Kind::Rights, "does not know the command, which"),
            ("ERR This instance has cluster support disabled", Kind::NoCluster, "part of no cluster"),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::Key, "a reset"),
            (&inside("ERR user_script:12: attempt to compare nil with number"), Kind::Key, "a reset"),
            (&before_7("user_script:12: attempt to compare nil with number"), Kind::Key, "a reset"),
            (&inside("ERR user_script:9: foreign record"), Kind::Key, "another id"),
            ("ERR something new", Kind::Answer, "does not know"),
            ("PROXYERR upstream away", Kind::Answer, "does not know"),
            ("", Kind::Answer, "does not know"),
        ];
        for (line, kind, part) in rows {
            let failure = Failure::of_reply(&error(line));
            let sentence = failure.to_string();
            assert_eq!(failure.kind, *kind, "{line}: {sentence}");
            assert!(sentence.contains(part), "{line}: {sentence}");
            assert!(failure.is_told() && sentence.len() <= MOST_TEXT && !sentence.contains("5f"), "{line}: {sentence}");
            assert_eq!(Failure::of_line(line), failure, "{line}");
        }
    }

    #[test]
    fn a_refused_command_is_told_from_a_failed_script() {
        let rows = [
            ("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", true),
            ("NOPERM User a has no permissions to run the 'evalsha' command", true),
            ("ERR unknown command `EVALSHA`, with args beginning with: `5f`", true),
            ("ERR Command is not available: 'EVALSHA'.", true),
            ("NOPERM this user has no permissions to run the 'eval' command", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("ERR unknown command 'EVALSHA' script: 5f, on @user_script:12.", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("NOSCRIPT No matching script.", false),
        ];
        for (line, is_refused) in rows {
            assert_eq!(refuses(&error(line), "EVALSHA"), is_refused, "{line}");
        }
    }

    #[test]
    fn an_error_of_any_length_is_cut_and_cleaned_in_the_log_and_kept_from_callers() {
        let long = "x".repeat(5 << 20);
        for line in [format!("ERR {long}"), long, "\u{1b}[31mred\u{7}\u{202e} \u{9b}1m".into(), "ERR ünï\0".into()] {
            let failure = Failure::of_reply(&error(&line));
            let (told, logged) = (failure.to_string(), failure.for_log().into_owned());
            assert!(!told.contains("xxx") && !told.contains("red"), "{told}");
            assert!(failure.said().unwrap().len() <= SAID && logged.len() <= 300, "{logged}");
            assert!(!logged.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{logged:?}");
            assert!(code(&error(&line)).len() <= 32);
        }
    }
}
