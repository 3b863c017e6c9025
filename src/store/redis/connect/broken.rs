//! Explains why a connection broke, by the first bytes of the server.

use redis::{ErrorKind, RedisError};

use crate::store::redis::protocol::failure::{Failure, Kind};

/// Explains why a connection broke. `first` begins its first answer.
pub fn of_driver(error: &RedisError, first: Option<&[u8]>) -> Failure {
    let Some(first) = first else {
        return Failure::connection(
            "the server closed the connection before it answered: its port may speak TLS only (rediss://), it may \
             have too many clients, or be no Redis",
        );
    };
    of_first_bytes(first).unwrap_or_else(|| later(error))
}

/// Explains why a connection broke after its first answers.
pub fn later(error: &RedisError) -> Failure {
    match error.kind() {
        ErrorKind::Parse => Failure::new(
            Kind::NotRedis,
            "the server's answer breaks the protocol of Redis, so its connection was closed",
        ),
        _ => Failure::connection("the server closed the connection"),
    }
}

/// Explains the first bytes of a server, unless a working Redis may send them.
fn of_first_bytes(first: &[u8]) -> Option<Failure> {
    match first {
        // A record of TLS: an alert, or a handshake.
        [0x15 | 0x16, 3, ..] => {
            Some(Failure::connection("the port speaks TLS: begin the URL with rediss://, or name the plain port"))
        }
        [b'H', b'T', b'T', b'P', b'/', ..] => {
            Some(Failure::new(Kind::NotRedis, "an HTTP server answers at this address, not a Redis"))
        }
        [b'-', line @ ..] => {
            let line = line.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            Some(Failure::of_line(&String::from_utf8_lossy(line)).broken())
        }
        [b'+' | b':' | b'$' | b'*' | b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%' | b'|' | b'~' | b'>', ..] => None,
        _ => Some(Failure::new(Kind::NotRedis, "the server at this address does not speak the protocol of Redis")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_the_server() {
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
            let failure = of_driver(&broken(), *first);
            assert!(failure.to_string().contains(part) && !failure.is_told(), "{first:?}: {failure}");
        }
    }
}
