//! Functions that the two libraries export, and the look-up of one.
//!
//! Sorted by symbol. The look-up by version answers as `cuGetProcAddress` does; it never
//! decides whether a driver that is present has the function.

use std::ops::Deref;

/// Treatment of the default stream by a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thread {
    /// One default stream for all threads, or none involved.
    Legacy,
    /// Per-thread twin of a function that works on the default stream by itself.
    Ptds,
    /// Per-thread twin of a function that is given a stream, which may be the default one.
    Ptsz,
}

/// One exported function: one version of it, in one thread mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// The exported name, such as `cuMemcpyHtoD_v2_ptds`.
    pub symbol: &'static str,
    /// The name without version and thread mode, as `cuGetProcAddress` takes it.
    pub base: &'static str,
    /// The first version that has it. CUDA counts 3.2 as 3020; NVML by the symbol's suffix,
    /// 1 without one.
    pub version: u32,
    /// Its treatment of the default stream.
    pub thread: Thread,
    /// The oldest of our pinned headers that declares it: 13000 or 13050.
    pub since: u32,
    /// The type it returns, as declared.
    pub returns: &'static str,
    /// Each parameter as declared, such as `CUdeviceptr_v2 dstDevice`.
    pub params: &'static [&'static str],
}

/// The functions of one library, by symbol.
#[derive(Debug)]
pub struct Table {
    rows: &'static [Function],
    /// Indices into `rows`, by base, version and thread mode.
    order: &'static [u16],
}

include!(concat!(env!("OUT_DIR"), "/cuda.rs"));
include!(concat!(env!("OUT_DIR"), "/nvml.rs"));

/// Every function of libcuda that a header declares, profiler, GL, EGL and VDPAU included.
pub static CUDA: Table = Table {
    rows: &CUDA_ROWS,
    order: &CUDA_ORDER,
};

/// Every function of libnvidia-ml that `nvml.h` declares.
pub static NVML: Table = Table {
    rows: &NVML_ROWS,
    order: &NVML_ORDER,
};

/// Functions that libcuda exports and no header of the driver declares: `dlsym` finds them, and
/// `cuGetProcAddress` does not (seen with R535, R550 and R555). The types of the first three are
/// not known. By the last two a debugger finds its interface, in its own process
/// (`cudadebugger.h`).
///
/// The debugger's variables (`cudbgIpcFlag` and 19 more) and the functions that it stops at or
/// calls in the debugged process are left out. It finds them by the symbols of all loaded files,
/// and takes the first of a name: that must be the driver's own.
pub const CUDA_UNDECLARED: [&str; 5] = [
    "cuEGLApiInit",
    "cuMemGetAttribute",
    "cuMemGetAttribute_v2",
    "cudbgGetAPI",
    "cudbgGetAPIVersion",
];

impl Deref for Table {
    type Target = [Function];

    fn deref(&self) -> &[Function] {
        self.rows
    }
}

impl Table {
    /// The index of an exported name.
    #[must_use]
    pub fn index_of(&self, symbol: &str) -> Option<usize> {
        self.rows
            .binary_search_by(|row| row.symbol.cmp(symbol))
            .ok()
    }

