//! `cuDeviceGetAttribute`: the properties of a card, one number at a time. Numbers that depend on
//! the product come from [`Product`], as in the NVML twin. The rest is the same for every CUDA
//! card, or describes this driver.

use sublet_driver_api::cuda as c;
use sublet_driver_api::cuda::CUdevice_attribute;

use crate::driver::result::{Answer, Code};
use crate::machine::CardInfo;
use crate::product::Product;

/// Features that a card or a driver may lack, and the fake has.
const ABLE: [CUdevice_attribute; 27] = [
    c::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP,
    c::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
    c::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS,
    c::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
    c::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    c::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    c::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    c::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
    c::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1,
    c::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
    c::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
    c::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
];

/// As [`ABLE`]: memory of the host in pools and behind addresses.
const ABLE_ON_HOST: [CUdevice_attribute; 3] = [
    c::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
    c::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
];

/// The value of an attribute by C's number; `product` is that of the card, as the process has it.
pub(crate) fn attribute_of(card: &CardInfo, product: &Product, attribute: u32) -> Answer<i32> {
    let asked = CUdevice_attribute(attribute);
    of_pci_address(card, product, asked)
        .or_else(|| of_product(product, asked))
        .or_else(|| of_every_card(asked))
        .or_else(|| of_texture(asked))
        .or_else(|| ability(asked))
        .ok_or(Code::INVALID_VALUE)
}

/// Returns the card's place on the bus, and its product's number on PCI.
fn of_pci_address(card: &CardInfo, product: &Product, asked: CUdevice_attribute) -> Option<i32> {
    let address = card.pci_address;
    Some(match asked {
        c::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => address.domain.cast_signed(),
        c::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => address.bus.into(),
        c::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => address.device.into(),
        c::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID | c::CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID => {
            product.pci_id().cast_signed()
        }
        _ => return None,
    })
}

/// Returns a property of the product.
fn of_product(product: &Product, asked: CUdevice_attribute) -> Option<i32> {
    let core = product.multiprocessor();
    let since = |capability: (i32, i32), value: u32| {
        if product.capability >= capability {
            value
        } else {
            0
        }
    };
    let value = match asked {
        c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => return Some(product.capability.0),
        c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => return Some(product.capability.1),
        c::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => product.n_multiprocessors,
        // In kHz.
        c::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => product.graphics_mhz * 1000,
        c::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => product.memory_mhz * 1000,
        c::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => product.bus_bits,
        c::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => product.l2_kib << 10,
        // Five eighths of the cache, on the cards that can keep anything there.
        c::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE => {
            since((8, 0), (product.l2_kib << 10) / 8 * 5)
        }
        c::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE => since((8, 0), 134_213_632),
        c::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => core.n_threads,
        c::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => core.n_blocks,
        c::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => core.shared,
        c::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => core.shared_of_block,
        c::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => core.shared_reserved,
        c::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => core.double_ratio,
        c::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => since((9, 0), 1),
        c::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => since((9, 0), 4).max(1),
        _ => return None,
    };
    Some(value.cast_signed())
}

/// Returns properties that every card has had for many years, and settings of our cards.
fn of_every_card(asked: CUdevice_attribute) -> Option<i32> {
    Some(match asked {
        c::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | c::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | c::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => 1024,
        c::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        c::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X | c::CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX,
        c::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | c::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65535,
        c::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        c::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY
        | c::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | c::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 64 << 10,
        c::CU_DEVICE_ATTRIBUTE_WARP_SIZE | c::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        c::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | c::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        c::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        c::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS => 1,
        c::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING => 100,
        c::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => {
            c::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0.cast_signed()
        }
        // Near no node in particular.
        c::CU_DEVICE_ATTRIBUTE_NUMA_ID | c::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => -1,
        _ => return None,
    })
}

/// Returns the size limits of textures and surfaces. There are none here, but programs print the
/// limits.
fn of_texture(asked: CUdevice_attribute) -> Option<i32> {
    Some(match asked.0 {
        21 | 22 => 131_072,
        23 => 65536,
        24 | 25 | 26 | 47 | 48 | 49 => 16384,
        29 | 43 | 62 | 65 => 2048,
        44 => 1,
        54 | 68 => 2046,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65000,
        72 => 2_097_120,
        27 | 28 | 42 | 45 | 46 | 52..=74 | 77 => 32768,
        _ => return None,
    })
}

/// Whether the fake can do something; it cannot if CUDA asks and we do not say so.
fn ability(asked: CUdevice_attribute) -> Option<i32> {
    let is_asked = (1..c::CU_DEVICE_ATTRIBUTE_MAX.0).contains(&asked.0);
    let is_able = ABLE.contains(&asked) || ABLE_ON_HOST.contains(&asked);
    is_asked.then_some(i32::from(is_able))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::pci_address_of;
    use crate::spec::CardUuid;

    fn card(name: &str) -> CardInfo {
        CardInfo {
            index: 0,
            uuid: CardUuid([0; 16]),
            name: name.to_owned(),
            memory: 1 << 30,
            context: 0,
            pci_address: pci_address_of(0),
            minor: 0,
        }
    }

    fn of(card: &CardInfo, attribute: u32) -> Answer<i32> {
        attribute_of(card, &Product::of(&card.name), attribute)
    }

    #[test]
    fn whatever_a_header_names_is_answered_and_nothing_else() {
        let last = c::CU_DEVICE_ATTRIBUTE_MAX.0;
        for name in ["", "NVIDIA B200", "Tesla V100-SXM2-32GB"] {
            let card = card(name);
            for attribute in 1..last {
                assert!(of(&card, attribute).is_ok(), "{attribute}");
            }
            for attribute in [0, last, u32::MAX] {
                assert_eq!(of(&card, attribute), Err(Code::INVALID_VALUE));
            }
        }
    }

    #[test]
    fn what_the_fake_can_do_is_not_a_figure_of_a_card() {
        let able = ABLE.into_iter().chain(ABLE_ON_HOST);
        for attribute in able {
            assert_eq!(of(&card(""), attribute.0), Ok(1), "{attribute:?}");
        }
    }

    #[test]
    fn figures_follow_the_product() {
        let ask = |name, attribute: CUdevice_attribute| of(&card(name), attribute.0);
        let cache = c::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        assert_eq!(ask("NVIDIA H100", cache), Ok(50 << 20));
        assert_eq!(ask("NVIDIA A100", cache), Ok(40 << 20));
        let kept = c::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE;
        assert_eq!(
            (ask("NVIDIA H100", kept), ask("Tesla T4", kept)),
            (Ok(32_768_000), Ok(0))
        );
    }
}
