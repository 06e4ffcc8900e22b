//! Traces at random, by every discipline: the rules that must hold at every moment of each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sublet_model::GpuIndex;

use super::*;

/// A job of a list, as text says it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    gpus: u32,
    at: u64,
    lasts: u64,
    tenant: u32,
    priority: i32,
    /// Thousandths of the card, for a job of one GPU.
    milli: u32,
}

fn any_job() -> impl Strategy<Value = Asked> {
    let milli = prop::sample::select(vec![1000, 1000, 300]);
    (0..8u32, 0..40u64, 0..30u64, 0..3u32, 0..3i32, milli).prop_map(
        |(gpus, at, lasts, tenant, priority, milli)| Asked {
            gpus,
            at,
            lasts,
            tenant,
            priority,
            milli,
        },
    )
}

fn story(cards: &[u16], jobs: &[Asked], interval: u64) -> Story {
    let line = |job: &Asked| {
        let Asked {
            gpus,
            at,
            lasts,
            tenant,
            priority,
            milli,
        } = job;
        let milli = if *gpus == 1 {
            milli.to_string()
        } else {
            String::new()
        };
        format!("{gpus},{at},{lasts},t{tenant},{priority},1,1,{milli}")
    };
    let lines: Vec<String> = jobs.iter().map(line).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    Story {
        interval,
        ..Story::new(cards, &lines)
    }
}

/// Card by card, the amount in use, in MiB of 1000.
type Taken = BTreeMap<(String, GpuIndex), u32>;

/// The notes on a replay while it goes on.
#[derive(Default)]
struct Watch {
    taken: Taken,
    /// Each tenant has nodes of its own, which have the same names.
    is_apart: bool,
    /// By row, the slots of the running jobs, and since when they run.
    running: BTreeMap<u32, (Vec<Slot>, u64)>,
    /// Jobs that have come and have no place.
    waiting: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    evictions: u64,
}

impl Watch {
    fn see(&mut self, jobs: &[Asked], event: &ReplayEvent<'_>) {
        let job = jobs[event.row as usize];
        match event.step {
            ReplayStep::Comes => {
                assert_eq!(event.at, job.at);
                assert!(self.waiting.insert(event.row));
            }
            ReplayStep::Starts(slots) => {
                assert!(self.waiting.remove(&event.row), "it has come, and waits");
                assert!(event.at >= job.at, "before it came");
                let cards = slots.iter().map(|slot| slot.allocation.grants.len());
                assert_eq!(cards.sum::<usize>(), job.gpus as usize, "all of it starts");
                self.change(job, slots, true);
                self.running.insert(event.row, (slots.to_vec(), event.at));
            }
            ReplayStep::Ends | ReplayStep::Evicted => {
                let (slots, since) = self.running.remove(&event.row).expect("it runs");
                self.change(job, &slots, false);
                if event.step == ReplayStep::Ends {
                    assert_eq!(event.at - since, job.lasts, "it ran as long as it had to");
                    assert!(self.ended.insert(event.row), "it ends once");
                } else {
                    self.waiting.insert(event.row);
                    self.evictions += 1;
                }
            }
        }
    }

    fn change(&mut self, job: Asked, slots: &[Slot], taken: bool) {
        for slot in slots {
            for grant in &slot.allocation.grants {
                let node = match self.is_apart {
                    true => format!("{}'s {}", job.tenant, slot.node),
                    false => slot.node.to_string(),
                };
                let card = (node, grant.card.index);
                let of = self.taken.entry(card).or_default();
                let memory = grant.memory.get() as u32;
                *of = if taken { *of + memory } else { *of - memory };
                assert!(*of <= 1000, "a card is over-used: {slot:?}");
            }
        }
    }

