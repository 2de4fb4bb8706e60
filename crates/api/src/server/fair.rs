//! A queue in which every caller has its turn, however much the others ask.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Entries by caller.
#[derive(Debug)]
pub(super) struct Fair<K, T> {
    turns: VecDeque<K>,
    waiting: HashMap<K, VecDeque<T>>,
}

impl<K, T> Default for Fair<K, T> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), waiting: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, T> Fair<K, T> {
    pub(super) fn push(&mut self, caller: K, entry: T) {
        let of_caller = self.waiting.entry(caller).or_default();
        if of_caller.is_empty() {
            self.turns.push_back(caller);
        }
        of_caller.push_back(entry);
    }

    /// Returns the next entry in turn.
    pub(super) fn peek(&self) -> Option<&T> {
        self.waiting.get(self.turns.front()?)?.front()
    }

    /// Takes that entry; its caller's next one comes after those of all others.
    pub(super) fn pop(&mut self) -> Option<T> {
        let caller = self.turns.pop_front()?;
        let of_caller = self.waiting.get_mut(&caller)?;
        let entry = of_caller.pop_front();
        if of_caller.is_empty() {
            self.waiting.remove(&caller);
        } else {
            self.turns.push_back(caller);
        }
        entry
    }

    /// Forgets entries.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.waiting.retain(|_, of_caller| {
            of_caller.retain(&mut keep);
            !of_caller.is_empty()
        });
        self.turns.retain(|caller| self.waiting.contains_key(caller));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_turn() {
        let mut queue = Fair::default();
        (0..1000).for_each(|n| queue.push('a', n));
        queue.push('b', 1000);
        queue.push('b', 1001);
        assert_eq!(queue.peek(), Some(&0));
        let order: Vec<i32> = (0..6).filter_map(|_| queue.pop()).collect();
        assert_eq!(order, [0, 1000, 1, 1001, 2, 3]);
        queue.retain(|n| *n > 997);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(998), Some(999), None));
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }
}
