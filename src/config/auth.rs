//! The token files that grant access.

use crate::access::{Access, TokenHash};

use super::fault::Faults;
use super::files::Files;
use super::raw::Node;
use super::section::Section;
use super::settings::auth::{ALLOW_ANONYMOUS, SHAPE};

/// Reads `auth`; without it no token is valid.
pub(super) fn auth(root: &Section<'_>, files: &mut Files, faults: &mut Faults) -> Option<Access> {
    let section = root.section("auth", &SHAPE, faults)?;
    let check = section.or("check_token_files", Vec::new(), |list| tokens(list, files, faults));
    let admin = section.or("admin_token_files", Vec::new(), |list| tokens(list, files, faults));
    let allow_anonymous = section.read(&ALLOW_ANONYMOUS, faults);
    let (check, admin, allow_anonymous) = (check?, admin?, allow_anonymous?);
    if let Some(node) = section.member("allow_anonymous").filter(|_| allow_anonymous && !check.is_empty()) {
        let sentence = "`allow_anonymous` lets everyone check, and `check_token_files` only who has a token: \
                        leave one of them out";
        faults.note(node.place, sentence);
    }
    Some(Access { check, admin, allow_anonymous })
}

/// The tokens of all files in a list.
fn tokens(list: &Node, files: &mut Files, faults: &mut Faults) -> Option<Vec<TokenHash>> {
    let items = list.list("[admin.tokens]", faults)?;
    let read: Vec<Option<Vec<TokenHash>>> = items.iter().map(|item| tokens_of(item, files, faults)).collect();
    read.into_iter().collect::<Option<Vec<_>>>().map(|tokens| tokens.concat())
}

/// The tokens of one file. A fault never repeats a line, nor text that names no file. Either may be
/// the token itself.
fn tokens_of(item: &Node, files: &mut Files, faults: &mut Faults) -> Option<Vec<TokenHash>> {
    let bytes = match files.read(item, "a file such as `admin.tokens`", faults)? {
        Ok(bytes) => bytes,
        Err(error) => {
            let right = "must name a file such as `admin.tokens`, and never be a token itself";
            faults.note(item.place, format!("{} {right}: what it names cannot be read: {error}", item.name));
            return None;
        }
    };
    let text = String::from_utf8(bytes).ok().or_else(|| item.note_file_fault("is not UTF-8", faults))?;
    let mut tokens = Vec::new();
    let before = faults.count();
    // Some editors write a byte order mark at the start of a file.
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match TokenHash::parse(line) {
            _ if line.is_empty() => {}
            Some(token) => tokens.push(token),
            None => {
                let line = index + 1;
                let right = "must have `sha256:` and 64 hexadecimal digits, as `tollgate token new` makes them";
                item.note_file_fault::<()>(&format!("{right}, in line {line}"), faults);
            }
        }
    }
    if tokens.is_empty() && faults.count() == before {
        item.note_file_fault::<()>("holds no token: `tollgate token new` makes one", faults);
    }
    (faults.count() == before).then_some(tokens)
}
