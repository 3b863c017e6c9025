//! Suggests the name that a misspelt one may mean.

/// The most inserted, missing, wrong or swapped letters of a misspelled word.
const SLIPS: usize = 2;

/// The longest word that counts as misspelled, bytes. A comparison takes its length squared.
const LONGEST: usize = 32;

/// The most words that a wrong one is compared with. There may be thousands of policies, and a
/// misspelled name must not keep a thread busy.
const MOST: usize = 64;

/// `: did you mean "key"?` if one of `known` is close to `name`, else nothing. Only names with the
/// same first or last letter count.
pub(in crate::http) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    if name.len() > LONGEST {
        return String::new();
    }
    let name = name.to_ascii_lowercase();
    let is_alike = |known: &&str| {
        let (known, name) = (known.as_bytes(), name.as_bytes());
        known.len().abs_diff(name.len()) <= SLIPS && (known.first() == name.first() || known.last() == name.last())
    };
    let known = known.filter(is_alike).take(MOST);
    let near = known.map(|known| (strsim::osa_distance(&name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= SLIPS && distance * 2 < known.len() => {
            format!(": did you mean {known:?}?")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["policy", "key", "cost"];
        for (name, hint) in
            [("polcy", ": did you mean \"policy\"?"), ("Key", ": did you mean \"key\"?"), ("colour", ""), ("k", "")]
        {
            assert_eq!(did_you_mean(name, known.into_iter()), hint, "{name}");
        }
    }
}
