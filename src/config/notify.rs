//! `notify`: the marks of a policy whose crossing a receiver learns of.

use std::sync::Arc;

use super::dashboard::origin;
use super::node::{Member, Node};
use super::section::Section;
use super::settings::notify::{AT, SECRET_FILE, SHAPE, URL};
use super::settings::policy::NOTIFY;
use crate::limit::notify::Notify;

/// The fewest bytes of a secret.
const LEAST_SECRET: usize = 16;

/// Reads the member of a policy. None without one, or after a fault.
pub(super) fn notify(policy: &Section<'_>) -> Option<Arc<Notify>> {
    let Member { node, .. } = policy.entry(NOTIFY.name)?;
    let section = node.section(&SHAPE);
    let marks = section.required(AT.name, "`notify` needs `at`, such as `at: [80, 100]`").and_then(marks);
    let url = section.required(URL.name, "`notify` needs a `url`, such as `url: https://example.com/hook`");
    let url = url.and_then(url_and_origin);
    let secret = section.required(SECRET_FILE.name, "`notify` needs a `secret_file`, with which notices are signed");
    let secret = secret.and_then(secret_of);
    let (url, origin) = url?;
    Some(Arc::new(Notify { marks: marks?, url, origin, secret: secret? }))
}

fn marks(node: &Node) -> Option<Vec<u8>> {
    let items = node.list("[80, 100]")?;
    if items.is_empty() {
        return node.noted(Err("`at` is empty: name one or more parts of a limit in percent, such as `[80, 100]`"));
    }
    let mark = |item: &Node| u8::try_from(item.integer(1..=100)?).ok();
    let mut marks: Vec<u8> = items.iter().map(mark).collect::<Option<_>>()?;
    marks.sort_unstable();
    marks.dedup();
    Some(marks)
}

/// A URL, and its part before the path.
fn url_and_origin(node: &Node) -> Option<(String, String)> {
    node.parsed("a URL such as `https://example.com/hook`, without a user and a fragment", |text| {
        let authority = text.find("://")? + 3;
        let end = text[authority..].find(['/', '?']).map_or(text.len(), |path| authority + path);
        let is_plain = |letter: char| letter.is_ascii_graphic() && !"\"#<>\\^`{|}".contains(letter);
        text.chars().all(is_plain).then_some(())?;
        Some((text.to_owned(), origin(&text[..end])?))
    })
}

fn secret_of(node: &Node) -> Option<Box<[u8]>> {
    let text = node.text_of_file("a file with the secret that signs notices")?;
    node.warn_of_secret_readers();
    match text.trim_end_matches(['\r', '\n']) {
        line if line.contains(['\r', '\n']) => node.note_file_fault("must hold the secret alone, on one line"),
        line if line.len() < LEAST_SECRET => {
            node.note_file_fault(&format!("must hold a secret of {LEAST_SECRET} bytes or more"))
        }
        line => Some(line.as_bytes().into()),
    }
}
