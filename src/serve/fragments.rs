//! Rejects HTTP/2 requests whose `:path` has a `#`.
//!
//! No target has one (RFC 9113, 8.3.1), but the library drops the rest of the path from there on. So
//! the node would decide about another path than the backend of a proxy reads. This guard reads the
//! headers before the library does, and turns the `#` into `>`. No path may contain that either, and
//! its Huffman code has as many bits. The library then resets this stream, and the others go on.
//!
//! The guard needs no table of headers. The fields of the request line come first, and encoders name
//! these four by the static table. An entry of the dynamic table has passed this guard as text.
//!
//! The guard can only reject. If it misreads malformed frames, the library rejects these too.

/// Bytes of a frame's head: length, type, flags and stream (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The place of the type.
const KIND: usize = 3;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The fields of a request line: method, scheme, path and authority.
const MAX_PSEUDO: u8 = 4;

/// The code of `#` (RFC 7541, appendix B). One bit more is the code of `>`.
const HASH: (u8, u32) = (12, 0xffa);

/// The code of `:`, of 7 bits.
const COLON: u8 = 0x5c;

/// The first code of each length with codes, and the number of codes. Codes of one length follow
/// each other (RFC 7541, appendix B).
const CODES: [(u8, u32, u32); 21] = [
    (5, 0x0, 10),
    (6, 0x14, 26),
    (7, 0x5c, 32),
    (8, 0xf8, 6),
    (10, 0x3f8, 5),
    (11, 0x7fa, 3),
    (12, 0xffa, 2),
    (13, 0x1ff8, 6),
    (14, 0x3ffc, 2),
    (15, 0x7ffc, 3),
    (19, 0x7fff0, 3),
    (20, 0xfffe6, 8),
    (21, 0x1f_ffdc, 13),
    (22, 0x3f_ffd2, 26),
    (23, 0x7f_ffd8, 29),
    (24, 0xff_ffea, 12),
    (25, 0x1ff_ffec, 4),
    (26, 0x3ff_ffe0, 15),
    (27, 0x7ff_ffde, 19),
    (28, 0xfff_ffe2, 29),
    (30, 0x3fff_fffc, 4),
];

/// The position in the frames of a connection.
#[derive(Debug, Default)]
pub(super) struct FragmentGuard {
    head: [u8; HEAD],
    /// Bytes of the head so far.
    head_length: usize,
    /// Bytes left in the frame.
    left: usize,
    /// Bytes before the fields of the frame: a priority, and the length of the padding if not zero.
    skipped: usize,
    block: Block,
}

/// The position in a block of fields, which continues over frames.
#[derive(Debug, Default)]
struct Block {
    part: BlockPart,
    /// Fields so far.
    fields: u8,
}

#[derive(Debug, Clone, Copy, Default)]
enum BlockPart {
    /// The first byte of a field.
    #[default]
    Field,
    /// The further bytes of a number, with its value so far and the shift of the next byte.
    Number { value: usize, shift: u32, then: Then },
    /// The first byte of the length of a text.
    Length(Role),
    /// A text with this many bytes left. The code is that of Huffman.
    Text { left: usize, role: Role, code: Option<Code> },
    /// No further field is of the request line.
    Rest,
}

/// The meaning of a number.
#[derive(Debug, Clone, Copy)]
enum Then {
    TableSize,
    /// The index of a whole field.
    Field,
    /// The index of a field's name.
    Name,
    /// The length of a text, and whether the text has Huffman codes.
    Text(Role, bool),
}

/// The meaning of a text.
#[derive(Debug, Clone, Copy)]
enum Role {
    /// The name of a field, from its first letter.
    Name,
    /// The rest of the name of a field of the request line.
    PseudoName,
    /// A value that may be the path.
    Path,
    Other,
}

/// A code that has begun: its bits so far.
#[derive(Debug, Clone, Copy, Default)]
struct Code {
    bits: u8,
    value: u32,
}

