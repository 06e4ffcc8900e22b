//! The ways to get memory, by the names that they have on the command line.
//!
//! `allocator` has the actions of each.

use clap::ValueEnum;

/// A way to get memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// cuMemAlloc
    Plain,
    /// cuMemAllocPitch
    Pitch,
    /// cuMemAllocManaged
    Managed,
    /// cuMemAllocAsync, from the device's own pool
    Async,
    /// cuMemAllocFromPoolAsync, from a pool of ours
    Pool,
    /// cuMemCreate, cuMemMap, cuMemSetAccess
    Vmm,
    /// cuArray3DCreate
    Array,
    /// cuMipmappedArrayCreate
    Mipmap,
    /// a graph with an allocation node, launched
    Graph,
    /// a graph with branches that use memory one after the other
    Branches,
    /// a graph that a stream's cuMemAllocAsync was recorded into, launched
    Capture,
    /// a graph with an allocation node that was moved into another one, launched
    Nested,
    /// cuMulticastBindMem of a handle that is then released
    Multicast,
    /// cuMemExportToShareableHandle of a handle that is then released
    Descriptor,
    /// cuMemGetHandleForAddressRange of memory that is then freed
    DmaBuf,
    /// cuMemMapArrayAsync of a handle that is then released
    Sparse,
    /// cuIpcOpenMemHandle of another process's cuMemAlloc
    Ipc,
    /// cuExternalMemoryGetMappedBuffer of an import that is then destroyed
    External,
    /// cuExternalMemoryGetMappedMipmappedArray of such an import
    ExternalArray,
    /// cuMemAllocHost
    Host,
    /// cuMemHostAlloc
    HostAlloc,
    /// cuMemHostRegister of memory of ours
    HostRegister,
    /// as vmm, with memory of the host
    HostVmm,
    /// as vmm, with memory of the host's first NUMA node
    HostNuma,
    /// as pool, with a pool on the host
    HostPool,
}

impl Path {
    /// Whether a card's memory limits this way. The others would take the machine's memory instead.
    pub(crate) fn ends_with_the_card(self) -> bool {
        !matches!(self, Self::Managed) && !self.is_on_the_host()
    }

    /// Whether the driver pins the machine's memory for this way, and takes no memory of the card.
    pub(crate) fn is_on_the_host(self) -> bool {
        match self {
            Self::Host
            | Self::HostAlloc
            | Self::HostRegister
            | Self::HostVmm
            | Self::HostNuma
            | Self::HostPool => true,
            Self::Plain
            | Self::Pitch
            | Self::Managed
            | Self::Async
            | Self::Pool
            | Self::Vmm
            | Self::Array
            | Self::Mipmap
            | Self::Graph
            | Self::Branches
            | Self::Capture
            | Self::Nested
            | Self::External
            | Self::ExternalArray
            | Self::Multicast
            | Self::Descriptor
            | Self::DmaBuf
            | Self::Sparse
            | Self::Ipc => false,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Path, ValueEnum};

    #[test]
    fn managed_memory_and_the_hosts_are_not_bounded_by_the_card() {
        let unbounded: Vec<String> = Path::value_variants()
            .iter()
            .filter(|path| !path.ends_with_the_card())
            .map(|path| path.name())
            .collect();
        let expected = [
            "managed",
            "host",
            "host-alloc",
            "host-register",
            "host-vmm",
            "host-numa",
            "host-pool",
        ];
        assert_eq!(unbounded, expected);
    }
}
