//! Time that launches take on a card, learnt from marks behind them, and the number of launches
//! that a bound in time allows. Pure arithmetic.

use std::ops::{AddAssign, SubAssign};

/// Launches of all threads that are queued at most, however short they are: before their time is
/// known again, the next ones may be a thousand times as long.
pub const MOST: u32 = 1024;

/// The time of a launch until it is known.
const FIRST_NS: u64 = 2_000_000;

/// The mean is that of the last launches, about so many: as many as can be queued.
const WINDOW: u64 = MOST as u64;

/// Least time between two marks that says how long a launch is. Kernels that run beside each other
/// end in groups, and the time within a group is none.
const SPAN_NS: u64 = 500_000;

/// As many launches, or graphs, are enough, where they take next to no time.
const SPAN_LAUNCHES: Launches = Launches {
    n_single: 256,
    n_graphs: 16,
};

/// A graph of this length is marked alone. A mark costs a few percent of it.
const LONG_GRAPH_NS: u64 = 100_000;

/// Numbers of launches. A short graph counts as a single launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Launches {
    /// Kernels, copies, fills.
    pub n_single: u32,
    /// Graphs.
    pub n_graphs: u32,
}

impl Launches {
    /// Number of both kinds.
    #[must_use]
    pub fn count(self) -> u32 {
        self.n_single.saturating_add(self.n_graphs)
    }

    fn are_enough(self) -> bool {
        self.n_single >= SPAN_LAUNCHES.n_single || self.n_graphs >= SPAN_LAUNCHES.n_graphs
    }
}

impl AddAssign for Launches {
    fn add_assign(&mut self, more: Launches) {
        self.n_single = self.n_single.saturating_add(more.n_single);
        self.n_graphs = self.n_graphs.saturating_add(more.n_graphs);
    }
}

impl SubAssign for Launches {
    fn sub_assign(&mut self, less: Launches) {
        self.n_single = self.n_single.saturating_sub(less.n_single);
        self.n_graphs = self.n_graphs.saturating_sub(less.n_graphs);
    }
}

/// Bound of what a process has queued on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Time.
    pub queue_ns: u64,
    /// Threads that launch.
    pub n_threads: u32,
}

/// Time between two marks, as the card measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// From one to the other.
    pub elapsed_ns: u64,
    /// Most of it in which the card may have had nothing to do.
    pub idle_ns: u64,
}

/// Times of a process's launches on one card.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    single: Estimate,
    graphs: Estimate,
    /// Other processes may have the card now and then.
    is_shared: bool,
}

/// Factor by which launches may seem longer where other processes may have the card meanwhile. Only
/// those that seem longer still are believed at once.
const CROWD: u64 = 4;

/// The least time of a launch counts for twice as long.
const LEAST_FOR_NS: u64 = 2_000_000_000;

/// The time of a launch: the last one that was measured, which falls by half at most from one
/// measurement to the next, or the mean, whichever is more. On a shared card it is the least that
/// was measured in the last seconds, in which the process had the card for itself for a while: what
/// is measured is the time that passed, and the driver divides it among processes. Where launches
/// seem much longer than that, they are.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    last_ns: u64,
    /// Least of this piece of time, and of the one before; the largest number where there is none.
    least_ns: [u64; 2],
    piece_ns: u64,
    sum_ns: u64,
    n_summed: u64,
}

impl Default for Estimate {
    fn default() -> Self {
        Self {
            last_ns: FIRST_NS,
            least_ns: [u64::MAX; 2],
            piece_ns: 0,
            sum_ns: 0,
            n_summed: 0,
        }
    }
}

impl Estimate {
    fn each_ns(&self, is_shared: bool) -> u64 {
        let mean_ns = self.sum_ns.checked_div(self.n_summed);
        let wary_ns = self.last_ns.max(mean_ns.unwrap_or(0)).max(1);
        let [now, before] = self.least_ns;
        let least_ns = now.min(before).max(1);
        match is_shared && wary_ns <= least_ns.saturating_mul(CROWD) {
            true => wary_ns.min(least_ns),
            false => wary_ns,
        }
    }

