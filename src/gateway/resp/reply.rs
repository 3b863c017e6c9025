//! Writes answers in RESP2, or in RESP3 where the two differ.

/// The version of the protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Version {
    #[default]
    Resp2 = 2,
    Resp3 = 3,
}

/// Appends answers to the output of a connection.
#[derive(Debug)]
pub(super) struct Replies<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) version: Version,
}

impl Replies<'_> {
    /// A short text without line ends.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Its first word is the code that clients look at.
    pub(super) fn error(&mut self, text: &str) {
        // A line end would begin another answer.
        let shown: Vec<u8> = text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }).collect();
        self.line(b'-', &shown);
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    pub(super) fn bulk(&mut self, text: &[u8]) {
        self.line(b'$', itoa::Buffer::new().format(text.len()).as_bytes());
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn null(&mut self) {
        match self.version {
            Version::Resp2 => self.line(b'$', b"-1"),
            Version::Resp3 => self.line(b'_', b""),
        }
    }

    /// The head of an array; its items follow.
    pub(super) fn array(&mut self, items: usize) {
        self.line(b'*', itoa::Buffer::new().format(items).as_bytes());
    }

    /// The head of a map: keys and values follow in turn. RESP2 has arrays instead.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Resp2 => self.array(2 * pairs),
            Version::Resp3 => self.line(b'%', itoa::Buffer::new().format(pairs).as_bytes()),
        }
    }

    /// A name and a text of a map.
    pub(super) fn entry(&mut self, name: &str, text: &[u8]) {
        self.bulk(name.as_bytes());
        self.bulk(text);
    }

    /// A name and a number of a map.
    pub(super) fn number(&mut self, name: &str, number: i64) {
        self.bulk(name.as_bytes());
        self.integer(number);
    }

    pub(super) fn integer_or_null(&mut self, number: Option<i64>) {
        match number {
            Some(number) => self.integer(number),
            None => self.null(),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}