    /// The function with an exported name.
    #[must_use]
    pub fn by_symbol(&self, symbol: &str) -> Option<&'static Function> {
        Some(&self.rows[self.index_of(symbol)?])
    }

    /// The indices of all rows of a base, from the oldest version to the newest.
    #[must_use]
    pub fn versions(&self, base: &str) -> &'static [u16] {
        let name = |index: &u16| self.rows[usize::from(*index)].base;
        let start = self.order.partition_point(|index| name(index) < base);
        let end = self.order.partition_point(|index| name(index) <= base);
        &self.order[start..end]
    }

    /// Returns the function that `cuGetProcAddress` finds: the index of the newest row of `base`
    /// that `version` already had. With `per_thread`, only per-thread twins if there are any: a
    /// version that had none yet gets nothing (seen with R535, R550 and R555).
    #[must_use]
    pub fn resolve(&self, base: &str, version: u32, per_thread: bool) -> Option<usize> {
        let mut rows = self.versions(base).iter().map(|&index| usize::from(index));
        let is_twin = |index: usize| self.rows[index].thread != Thread::Legacy;
        let wants_twin = per_thread && rows.clone().any(is_twin);
        rows.rfind(|&index| self.rows[index].version <= version && is_twin(index) == wants_twin)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CUDA, Function, NVML, Table, Thread};

    /// Returns the fault of one row.
    fn wrong(row: &Function, first: &str) -> Option<&'static str> {
        let suffix = match row.thread {
            Thread::Legacy => "",
            Thread::Ptds => "_ptds",
            Thread::Ptsz => "_ptsz",
        };
        let name = |text: &str| {
            let word = text.rsplit([' ', '*']).next().unwrap_or_default();
            word.chars().all(|c| c.is_alphanumeric() || c == '_') && !word.is_empty()
        };
        if !row.symbol.starts_with(row.base) || !row.symbol.ends_with(suffix) {
            return Some("the symbol is not made of base and thread mode");
        }
        if !row.base.starts_with(first) || row.version == 0 || row.returns.is_empty() {
            return Some("base, version or result is missing");
        }
        let params = row
            .params
            .iter()
            .all(|param| name(param) && param.contains(' '));
        (!params).then_some("a parameter has no name or no type")
    }

    fn check(table: &Table, first: &str) {
        let sorted = table.windows(2).all(|pair| pair[0].symbol < pair[1].symbol);
        assert!(sorted, "symbols are unique and in order");
        let keys: BTreeSet<_> = table
            .iter()
            .map(|row| (row.base, row.version, row.thread))
            .collect();
        assert_eq!(keys.len(), table.len(), "a version is there twice");
        for (index, row) in table.iter().enumerate() {
            assert_eq!(wrong(row, first), None, "{row:?}");
            assert_eq!(table.index_of(row.symbol), Some(index));
            assert!(
                table
                    .versions(row.base)
                    .contains(&u16::try_from(index).unwrap())
            );
            let per_thread = row.thread != Thread::Legacy;
            let found = table.resolve(row.base, row.version, per_thread);
            assert_eq!(found, Some(index), "{row:?}");
        }
    }

    #[test]
    fn tables_are_consistent() {
        check(&CUDA, "cu");
        check(&NVML, "nvml");
        assert!(CUDA.iter().all(|row| row.returns == "CUresult"));
        // None of 13.0's rows was lost: 634 of cuda.h, 38 of the other headers.
        assert_eq!(CUDA.iter().filter(|row| row.since == 13000).count(), 672);
    }

    fn symbol(base: &str, version: u32, per_thread: bool) -> Option<&'static str> {
        let index = CUDA.resolve(base, version, per_thread)?;
        Some(CUDA[index].symbol)
    }

    #[test]
    fn the_version_asked_for_decides() {
        assert_eq!(symbol("cuMemAlloc", 1000, false), None);
        assert_eq!(symbol("cuMemAlloc", 2000, false), Some("cuMemAlloc"));
        assert_eq!(symbol("cuMemAlloc", 3010, false), Some("cuMemAlloc"));
        assert_eq!(symbol("cuMemAlloc", 3020, false), Some("cuMemAlloc_v2"));
        assert_eq!(symbol("cuMemAlloc", 99_000, true), Some("cuMemAlloc_v2"));
        // The two that differ in their arguments, not only in their types.
        let prefetch = |version| symbol("cuMemPrefetchAsync", version, false);
        assert_eq!(prefetch(8000), Some("cuMemPrefetchAsync"));
        assert_eq!(prefetch(12_020), Some("cuMemPrefetchAsync_v2"));
        assert_eq!(
            symbol("cuGraphAddNode", 13_040, false),
            Some("cuGraphAddNode_v3")
        );
        assert_eq!(
            symbol("cuGraphAddNode", 13_030, false),
            Some("cuGraphAddNode_v2")
        );
        // Bases only: a symbol is not asked for by version.
        assert_eq!(symbol("cuMemAlloc_v2", 13_000, false), None);
        assert_eq!(symbol("", 13_000, false), None);
    }

    #[test]
    fn per_thread_twins_are_found_where_there_are_any() {
        let copy = |version, per_thread| symbol("cuMemcpyHtoD", version, per_thread);
        assert_eq!(copy(13_000, true), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(copy(13_000, false), Some("cuMemcpyHtoD_v2"));
        // Before CUDA 7 there were none.
        assert_eq!(copy(7000, true), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(copy(6050, true), None);
        assert_eq!(
            symbol("cuLaunchKernel", 7000, true),
            Some("cuLaunchKernel_ptsz")
        );
        assert_eq!(symbol("cuInit", 13_000, true), Some("cuInit"));
    }

    #[test]
    fn no_plain_row_is_newer_than_its_twin() {
        // Else it would be a question whether the twin or the newer version is meant.
        for row in CUDA.iter().filter(|row| row.thread != Thread::Legacy) {
            let newest = symbol(row.base, u32::MAX, true).unwrap();
            let thread = CUDA.by_symbol(newest).unwrap().thread;
            assert_eq!(thread, row.thread, "{newest}");
        }
    }

    #[test]
    fn signatures_are_kept_as_declared() {
        let launch = CUDA.by_symbol("cuLaunchKernelEx_ptsz").unwrap();
        assert_eq!(launch.base, "cuLaunchKernelEx");
        assert_eq!(
            launch.params,
            [
                "const CUlaunchConfig *config",
                "CUfunction f",
                "void **kernelParams",
                "void **extra"
            ]
        );
        let memory = NVML.by_symbol("nvmlDeviceGetMemoryInfo_v2").unwrap();
        assert_eq!((memory.version, memory.returns), (2, "nvmlReturn_t"));
        assert_eq!(
            NVML.by_symbol("nvmlErrorString").unwrap().returns,
            "const char *"
        );
        let init = NVML.by_symbol("nvmlShutdown").unwrap();
        assert!(init.params.is_empty());
        assert!(NVML.by_symbol("nvmlInternalGetExportTable").is_some());
    }
}
