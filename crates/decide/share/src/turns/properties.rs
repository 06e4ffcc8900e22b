//! Any jobs on any cards: each gets its share, none more than its limit, no time is lost, and
//! no job waits for ever. The world (`world`) is the referee.

use proptest::prelude::*;

use super::world::{Faults, STEP, Work, World, busy, had_over, ms, run, share, shares_over};
use super::*;
use crate::turns::rates::{WHOLE, due};

/// Requests of jobs that fit on a card.
fn requests(n_jobs: usize) -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(1..100_u16, n_jobs).prop_flat_map(|weights| {
        let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
        (0..=1000_u32).prop_map(move |promised| {
            let of = |weight: &u16| (u32::from(*weight) * promised / sum) as u16;
            weights.iter().map(of).collect()
        })
    })
}

fn overlap() -> impl Strategy<Value = Overlap> {
    prop_oneof![Just(Overlap::Allowed), Just(Overlap::Never)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn each_gets_what_is_due_and_no_more_than_its_limit(
        requests in (1..8_usize).prop_flat_map(requests),
        limits in proptest::collection::vec(prop_oneof![Just(1000_u16), 50..1000_u16], 8),
        kernels in proptest::collection::vec(1..12_u64, 8),
        overlap in overlap(),
    ) {
        let mut world = World::new(overlap, 1);
        for (place, request) in requests.iter().enumerate() {
            let share = share(0, *request, limits[place].max(*request));
            let work = busy(kernels[place]);
            world.arrive(place as u64, Class::Guaranteed, vec![share], work);
        }
        run(&mut world, ms(2000));
        let wanting: Vec<_> = world
            .tenants
            .values()
            .map(|tenant| (tenant.class, tenant.shares[0]))
            .collect();
        let due = due(&wanting);
        let shares = shares_over(&mut world, 0, ms(10_000));
        for (((_, asked), due), share) in wanting.iter().zip(due).zip(shares.values()) {
            let due = (due * 1000 / WHOLE) as i64;
            prop_assert!((share - due).abs() <= 30, "{share} of {due} of {wanting:?}");
            prop_assert!(*share <= i64::from(asked.limit.get()) + 10, "{share} of {asked:?}");
        }
    }

    #[test]
    fn many_jobs_get_their_parts_and_the_card_is_never_idle(n_jobs in 1..=64_u64, overlap in overlap()) {
        let mut world = World::new(overlap, 1);
        for id in 0..n_jobs {
            let request = (1000 / n_jobs) as u16;
            world.arrive(id, Class::Guaranteed, vec![share(0, request, 1000)], busy(4));
        }
        run(&mut world, ms(2000));
        let shares = shares_over(&mut world, 0, ms(10_000));
        for share in shares.values() {
            prop_assert!((share - 1000 / n_jobs as i64).abs() <= 30);
        }
        let used: i64 = shares.values().sum();
        prop_assert!(used >= 960, "{used} of a thousand");
    }

    #[test]
    fn what_one_leaves_the_others_take(
        pause in 5..100_u64,
        burst in 1..20_u32,
        class in prop_oneof![Just(Class::Guaranteed), Just(Class::Opportunistic)],
        overlap in overlap(),
    ) {
        let mut world = World::new(overlap, 1);
        let work = Work { kernel: ms(2), burst, pause: ms(pause) , ..Work::default()};
        world.arrive(1, Class::Guaranteed, vec![share(0, 700, 1000)], work);
        let request = if class == Class::Guaranteed { 300 } else { 0 };
        world.arrive(2, class, vec![share(0, request, 1000)], busy(2));
        run(&mut world, ms(2000));
        let shares = shares_over(&mut world, 0, ms(10_000));
        let used: i64 = shares.values().sum();
        // Each switch costs the world a step or two of 0.5 ms, and here there are many.
        prop_assert!(used >= 800, "{shares:?}");
        let left = (1000 * pause / (pause + 2 * u64::from(burst))) as i64;
        prop_assert!(shares[&JobId(2)] >= (left * 7 / 10).min(250), "{shares:?} of {left}");
    }

    #[test]
    fn who_waits_for_its_own_results_keeps_its_share(
        kernel in 1..8_u64, pause in 1..=3_u64, overlap in overlap(),
    ) {
        let mut world = World::new(overlap, 1);
        let work = Work { kernel: STEP * kernel as u32, burst: 1, pause: STEP * pause as u32 , ..Work::default()};
        world.arrive(1, Class::Guaranteed, vec![share(0, 500, 1000)], work);
        world.arrive(2, Class::Guaranteed, vec![share(0, 500, 1000)], busy(4));
        run(&mut world, ms(2000));
        let shares = shares_over(&mut world, 0, ms(5000));
        // Of each of its turns it uses what its pauses leave. The world sees the end of a kernel
        // and the end of a pause a step late.
        let works = 500 * kernel / (kernel + pause + 1);
        prop_assert!(shares[&JobId(1)] * 10 >= works as i64 * 9, "{shares:?}, not {works}");
    }

    #[test]
    fn jobs_of_several_cards_and_of_one_both_get_on(
        cards in proptest::collection::vec(proptest::collection::btree_set(0..4_usize, 1..4), 2..10),
        overlap in overlap(),
    ) {
        let mut world = World::new(overlap, 4);
        for (id, cards) in (0..).zip(&cards) {
            let shares = cards.iter().map(|card| share(*card, 100, 1000)).collect();
            world.arrive(id, Class::Guaranteed, shares, busy(3));
        }
        run(&mut world, ms(2000));
        for card in 0..4 {
            let shares = shares_over(&mut world, card, ms(3000));
            for (id, share) in shares {
                let tenant = &world.tenants[&id];
                let is_there = tenant.shares.iter().any(|share| share.card == card);
                prop_assert!(!is_there || share >= 70, "{id} has {share} of {card}: {cards:?}");
            }
        }
    }

    #[test]
    fn a_guaranteed_job_hardly_feels_an_opportunistic_one(
        pause in 0..20_u64, kernel in 1..4_u64, n_others in 1..4_u64,
    ) {
        let work = Work { kernel: ms(1), burst: 10, pause: ms(pause) , ..Work::default()};
        let alone = {
            let mut world = World::new(Overlap::Allowed, 1);
            world.arrive(1, Class::Guaranteed, vec![share(0, 1000, 1000)], work);
            shares_over(&mut world, 0, ms(5000))[&JobId(1)]
        };
        let mut world = World::new(Overlap::Allowed, 1);
        world.arrive(1, Class::Guaranteed, vec![share(0, 1000, 1000)], work);
        for id in 0..n_others {
            let share = share(0, 0, 1000);
            world.arrive(id + 2, Class::Opportunistic, vec![share], busy(kernel));
        }
        run(&mut world, ms(1000));
        let shares = shares_over(&mut world, 0, ms(5000));
        // At each of its bursts it meets what is left of one kernel of another.
        let bursts = 5000 / (pause + 10);
        let met = (bursts * kernel) as i64 / 10;
        prop_assert!(shares[&JobId(1)] * 100 >= (alone - met) * 96, "{shares:?} of {alone}");
        for (id, share) in &shares {
            prop_assert!(*id == JobId(1) || *share >= 2, "{shares:?}: nobody starves");
        }
    }
}

/// Thousandths of the card that each of some jobs has over the last sixteen of thirty seconds.
/// The last job lies: it never says that it works. Once a second the driver's figures of the
/// last second are compared with the time that their turns explain.
fn beside_a_liar(overlap: Overlap, requests: &[u16], kernel: u64, is_read: bool) -> Vec<i64> {
    let mut world = World::new(overlap, 1);
    for (id, request) in (1..).zip(requests) {
        let (class, shares) = (Class::Guaranteed, vec![share(0, *request, 1000)]);
        let is_last = id as usize == requests.len();
        // Now and then the others pause.
        let work = Work {
            kernel: STEP,
            burst: 400,
            pause: ms(4),
            ..Work::default()
        };
        world.arrive(id, class, shares, if is_last { busy(kernel) } else { work });
        world.tenants.get_mut(&JobId(id)).unwrap().faults.lies = is_last;
    }
    let mut watches: BTreeMap<JobId, (OveruseWatch, [Duration; 2])> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for second in 0..30 {
        let had = had_over(&mut world, 0, ms(1000));
        for (id, measured) in had {
            if second >= 14 {
                *last.entry(id).or_default() += measured.as_millis() as i64;
            }
            world.turns.settle(world.now);
            let view = world.turns.view(id)[0];
            let (watch, before) = watches.entry(id).or_default();
            let found = watch.note(BusyReading {
                span: ms(1000),
                measured,
                n_processes: 1,
                worked: view.worked - before[0],
                had: view.had - before[1],
                ..BusyReading::default()
            });
            *before = [view.worked, view.had];
            if is_read && !found.charge.is_zero() {
                world.overused(id, found.charge);
            }
        }
    }
    last.into_values().map(|had: i64| had / 16).collect()
}

/// The cost of a lie to the others, the countermeasure, and its effect.
#[test]
fn who_lies_about_its_turns_has_its_share_and_no_more() {
    for overlap in [Overlap::Allowed, Overlap::Never] {
        for (requests, kernel) in [
            (&[750, 250][..], 100),
            (&[750, 250], 40),
            (&[500, 500], 100),
            (&[400, 350, 250], 100),
            (&[300, 300, 200, 200], 100),
        ] {
            let lied = beside_a_liar(overlap, requests, kernel, false);
            let paid = beside_a_liar(overlap, requests, kernel, true);
            for (place, request) in requests.iter().enumerate() {
                let share = i64::from(*request);
                let is_liar = place + 1 == requests.len();
                if is_liar {
                    let some = share / 3..=share + 30;
                    assert!(some.contains(&paid[place]), "{requests:?}: {paid:?}");
                } else {
                    assert!(paid[place] >= share - 30, "{requests:?}: {paid:?}");
                    assert!(lied[place] < paid[place], "{requests:?}: {lied:?}");
                }
            }
        }
    }
}

/// The work of a guaranteed job of short bursts beside an opportunistic one with kernels of 20
/// ms, and the opportunistic job's part of the card, in thousandths.
fn beside_long_kernels(is_coordinated: bool, pause: u64) -> (u64, i64) {
    let mut world = World::new(Overlap::Allowed, 1);
    let work = Work {
        kernel: ms(1),
        burst: 10,
        pause: ms(pause),
        ..Work::default()
    };
    world.arrive(1, Class::Guaranteed, vec![share(0, 1000, 1000)], work);
    world.arrive(2, Class::Opportunistic, vec![share(0, 0, 1000)], busy(40));
    let play = |world: &mut World, time: Duration| {
        let end = world.now + time;
        while world.now < end {
            run(world, ms(200));
            if is_coordinated {
                world.coordinate();
            }
        }
    };
    play(&mut world, ms(5000));
    let done = world.tenants[&JobId(1)].n_done;
    let had = world.tenants[&JobId(2)].had[&0];
    play(&mut world, ms(20_000));
    let had = world.tenants[&JobId(2)].had[&0] - had;
    let done = world.tenants[&JobId(1)].n_done - done;
    (done, (had.as_millis() / 20) as i64)
}

#[test]
fn what_harms_a_guaranteed_job_is_backed_off_and_given_back() {
    for pause in [5, 15] {
        let alone = 20_000 * 10 / (10 + pause);
        let (plain, _) = beside_long_kernels(false, pause);
        let (coordinated, left) = beside_long_kernels(true, pause);
        assert!(plain * 100 < alone * 90, "it does harm: {plain} of {alone}");
        assert!(
            coordinated * 100 >= alone * 95,
            "{coordinated} of {alone}, {plain} without"
        );
        assert!(left >= 4, "{left} thousandths: nobody starves");
    }
    // Where it does no harm, it gets all that is left.
    let mut world = World::new(Overlap::Allowed, 1);
    let work = Work {
        kernel: ms(10),
        burst: 1,
        pause: ms(20),
        ..Work::default()
    };
    world.arrive(1, Class::Guaranteed, vec![share(0, 1000, 1000)], work);
    world.arrive(2, Class::Opportunistic, vec![share(0, 0, 1000)], busy(1));
    for _ in 0..200 {
        run(&mut world, ms(200));
        world.coordinate();
    }
    let left = shares_over(&mut world, 0, ms(2000))[&JobId(2)];
    assert!(left >= 600, "{left} of two thirds");
    // Nor does it where the other waits for its own limit.
    let mut world = World::new(Overlap::Allowed, 1);
    world.arrive(1, Class::Guaranteed, vec![share(0, 0, 200)], busy(1));
    world.arrive(2, Class::Opportunistic, vec![share(0, 0, 1000)], busy(1));
    for _ in 0..200 {
        run(&mut world, ms(200));
        world.coordinate();
    }
    let left = shares_over(&mut world, 0, ms(2000))[&JobId(2)];
    assert!(left >= 700, "{left} of four fifths");
}

/// Cards of the soak's machine.
const CARDS: usize = 3;

/// A job comes. Its cards, its shares, its work and its faults are drawn by lot.
fn arrive(world: &mut World, id: u64, next: &mut impl FnMut(u64) -> u64) {
    let n_cards = 1 + next(CARDS as u64) as usize;
    let first = next(CARDS as u64) as usize;
    let limit = if next(2) == 0 {
        1000
    } else {
        50 + next(950) as u16
    };
    let request = next(1 + 1000 / 12) as u16;
    let cards = (0..n_cards).map(|nth| (first + nth) % CARDS);
    let shares = cards.map(|card| share(card, request, limit)).collect();
    let class = if next(3) == 0 {
        Class::Opportunistic
    } else {
        Class::Guaranteed
    };
    let longest = if next(50) == 0 { 4000 } else { 20 };
    let work = Work {
        kernel: STEP * (1 + next(longest) as u32),
        burst: 1 + next(10) as u32,
        pause: STEP * next(40) as u32,
        n_ahead: next(3) as u32,
        is_irregular: next(4) == 0,
    };
    world.arrive(id, class, shares, work);
    world.set_processes(JobId(id), 1 + next(3) as u32);
    let late = STEP * if next(4) == 0 { next(200) as u32 } else { 0 };
    let twice = next(4) == 0;
    if let Some(tenant) = world.tenants.get_mut(&JobId(id)) {
        tenant.faults = Faults {
            late,
            twice,
            ..Faults::default()
        };
    }
}

/// Jobs come and go in the middle of their kernels, and answer late or twice; the arbiter's
/// clock stands still for a while. Returns how many kernels were seen on cards, step by step.
fn soak(overlap: Overlap, seed: u64, n_steps: usize) -> u64 {
    // Odd, so never 0, and another one for each seed.
    let mut random = (2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = move |below: u64| {
        // xorshift64*, Vigna 2016.
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        (random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    };
    let mut world = World::new(overlap, CARDS);
    let (mut ids, mut seen) = (0, 0);
    for step in 0..n_steps {
        match next(400) {
            0 if world.tenants.len() < 12 => {
                arrive(&mut world, ids, &mut next);
                ids += 1;
            }
            1 if next(3) == 0 => {
                let nth = next(12) as usize;
                if let Some(id) = world.tenants.keys().nth(nth).copied() {
                    world.leave(id);
                }
            }
            2 if next(10) == 0 => world.asleep_until = world.now + ms(next(3000)),
            _ => {}
        }
        if step % 400 == 0 {
            world.coordinate();
        }
        world.step();
        for card in 0..CARDS {
            let on = world.tenants.values().filter(|tenant| tenant.is_on(card));
            let n_on = on.count();
            seen += n_on as u64;
            assert!(
                overlap == Overlap::Allowed || n_on <= 1,
                "seed {seed:#x}, step {step}: {n_on} on card {card}"
            );
        }
    }
    // However it was left, it mends: who stays gets on.
    world.asleep_until = Duration::ZERO;
    run(&mut world, ms(5000));
    for card in 0..CARDS {
        for (id, had) in had_over(&mut world, card, ms(20_000)) {
            let tenant = &world.tenants[&id];
            let is_there = tenant.shares.iter().any(|share| share.card == card);
            // Who has longer kernels may have to pay for one until then.
            let may_owe = tenant.work.kernel > ms(20);
            assert!(
                !is_there || may_owe || !had.is_zero(),
                "seed {seed:#x}: {id} starves on {card}"
            );
        }
    }
    seen
}

/// Length of one machine of the soak.
const SOAK_STEPS: usize = 10_000;

/// Settings of `cargo xtask soak`.
#[expect(
    clippy::disallowed_methods,
    reason = "the length of a test is no decision of the product"
)]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_goes_wrong_a_card_has_one_owner_and_nobody_starves() {
    let steps = asked("SUBLET_STEPS").unwrap_or(160_000);
    // The same each time: a new seed is for who looks for faults, not for who changes something
    // else.
    let first = asked("SUBLET_SEED").unwrap_or(0);
    println!("{steps} steps, seed {first}");
    for seed in first..first + steps.div_ceil(2 * SOAK_STEPS as u64) {
        for overlap in [Overlap::Never, Overlap::Allowed] {
            let seen = soak(overlap, seed, SOAK_STEPS);
            assert!(seen > 1000, "seed {seed}, {overlap:?}: hardly anything ran");
        }
    }
}
