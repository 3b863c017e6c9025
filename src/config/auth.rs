//! The tokens that grant access: those of the files in `auth`, and those with names in `tokens`.

use std::path::Path;
use std::sync::Arc;

use crate::access::{Access, Scope, Token, TokenHash};

use super::node::Node;
use super::scalar::{MAX_NAME_BYTES, is_identifier};
use super::section::Section;
use super::settings::auth::{ADMIN_TOKEN_FILES, ALLOW_ANONYMOUS, CHECK_TOKEN_FILES, SHAPE};
use super::tokens::named;

/// The scopes of the tokens in `check_token_files`.
const CHECKS: &[Scope] = &[Scope::Check, Scope::Read];

/// The hashes of secrets, with their tokens.
pub(super) type Tokens = Vec<(TokenHash, Arc<Token>)>;

/// Reads `auth` and `tokens`; without both no token is valid. `policies` has the names of the
/// policies.
pub(super) fn auth(root: &Section<'_>, policies: &[&str]) -> Access {
    let section = root.section("auth", &SHAPE);
    let of_files = |key, scopes| section.each(key, "[admin.tokens]", |item| tokens_of(item, scopes)).concat();
    let check = of_files(CHECK_TOKEN_FILES.name, CHECKS);
    let admin = of_files(ADMIN_TOKEN_FILES.name, &[Scope::Admin]);
    let allow_anonymous = section.read(&ALLOW_ANONYMOUS);
    let asked = if check.is_empty() { "`tokens` of the scope `check`" } else { "`check_token_files`" };
    // Admin tokens follow those for checks, and so beat equal ones.
    let of_files = [check, admin].concat();
    let named = named(root, policies, &of_files);
    let access = Access::new([of_files, named].concat(), allow_anonymous);
    if let Some(node) = section.member(ALLOW_ANONYMOUS.name).filter(|_| allow_anonymous && access.lists(Scope::Check)) {
        node.note(format!(
            "`allow_anonymous` lets everyone check, and {asked} only callers with a token: leave one of them out"
        ));
    }
    access
}

/// The tokens of one file, named by it.
fn tokens_of(item: &Node, scopes: &[Scope]) -> Option<Tokens> {
    let token = Token::new(file_name(&item.path("a file such as `admin.tokens`")?), scopes);
    Some(hashes_of(item)?.into_iter().map(|hash| (hash, token.clone())).collect())
}

/// The name of a file in the letters of a token's name.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let safe = name.chars().map(|letter| if is_identifier(letter.encode_utf8(&mut [0; 4])) { letter } else { '_' });
    safe.take(MAX_NAME_BYTES).collect()
}

/// The hashes of one file. A fault never repeats a line, nor text that names no file. Either may be
/// the token itself.
pub(super) fn hashes_of(item: &Node) -> Option<Vec<TokenHash>> {
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
    let hashes: Vec<_> = lines.map(|(number, line)| TokenHash::parse(line).ok_or(number)).collect();
    for number in hashes.iter().filter_map(|hash| hash.as_ref().err()) {
        let right = "must have `sha256:` and 64 hexadecimal digits, as `tollgate token new` makes them";
        item.note_file_fault::<()>(&format!("{right}, in line {number}"));
    }
    if hashes.is_empty() {
        return item.note_file_fault("holds no token: `tollgate token new` makes one");
    }
    Some(hashes.into_iter().flatten().collect())
}
