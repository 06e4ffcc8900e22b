//! Finds mini-batches in a program's synchronisations, without the program's help.
//!
//! A training program repeats itself: so many launches and a wait, again so many and a wait, and
//! after a mini-batch the same from the beginning. Each wait, and each launch of a graph, is a
//! *step*. Its kind and the number of launches before it are its *mark*. The length of a mini-batch
//! in steps is the least period that the marks have kept for long enough. (AntMan, OSDI'20, is told
//! mini-batches by the framework; Gemini, HPDC'21, takes each wait for the end of a burst.)
//!
//! It decides nothing and knows no clock.

/// Longer mini-batches are not found.
const LONGEST: usize = 64;

/// Marks must have kept a period for at least so many steps: shorter repetitions are part of many
/// a longer one.
const ENOUGH: u32 = 32;

/// After so many steps in which no period was kept, the last one that was found is forgotten.
const FORGET: u16 = 256;

/// Summary of a step.
pub type Mark = u32;

/// The last steps of a program, and the length of its mini-batches.
///
/// It is on the way of each launch of a graph while others want the card. So the work at every step
/// is one pass over two arrays, in which no element depends on another.
#[derive(Debug)]
pub struct Rhythm {
    /// The last marks, twice: from `next` on they stand in their order, the oldest first.
    marks: [Mark; 2 * LONGEST],
    /// Index of the next mark.
    next: usize,
    /// For how many steps in a row each period was kept, the longest first, as the marks.
    kept: [u32; LONGEST],
    /// The least period that has been kept for long enough until now; 0 for none.
    holds: usize,
    found: usize,
    /// Steps since a period was last kept for long enough.
    without: u16,
}

impl Default for Rhythm {
    fn default() -> Rhythm {
        Rhythm {
            // No step looks so: the first ones keep no period.
            marks: [Mark::MAX; 2 * LONGEST],
            next: 0,
            kept: [0; LONGEST],
            holds: 0,
            found: 0,
            without: 0,
        }
    }
}

/// For how many steps each period must have been kept, the longest first.
const LONG_ENOUGH: [u32; LONGEST] = {
    let mut enough = [0; LONGEST];
    let mut index = 0;
    while index < LONGEST {
        let twice = 2 * (LONGEST - index) as u32;
        enough[index] = if twice > ENOUGH { twice } else { ENOUGH };
        index += 1;
    }
    enough
};

impl Rhythm {
    /// A step was done. Returns how many steps a mini-batch has; 0 where that is not known.
    /// `mark` is not [`Mark::MAX`].
    pub fn step(&mut self, mark: Mark) -> u32 {
        let before = &self.marks[self.next..][..LONGEST];
        let mut is_reached = false;
        for ((kept, then), enough) in self.kept.iter_mut().zip(before).zip(LONG_ENOUGH) {
            *kept = if *then == mark {
                kept.wrapping_add(1)
            } else {
                0
            };
            is_reached |= *kept == enough;
        }
        // A period comes to hold when its number is reached, and ends when a mark differs.
        if is_reached || self.holds > 0 && self.kept[LONGEST - self.holds] == 0 {
            let mut all = self.kept.iter().zip(LONG_ENOUGH);
            let least = all.rposition(|(kept, enough)| *kept >= enough);
            self.holds = least.map_or(0, |index| LONGEST - index);
        }
        self.marks[self.next] = mark;
        self.marks[self.next + LONGEST] = mark;
        self.next = (self.next + 1) % LONGEST;
        match self.holds {
            0 if self.without == FORGET => self.found = 0,
            0 => self.without += 1,
            period => (self.found, self.without) = (period, 0),
        }
        self.found as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the result after `times` repetitions of these steps.
    fn after(rhythm: &mut Rhythm, steps: &str, times: usize) -> u32 {
        let all = steps.bytes().map(Mark::from).cycle();
        let known = all.take(steps.len() * times).map(|mark| rhythm.step(mark));
        known.last().unwrap_or_default()
    }

    #[test]
    fn a_mini_batch_is_as_long_as_what_repeats() {
        for (steps, times, expected) in [
            ("a", 32, 0),
            ("a", 33, 1),
            // Forward, backward, optimizer.
            ("abc", 11, 0),
            ("abc", 12, 3),
            // One that ends with what looks like many of its steps.
            ("aaaaaaab", 5, 8),
            ("abab", 20, 2),
        ] {
            let known = after(&mut Rhythm::default(), steps, times);
            assert_eq!(known, expected, "{steps} {times} times");
        }
    }

    #[test]
    fn an_interruption_changes_nothing_and_another_program_does() {
        let mut rhythm = Rhythm::default();
        assert_eq!(after(&mut rhythm, "abcd", 20), 4);
        assert_eq!(after(&mut rhythm, "a checkpoint", 1), 4);
        assert_eq!(after(&mut rhythm, "abcd", 20), 4);
        assert_eq!(after(&mut rhythm, "xyz", 20), 3);
        // Nothing repeats any more.
        let known = (1000..1300).map(|mark| rhythm.step(mark)).last();
        assert_eq!(known, Some(0));
    }

    proptest! {
        /// Whatever came before, a period is found after it was kept for long enough, and it is
        /// the least one.
        #[test]
        fn the_least_period_is_found(
            before in prop::collection::vec(0..9_u32, 0..300),
            batch in prop::collection::vec(0..9_u32, 1..=LONGEST),
        ) {
            let mut rhythm = Rhythm::default();
            before.iter().for_each(|mark| { rhythm.step(*mark); });
            let n = batch.len();
            let steps = batch.iter().cycle().take(n * 3 + ENOUGH as usize);
            let known = steps.map(|mark| rhythm.step(*mark)).last();
            let repeats = |period: &usize| {
                (0..n).all(|index| batch[index] == batch[(index + period) % n])
            };
            let least = (1..=n).find(repeats).unwrap_or(n);
            prop_assert_eq!(known, Some(least as u32));
        }
    }
}
