//! Why a server is of no use now: one sentence of this program that names the likely cause.
//!
//! A caller and the log receive this sentence. Neither receives the words of the driver or the
//! source of a script. The text of an error that this program does not know reaches the log alone,
//! see [`Failure::for_log`].

use std::borrow::Cow;
use std::fmt;

use redis::{ErrorKind, RedisError, ServerError, Value};

/// The reason to reject counts that another program wrote, or that a fault broke.
pub const FOREIGN: &str = "what is kept of the key is no count of this program; a reset (DELETE /v1/usage) ends it";

/// The reason to reject an id whose record another program wrote.
pub const FOREIGN_RECORD: &str =
    "what is kept of this id is no record of this program: use another id, or delete its key in Redis";

/// The most bytes of a server's own text in the log.
const SAID: usize = 200;

/// The most bytes of a sentence. With the words before it, callers see at most 300.
pub const MOST_TEXT: usize = 240;

/// The meaning of a failure for the connection and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no connection, or it broke.
    Connection,
    /// There is no connection, because no working Redis is at the other end.
    NotRedis,
    /// The server answered, so its connection is sound.
    Answer,
    /// The server answered, but another server may make the charges by now, or this one soon.
    NotNow,
    /// The server does not let this node in.
    Login,
    /// The user of this node lacks a right.
    Rights,
    /// The server is part of no cluster.
    NoCluster,
    /// The value at one key is corrupt; the server refuses nothing else.
    Key,
    /// Another server has the key, or will have it.
    Moved,
}

/// Why a server is of no use now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    /// Whether the connection is sound in spite of the failure.
    is_sound: bool,
    sentence: Cow<'static, str>,
    /// The server's own text if its error is unknown; cleaned and cut.
    said: Option<Box<str>>,
}

/// The sentence for callers.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Failure {
    pub fn new(kind: Kind, sentence: impl Into<Cow<'static, str>>) -> Self {
        let sentence = match sentence.into() {
            Cow::Owned(long) => Cow::Owned(cleaned(&long, MOST_TEXT)),
            known @ Cow::Borrowed(_) => known,
        };
        Self { kind, is_sound: !matches!(kind, Kind::Connection | Kind::NotRedis), sentence, said: None }
    }

    /// A failure of a connection.
    pub fn connection(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Connection, sentence)
    }

    /// The server did not answer in time.
    pub fn late() -> Self {
        Self::connection("the server does not answer in time")
    }

    /// The server's answer is not one to this question.
    pub fn unfit(question: &str) -> Self {
        Self::new(Kind::NotRedis, format!("the server's answer to {question} is not one that a Redis gives"))
    }

    /// The meaning of an error reply.
    pub fn of_reply(error: &ServerError) -> Self {
        Self::of_error(error.code(), error.details().unwrap_or_default())
    }

    /// The meaning of an error line, which begins with a code.
    pub fn of_line(line: &str) -> Self {
        let (code, details) = line.split_once(' ').unwrap_or((line, ""));
        Self::of_error(code, details)
    }

    /// The server's answer is longer than any that this node expects.
    pub fn too_long() -> Self {
        Self::new(Kind::NotRedis, "the server's answer is longer than any that this node asks for")
    }

    /// Explains why a connection broke. `first` begins its first answer.
    pub fn of_driver(error: &RedisError, first: Option<&[u8]>) -> Self {
        let Some(first) = first else {
            return Self::connection(
                "the server closed the connection before it answered: its port may speak TLS only (rediss://), or it \
                 has too many clients",
            );
        };
        Self::of_first_bytes(first).unwrap_or_else(|| match error.kind() {
            ErrorKind::Parse => Self::new(
                Kind::NotRedis,
                "the server's answer breaks the protocol of Redis, so its connection was closed",
            ),
            _ => Self::connection("the server closed the connection"),
        })
    }

    /// Explains the first bytes of a server, unless a working Redis may send them.
    fn of_first_bytes(first: &[u8]) -> Option<Self> {
        match first {
            // A record of TLS: an alert, or a handshake.
            [0x15 | 0x16, 3, ..] => {
                Some(Self::connection("the port speaks TLS: begin the URL with rediss://, or name the plain port"))
            }
            [b'H', b'T', b'T', b'P', b'/', ..] => {
                Some(Self::new(Kind::NotRedis, "an HTTP server answers at this address, not a Redis"))
            }
            [b'-', line @ ..] => {
                let line = line.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
                Some(Self { is_sound: false, ..Self::of_line(&String::from_utf8_lossy(line)) })
            }
            [b'+' | b':' | b'$' | b'*' | b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%' | b'|' | b'~' | b'>', ..] => {
                None
            }
            _ => Some(Self::new(Kind::NotRedis, "the server at this address does not speak the protocol of Redis")),
        }
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
            "DENIED" => known(Kind::Login, "DENIED: the server is in protected mode and accepts local clients only"),
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
            "WRONGTYPE" => known(Kind::Key, FOREIGN),
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
        } else if has("not allowed from script") {
            known(
                Kind::Rights,
                "the server forbids a command that the scripts need, such as TIME, so this node cannot use it",
            )
        } else if has("nknown command") || has("nknown subcommand") || has("nknown CLUSTER subcommand") {
            let name = quoted(details).map(|name| format!(" {name}")).unwrap_or_default();
            Self::new(Kind::Rights, format!("the server does not know the command{name}, which this node needs"))
        } else if has("foreign record") {
            known(Kind::Key, FOREIGN_RECORD)
        } else if details.starts_with("user_script:") || has(": user_script:") {
            // The script found a value that it cannot read.
            known(Kind::Key, FOREIGN)
        } else if has("string exceeds maximum") {
            known(Kind::Key, FOREIGN)
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
        Self { said: Some(said.into()), ..Self::new(Kind::Answer, sentence) }
    }

    /// Returns the sentence for the log, with the server's own text if its error is unknown.
    pub fn for_log(&self) -> Cow<'_, str> {
        match &self.said {
            Some(said) => Cow::Owned(format!("the server refuses with an error that this node does not know: {said}")),
            None => Cow::Borrowed(&self.sentence),
        }
    }

    /// Returns the server's own text if its error is unknown.
    pub fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Adds the question to the sentence.
    pub fn about(self, question: &str) -> Self {
        let sentence = cleaned(&format!("{question}: {}", self.sentence), MOST_TEXT).into();
        Self { sentence, ..self }
    }

    /// Whether the server answered, so that its connection is sound.
    pub fn is_told(&self) -> bool {
        self.is_sound
    }

    /// Whether usually only an operator can fix the cause, so retries need no hurry.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, Kind::Login | Kind::Rights | Kind::NotRedis)
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

