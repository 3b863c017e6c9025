//! Suggestions for misspelt words.

/// Longer words get no suggestion, bytes.
const LONGEST: usize = 64;

/// The candidate nearest to `word`, if it is near enough.
///
/// Uses the optimal string alignment distance. An inserted, missing or wrong letter, or two swapped
/// letters, count 1. Case, and `-` instead of `_`, count nothing. One mistake in three letters is
/// near enough.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The words as a sentence lists them: `a`, `b` or `c`.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [before @ .., last] => format!("{} or {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_get_suggestions() {
        let members = ["algorithm", "quotas", "key", "on_store_failure", "timeout"];
        let cases = [
            ("algoritm", Some("algorithm")),
            ("quota", Some("quotas")),
            ("qoutas", Some("quotas")),
            ("kye", Some("key")),
            ("Timeout", Some("timeout")),
            ("on-store-failure", Some("on_store_failure")),
            ("on_store_faliures", Some("on_store_failure")),
            ("colour", None),
            ("k", None),
            ("", None),
        ];
        for (word, meant) in cases {
            assert_eq!(nearest(word, members), meant, "{word}");
        }
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
