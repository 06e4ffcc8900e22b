//! Memory of a card, and the memory in use.

use sublet_driver_api::nvml::{
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t,
    nvmlMemory_v2, nvmlMemory_v2_t,
};

use super::exported::{Answer, functions};
use super::library::{card, of_machine};
use super::pointer::Out;
use crate::machine::CardUse;

/// Memory of a card that the driver reserves. None: a SPEC states the memory for programs. A real
/// card's total is larger, and would be one figure more to explain.
const RESERVED: u64 = 0;

functions! {
    /// The first version knows no reserved memory and counts it as used.
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>) {
        let usage = usage(device)?;
        memory.write(nvmlMemory_t {
            total: usage.total + RESERVED,
            free: usage.free,
            used: usage.used + RESERVED,
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: Out<nvmlMemory_v2_t>) {
        let usage = usage(device)?;
        let version = memory.read()?.version;
        if version != nvmlMemory_v2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        memory.write(nvmlMemory_v2_t {
            version,
            total: usage.total + RESERVED,
            reserved: RESERVED,
            free: usage.free,
            used: usage.used,
        })
    }

    /// Data-centre cards show all of their memory to the bus, in a power of two. Nobody
    /// maps any of it here.
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, memory: Out<nvmlBAR1Memory_t>) {
        let total = card(device)?.info().memory.next_power_of_two();
        memory.write(nvmlBAR1Memory_t {
            bar1Total: total,
            bar1Free: total,
            bar1Used: 0,
        })
    }
}

fn usage(device: nvmlDevice_t) -> Answer<CardUse> {
    let card = card(device)?;
    let index = card.info().index;
    card.machine().usage(index).map_err(of_machine)
}
