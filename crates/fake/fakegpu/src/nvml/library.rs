//! Whether the library is started, on which machine, and which card a handle means.
//! Starting is counted: the last `nvmlShutdown` ends it, as in the real library.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet_driver_api::nvml::{
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_OPERATING_SYSTEM, NVML_ERROR_UNINITIALIZED, nvmlDevice_t, nvmlReturn_t,
};

use super::event;
use super::exported::Answer;
use crate::machine::{CardInfo, FakeMachine, MachineError, ProcessUse, VARIABLE};
use crate::product::Product;
use crate::spec::CARDS_MAX;

struct Library {
    n_starts: u32,
    machine: Option<Arc<FakeMachine>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    n_starts: 0,
    machine: None,
});

/// The address of a byte of this is the handle of a card: unlike anything else in the
/// process, and never null.
static HANDLES: [u8; CARDS_MAX] = [0; CARDS_MAX];

fn lock() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the library. A process without a machine has no driver.
pub(super) fn start() -> Answer {
    let mut library = lock();
    if library.machine.is_none() {
        let text = std::env::var(VARIABLE).map_err(|_| NVML_ERROR_DRIVER_NOT_LOADED)?;
        let machine = FakeMachine::from_text(&text).map_err(|error| match error {
            MachineError::Owner { .. } => NVML_ERROR_NO_PERMISSION,
            _ => NVML_ERROR_DRIVER_NOT_LOADED,
        })?;
        library.machine = Some(Arc::new(machine));
    }
    library.n_starts += 1;
    Ok(())
}

/// Takes back one start.
pub(super) fn stop() -> Answer {
    let mut library = lock();
    let left = library.n_starts.checked_sub(1);
    library.n_starts = left.ok_or(NVML_ERROR_UNINITIALIZED)?;
    if library.n_starts == 0 {
        library.machine = None;
        event::free_all();
    }
    Ok(())
}

/// The machine, if the library is started.
pub(super) fn machine() -> Answer<Arc<FakeMachine>> {
    lock().machine.clone().ok_or(NVML_ERROR_UNINITIALIZED)
}

/// A card and the machine it is in.
pub(super) struct Card {
    machine: Arc<FakeMachine>,
    index: usize,
}

impl Card {
    /// Returns its properties that do not change.
    pub(super) fn info(&self) -> &CardInfo {
        &self.machine.cards()[self.index]
    }

    pub(super) fn product(&self) -> Product {
        Product::of(&self.info().name)
    }

    pub(super) fn machine(&self) -> &FakeMachine {
        &self.machine
    }

    /// Returns the processes that use it. A process without a PID in our namespace is left out, as
    /// in the real driver.
    pub(super) fn processes(&self) -> Answer<Vec<ProcessUse>> {
        let users = self.machine.processes_on(self.index);
        let mut processes = users.map_err(of_machine)?;
        processes.retain(|process| process.pid != 0);
        Ok(processes)
    }

    /// Percent of the last second in which it worked.
    pub(super) fn percent_busy(&self) -> u32 {
        percent(self.machine.busy(self.index))
    }
}

/// Nanoseconds of a second as percent. The real library has whole percents too; rounded,
/// as the slice that is just running is not counted yet.
pub(super) fn percent(busy: u64) -> u32 {
    let percent = (busy + 5_000_000) / 10_000_000;
    u32::try_from(percent).unwrap_or(100).min(100)
}

/// The card that a handle means.
pub(super) fn card(device: nvmlDevice_t) -> Answer<Card> {
    let machine = machine()?;
    let index = device.0.wrapping_sub(HANDLES.as_ptr() as usize);
    if index >= machine.cards().len() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    Ok(Card { machine, index })
}

/// The handle of card number `index`.
pub(super) fn handle(index: usize) -> nvmlDevice_t {
    nvmlDevice_t(HANDLES.as_ptr() as usize + index)
}

/// The code for a machine that cannot be read.
pub(super) fn of_machine(_: MachineError) -> nvmlReturn_t {
    NVML_ERROR_OPERATING_SYSTEM
}
