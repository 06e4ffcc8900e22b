//! Links of cards to each other and to the machine. A SPEC does not state them, so all cards hang
//! on one NUMA node, each below a host bridge of its own, without NVLink.

use sublet_driver_api::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNKNOWN, NVML_NVLINK_MAX_LINKS, NVML_P2P_CAPS_INDEX_NVLINK,
    NVML_P2P_CAPS_INDEX_UNKNOWN, NVML_P2P_STATUS_NOT_SUPPORTED, NVML_P2P_STATUS_OK,
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM, nvmlDevice_t,
    nvmlEnableState_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t,
    nvmlPciInfo_t,
};

use super::exported::{Answer, functions};
use super::library::{card, handle, machine};
use super::pointer::Out;

/// Bits in one word of a set of CPUs or nodes.
const WORD: u32 = u64::BITS;

functions! {
    fn nvmlDeviceGetTopologyCommonAncestor(
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        level: Out<nvmlGpuTopologyLevel_t>,
    ) {
        let (one, other) = (card(one)?, card(other)?);
        let is_same = one.info().index == other.info().index;
        level.write(if is_same { NVML_TOPOLOGY_INTERNAL } else { NVML_TOPOLOGY_NODE })
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        device: nvmlDevice_t,
        level: nvmlGpuTopologyLevel_t,
        count: Out<u32>,
        devices: Out<nvmlDevice_t>,
    ) {
        let card = card(device)?;
        if level > NVML_TOPOLOGY_SYSTEM {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let others = card.machine().cards().iter().filter(|other| {
            level == NVML_TOPOLOGY_NODE && other.index != card.info().index
        });
        let others: Vec<_> = others.map(|other| handle(other.index)).collect();
        near(count, devices, &others)
    }

    /// The cards near a CPU: all of them, as there is one node.
    fn nvmlSystemGetTopologyGpuSet(cpu: u32, count: Out<u32>, devices: Out<nvmlDevice_t>) {
        let machine = machine()?;
        if cpu >= n_cpus() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let all: Vec<_> = (0..machine.cards().len()).map(handle).collect();
        near(count, devices, &all)
    }

    /// Kernels reach other cards' memory, as the CUDA twin says too, but not by NVLink.
    fn nvmlDeviceGetP2PStatus(
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        kind: nvmlGpuP2PCapsIndex_t,
        status: Out<nvmlGpuP2PStatus_t>,
    ) {
        card(one)?;
        card(other)?;
        if kind >= NVML_P2P_CAPS_INDEX_UNKNOWN {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let is_there = kind != NVML_P2P_CAPS_INDEX_NVLINK;
        status.write(if is_there { NVML_P2P_STATUS_OK } else { NVML_P2P_STATUS_NOT_SUPPORTED })
    }

    fn nvmlDeviceGetNvLinkState(
        device: nvmlDevice_t,
        link: u32,
        is_active: Out<nvmlEnableState_t>,
    ) {
        no_link(device, link, is_active.is_null())
    }

    fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: u32, version: Out<u32>) {
        no_link(device, link, version.is_null())
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(
        device: nvmlDevice_t,
        link: u32,
        pci: Out<nvmlPciInfo_t>,
    ) {
        no_link(device, link, pci.is_null())
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t,
        link: u32,
        pci: Out<nvmlPciInfo_t>,
    ) {
        no_link(device, link, pci.is_null())
    }

    fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, size: u32, set: Out<u64>) {
        card(device)?;
        bits(size, set, n_cpus())
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: nvmlDevice_t,
        size: u32,
        set: Out<u64>,
        _scope: u32,
    ) {
        card(device)?;
        bits(size, set, n_cpus())
    }

    fn nvmlDeviceGetMemoryAffinity(device: nvmlDevice_t, size: u32, set: Out<u64>, _scope: u32) {
        card(device)?;
        bits(size, set, 1)
    }

    /// Not a setting of the card: it moves the calling thread near to it.
    fn nvmlDeviceSetCpuAffinity(device: nvmlDevice_t) {
        card(device)?;
        use_all_cpus()
    }

    fn nvmlDeviceClearCpuAffinity(device: nvmlDevice_t) {
        card(device)?;
        use_all_cpus()
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, generation: Out<u32>) {
        generation.write(card(device)?.product().pcie)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, generation: Out<u32>) {
        generation.write(card(device)?.product().pcie)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, generation: Out<u32>) {
        generation.write(card(device)?.product().pcie)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, lanes: Out<u32>) {
        card(device)?;
        lanes.write(16)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, lanes: Out<u32>) {
        card(device)?;
        lanes.write(16)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, count: Out<u32>) {
        card(device)?;
        count.write(0)
    }
}

/// A list of cards. Unlike other lists, one asked for without room succeeds and says how
/// many there are.
fn near(count: Out<u32>, devices: Out<nvmlDevice_t>, found: &[nvmlDevice_t]) -> Answer {
    let room = count.read()? as usize;
    count.write(u32::try_from(found.len()).unwrap_or(u32::MAX))?;
    if room == 0 {
        return Ok(());
    }
    if found.len() > room {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    devices.fill(room, found)
}

fn no_link(device: nvmlDevice_t, link: u32, is_unanswerable: bool) -> Answer {
    card(device)?;
    if link >= NVML_NVLINK_MAX_LINKS || is_unanswerable {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    Err(NVML_ERROR_NOT_SUPPORTED)
}

/// Writes a set of the first `n_bits` members into `size` words.
fn bits(size: u32, set: Out<u64>, n_bits: u32) -> Answer {
    if size == 0 {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    for word in 0..size {
        let left = n_bits.saturating_sub(word.saturating_mul(WORD));
        let value = if left >= WORD {
            u64::MAX
        } else {
            (1 << left) - 1
        };
        set.check()?.at(word as usize).write(value)?;
    }
    Ok(())
}

/// The CPUs of the real machine that are switched on.
fn n_cpus() -> u32 {
    // SAFETY: takes a number, gives a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(count).unwrap_or(1).max(1)
}

/// Every CPU is near to every card.
fn use_all_cpus() -> Answer {
    // SAFETY: a set of CPUs is a field of bits, and zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in 0..n_cpus().min(libc::CPU_SETSIZE.cast_unsigned()) {
        // SAFETY: the set has room for that number.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: 0 is the calling thread; the set outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result == 0 {
        Ok(())
    } else {
        Err(NVML_ERROR_UNKNOWN)
    }
}
