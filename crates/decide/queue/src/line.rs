//! The groups of a quota that may be tried, in their order.
//!
//! Groups that fare alike stand in a queue of their own: when one of them has been refused, none of
//! the others need be tried. Then a try costs the same however many groups wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use sublet_model::Time;

use crate::QueueReason;

/// Turn of a group in the order within a quota: by score, age and name. A group that runs for long
/// counts as younger than it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) score: Reverse<i64>,
    pub(crate) since: Time,
    /// Its position in the snapshot, where groups are in the order of their ids.
    pub(crate) group: usize,
}

/// Those that may be tried, and those that have been refused.
#[derive(Debug, Default)]
pub(crate) struct Line {
    queues: Vec<Queue>,
    /// First group of each queue that may be tried, and the number of the queue.
    firsts: BTreeMap<Turn, usize>,
    /// The last that was tried since all could be.
    tried: Option<Turn>,
}

/// Groups that fare alike.
#[derive(Debug, Default)]
struct Queue {
    turns: VecDeque<Turn>,
    refused: Option<QueueReason>,
}

impl Line {
    /// A line of groups in their order. Those with the same fare must fare alike; one without fares
    /// like no other.
    pub(crate) fn of<F: Ord>(turns: &[Turn], fare: impl Fn(usize) -> Option<F>) -> Line {
        let mut line = Line::default();
        let mut numbers = BTreeMap::new();
        for turn in turns {
            let next = line.queues.len();
            let fare = fare(turn.group);
            let at = fare.map_or(next, |fare| *numbers.entry(fare).or_insert(next));
            if at == next {
                line.firsts.insert(*turn, at);
                line.queues.push(Queue::default());
            }
            line.queues[at].turns.push_back(*turn);
        }
        line
    }

    /// The first group that may be tried.
    pub(crate) fn first(&self) -> Option<Turn> {
        self.firsts.first_key_value().map(|(turn, _)| *turn)
    }

    /// The first one starts: it leaves the line.
    pub(crate) fn start_first(&mut self) {
        if let Some((turn, at)) = self.firsts.pop_first() {
            self.tried = Some(turn);
            self.queues[at].turns.pop_front();
            self.open(at);
        }
    }

    /// The first one is refused, and so are all that fare like it.
    pub(crate) fn refuse_first(&mut self, why: QueueReason) {
        if let Some((turn, at)) = self.firsts.pop_first() {
            self.tried = Some(turn);
            self.queues[at].refused = Some(why);
        }
    }

    /// Refuses all that fare alike, where the first of them gives a reason. Nobody has been tried by
    /// that.
    pub(crate) fn refuse_where(&mut self, why: impl Fn(usize) -> Option<QueueReason>) {
        let queues = &mut self.queues;
        self.firsts.retain(|first, at| {
            let refused = &mut queues[*at].refused;
            *refused = why(first.group);
            refused.is_none()
        });
    }

    /// Lets those be tried again whose turn has not come yet.
    pub(crate) fn open_rest(&mut self) {
        let Some(tried) = self.tried else { return };
        for at in 0..self.queues.len() {
            let queue = &mut self.queues[at];
            if queue.refused.is_none() {
                continue;
            }
            let passed = queue.turns.partition_point(|turn| *turn <= tried);
            let rest = queue.turns.split_off(passed);
            let passed = Queue {
                turns: std::mem::replace(&mut queue.turns, rest),
                refused: queue.refused.take(),
            };
            self.open(at);
            if !passed.turns.is_empty() {
                self.queues.push(passed);
            }
        }
    }

    /// Lets those be tried again that were refused for such a reason. Are there any?
    pub(crate) fn open_where(&mut self, may: impl Fn(&QueueReason) -> bool) -> bool {
        self.tried = None;
        let mut is_any = false;
        for at in 0..self.queues.len() {
            let refused = &mut self.queues[at].refused;
            if refused.take_if(|why| may(why)).is_some() {
                self.open(at);
                is_any = true;
            }
        }
        is_any
    }

    fn open(&mut self, at: usize) {
        if let Some(first) = self.queues[at].turns.front() {
            self.firsts.insert(*first, at);
        }
    }

    /// Those that fare alike, in their order, and the reason why they have been refused, if they
    /// have.
    pub(crate) fn queues(
        &self,
    ) -> impl Iterator<Item = (impl Iterator<Item = Turn>, Option<&QueueReason>)> {
        let queues = self.queues.iter();
        queues.map(|queue| (queue.turns.iter().copied(), queue.refused.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The fate of a group that is tried.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Refused,
        Starts,
        /// It starts, and then the next row of fates holds.
        Evicts,
    }

    /// The groups that start, in their order.
    fn started(mut line: Line, fares: &[usize], fates: &[Vec<Fate>]) -> Vec<usize> {
        let (mut started, mut row, mut evicted) = (Vec::new(), 0, false);
        loop {
            let Some(Turn { group, .. }) = line.first() else {
                if !line.open_where(|_| evicted) {
                    return started;
                }
                evicted = false;
                continue;
            };
            let fate = fates[row][fares[group]];
            if let Fate::Refused = fate {
                line.refuse_first(QueueReason::Guarded);
                continue;
            }
            started.push(group);
            line.start_first();
            if let Fate::Evicts = fate
                && row + 1 < fates.len()
            {
                (row, evicted) = (row + 1, true);
                line.open_rest();
            }
        }
    }

    fn turns(of: impl Iterator<Item = (usize, i64)>) -> Vec<Turn> {
        let turn = |(group, score)| Turn {
            score: Reverse(score),
            since: Time::default(),
            group,
        };
        let mut turns: Vec<Turn> = of.map(turn).collect();
        turns.sort_unstable();
        turns
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![Just(Fate::Refused), Just(Fate::Starts), Just(Fate::Evicts)]
    }

    proptest! {
        /// Queues spare tries, and change nothing.
        #[test]
        fn the_same_groups_start_as_if_each_fared_like_no_other(
            groups in prop::collection::vec((0..4_usize, 0..3_i64), 0..20),
            fates in prop::collection::vec(prop::collection::vec(fate(), 4), 1..6),
        ) {
            let fares: Vec<usize> = groups.iter().map(|(fare, _)| *fare).collect();
            let turns = turns(groups.iter().map(|(_, score)| *score).enumerate());
            let alike = Line::of(&turns, |group| Some(fares[group]));
            let alone = Line::of(&turns, |_| None::<usize>);
            prop_assert_eq!(started(alike, &fares, &fates), started(alone, &fares, &fates));
        }
    }

    #[test]
    fn who_fares_alike_is_refused_with_the_first() {
        let turns = turns([(0, 1), (1, 1), (2, 0), (3, 0)].into_iter());
        let mut line = Line::of(&turns, |group| Some(group % 2));
        line.refuse_where(|group| (group == 1).then_some(QueueReason::Guarded));
        assert_eq!(line.first().map(|turn| turn.group), Some(0));
        line.start_first();
        assert_eq!(line.first().map(|turn| turn.group), Some(2));
        line.refuse_first(QueueReason::Guarded);
        assert_eq!(line.first(), None);
        let refused = line.queues().filter(|(_, why)| why.is_some());
        let groups: Vec<usize> = refused
            .flat_map(|(turns, _)| turns.map(|turn| turn.group))
            .collect();
        assert_eq!(groups, [2, 1, 3]);
    }
}
