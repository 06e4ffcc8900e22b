//! Guesses how long groups run that do not say it, by how long others ran that they are like.
//!
//! A guess decides about a place in the order of a quota, and about nothing that is promised.

use std::collections::{BTreeMap, VecDeque};

/// Number of those that ended last by which a guess is made: enough for a middle one, and few enough
/// that it follows a change.
const LAST: usize = 15;

/// Run times by what groups have in common, such as their quota and their name.
#[derive(Debug, Clone)]
pub struct RunHistory<K> {
    /// In the order in which they ended.
    ended: BTreeMap<K, VecDeque<u64>>,
}

impl<K> Default for RunHistory<K> {
    fn default() -> RunHistory<K> {
        RunHistory {
            ended: BTreeMap::new(),
        }
    }
}

impl<K: Ord> RunHistory<K> {
    /// A group has ended that ran for so many milliseconds.
    pub fn ended(&mut self, like: K, runs_ms: u64) {
        let last = self.ended.entry(like).or_default();
        last.push_back(runs_ms);
        if last.len() > LAST {
            last.pop_front();
        }
    }

    /// The middle one of the last run times, in milliseconds; none if nobody has ended.
    #[must_use]
    pub fn guess(&self, like: &K) -> Option<u64> {
        let mut last: Vec<u64> = self.ended.get(like)?.iter().copied().collect();
        let middle = last.len() / 2;
        Some(*last.select_nth_unstable(middle).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_of_the_last_counts() {
        let mut history = RunHistory::default();
        assert_eq!(history.guess(&"a"), None);
        for (runs_ms, expected) in [(5, 5), (1, 5), (9, 5), (9, 9)] {
            history.ended("a", runs_ms);
            assert_eq!(history.guess(&"a"), Some(expected));
        }
        assert_eq!(history.guess(&"b"), None);
        // What was long ago is forgotten.
        (0..LAST).for_each(|_| history.ended("a", 1));
        assert_eq!(history.guess(&"a"), Some(1));
        assert_eq!(history.ended["a"].len(), LAST);
    }
}
