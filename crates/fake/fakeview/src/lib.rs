//! The view of a fake machine's cards for an arbiter, and for commands without one: the machine
//! itself, asked directly. The fake driver's NVML says the same, but it finds its machine by a
//! variable of the process, and these processes are running already. Changes nothing.

use std::sync::Arc;

use sublet_arbiter::{CardBusy, CardReading, GpuView, GpuViewError};
use sublet_fakegpu::FakeMachine;
use sublet_model::{Bytes, Gpu, GpuIndex, GpuUuid, Inventory, Milli};
use sublet_share::Pid;

/// The fake machine, seen from outside.
#[derive(Debug)]
pub struct FakeView(FakeMachine);

impl FakeView {
    /// The view of that machine.
    #[must_use]
    pub fn new(machine: FakeMachine) -> FakeView {
        FakeView(machine)
    }
}

impl GpuView for FakeView {
    fn inventory(&mut self) -> Result<Inventory, GpuViewError> {
        let gpus = self.0.cards().iter().zip(0u16..).map(|(card, index)| Gpu {
            uuid: GpuUuid::new(&card.uuid.to_string()).ok(),
            model: Arc::from(card.name.as_str()),
            minor: Some(index),
            ..Gpu::plain(GpuIndex(index), Bytes::new(card.memory).whole_mib())
        });
        Ok(Inventory::new(gpus.collect(), vec![], vec![], vec![])?)
    }

    fn driver(&self) -> String {
        "fake".to_owned()
    }

    fn read(&mut self) -> Vec<Option<CardReading>> {
        let n_cards = self.0.cards().len();
        let Ok(uses) = self.0.processes() else {
            return vec![None; n_cards];
        };
        let reading = |card| {
            let on_card = uses.iter().filter(|one| one.card == card);
            let used: u64 = on_card.clone().map(|one| one.bytes).sum();
            // Without a number here it is no process that can be named.
            let known = on_card.filter(|one| one.pid != 0);
            Some(CardReading {
                used: Bytes::new(used),
                processes: known
                    .map(|one| (Pid(one.pid), Bytes::new(one.bytes)))
                    .collect(),
            })
        };
        (0..n_cards).map(reading).collect()
    }

    fn busy(&mut self) -> Vec<Option<CardBusy>> {
        let n_cards = self.0.cards().len();
        let Ok(uses) = self.0.processes() else {
            return vec![None; n_cards];
        };
        let busy_on = |card| {
            let on_card = uses.iter().filter(|one| one.card == card && one.pid != 0);
            let each = on_card.map(|one| {
                // Of nanoseconds of a second.
                let thousandths = u16::try_from(one.busy / 1_000_000).ok();
                let part = thousandths.and_then(Milli::new).unwrap_or(Milli::WHOLE);
                (Pid(one.pid), part)
            });
            Some(each.collect())
        };
        (0..n_cards).map(busy_on).collect()
    }
}

#[cfg(test)]
mod tests {
    use sublet_fakegpu::Spec;

    use super::*;

    #[test]
    fn the_cards_are_those_of_the_machine_and_nobody_uses_them() {
        let base = tempfile::tempdir().unwrap();
        let spec = Spec::parse("2x16GiB,name=T4").unwrap();
        let machine = FakeMachine::open_or_create_in(base.path(), &spec).unwrap();
        let uuids: Vec<String> = machine.cards().iter().map(|c| c.uuid.to_string()).collect();
        let mut view = FakeView::new(machine);
        let inventory = view.inventory().unwrap();
        let found = inventory.gpus().iter();
        let found: Vec<String> = found
            .filter_map(|gpu| Some(gpu.uuid.as_ref()?.to_string()))
            .collect();
        assert_eq!(found, uuids);
        assert_eq!(inventory.memory().get(), 32 << 10);
        let idle = CardReading {
            used: Bytes::new(0),
            processes: Vec::new(),
        };
        assert_eq!(view.read(), [Some(idle.clone()), Some(idle)]);
        assert_eq!(view.busy(), [Some(Vec::new()), Some(Vec::new())]);
    }
}
