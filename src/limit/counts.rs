//! Counts of numbered spans of time: the steps of a sliding window, or the ticks of a counter.

use std::ops::Range;

use smallvec::SmallVec;

/// The units admitted in one span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The span's number, counted from the epoch.
    pub number: u64,
    /// Never 0.
    pub units: u64,
}

/// The spans that are not empty, oldest first. A key with one charge stores it in place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(SmallVec<[Count; 1]>);

impl FromIterator<Count> for Counts {
    /// Collects spans in ascending order.
    fn from_iter<T: IntoIterator<Item = Count>>(counts: T) -> Self {
        let counts = SmallVec::from_iter(counts);
        debug_assert!(counts.is_sorted_by(|a: &Count, b| a.number < b.number));
        Self(counts)
    }
}

impl Counts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latest span.
    pub fn last(&self) -> Option<Count> {
        self.0.last().copied()
    }

    /// The counts of these spans.
    pub fn within(&self, spans: Range<u64>) -> &[Count] {
        &self.0[self.places(spans)]
    }

    /// Adds units to a span. A new span drops those before `oldest`.
    pub fn add(&mut self, number: u64, units: u64, oldest: u64) {
        match self.0.binary_search_by_key(&number, |count| count.number) {
            Ok(place) => self.0[place].units += units,
            Err(place) => {
                self.0.insert(place, Count { number, units });
                let dead = self.0.partition_point(|count| count.number < oldest);
                self.0.drain(..dead);
            }
        }
    }

    /// Drops the spans that are not to stay.
    pub fn retain(&mut self, stays: impl Fn(&Count) -> bool) {
        self.0.retain(|count| stays(count));
    }

    /// Drops the spans after `last`.
    pub fn drop_after(&mut self, last: u64) {
        self.0.truncate(self.0.partition_point(|count| count.number <= last));
    }

    /// Takes up to `units` from one span, if it is among `spans`. Returns the units taken.
    pub fn take(&mut self, spans: Range<u64>, number: u64, units: u64) -> u64 {
        match self.0.binary_search_by_key(&number, |count| count.number) {
            Ok(place) if spans.contains(&number) => self.lower(place, units),
            _ => 0,
        }
    }

    /// Takes up to `units` from these spans, from the oldest upward. Returns the units taken.
    pub fn take_oldest(&mut self, spans: Range<u64>, units: u64) -> u64 {
        let places = self.places(spans);
        let mut taken = 0;
        for _ in places.clone() {
            // An emptied span is removed, so the next one is at the same place.
            taken += self.lower(places.start, units - taken);
            if taken == units {
                break;
            }
        }
        taken
    }

    fn lower(&mut self, place: usize, units: u64) -> u64 {
        let count = &mut self.0[place];
        let taken = count.units.min(units);
        count.units -= taken;
        if count.units == 0 {
            self.0.remove(place);
        }
        taken
    }

    fn places(&self, spans: Range<u64>) -> Range<usize> {
        let from = self.0.partition_point(|count| count.number < spans.start);
        from..self.0.partition_point(|count| count.number < spans.end)
    }
}

/// The sum of these counts.
pub fn units(counts: &[Count]) -> u64 {
    counts.iter().map(|count| count.units).sum()
}

/// Returns the span after which `cost`, at most `limit`, fits: the spans leave from the oldest on.
/// Returns none if the cost fits already.
pub fn last_to_leave(counts: &[Count], limit: u64, cost: u64) -> Option<u64> {
    let mut excess = (units(counts) + cost).saturating_sub(limit);
    if excess == 0 {
        return None;
    }
    let frees = |count: &&Count| {
        excess = excess.saturating_sub(count.units);
        excess == 0
    };
    counts.iter().find(frees).map(|count| count.number)
}
