//! Jobs go through their records unchanged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sublet_model::{Class, Count, Gpu, GpuIndex, GpuUuid, Milli, Time};
use sublet_plan::Policy;
use sublet_share::{Amount, ComputeRange, Machine, MachineOptions, Pid};

use super::*;
use crate::admin::Mode;

fn machine() -> (Arc<Inventory>, Machine) {
    let gpus = (0..3).map(|index| Gpu {
        uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
        ..Gpu::plain(GpuIndex(index), MiB::from(1 << 20))
    });
    let inventory = Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap();
    let inventory = Arc::new(inventory);
    let machine = Machine::new(MachineOptions {
        inventory: Arc::clone(&inventory),
        policy: Policy::binpack(),
        reserved: MiB::ZERO,
        settled_at: Time::from_ms(0),
        local_jobs: true,
        evict: false,
        evict_over: false,
        evict_overuse: false,
    });
    (inventory, machine)
}

fn asks() -> impl Strategy<Value = JobAsk> {
    let amount = prop_oneof![
        Just(Amount::Whole),
        (1..=1000_u16).prop_map(|share| Amount::Share(Milli::new(share).unwrap())),
        (1..=1_u32 << 20).prop_map(|mib| Amount::Memory(MiB::from(mib))),
    ];
    let compute = (0..=1000_u16, 1..=1000_u16).prop_map(|(one, other)| {
        let milli = |value| Milli::new(value).unwrap();
        let (request, limit) = (one.min(other), one.max(other));
        ComputeRange::new(milli(request), milli(limit)).unwrap()
    });
    let cards = prop::option::of(prop::sample::subsequence(vec![0_usize, 1, 2], 1..=3));
    let rest = (
        prop::option::of(1..1_u32 << 20),
        prop::option::of(amount.clone()),
        any::<bool>(),
        prop::option::of(1..=20_u64),
        -9..=0_i32,
        any::<bool>(),
    );
    ("[^\\p{Cc}]{0,40}", amount, compute, cards, rest).prop_map(
        |(
            name,
            memory,
            compute,
            cards,
            (pinned, request, is_opportunistic, slice, priority, may_wait),
        )| JobAsk {
            name: name.into(),
            memory,
            request: request.unwrap_or(memory),
            pinned: pinned.map(MiB::from),
            compute: match is_opportunistic {
                true => ComputeRange::new(Milli::ZERO, compute.limit()).unwrap(),
                false => compute,
            },
            class: match is_opportunistic {
                true => Class::Opportunistic,
                false => Class::Guaranteed,
            },
            slice: slice.map(Duration::from_millis),
            gpus: Count::new(cards.as_ref().map_or(2, Vec::len) as u32),
            cards: cards.map(|cards| cards.into_iter().collect::<BTreeSet<_>>()),
            user: Some(UserId(1000)),
            priority,
            may_wait,
        },
    )
}

proptest! {
    /// Every request and every limit is read back as it was.
    #[test]
    fn a_job_is_read_back_as_it_was(ask in asks(), limit in 1..=1_u32 << 20) {
        let (inventory, mut machine) = machine();
        let cards = ask.cards.clone().unwrap_or_else(|| BTreeSet::from([0, 2]));
        let parts = cards.iter().map(|card| Holding::of_memory(*card, MiB::from(limit)));
        let parts: Vec<Holding> = parts.collect();
        let job = JobId(4);
        let declared = Event::Declared { job, ask: ask.clone(), parts, promise: None };
        machine.apply(Time::from_ms(0), declared, &mut Vec::new());
        let view = machine.job(job).unwrap();
        let stamp = ProcessStamp::of(Pid(std::process::id())).unwrap();
        let uuids: Vec<String> = cards.iter().map(|card| format!("GPU-{card}")).collect();
        let record = JobRecord::of(&view, stamp, Mode::Compat, &uuids, true).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        prop_assert!(text.len() < 4096, "{}", text);
        let read: JobRecord = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read, &record);
        let again = job_ask(&read, &inventory);
        prop_assert_eq!(again, Ok(ask));
        prop_assert!(read.gpus.iter().all(|gpu| gpu.limit() == MiB::from(limit)));
        prop_assert_eq!(read.gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>(), uuids);
        prop_assert_eq!((read.ask.mode, read.mps), (Mode::Compat, true));
    }
}