impl FragmentGuard {
    /// Reads the next bytes of the connection behind its preface, and may overwrite some of them.
    /// Returns how many are of frames with header fields.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let (mut at, mut of_fields) = (0, 0);
        while at < bytes.len() {
            let begins = self.head_length < HEAD;
            let passed = if begins { self.head(&bytes[at..]) } else { self.frame(&mut bytes[at..]) };
            if matches!(self.head[KIND], HEADERS | CONTINUATION) {
                of_fields += passed;
            }
            at += passed;
        }
        of_fields
    }

    fn head(&mut self, bytes: &[u8]) -> usize {
        let passed = bytes.len().min(HEAD - self.head_length);
        self.head[self.head_length..][..passed].copy_from_slice(&bytes[..passed]);
        self.head_length += passed;
        if self.head_length == HEAD {
            let [a, b, c, kind, flags, ..] = self.head;
            self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            let has = |flag, length| if kind == HEADERS && flags & flag != 0 { length } else { 0 };
            self.skipped = has(PADDED, 1) + has(PRIORITY, 5);
            if kind == HEADERS {
                self.block = Block::default();
            }
            self.end_frame();
        }
        passed
    }

    fn frame(&mut self, bytes: &mut [u8]) -> usize {
        let passed = bytes.len().min(self.left);
        if matches!(self.head[KIND], HEADERS | CONTINUATION) {
            let skipped = self.skipped.min(passed);
            self.skipped -= skipped;
            // Padding reads as fields, which come after those of the request line.
            bytes[skipped..passed].iter_mut().for_each(|byte| self.block.read(byte));
        }
        self.left -= passed;
        self.end_frame();
        passed
    }

    fn end_frame(&mut self) {
        if self.left == 0 {
            self.head_length = 0;
        }
    }
}

impl Block {
    fn read(&mut self, byte: &mut u8) {
        self.part = match self.part {
            BlockPart::Rest => BlockPart::Rest,
            // The representations of RFC 7541, 6.
            BlockPart::Field => match *byte {
                128.. => self.number(*byte, 7, Then::Field),
                64.. => self.number(*byte, 6, Then::Name),
                32.. => self.number(*byte, 5, Then::TableSize),
                _ => self.number(*byte, 4, Then::Name),
            },
            BlockPart::Length(role) => self.number(*byte, 7, Then::Text(role, *byte & 128 != 0)),
            BlockPart::Number { value, shift, then } => {
                let more = usize::from(*byte & 127).checked_shl(shift).unwrap_or(usize::MAX);
                let value = value.saturating_add(more);
                match *byte & 128 {
                    0 => self.after(then, value),
                    _ => BlockPart::Number { value, shift: shift.saturating_add(7), then },
                }
            }
            BlockPart::Text { left, role, mut code } => {
                let role = match role {
                    Role::Name if is_colon(*byte, code.is_some()) => Role::PseudoName,
                    role => role,
                };
                if let Role::Path = role {
                    replace(byte, code.as_mut());
                }
                match (role, left - 1) {
                    (Role::Name, _) => BlockPart::Rest,
                    (role, 0) => self.end_text(role),
                    (role, left) => BlockPart::Text { left, role, code },
                }
            }
        };
    }

    /// Begins a number in the last bits of a byte (RFC 7541, 5.1).
    fn number(&mut self, byte: u8, bits: u32, then: Then) -> BlockPart {
        let most = (1 << bits) - 1;
        match usize::from(byte) & most {
            value if value == most => BlockPart::Number { value, shift: 0, then },
            value => self.after(then, value),
        }
    }

    fn after(&mut self, then: Then, value: usize) -> BlockPart {
        match (then, value) {
            (Then::TableSize, _) => BlockPart::Field,
            (Then::Field, _) => self.end_field(),
            (Then::Text(role, _), 0) => self.end_text(role),
            (Then::Text(role, is_huffman), left) => {
                BlockPart::Text { left, role, code: is_huffman.then(Code::default) }
            }
            // The static table: RFC 7541, appendix A.
            (Then::Name, 0) => BlockPart::Length(Role::Name),
            (Then::Name, 4 | 5) => BlockPart::Length(Role::Path),
            (Then::Name, 1..=7) => BlockPart::Length(Role::Other),
            // Three fields of the request line come before any other field.
            (Then::Name, 62..) if self.fields < 3 => BlockPart::Length(Role::Path),
            (Then::Name, _) => BlockPart::Rest,
        }
    }

    fn end_text(&mut self, role: Role) -> BlockPart {
        match role {
            Role::Name => BlockPart::Rest,
            Role::PseudoName => BlockPart::Length(Role::Path),
            Role::Path | Role::Other => self.end_field(),
        }
    }

    fn end_field(&mut self) -> BlockPart {
        self.fields += 1;
        if self.fields < MAX_PSEUDO { BlockPart::Field } else { BlockPart::Rest }
    }
}

fn is_colon(first: u8, is_huffman: bool) -> bool {
    if is_huffman { first >> 1 == COLON } else { first == b':' }
}

