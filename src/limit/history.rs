//! What a sliding log tells people: its newest entries, and who caused most.

use std::collections::HashMap;
use std::sync::Arc;

use super::time::Micros;

/// Entries told at most.
pub const NEWEST: usize = 100;

/// Metas told at most.
const TOP: usize = 10;

/// A charge as a log keeps it; its instant and sum together are its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub at: Micros,
    /// The running sum of the log with this charge.
    pub sum: u64,
    pub cost: u64,
}

/// Who caused a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub at: Micros,
    pub sum: u64,
    pub cost: u64,
    pub meta: Arc<str>,
}

/// What of a log counts at an instant, not summed up yet; the newest first.
#[derive(Debug, Default)]
pub struct Counting {
    /// us.
    pub now: Micros,
    /// Up to [`NEWEST`].
    pub charges: Vec<Charge>,
    pub notes: Vec<Note>,
}

impl Counting {
    /// What it tells people.
    pub fn history(self) -> History {
        History::new(self.now, self.charges.into_iter(), self.notes.into_iter())
    }
}

/// What counts now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The newest first, up to [`NEWEST`].
    pub entries: Vec<Entry>,
    /// Of all that counts: the dearest first, up to ten.
    pub top_metas: Vec<TopMeta>,
    /// Not all that counts could be read in time: `top_metas` is not known, and empty.
    pub is_cut_short: bool,
}

/// One charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// us; 0 where the clock stepped back.
    pub age: Micros,
    pub cost: u64,
    pub meta: Option<Arc<str>>,
}

/// What one meta caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopMeta {
    pub meta: Arc<str>,
    pub cost: u64,
    pub count: u64,
}

impl History {
    /// From what counts at `now`, both the newest first.
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

    /// The same where only the newest could be read.
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