/// Returns a text of at most `most` bytes. Characters that could disturb a terminal or a log line
/// become `?`.
pub fn cleaned(text: &str, most: usize) -> String {
    let mut clean = String::new();
    for letter in text.chars() {
        let is_plain = letter.is_alphanumeric() || letter.is_ascii_graphic() || letter == ' ';
        let letter = if is_plain { letter } else { '?' };
        if clean.len() + letter.len_utf8() > most {
            clean.truncate(cut(&clean, most.saturating_sub(3)).len());
            clean.push_str("...");
            break;
        }
        clean.push(letter);
    }
    clean
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_first_bytes_tell_who_answers() {
        let broken = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let rows: &[(Option<&[u8]>, &str)] = &[
            (None, "before it answered"),
            (Some(&[0x15, 3, 1, 0, 2, 2, 70]), "the port speaks TLS"),
            (Some(b"HTTP/1.1 400 Bad Request\r\n"), "an HTTP server"),
            (Some(b"SSH-2.0-OpenSSH\r\n"), "does not speak the protocol"),
            (Some(b"-ERR max number of clients reached\r\n"), "maxclients"),
            (Some(b"-DENIED Redis is running in protected mode\r\n"), "protected mode"),
            (Some(b"+OK\r\n"), "closed the connection"),
        ];
        for (first, part) in rows {
            let failure = Failure::of_driver(&broken(), *first);
            assert!(failure.to_string().contains(part) && !failure.is_told(), "{first:?}: {failure}");
        }
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        assert_eq!(cleaned("abc", 3), "abc");
        assert_eq!(cleaned("abcdef", 5), "ab...");
        assert_eq!(cleaned("äöü", 5), "ä...");
        assert_eq!(cleaned("a\nb\u{1b}c", 9), "a?b?c");
    }
}