/// Turns a `#` that ends in this byte into `>`.
fn replace(byte: &mut u8, code: Option<&mut Code>) {
    let Some(code) = code else {
        if *byte == b'#' {
            *byte = b'>';
        }
        return;
    };
    for bit in (0..8).rev() {
        code.value = code.value << 1 | u32::from(*byte >> bit & 1);
        code.bits += 1;
        if (code.bits, code.value) == HASH {
            *byte |= 1 << bit;
        }
        let is_whole = |&(bits, first, count): &(u8, u32, u32)| {
            bits == code.bits && code.value.checked_sub(first).is_some_and(|place| place < count)
        };
        // No code is longer than 30 bits.
        if CODES.iter().any(is_whole) || code.bits == 30 {
            *code = Code::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this type, these flags and this payload.
    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes that the library gets, read in pieces.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut guard, mut bytes) = (FragmentGuard::default(), bytes.to_vec());
        bytes.chunks_mut(piece).for_each(|piece| _ = guard.read(piece));
        bytes
    }

    /// `:path` with this value, its length below 127.
    fn path(value: &[u8], huffman: u8) -> Vec<u8> {
        [&[0x44, u8::try_from(value.len()).unwrap() | huffman], value].concat()
    }

    const GET: u8 = 0x82;
    const HTTP: u8 = 0x86;

    #[test]
    fn a_hash_in_a_path_becomes_a_byte_that_no_path_may_contain() {
        // "/a#b" in Huffman codes: 011000 00011 111111111010 100011, and ones to the end.
        let (hash, other) = ([0x60, 0x7f, 0xf5, 0x1f], [0x60, 0x7f, 0xf7, 0x1f]);
        for (written, read) in [
            (path(b"/a#b", 0), path(b"/a>b", 0)),
            (path(&hash, 0x80), path(&other, 0x80)),
            ([&[0x04, 4], &b"/a#b"[..]].concat(), [&[0x04, 4], &b"/a>b"[..]].concat()),
            ([&[0x00, 5], &b":path\x04/a#b"[..]].concat(), [&[0x00, 5], &b":path\x04/a>b"[..]].concat()),
            ([&[0x7f, 0, 4], &b"/a#b"[..]].concat(), [&[0x7f, 0, 4], &b"/a>b"[..]].concat()),
        ] {
            let block = |path: &[u8]| [&[0x3f, 0xe1, 0x1f, GET, HTTP], path, &[0x40, 1, b'x', 1, b'#']].concat();
            let (written, read) = (block(&written), block(&read));
            let priority = |block: &[u8]| [&[3, b'#', b'#', b'#', b'#', 0][..], block, b"###"].concat();
            for piece in [1, 2, 7, 1000] {
                let begin = [frame(4, 0, b"######"), frame(0, 0, b"#"), frame(6, 0, b"########")].concat();
                let whole = |block: &[u8]| [begin.clone(), frame(1, 4, block), frame(1, 44, &priority(block))].concat();
                assert_eq!(passed(&whole(&written), piece), whole(&read));
                for cut in 0..written.len() {
                    let parts = |block: &[u8]| {
                        [frame(1, 0, &block[..cut]), frame(9, 4, &block[cut..]), frame(0, 0, b"#")].concat()
                    };
                    assert_eq!(passed(&parts(&written), piece), parts(&read), "{cut}");
                }
            }
        }
    }

    #[test]
    fn frames_with_fields_are_counted() {
        let data = frame(0, 0, &[HEADERS; 100]);
        let bytes = [&data, &frame(1, 0, b"123"), &frame(9, 4, b"4"), &data].map(|frame| &**frame).concat();
        assert_eq!(FragmentGuard::default().read(&mut bytes.clone()), 12 + 10);
        assert_eq!(FragmentGuard::default().read(&mut data.clone()), 0);
    }

    #[test]
    fn other_fields_keep_their_hashes() {
        for fields in [
            &b"\x82\x86\x84\x41\x01t\x40\x01x\x01#"[..],
            b"\x82\x86\x84\x40\x01x\x01#",
            b"\x82\x86\x84\x5a\x01#",
            b"\x82\x86\x84\x7e\x01#",
            b"\x82\x86\x84\x41\x01t\x7e\x01#",
            b"\x40\x01x\x01#",
        ] {
            let bytes = frame(1, 4, fields);
            assert_eq!(passed(&bytes, 3), bytes);
        }
    }

    #[test]
    fn the_codes_are_complete() {
        let space: u64 = CODES.iter().map(|&(bits, _, count)| u64::from(count) << (30 - bits)).sum();
        // The end of a text (EOS) is the last of the codes.
        assert_eq!(space, 1 << 30);
        for pair in CODES.windows(2) {
            let [(bits, first, count), (next_bits, next, _)] = [pair[0], pair[1]];
            assert_eq!((first + count) << (next_bits - bits), next);
        }
    }
}
