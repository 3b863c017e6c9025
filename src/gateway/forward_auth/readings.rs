//! The readings of a path by which a backend may serve another route than the gate counts.
//!
//! Backends agree neither on what separates segments nor on the dot segments to remove. Express and
//! Go's ServeMux split a path before they decode it, and Express keeps dot segments. In a URL of
//! WHATWG `..` may remove an empty segment, and `//x/login` names the host x. Servlets drop
//! parameters first.

use percent_encoding::percent_decode_str;

use super::path::joined;

/// The other readings of a path that begins with `/` and has valid escapes. An encoded slash that
/// separates nothing is `%2F` in them. None if an encoded slash decides which segments the dot
/// segments remove.
pub(super) fn others(path: &str, own: &str) -> Option<Vec<String>> {
    let decoded = segments(&path.replace("%2f", "/").replace("%2F", "/"));
    let split_first = segments(path);
    let has_dots = decoded.iter().any(|segment| matches!(&*segment.name, "." | ".."));
    let depends = |counts_empty| {
        let habits = Habits { counts_empty, ..Habits::default() };
        let names = habits.names(&split_first);
        let parts = names.iter().flat_map(|name| name.split("%2F")).filter(|part| !part.is_empty());
        !parts.eq(habits.names(&decoded))
    };
    if has_dots && (depends(false) || depends(true)) {
        return None;
    }
    let mut others = Vec::new();
    for segments in [&decoded, &split_first] {
        // The first name is a host, however many slashes stand before it.
        let host = segments.iter().position(|segment| !segment.name.is_empty());
        let behind_host = host.filter(|_| path.starts_with("//")).map(|place| &segments[place + 1..]);
        for segments in std::iter::once(&segments[..]).chain(behind_host) {
            let all = Habits::all(has_dots).into_iter();
            others.extend(all.map(|habits| joined(habits.names(segments).into_iter())));
        }
    }
    others.sort();
    others.dedup();
    others.retain(|other| *other != own);
    Some(others)
}

struct Segment {
    name: String,
    is_encoded: bool,
}

fn segments(path: &str) -> Vec<Segment> {
    let segment = |raw: &str| {
        let name = percent_decode_str(raw).decode_utf8_lossy().replace('/', "%2F");
        Segment { is_encoded: name != raw, name }
    };
    path.split('/').skip(1).map(segment).collect()
}

/// How a backend removes segments; by default as the gate does.
#[derive(Debug, Clone, Copy, Default)]
struct Habits {
    keeps: Keeps,
    /// Whether `..` removes an empty segment, and not the one before it.
    counts_empty: bool,
    /// Whether parameters without a name are an empty segment.
    drops_parameters: bool,
}

/// The dot segments that a backend keeps.
#[derive(Debug, Clone, Copy, Default)]
enum Keeps {
    #[default]
    None,
    Encoded,
    All,
}

impl Habits {
    /// All of them; without dot segments they agree.
    fn all(has_dots: bool) -> Vec<Self> {
        if !has_dots {
            return vec![Self::default()];
        }
        let mut all = Vec::new();
        for keeps in [Keeps::None, Keeps::Encoded, Keeps::All] {
            for (counts_empty, drops_parameters) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(Self { keeps, counts_empty, drops_parameters });
            }
        }
        all
    }

    /// The names that remain.
    fn names(self, segments: &[Segment]) -> Vec<&str> {
        let mut names = Vec::new();
        for Segment { name, is_encoded } in segments {
            let is_kept = match self.keeps {
                Keeps::None => false,
                Keeps::Encoded => *is_encoded,
                Keeps::All => true,
            };
            match name.as_str() {
                "." if !is_kept => {}
                ".." if !is_kept => _ = names.pop(),
                name if name.is_empty() || self.drops_parameters && name.starts_with(';') => {
                    names.extend(self.counts_empty.then_some(""));
                }
                name => names.push(name),
            }
        }
        names.retain(|name| !name.is_empty());
        names
    }
}
