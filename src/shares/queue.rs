//! Things that wait, by holder.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use super::has_share;

/// A queue in which holders take turns, so that nobody waits behind all that another one has.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    room: usize,
    length: usize,
    /// Things of each holder, the oldest first.
    by_holder: HashMap<K, VecDeque<T>>,
    /// The holders, the next one first.
    turns: VecDeque<K>,
}

impl<K: Hash + Eq + Clone, T> FairQueue<K, T> {
    /// A queue of up to so many things.
    pub fn new(room: usize) -> Self {
        Self { room, length: 0, by_holder: HashMap::new(), turns: VecDeque::new() }
    }

    /// Adds a thing of a holder.
    ///
    /// # Errors
    /// The thing: the holder has no share in what is free.
    pub fn push(&mut self, holder: &K, thing: T) -> Result<(), T> {
        let own = self.by_holder.get(holder).map_or(0, VecDeque::len);
        if !has_share(own, self.room - self.length) {
            return Err(thing);
        }
        if own == 0 {
            self.turns.push_back(holder.clone());
        }
        self.by_holder.entry(holder.clone()).or_default().push_back(thing);
        self.length += 1;
        Ok(())
    }

    /// The next thing.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true).map(|(_, thing)| thing)
    }

    /// The next thing of a holder that `may_go`.
    pub fn pop_of(&mut self, may_go: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let place = self.turns.iter().position(may_go)?;
        let holder = self.turns.remove(place)?;
        let things = self.by_holder.get_mut(&holder)?;
        let thing = things.pop_front()?;
        self.length -= 1;
        match things.is_empty() {
            true => _ = self.by_holder.remove(&holder),
            false => self.turns.push_back(holder.clone()),
        }
        Some((holder, thing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_take_turns() {
        let mut queue = FairQueue::new(100);
        for thing in 0..3 {
            queue.push(&"greedy", ("greedy", thing)).unwrap();
        }
        queue.push(&"modest", ("modest", 0)).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [("greedy", 0), ("modest", 0), ("greedy", 1), ("greedy", 2)]);
        assert!(queue.turns.is_empty() && queue.by_holder.is_empty());
    }

    #[test]
    fn modest_holder_always_has_room() {
        let mut queue = FairQueue::new(64);
        let filled =
            |queue: &mut FairQueue<u32, ()>, holder| (0..).take_while(|_| queue.push(&holder, ()).is_ok()).count();
        assert_eq!([filled(&mut queue, 0), filled(&mut queue, 1)], [32, 16]);
        assert_eq!(queue.push(&2, ()), Ok(()));
        assert_eq!(queue.push(&0, ()), Err(()));
    }

    #[test]
    fn holder_that_may_not_go_keeps_its_turn() {
        let mut queue = FairQueue::new(64);
        [1, 2, 1].iter().for_each(|holder| queue.push(holder, ()).unwrap());
        assert_eq!(queue.pop_of(|holder| *holder == 2), Some((2, ())));
        assert_eq!(queue.pop_of(|holder| *holder == 2), None);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(()), Some(()), None]);
    }
}
