//! The readable part of a sliding log: its newest entries, and the metas with the highest cost.

use std::collections::HashMap;
use std::sync::Arc;

use super::time::Micros;

/// Maximum number of reported entries.
pub const NEWEST: usize = 100;

/// Maximum number of reported metas.
const TOP: usize = 10;

/// A charge in a log. Its instant and sum together identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub at: Micros,
    /// The running sum of the log, this charge included.
    pub sum: u64,
    pub cost: u64,
}

/// The meta of a charge: its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub at: Micros,
    pub sum: u64,
    pub cost: u64,
    pub meta: Arc<str>,
}

/// The entries of a log that count at an instant, newest first and not yet summed.
#[derive(Debug, Default)]
pub struct Counting {
    /// us.
    pub now: Micros,
    /// Up to [`NEWEST`].
    pub charges: Vec<Charge>,
    pub notes: Vec<Note>,
}

impl Counting {
    /// Sums up the entries.
    pub fn history(self) -> History {
        History::new(self.now, self.charges.into_iter(), self.notes.into_iter())
    }
}

/// The entries that count now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Newest first, up to [`NEWEST`].
    pub entries: Vec<Entry>,
    /// Over all entries that count: the highest cost first, up to ten.
    pub top_metas: Vec<TopMeta>,
    /// True if the read ran out of time. `top_metas` is then unknown, and empty.
    pub is_cut_short: bool,
}

/// One charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// us; 0 if the clock stepped back.
    pub age: Micros,
    pub cost: u64,
    pub meta: Option<Arc<str>>,
}

/// The charges of one meta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopMeta {
    pub meta: Arc<str>,
    pub cost: u64,
    pub count: u64,
}

impl History {
    /// Builds a history from the entries that count at `now`. Both iterators yield the newest
    /// first.
    pub fn new(now: Micros, charges: impl Iterator<Item = Charge>, notes: impl Iterator<Item = Note>) -> Self {
        let notes: Vec<Note> = notes.collect();
        let mut told = notes.iter().peekable();
        let entry = |Charge { at, sum, cost }| {
            let note = told.next_if(|note| (note.at, note.sum) == (at, sum));
            Entry { age: now.saturating_sub(at), cost, meta: note.map(|note| note.meta.clone()) }
        };
        let entries = charges.take(NEWEST).map(entry).collect();
        Self { entries, top_metas: top_metas(&notes), is_cut_short: false }
    }

    /// The same history, for a read that returned only the newest entries.
    #[must_use]
    pub fn cut_short(self) -> Self {
        Self { top_metas: Vec::new(), is_cut_short: true, ..self }
    }
}

fn top_metas(notes: &[Note]) -> Vec<TopMeta> {
    let mut sums: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
    for Note { meta, cost, .. } in notes {
        let (costs, count) = sums.entry(meta).or_default();
        *costs += cost;
        *count += 1;
    }
    let mut metas: Vec<TopMeta> =
        sums.into_iter().map(|(meta, (cost, count))| TopMeta { meta: meta.clone(), cost, count }).collect();
    metas.sort_unstable_by(|a, b| (b.cost, b.count, &a.meta).cmp(&(a.cost, a.count, &b.meta)));
    metas.truncate(TOP);
    metas
}
