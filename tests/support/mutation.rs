//! Mutations that break input; a seed gives the same ones in each run.

use crate::support::dice::Dice;

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

pub(crate) fn mutant(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut text = dice.one_of(corpus).clone();
    for _ in 0..=dice.place(4) {
        change(&mut text, corpus, dice);
    }
    text
}

fn change(text: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut Dice) {
    let place = dice.place(text.len() + 1);
    let end = (place + 1 + dice.place(12)).min(text.len()).max(place);
    match dice.place(7) {
        0 => drop(text.splice(place..place, dice.one_of(WORDS).iter().copied())),
        1 => drop(text.splice(place..end, dice.one_of(WORDS).iter().copied())),
        2 => drop(text.drain(place..end)),
        3 => text.truncate(place),
        4 => {
            let other = dice.one_of(corpus);
            let from = dice.place(other.len() + 1);
            text.splice(place.., other[from..].iter().copied());
        }
        5 => {
            let piece = text[place..end].repeat(1 + dice.place(40));
            text.splice(place..place, piece);
        }
        _ => text[place..end].iter_mut().for_each(|byte| *byte ^= 1 << dice.place(8)),
    }
}
