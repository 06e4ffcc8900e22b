//! The cards for a command that found no arbiter: what the driver says of them, as an arbiter without
//! a job would show it. Starts no thread and no process, takes no lock, and writes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{Bytes, GpuIndex, Inventory, MiB, Time};
use sublet_plan::Policy;
use sublet_share::{Event, Machine, MachineOptions, Reading};

use crate::admin::{GpuRow, Snapshot};
use crate::gpu::{CardReading, GpuView, GpuViewError, UNREADABLE};
use crate::rows::{gpu_row, stranger_row};

/// Time after which nobody can be a process that is about to join its job: an hour.
const LATER_MS: u64 = 3_600_000;

/// Cards that no arbiter looks after.
pub struct UnmanagedGpus {
    view: Box<dyn GpuView>,
    inventory: Arc<Inventory>,
}

impl UnmanagedGpus {
    /// Asks for the cards.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn new(mut view: Box<dyn GpuView>) -> Result<UnmanagedGpus, GpuViewError> {
        let inventory = Arc::new(view.inventory()?);
        Ok(UnmanagedGpus { view, inventory })
    }

    /// The cards now, and the processes on them, which are in no job.
    pub fn snapshot(&mut self) -> Snapshot {
        let readings = self.view.read();
        let machine = self.machine(&readings);
        let gpus = readings.iter().enumerate().map(|(card, reading)| {
            let used = reading.as_ref().map_or(Bytes::new(0), |card| card.used);
            GpuRow {
                // Without an operator's word turns may overlap.
                slices: "overlapping".to_owned(),
                ..gpu_row(&machine, card, used)
            }
        });
        let strangers = machine.strangers();
        Snapshot {
            gpus: gpus.collect(),
            tenants: strangers
                .map(|(pid, on)| stranger_row(&machine, pid, on, None))
                .collect(),
            ..Snapshot::default()
        }
    }

    /// The accounts of a machine without a job.
    fn machine(&self, readings: &[Option<CardReading>]) -> Machine {
        let cards = self.inventory.gpus().iter().zip(readings);
        let unread = cards.filter(|(_, reading)| reading.is_none());
        let unread: BTreeSet<GpuIndex> = unread.map(|(gpu, _)| gpu.index).collect();
        let mut machine = Machine::new(MachineOptions {
            inventory: Arc::new(self.inventory.with_sick(&unread, UNREADABLE)),
            policy: Policy::binpack(),
            reserved: MiB::ZERO,
            settled_at: Time::from_ms(0),
            local_jobs: true,
            evict: false,
            evict_over: false,
            evict_overuse: false,
        });
        let readings = readings.iter().map(|card| {
            card.as_ref().map(|card| Reading {
                processes: card.processes.clone(),
            })
        });
        let cards: Vec<Option<Reading>> = readings.collect();
        // An arbiter gives a process some time to join its job. Here is no job to join.
        for now in [0, LATER_MS] {
            let read = Event::Read {
                cards: cards.clone(),
                slots: Vec::new(),
                ledgers: Vec::new(),
                may_return: BTreeSet::new(),
            };
            machine.apply(Time::from_ms(now), read, &mut Vec::new());
        }
        machine
    }
}

#[cfg(test)]
mod tests {
    use sublet_model::Gpu;
    use sublet_share::Pid;

    use super::*;

    /// Three cards; the last one cannot be read.
    struct View;

    impl GpuView for View {
        fn inventory(&mut self) -> Result<Inventory, GpuViewError> {
            let gpu = |index| Gpu::plain(GpuIndex(index), MiB::from(1024));
            Ok(Inventory::new(
                (0..3).map(gpu).collect(),
                vec![],
                vec![],
                vec![],
            )?)
        }

        fn driver(&self) -> String {
            "of these tests".to_owned()
        }

        fn read(&mut self) -> Vec<Option<CardReading>> {
            let card = |processes: &[(u32, u64)]| {
                let processes = processes.iter();
                Some(CardReading {
                    used: Bytes::new(300 << 20),
                    processes: processes
                        .map(|(pid, mib)| (Pid(*pid), Bytes::new(mib << 20)))
                        .collect(),
                })
            };
            let own = std::process::id();
            vec![
                card(&[(own, 100), (u32::MAX, 150)]),
                card(&[(own, 200)]),
                None,
            ]
        }
    }

    #[test]
    fn who_uses_a_card_is_shown_and_kept_from_jobs() {
        let mut unmanaged = UnmanagedGpus::new(Box::new(View)).unwrap();
        // A look changes nothing for the next one.
        for _ in 0..2 {
            let snapshot = unmanaged.snapshot();
            let gpus = snapshot.gpus.iter();
            let figures: Vec<_> = gpus
                .map(|gpu| (gpu.used_mib, gpu.granted_mib, gpu.kept_mib, gpu.free_mib))
                .collect();
            assert_eq!(
                figures[..2],
                [(300, 0, 250, 774), (300, 0, 200, 824)],
                "{snapshot:?}"
            );
            // Nothing is measured here, and so nothing is said of it.
            let rows = serde_json::to_value(&snapshot.gpus).unwrap();
            assert_eq!(rows[0].get("contextMiB"), None, "{rows}");
            let again: Vec<GpuRow> = serde_json::from_value(rows).unwrap();
            assert_eq!(again, snapshot.gpus);
            let sick: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.sick.is_some()).collect();
            assert_eq!(sick, [false, false, true]);
            let [own, other] = &snapshot.tenants[..] else {
                panic!("{snapshot:?}");
            };
            assert_eq!((own.id, &*own.state), (None, "unmanaged"));
            assert_eq!(own.pids, [std::process::id()]);
            assert_eq!((own.gpus.clone(), own.memory_used_mib), (vec![0, 1], 200));
            assert_eq!(
                (other.pids.clone(), other.gpus.clone()),
                (vec![u32::MAX], vec![0])
            );
        }
    }
}
