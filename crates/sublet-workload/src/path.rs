//! The ways to get memory, by the names that they have on the command line.
//!
//! What each does is in `blocks`.

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
    /// cuIpcOpenMemHandle of another process's cuMemAlloc
    Ipc,
    /// cuMemAllocHost
    Host,
}

impl Path {
    /// Whether a card's memory bounds it. The others would take the machine's memory instead.
    pub(crate) fn ends_with_the_card(self) -> bool {
        !matches!(self, Self::Managed | Self::Host)
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
    fn only_two_ways_are_not_bounded_by_the_card() {
        let unbounded: Vec<String> = Path::value_variants()
            .iter()
            .filter(|path| !path.ends_with_the_card())
            .map(|path| path.name())
            .collect();
        assert_eq!(unbounded, ["managed", "host"]);
    }
}
