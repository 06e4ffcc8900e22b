//! Knowledge of the arbiter beside the turns: the progress of guaranteed jobs beside opportunistic
//! ones. The world (`world`) is the referee.

use super::world::{STEP, Work, World, ms};
use super::*;

fn share(request: u16) -> TimeShare {
    TimeShare {
        card: 0,
        request: Milli::new(request).expect("at most a whole"),
        limit: Milli::WHOLE,
    }
}

/// Requests of a millisecond, so far apart on average, and by chance or not.
struct Requests {
    apart: Duration,
    by_chance: bool,
    next_at: Duration,
    /// Those that came before the last one was answered.
    n_waiting: u64,
    n_done: u64,
    random: u64,
}

impl Requests {
    fn begin(apart: Duration, by_chance: bool) -> Requests {
        Requests {
            apart,
            by_chance,
            next_at: Duration::ZERO,
            n_waiting: 0,
            n_done: 0,
            random: 1,
        }
    }

    /// Lets the server begin the next request when it has come.
    fn step(&mut self, world: &mut World, server: JobId) {
        while self.next_at <= world.now {
            self.n_waiting += 1;
            // Knuth's MMIX.
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let chance = ((self.random >> 33) as f64 + 1.0) / f64::from(1_u32 << 31);
            self.next_at += match self.by_chance {
                true => self.apart.mul_f64(-chance.ln()),
                false => self.apart,
            };
        }
        let Some(tenant) = world.tenants.get_mut(&server) else {
            return;
        };
        let answered = tenant.n_done - self.n_done;
        self.n_done = tenant.n_done;
        self.n_waiting = self.n_waiting.saturating_sub(answered);
        // It pauses until the next one comes; one that waits is begun at once.
        tenant.work.pause = match self.n_waiting {
            0 | 1 => self.next_at.saturating_sub(world.now),
            _ => Duration::ZERO,
        };
    }
}

/// Thousandths of the card that an opportunistic job has beside a server, second by second.
fn beside_a_server(apart: Duration, by_chance: bool, seconds: u64) -> Vec<u64> {
    let mut world = World::new(Overlap::Allowed, 1);
    let work = Work {
        kernel: ms(1),
        burst: 1,
        pause: apart,
        ..Work::default()
    };
    let (server, other) = (JobId(1), JobId(2));
    world.arrive(1, Class::Guaranteed, vec![share(500)], work);
    let work = Work {
        kernel: STEP,
        burst: 4,
        pause: Duration::ZERO,
        ..Work::default()
    };
    world.arrive(2, Class::Opportunistic, vec![share(0)], work);
    let mut requests = Requests::begin(apart, by_chance);
    let second = |world: &mut World, requests: &mut Requests| {
        let had = |world: &World| {
            world.tenants[&other]
                .had
                .get(&0)
                .copied()
                .unwrap_or_default()
        };
        let before = had(world);
        for step in 1..=2000 {
            requests.step(world, server);
            world.step();
            if step % 400 == 0 {
                world.coordinate();
            }
        }
        (had(world) - before).as_millis() as u64
    };
    (0..seconds)
        .map(|_| second(&mut world, &mut requests))
        .collect()
}

#[test]
fn opportunistic_jobs_have_what_a_server_leaves() {
    for by_chance in [true, false] {
        let had = beside_a_server(Duration::from_micros(12_500), by_chance, 20);
        let later = &had[5..];
        let mean = mean(later);
        assert!(mean >= 800, "{mean}, by chance {by_chance}: {had:?}");
        let least = later.iter().min().copied().unwrap_or_default();
        assert!(least >= 700, "{least}, by chance {by_chance}: {had:?}");
    }
}

/// Thousandths of a card that a job of this request and limit has, second by second, if it never
/// says that it works. Where a neighbour is asked for, that has the rest of the card.
fn liar(request: u16, limit: u16, work: Work, has_neighbour: bool, seconds: u64) -> Vec<u64> {
    let mut world = World::new(Overlap::Allowed, 1);
    let (liar, other) = (JobId(1), JobId(2));
    let limited = TimeShare {
        limit: Milli::new(limit).expect("at most a whole"),
        ..share(request)
    };
    world.arrive(1, Class::Guaranteed, vec![limited], work);
    if let Some(tenant) = world.tenants.get_mut(&liar) {
        tenant.faults.lies = true;
    }
    if has_neighbour {
        let work = Work {
            kernel: STEP,
            burst: 4,
            pause: Duration::ZERO,
            ..Work::default()
        };
        world.arrive(2, Class::Guaranteed, vec![share(1000 - request)], work);
    }
    let mut watches: BTreeMap<JobId, (OveruseWatch, [Duration; 3])> = BTreeMap::new();
    let mut second = |world: &mut World| {
        for _ in 0..2000 {
            world.step();
        }
        world.turns.settle(world.now);
        let mut used = Duration::ZERO;
        for id in [other, liar] {
            let Some(tenant) = world.tenants.get(&id) else {
                continue;
            };
            let had = tenant.had.get(&0).copied().unwrap_or_default();
            let view = world.turns.view(id)[0];
            let (watch, before) = watches.entry(id).or_default();
            used = had - before[0];
            // The driver says whole percent.
            let percent = (used.as_millis() as u32 + 5) / 10;
            let found = watch.note(BusyReading {
                span: ms(1000),
                measured: ms(10) * percent,
                n_processes: u32::from(percent > 0),
                worked: view.worked - before[1],
                had: view.had - before[2],
                ..BusyReading::default()
            });
            *before = [had, view.worked, view.had];
            assert!(id == liar || !found.is_news, "the other is accused");
            if !found.charge.is_zero() {
                world.overused(id, found.charge);
            }
        }
        used.as_millis() as u64
    };
    (0..seconds).map(|_| second(&mut world)).collect()
}

fn mean(had: &[u64]) -> u64 {
    had.iter().sum::<u64>() / had.len() as u64
}

#[test]
fn who_says_that_it_rests_is_held_to_its_limit() {
    // A seventh of the card in small pieces, with a limit of a fiftieth.
    let pieces = Work {
        kernel: STEP,
        burst: 1,
        pause: ms(3),
        ..Work::default()
    };
    let had = liar(0, 20, pieces, false, 60);
    assert!(mean(&had[..10]) >= 100, "{had:?}");
    assert!(mean(&had[20..]) <= 40, "{had:?}");
}

#[test]
fn who_says_that_it_rests_is_held_to_its_promise() {
    // All of the time that it can have, with a promise of a quarter.
    let busy = Work {
        kernel: ms(2),
        burst: 4,
        pause: Duration::ZERO,
        ..Work::default()
    };
    let had = liar(250, 1000, busy, true, 30);
    assert!(mean(&had[15..]) <= 300, "{had:?}");
}
