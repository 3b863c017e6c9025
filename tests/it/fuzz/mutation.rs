//! Changes that break things: the same for a seed in each run.

/// What parsers trip over.
const WORDS: &[&[u8]] = &[
    b"\0",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[[[[[[[[",
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"18446744073709551616",
    b"9007199254740993",
    b"0x10",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\t",
    b": ",
    b", ",
    b"- ",
    b"&a",
    b"*a",
    b"!!int",
    b"<<: ",
    b"---",
    b"%",
    b"%00",
    b"..",
    b"//",
    b"?",
    b"#",
    b"HTTP/9.9",
    b"HTTP/1.0",
    b"Content-Length: 99999999999",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Connection: upgrade",
    b"Expect: 100-continue",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"1 per 1s",
    b"1mo",
    b"366d",
    b"0s",
];

/// Numbers as good as random (xorshift).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, sides: usize) -> usize {
        (self.number() >> 8) as usize % sides.max(1)
    }

    pub(super) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// One of `corpus`, changed in a few places.
pub(super) fn mutant(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut text = dice.one_of(corpus).clone();
    for _ in 0..=dice.below(4) {
        change(&mut text, corpus, dice);
    }
    text
}

fn change(text: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut Dice) {
    let place = dice.below(text.len() + 1);
    let end = (place + 1 + dice.below(12)).min(text.len()).max(place);
    match dice.below(7) {
        0 => drop(text.splice(place..place, dice.one_of(WORDS).iter().copied())),
        1 => drop(text.splice(place..end, dice.one_of(WORDS).iter().copied())),
        2 => drop(text.drain(place..end)),
        3 => text.truncate(place),
        4 => {
            let other = dice.one_of(corpus);
            let from = dice.below(other.len() + 1);
            text.splice(place.., other[from..].iter().copied());
        }
        5 => {
            let piece = text[place..end].repeat(1 + dice.below(40));
            text.splice(place..place, piece);
        }
        _ => text[place..end].iter_mut().for_each(|byte| *byte ^= 1 << dice.below(8)),
    }
}
