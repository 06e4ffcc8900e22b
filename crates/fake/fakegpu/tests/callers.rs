//! Functions of the fake driver and their callers: a function that answers is called by our own
//! code, a client or a test, or is kept for a reason that stands here. Others are refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sublet_driver_api::{CUDA, NVML, Table};
use sublet_fakegpu::cuda::features::{FEATURES, Feature};
use sublet_fakegpu::nvml;

/// Callers outside of our sources, and what they were seen to call or look up. A `*` at the end
/// stands for anything.
const CALLERS: [(&str, &[&str]); 7] = [
    (
        "numba",
        &[
            "cuCtxEnablePeerAccess",
            "cuDeviceCanAccessPeer",
            "cuFuncGetAttribute",
            "cuFuncSetCacheConfig",
            "cuMemHostGetDevicePointer",
            "cuMemcpyDtoD",
            "cuMemcpyDtoDAsync",
            "cuModuleGetGlobal",
            "cuModuleLoadDataEx",
            "cuOccupancyMaxActiveBlocksPerMultiprocessor*",
            "cuOccupancyMaxPotentialBlockSize*",
            "cuProfilerStart",
            "cuProfilerStop",
            "cuStreamAddCallback",
            "cuStreamWaitEvent",
        ],
    ),
    ("numba-cuda, by cuda-core", &["cuKernelGetAttribute"]),
    (
        "the CUDA runtime",
        &["cuGetExportTable", "cuModuleGetLoadingMode"],
    ),
    (
        "gpustat and nvitop, by nvidia-ml-py",
        &[
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetComputeMode",
            "nvmlDeviceGetCudaComputeCapability",
            "nvmlDeviceGetDecoderUtilization",
            "nvmlDeviceGetDisplay*",
            "nvmlDeviceGetEncoderUtilization",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetMaxClockInfo",
            "nvmlDeviceGetMaxMigDeviceCount",
            "nvmlDeviceGetMigDeviceHandleByIndex",
            "nvmlDeviceGetPerformanceState",
            "nvmlDeviceGetPersistenceMode",
            "nvmlDeviceGetPower*",
            "nvmlDeviceGetSerial",
            "nvmlDeviceGetTemperature*",
            "nvmlDeviceIsMigDeviceHandle",
            "nvmlSystemGetCudaDriverVersion",
        ],
    ),
    (
        "the agent, by nvml-wrapper",
        &[
            "nvmlDeviceGetNvLink*",
            "nvmlDeviceGetSupportedEventTypes",
            "nvmlDeviceGetTopologyCommonAncestor",
            "nvmlDeviceRegisterEvents",
            "nvmlEventSet*",
        ],
    ),
    (
        "tests of the fake driver, to see what it does with other calls",
        &[
            "cuDevResourceGenerateDesc",
            "cuDevSmResourceSplitByCount",
            "cuDeviceGetDevResource",
            "cuStreamGetId",
            "cuStreamWaitValue32",
        ],
    ),
    (
        "nobody yet: managed memory, addresses, pools, IPC, and the wiring of cards",
        &[
            "cuCtxDisablePeerAccess",
            "cuDeviceGetP2PAttribute",
            "cuDeviceSetGraphMemAttribute",
            "cuDeviceSetMemPool",
            "cuIpcGetEventHandle",
            "cuIpcOpenEventHandle",
            "cuMemAdvise",
            "cuMemGetA*",
            "cuMemGetDefaultMemPool",
            "cuMemGetMemPool",
            "cuMemPool*",
            "cuMemRangeGetAttribute*",
            "cuMemSetMemPool",
            "cuMemcpyPeer*",
            "cuMulticastGetGranularity",
            "cuStreamAttachMemAsync",
            "nvmlDeviceGetCpuAffinity*",
            "nvmlDeviceGetCurrPcieLink*",
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLink*",
            "nvmlDeviceGetMemoryAffinity",
            "nvmlDeviceGetP2PStatus",
            "nvmlDeviceGetPcieReplayCounter",
        ],
    ),
];

/// Words of our sources that may be a function's name, from one folder.
fn words(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // The fake driver itself, and the names of all functions that there are.
        if path.ends_with("crates/fake") || path.ends_with("speak/driver-api") {
            continue;
        }
        let kind = path.extension().and_then(|kind| kind.to_str());
        if path.is_dir() {
            words(&path, found);
        } else if matches!(kind, Some("rs" | "c" | "h" | "py")) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names = parts.filter(|word| word.starts_with("cu") || word.starts_with("nvml"));
            found.extend(names.map(str::to_owned));
        }
    }
}

fn base(table: &Table, symbol: &str) -> &'static str {
    table.by_symbol(symbol).unwrap().base
}

#[test]
fn every_function_has_a_caller() {
    let mut named = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    words(&crates.canonicalize().unwrap(), &mut named);
    for table in [&CUDA, &NVML] {
        let symbols: Vec<_> = named
            .iter()
            .filter_map(|word| table.by_symbol(word))
            .collect();
        named.extend(symbols.into_iter().map(|row| row.base.to_owned()));
    }
    let cuda = FEATURES.iter().flat_map(Feature::answered);
    let cuda = cuda.map(|symbol| base(&CUDA, symbol));
    let nvml = nvml::answered().flat_map(|(_, symbols)| symbols);
    let nvml = nvml.map(|symbol| base(&NVML, symbol));
    let answered: BTreeSet<&str> = cuda.chain(nvml).collect();
    let fits = |listed: &str, name: &str| match listed.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == listed,
    };
    let listed: Vec<&str> = CALLERS
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let is_listed = |name: &str| listed.iter().any(|listed| fits(listed, name));
    let is_there = |listed: &str| answered.iter().any(|name| fits(listed, name));
    let uncalled = answered.iter().filter(|name| !named.contains(**name));
    let uncalled: Vec<_> = uncalled.filter(|name| !is_listed(name)).collect();
    assert!(uncalled.is_empty(), "called by nobody: {uncalled:?}");
    let gone: Vec<_> = listed.iter().filter(|listed| !is_there(listed)).collect();
    assert!(gone.is_empty(), "listed, but refused: {gone:?}");
}