    /// So many launches took a time between these two.
    fn learn(&mut self, least_ns: u64, most_ns: u64, n_launches: u32) {
        if self.piece_ns > LEAST_FOR_NS {
            self.least_ns = [u64::MAX, self.least_ns[0]];
            self.piece_ns = 0;
        }
        self.piece_ns = self.piece_ns.saturating_add(most_ns);
        let n_launches = u64::from(n_launches.max(1));
        let (least_ns, most_ns) = (least_ns / n_launches, most_ns / n_launches);
        let each_ns = self.last_ns.clamp(least_ns, most_ns.max(least_ns));
        // Where the card may have rested, this only says how long they are at most.
        let is_measured = least_ns >= most_ns;
        self.last_ns = match is_measured && self.n_summed == 0 {
            true => each_ns,
            false => each_ns.max(self.last_ns / 2),
        };
        self.least_ns[0] = self.least_ns[0].min(each_ns);
        if is_measured {
            self.sum_ns = self
                .sum_ns
                .saturating_add(each_ns.saturating_mul(n_launches));
            self.n_summed += n_launches;
        }
        while self.n_summed > WINDOW {
            self.sum_ns /= 2;
            self.n_summed /= 2;
        }
    }
}

impl Pace {
    /// Says whether other processes may have the card now and then.
    pub fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// The time of a kernel, a copy or a short graph.
    #[must_use]
    pub fn each_ns(&self) -> u64 {
        self.single.each_ns(self.is_shared)
    }

    /// True if graphs should be marked alone.
    #[must_use]
    pub fn are_graphs_long(&self) -> bool {
        self.graphs.each_ns(self.is_shared) > LONG_GRAPH_NS
    }

    /// Learns from the time in which these launches ended. False if it is too short to say much:
    /// the next ones are to be added.
    pub fn learn(&mut self, launches: Launches, span: Span) -> bool {
        if span.elapsed_ns < SPAN_NS && !launches.are_enough() {
            return false;
        }
        let busy_ns = span.elapsed_ns.saturating_sub(span.idle_ns);
        if launches.n_graphs == 0 {
            self.single
                .learn(busy_ns, span.elapsed_ns, launches.n_single);
        } else {
            let of_single = self.time_ns(Launches {
                n_graphs: 0,
                ..launches
            });
            let least_ns = busy_ns.saturating_sub(of_single);
            self.graphs
                .learn(least_ns, span.elapsed_ns, launches.n_graphs);
        }
        true
    }

    fn time_ns(&self, launches: Launches) -> u64 {
        let of =
            |estimate: &Estimate, n: u32| estimate.each_ns(self.is_shared).saturating_mul(n.into());
        of(&self.single, launches.n_single).saturating_add(of(&self.graphs, launches.n_graphs))
    }

    /// Number of launches of one thread from a mark to the next: all threads together fill half of
    /// the queue.
    #[must_use]
    pub fn chunk(&self, bound: Bound) -> u32 {
        let fit = (bound.queue_ns / self.each_ns()).min(MOST.into()) as u32;
        (fit / 2 / bound.n_threads.max(1)).max(1)
    }

    /// Time that must pass before a thread's launches can be added to those that are queued: all
    /// but the last of them are with the driver already. Zero if there is room. A single launch has
    /// room in an empty queue, however long it is.
    #[must_use]
    pub fn excess_ns(&self, queued: Launches, added: Launches, bound: Bound) -> u64 {
        if queued == Launches::default() {
            return 0;
        }
        // Each thread may launch so many more before it comes here.
        let others = (self.chunk(bound) - 1).saturating_mul(bound.n_threads);
        let mut before = queued;
        before += Launches {
            n_single: others.saturating_add(added.count() - 1),
            n_graphs: 0,
        };
        let time_ns = self.time_ns(before).saturating_add(1);
        let n_over = u64::from(before.count().saturating_sub(MOST - 1));
        let over_ns = n_over.saturating_mul(self.each_ns());
        time_ns.saturating_sub(bound.queue_ns).max(over_ns)
    }
}

