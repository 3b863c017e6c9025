//! The token files that grant access.

use crate::access::{Access, TokenHash};

use super::node::Node;
use super::section::Section;
use super::settings::auth::{ADMIN_TOKEN_FILES, ALLOW_ANONYMOUS, CHECK_TOKEN_FILES, SHAPE};

/// Reads `auth`; without it no token is valid.
pub(super) fn auth(root: &Section<'_>) -> Access {
    let section = root.section("auth", &SHAPE);
    let tokens = |key| section.each(key, "[admin.tokens]", tokens_of).concat();
    let (check, admin) = (tokens(CHECK_TOKEN_FILES.name), tokens(ADMIN_TOKEN_FILES.name));
    let allow_anonymous = section.read(&ALLOW_ANONYMOUS);
    if let Some(node) = section.member(ALLOW_ANONYMOUS.name).filter(|_| allow_anonymous && !check.is_empty()) {
        node.note(
            "`allow_anonymous` lets everyone check, and `check_token_files` only who has a token: leave one of them out",
        );
    }
    Access { check, admin, allow_anonymous }
}

/// The tokens of one file. A fault never repeats a line, nor text that names no file. Either may be
/// the token itself.
fn tokens_of(item: &Node) -> Option<Vec<TokenHash>> {
    let path = item.path("a file such as `admin.tokens`")?;
    let read = item.reading.files.borrow_mut().read(&path);
    let right = "must name a file such as `admin.tokens`, and never be a token itself";
    let unread = |error| format!("{} {right}: what it names cannot be read: {error}", item.name);
    let bytes = item.noted(read.map_err(unread))?;
    let text = String::from_utf8(bytes).ok().or_else(|| item.note_file_fault("is not UTF-8"))?;
    // Some editors write a byte order mark at the start of a file.
    let lines = text
        .trim_start_matches('\u{feff}')
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let lines = (1..).zip(lines).filter(|(_, line): &(usize, &str)| !line.is_empty());
    let tokens: Vec<_> = lines.map(|(number, line)| TokenHash::parse(line).ok_or(number)).collect();
    for number in tokens.iter().filter_map(|token| token.as_ref().err()) {
        let right = "must have `sha256:` and 64 hexadecimal digits, as `tollgate token new` makes them";
        item.note_file_fault::<()>(&format!("{right}, in line {number}"));
    }
    if tokens.is_empty() {
        return item.note_file_fault("holds no token: `tollgate token new` makes one");
    }
    Some(tokens.into_iter().flatten().collect())
}