    /// When a job would have a place, if nothing came any more and nothing else started.
    fn earliest(&self, cards: &[u16], jobs: &[Asked], largest: u32, row: u32) -> u64 {
        let mut free = self.free(cards);
        let ends = self.running.iter().map(|(row, (slots, since))| {
            let end = since + jobs[*row as usize].lasts;
            (end, slots)
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(end, _)| *end);
        for (end, slots) in ends {
            for slot in slots {
                let node: usize = slot.node.as_str()[1..].parse().unwrap();
                free[node] += slot.allocation.grants.len() as u32;
            }
            if fits(&free, largest, jobs[row as usize].gpus) {
                return end;
            }
        }
        panic!("it has a place on empty nodes")
    }

    /// Whole cards that are free on each node.
    fn free(&self, cards: &[u16]) -> Vec<u32> {
        let of = |(at, cards): (usize, &u16)| {
            let name = format!("n{at}");
            let taken = self.taken.iter();
            let taken = taken.filter(|((node, _), milli)| *node == name && **milli > 0);
            u32::from(*cards) - taken.count() as u32
        };
        cards.iter().enumerate().map(of).collect()
    }
}

/// Would a job of so many whole GPUs have a place?
fn fits(free: &[u32], largest: u32, gpus: u32) -> bool {
    let (whole, rest) = match gpus > largest {
        true => (gpus / largest, gpus % largest),
        false => (0, gpus),
    };
    let full = free.iter().filter(|free| **free >= largest).count() as u32;
    let below = free.iter().any(|free| *free < largest && *free >= rest);
    full > whole || full == whole && (rest == 0 || below)
}

fn any_world() -> impl Strategy<Value = (Vec<u16>, Vec<Asked>)> {
    let cards = prop::collection::vec(1..5u16, 1..4);
    (cards, prop::collection::vec(any_job(), 1..30))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_job_that_fits_ends_and_no_card_is_over_used(
        (cards, jobs) in any_world(),
        interval in prop::sample::select(vec![0, 7]),
        discipline in 0..DISCIPLINES.len(),
    ) {
        let story = story(&cards, &jobs, interval);
        let is_apart = DISCIPLINES[discipline].is_apart();
        let mut watch = Watch { is_apart, ..Watch::default() };
        let largest = u32::from(*cards.iter().max().unwrap());
        let empty: Vec<u32> = cards.iter().copied().map(u32::from).collect();
        let possible = |job: &&Asked| fits(&empty, largest, job.gpus);
        let possible = jobs.iter().filter(possible).count();
        let name = DISCIPLINES[discipline].name();
        let outcome = story.play(name, &mut |event| watch.see(&jobs, &event));
        if possible == 0 {
            prop_assert_eq!(outcome, Err(ReplayError::NoJobs));
            return Ok(());
        }
        let outcome = outcome.unwrap();
        let never = outcome.too_large;
        prop_assert_eq!((outcome.ended + never, outcome.left), (possible, 0));
        prop_assert!(never == 0 || is_apart);
        prop_assert_eq!(outcome.impossible.0 as usize, jobs.len() - possible);
        prop_assert_eq!(watch.ended.len(), possible - never);
        prop_assert_eq!(watch.evictions, outcome.evictions);
        prop_assert!(outcome.ends_empty && watch.running.is_empty());
        prop_assert!(outcome.evictions == 0 || name == "sublet");
        let waits: usize = outcome.sizes.iter().map(|size| size.waits.len()).sum();
        prop_assert_eq!(waits, possible - never);
        // Partitions together can be more than the cluster: they are rounded up.
        let used = outcome.useful_percent + outcome.lost_percent;
        prop_assert!(used <= 100.0 + 1e-9 || is_apart);
    }

    #[test]
    fn nobody_passes_the_first_where_the_rule_says_so((cards, jobs) in any_world()) {
        let story = story(&cards, &jobs, 0);
        let key = |row: u32| {
            let job = jobs[row as usize];
            (Reverse(job.priority), job.at, row)
        };
        for (name, one_line) in [("fifo", true), ("heads-strict", false)] {
            let mut watch = Watch::default();
            let mut passed = Vec::new();
            let played = story.play(name, &mut |event| {
                watch.see(&jobs, &event);
                if matches!(event.step, ReplayStep::Starts(_)) {
                    let alike = |other: &&u32| {
                        let tenant = |row: u32| jobs[row as usize].tenant;
                        one_line || tenant(**other) == tenant(event.row)
                    };
                    let before = |other: &&u32| key(**other) < key(event.row);
                    let first = watch.waiting.iter().filter(alike).find(before);
                    passed.extend(first.map(|first| (*first, event.row)));
                }
            });
            prop_assert!(played.is_ok() || played == Err(ReplayError::NoJobs));
            prop_assert_eq!(passed, vec![], "{}", name);
        }
    }

    #[test]
    fn nothing_stands_idle_that_somebody_could_use((cards, jobs) in any_world()) {
        // Whole cards: how parts of them fit is the engine's own matter.
        let whole = |job: &Asked| Asked { milli: 1000, ..*job };
        let jobs: Vec<Asked> = jobs.iter().map(whole).collect();
        let largest = u32::from(*cards.iter().max().unwrap());
        let story = story(&cards, &jobs, 0);
        for name in ["backfill", "heads"] {
            let mut watch = Watch::default();
            let (mut now, mut idle) = (0, Vec::new());
            let played = story.play(name, &mut |event| {
                if event.at > now {
                    let free = watch.free(&cards);
                    let could = |row: &&u32| fits(&free, largest, jobs[**row as usize].gpus);
                    idle.extend(watch.waiting.iter().find(could).map(|row| (now, *row)));
                    now = event.at;
                }
                watch.see(&jobs, &event);
            });
            prop_assert!(played.is_ok() || played == Err(ReplayError::NoJobs));
            prop_assert_eq!(idle, vec![], "{}", name);
        }
    }

    #[test]
    fn with_easy_the_first_of_the_line_starts_no_later_than_it_could((cards, jobs) in any_world()) {
        let plain = |job: &Asked| Asked { milli: 1000, priority: 0, ..*job };
        let jobs: Vec<Asked> = jobs.iter().map(plain).collect();
        let largest = u32::from(*cards.iter().max().unwrap());
        let story = story(&cards, &jobs, 0);
        let (mut watch, mut now) = (Watch::default(), 0);
        let (mut promised, mut late) = (BTreeMap::new(), Vec::new());
        let played = story.play("easy", &mut |event| {
            if event.at > now {
                // The state at the end of a moment.
                let first = watch.waiting.iter().min_by_key(|row| (jobs[**row as usize].at, **row));
                if let Some(&first) = first {
                    let at = watch.earliest(&cards, &jobs, largest, first);
                    promised.entry(first).or_insert(at);
                }
                now = event.at;
            }
            watch.see(&jobs, &event);
            let starts = matches!(event.step, ReplayStep::Starts(_));
            if starts && promised.get(&event.row).is_some_and(|at| event.at > *at) {
                late.push((event.row, event.at));
            }
        });
        prop_assert!(played.is_ok() || played == Err(ReplayError::NoJobs));
        prop_assert_eq!(late, vec![]);
    }

    #[test]
    fn a_tenant_alone_has_on_its_partition_what_it_has_in_a_cluster_of_that_size(
        (cards, jobs) in any_world(),
        interval in prop::sample::select(vec![0, 7]),
    ) {
        let one = |job: &Asked| Asked { tenant: 0, ..*job };
        let jobs: Vec<Asked> = jobs.iter().map(one).collect();
        let gpus: u16 = cards.iter().sum();
        let story = story(&cards, &jobs, interval).with_quotas(&format!("t0,{gpus}\n"));
        let [apart, shared] = ["partitions", "backfill"].map(|name| {
            let mut told = String::new();
            let outcome = story.play(name, &mut |event| told += &format!("{event:?}\n"));
            (told, outcome)
        });
        prop_assert_eq!(&apart, &shared);
        if let Ok(outcome) = shared.1 {
            let alone = outcome.tenants[0].alone.as_ref().unwrap();
            prop_assert_eq!((alone.gpus, alone.lag_seconds), (u64::from(gpus), 0));
            prop_assert_eq!(&alone.waits, &outcome.tenants[0].waits);
            prop_assert!(alone.is_no_worse_here());
        }
    }
}