/// Three quarters of a chunk, more or less, to all of it. Where a thread launches on several
/// streams or cards in a fixed order, its marks come to all of them.
#[must_use]
pub fn spread(chunk: u32, seed: u32) -> u32 {
    chunk - seed % (chunk / 4 + 1 + u32::from(chunk > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(queue_ms: u64, n_threads: u32) -> Bound {
        let queue_ns = queue_ms * 1_000_000;
        Bound {
            queue_ns,
            n_threads,
        }
    }

    fn single(n_single: u32) -> Launches {
        Launches {
            n_single,
            n_graphs: 0,
        }
    }

    const GRAPH: Launches = Launches {
        n_single: 0,
        n_graphs: 1,
    };

    /// The card was busy all the time.
    fn busy(us: u64) -> Span {
        Span {
            elapsed_ns: us * 1000,
            idle_ns: 0,
        }
    }

    fn known(each_us: u64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..64 {
            let n = (1000 / each_us).clamp(1, 512) as u32;
            assert!(pace.learn(single(n), busy(each_us * u64::from(n))));
        }
        pace
    }

    #[test]
    fn all_threads_together_fill_half_of_the_queue_between_their_marks() {
        for (each_us, queue_ms, n_threads, chunk) in [
            (1, 10, 1, 512),
            (100, 10, 1, 50),
            (100, 10, 4, 12),
            (1000, 10, 1, 5),
            (1000, 10, 32, 1),
            (1000, 2, 1, 1),
            (10_000, 250, 1, 12),
            (10_000_000, 250, 1, 1),
            (10, 250, 32, 16),
        ] {
            let pace = known(each_us);
            assert_eq!(pace.chunk(bound(queue_ms, n_threads)), chunk, "{each_us}");
        }
    }

    /// Threads launch in turn, each marks and waits where it is told to. Returns the longest queue.
    fn longest_ns(pace: &Pace, bound: Bound) -> u64 {
        let n_threads = bound.n_threads as usize;
        let (mut unmarked, mut left) = (vec![0; n_threads], vec![0; n_threads]);
        let mut marks = std::collections::VecDeque::new();
        let mut longest = 0;
        for step in 0..20_000_u32 {
            let thread = step as usize % n_threads;
            unmarked[thread] += 1;
            if left[thread] > 0 {
                left[thread] -= 1;
            } else {
                let added = single(unmarked[thread]);
                loop {
                    let mut queued = Launches::default();
                    marks.iter().for_each(|&mark| queued += mark);
                    if pace.excess_ns(queued, added, bound) == 0 {
                        break;
                    }
                    marks.pop_front();
                }
                marks.push_back(added);
                unmarked[thread] = 0;
                left[thread] = spread(pace.chunk(bound), step.wrapping_mul(7919)) - 1;
            }
            let marked: u32 = marks.iter().map(|mark| mark.count()).sum();
            let n = marked + unmarked.iter().sum::<u32>();
            assert!(n <= MOST);
            longest = longest.max(u64::from(n) * pace.each_ns());
        }
        longest
    }

    #[test]
    fn what_threads_have_queued_together_is_bounded_and_not_much_less() {
        for each_us in [1, 20, 100, 1000, 1500, 10_000, 1_000_000] {
            for queue_ms in [2, 10, 250] {
                for n_threads in [1, 2, 8, 32] {
                    let (pace, bound) = (known(each_us), bound(queue_ms, n_threads));
                    let longest = longest_ns(&pace, bound);
                    let most = bound.queue_ns + pace.each_ns();
                    assert!(longest <= most, "{each_us} {bound:?} {longest}");
                    let least = bound.queue_ns.min(u64::from(MOST) * pace.each_ns()) / 2;
                    assert!(longest >= least, "{each_us} {bound:?} {longest}");
                }
            }
        }
    }

    #[test]
    fn longer_launches_are_believed_at_once_and_shorter_ones_slowly() {
        let mut pace = known(10);
        pace.learn(single(50), busy(50 * 10_000));
        assert_eq!(pace.each_ns(), 10_000_000);
        let mut before = pace.each_ns();
        for _ in 0..200 {
            pace.learn(single(50), busy(500));
            assert!(pace.each_ns() >= before / 2, "{}", pace.each_ns());
            before = pace.each_ns();
        }
        assert!(pace.each_ns() < 20_000, "{}", pace.each_ns());
        // The card may have rested: that says only how long they are at most.
        let span = |elapsed_ms: u64, idle_ms: u64| Span {
            elapsed_ns: elapsed_ms * 1_000_000,
            idle_ns: idle_ms * 1_000_000,
        };
        pace.learn(single(1), span(5000, 5000));
        assert_eq!(pace.each_ns(), before);
        pace.learn(single(1), span(5000, 4000));
        assert_eq!(pace.each_ns(), 1_000_000_000);
    }

    #[test]
    fn launches_of_a_process_that_has_the_card_now_and_then_are_no_longer_for_it() {
        let mut pace = known(500);
        pace.set_shared(true);
        for _ in 0..10 {
            // Others have three quarters of the card, and then it has it for itself for a moment.
            for _ in 0..100 {
                pace.learn(single(4), busy(4 * 2000));
            }
            pace.learn(single(4), busy(4 * 500));
            assert_eq!(pace.each_ns(), 500_000);
        }
        // It never has: after some seconds that counts as their time.
        for _ in 0..1000 {
            pace.learn(single(4), busy(4 * 2000));
        }
        assert_eq!(pace.each_ns(), 2_000_000);
    }

    #[test]
    fn one_long_launch_among_many_short_ones_is_not_forgotten_between_two() {
        let mut pace = known(10);
        for _ in 0..20 {
            pace.learn(single(1), busy(50_000));
            for _ in 0..10 {
                pace.learn(single(50), busy(500));
            }
        }
        // A tenth of a millisecond each, more or less: no two of the long ones in 10 ms.
        let fit = 10_000_000 / pace.each_ns();
        assert!((10..=250).contains(&fit), "{fit} launches");
    }

    #[test]
    fn kernels_that_run_beside_each_other_count_by_what_the_card_does() {
        let mut pace = Pace::default();
        // 32 streams whose kernels of 10 ms end within a few microseconds.
        let mut since = Launches::default();
        for _ in 0..40 {
            for stream in 0..32 {
                since += single(1);
                if pace.learn(since, busy(if stream == 0 { 10_000 } else { 2 })) {
                    since = Launches::default();
                }
            }
        }
        let each_us = pace.each_ns() / 1000;
        assert!((300..340).contains(&each_us), "{each_us} us");
    }

    #[test]
    fn a_graph_has_a_time_of_its_own() {
        let mut pace = known(10);
        assert!(pace.are_graphs_long(), "nobody knows yet");
        let mixed = Launches {
            n_single: 100,
            n_graphs: 1,
        };
        assert!(pace.learn(mixed, busy(51_000)));
        assert_eq!(pace.each_ns(), known(10).each_ns());
        let ten_ms = bound(10, 1);
        assert_eq!(pace.excess_ns(Launches::default(), GRAPH, ten_ms), 0);
        assert!(pace.excess_ns(GRAPH, single(1), ten_ms) > 0);
        assert!(pace.excess_ns(single(1), GRAPH, ten_ms) == 0);
        for _ in 0..200 {
            pace.learn(GRAPH, busy(600));
            pace.learn(GRAPH, busy(5));
        }
        for _ in 0..400 {
            pace.learn(
                Launches {
                    n_single: 0,
                    n_graphs: 16,
                },
                busy(16 * 5),
            );
        }
        assert!(!pace.are_graphs_long());
    }

    #[test]
    fn marks_come_to_every_stream_of_a_thread() {
        for chunk in [1, 2, 3, 512] {
            for seed in [0, 1, 2, 5, u32::MAX] {
                let n = spread(chunk, seed);
                assert!((chunk.div_ceil(2)..=chunk).contains(&n), "{chunk} {n}");
            }
        }
        assert_ne!(spread(2, 0), spread(2, 1));
    }
}
