//! The variables, in the order of SECURITY.md's table, each with a value that somebody would try.
//!
//! Sources: NVIDIA's CUDA Programming Guide ("CUDA Environment Variables"), its documents of MPS
//! (R615 and R620) and of the container toolkit, CUPTI's and cuda-gdb's; and the names in the
//! libraries of R535 and R555, of which many stand in no document.

/// Variables with one effect, which are tried together.
pub(super) struct Row {
    /// Names and values.
    pub(super) set: &'static [(&'static str, &'static str)],
    /// The way by which the program then gets memory.
    pub(super) path: &'static str,
    /// They name code that is loaded into the program: tests of their own try them.
    pub(super) loads_code: bool,
}

impl Row {
    const fn new(set: &'static [(&'static str, &'static str)]) -> Row {
        Row {
            set,
            path: "plain",
            loads_code: false,
        }
    }

    /// True if MPS reads one of them.
    pub(super) fn is_of_mps(&self) -> bool {
        self.set
            .iter()
            .any(|(name, _)| name.starts_with("CUDA_MPS_"))
    }
}

const CARDS: Row = Row::new(&[("CUDA_VISIBLE_DEVICES", "0,1")]);

const ORDER: Row = Row::new(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]);

const MANAGED: Row = Row {
    path: "managed",
    ..Row::new(&[
        ("CUDA_MANAGED_FORCE_DEVICE_ALLOC", "1"),
        ("CUDA_MANAGED_FORCE_STREAM_ATTACH", "1"),
    ])
};

const POOLS: Row = Row {
    path: "async",
    ..Row::new(&[
        ("CUDA_DISABLE_MEMPOOL_REUSE_INTERNAL_DEPS", "1"),
        ("CUDA_DISABLE_MEMPOOL_REUSE_OPPORTUNISTIC", "1"),
        ("CUDA_DISABLE_MEMPOOL_REUSE_VIA_EVENT_DEPS", "1"),
    ])
};

const TRANSLATION: Row = Row::new(&[
    ("CUDA_CACHE_DISABLE", "1"),
    ("CUDA_CACHE_MAXSIZE", "0"),
    ("CUDA_CACHE_PATH", "/nowhere"),
    ("CUDA_DEVCODE_CACHE", "/nowhere"),
    ("CUDA_DEVCODE_PATH", "/nowhere"),
    ("CUDA_DISABLE_JIT", "0"),
    ("CUDA_DISABLE_PTX_JIT", "0"),
    ("CUDA_ENABLE_JIT_LINKER_SERIALIZATION", "1"),
    ("CUDA_FORCE_ALLOW_UNRESOLVED_EXTERNS", "1"),
    ("CUDA_FORCE_JIT", "1"),
    ("CUDA_FORCE_PRELOAD_LIBRARIES", "1"),
    ("CUDA_FORCE_PTX_JIT", "1"),
    ("CUDA_JIT_OUTPUT_LEVEL", "5"),
]);

const MODULES: Row = Row::new(&[
    ("CUDA_BINARY_LOADER_THREAD_COUNT", "64"),
    ("CUDA_DISABLE_LAZY_SYSCALL_LOADING_ERROR", "1"),
    ("CUDA_ENABLE_MODULE_LAZY_LOADING", "0"),
    ("CUDA_MODULE_DATA_LOADING", "EAGER"),
    ("CUDA_MODULE_LOADING", "EAGER"),
]);

const CONTEXTS: Row = Row::new(&[
    ("CUDA_DEVICE_DEFAULT_STACK_SIZE_MAX", "524288"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32"),
    ("CUDA_SCALE_LAUNCH_QUEUES", "4x"),
]);

const LAUNCHES: Row = Row::new(&[
    ("CUDA_AUTO_BOOST", "1"),
    ("CUDA_COPY_SPLIT_THRESHOLD_MB", "1"),
    (
        "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
        "100",
    ),
    ("CUDA_DISABLE_PERF_BOOST", "0"),
    ("CUDA_DROP_TO_IDLE", "0"),
    ("CUDA_FORCE_INTERTASK_SYSTEM_FENCE", "0"),
    ("CUDA_GRAPHS_USE_NODE_PRIORITY", "1"),
    ("CUDA_GRID_SIZE_COMPAT", "1"),
    ("CUDA_LAUNCH_BLOCKING", "1"),
    ("CUDA_PREFER_SPINLOCKS_ON_HOST", "1"),
    ("CUDA_REDUCE_API_SERIALIZATION", "1"),
    ("CUDA_SET_WATCHDOG", "0"),
]);

const FAULTS: Row = Row::new(&[
    ("CUDA_COREDUMP_FILE", "/nowhere/dump"),
    (
        "CUDA_COREDUMP_GENERATION_FLAGS",
        "skip_nonrelocated_elf_images",
    ),
    ("CUDA_COREDUMP_PIPE", "/nowhere/pipe"),
    ("CUDA_COREDUMP_SHOW_PROGRESS", "1"),
    ("CUDA_DEVICE_WAITS_ON_EXCEPTION", "1"),
    ("CUDA_DISABLE_PROCESS_ERROR_MODE", "1"),
    ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1"),
    ("CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION", "1"),
    ("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1"),
    ("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "1"),
]);

const RECORDS: Row = Row::new(&[
    ("COMPUTE_PROFILE", "1"),
    ("COMPUTE_PROFILE_CONFIG", "/nowhere"),
    ("COMPUTE_PROFILE_CSV", "1"),
    ("COMPUTE_PROFILE_LOG", "/nowhere/log"),
    ("CUDA_LOG_FILE", "stderr"),
    ("CUDA_PROFILE", "1"),
    ("CUDA_PROFILE_CALLBACKS", "1"),
    ("CUDA_PROFILE_CONFIG", "/nowhere"),
    ("CUDA_PROFILE_CSV", "1"),
    ("CUDA_PROFILE_LOG", "/nowhere/log"),
    ("CUDA_PROFILE_LOG_VERSION", "2.0"),
    ("CUDA_PROFILE_STATS", "1"),
]);

const DEBUGGERS: Row = Row::new(&[
    ("CUDA_DEBUGGER_SOFTWARE_PREEMPTION", "1"),
    ("CUDBG_APICLIENT_PID", "1"),
    ("CUDBG_APICLIENT_REVISION", "1"),
    ("CUDBG_ENABLE_INSN_CACHE", "1"),
    ("CUDBG_ENABLE_SW_CACHE", "1"),
    ("CUDBG_GET_SESSION_FROM_ENV", "1"),
    ("CUDBG_IPC_FLAG_NAME", "flag"),
    ("CUDBG_SESSION_ID", "1"),
    ("CUDBG_USE_LEGACY_DEBUGGER", "1"),
]);

const UNEXPLAINED: Row = Row::new(&[
    ("CUDA_AMODEL_DLL", "/nowhere"),
    ("CUDA_AMODEL_GPC_NUM_OVERRIDE", "1"),
    ("CUDA_AMODEL_GPU", "0"),
    ("CUDA_AMODEL_SINGLETON_MASK", "1"),
    ("CUDA_AMODEL_SKYLINE", "1"),
    ("CUDA_AMODEL_SPA_VERSION", "9.0"),
    ("CUDA_AMODEL_TPC_NUM_OVERRIDE", "1"),
    ("CUDA_AMODEL_USE_DLMOPEN", "1"),
    ("CUDA_AMODEL_VA_ALIGNMENT", "1"),
    ("CUDA_AMODEL_VIDMEM_SIZE", "68719476736"),
    ("CUDA_BUFFER_PAGE_IN", "1"),
    ("CUDA_BUFFER_PAGE_IN_THRESHOLD_MS", "0"),
    ("CUDA_CONFIDENTIAL_COMPUTE_EMULATED", "1"),
    ("CUDA_CONFIDENTIAL_COMPUTE_ZERO_INIT_STAGING", "1"),
    ("CUDA_DISABLE_CUDA_IN_GRAPHICS", "1"),
    ("CUDA_DISABLE_FAST_ECC", "1"),
    ("CUDA_DISABLE_PCI_TOPOLOGY_CHECK", "1"),
    ("CUDA_EGLSTREAM_SEMAPHORE_SYNC", "1"),
    ("CUDA_EGL_PRODUCER_RETURN_WAIT_TIMEOUT", "1"),
    ("CUDA_EGL_SYNC_ON_CPU", "1"),
    ("CUDA_ENABLE_P2P_NO_UVA", "1"),
    ("CUDA_ENABLE_PM_CTXSW_MODE", "1"),
    ("CUDA_FORCE_BT", "1"),
    ("CUDA_PREEMPTION_BARRIER_PATCH_ADDR", "0"),
    ("CUDA_PREEMPTION_BUFFER_PATCH_ADDR", "0"),
    ("CUDA_TEST_UNKNOWN_FUTURE_SM_MAJOR", "99"),
    ("CUDA_TEST_UNKNOWN_FUTURE_SM_MINOR", "9"),
    ("CUDA_USE_NVP2P", "1"),
    ("CUPTI_PROFILE_MODE", "1"),
    ("FORCE_ENABLE_COOPERATIVE_LAUNCH_PATCH", "1"),
    ("NVCL_ENABLE_CLOCK_BOOST", "1"),
    ("NVCL_PLATFORM_VERSION_WAR", "1"),
    ("NVCL_USE_SUST_B", "1"),
    ("NV_OPENCL_DISABLE_UNPIN_ON_SYNC", "1"),
    ("NV_OPENCL_DISABLE_UVM", "1"),
    ("NV_OPENCL_ENABLE_PINNED_MEMCPY_PATH", "1"),
    ("NV_OPENCL_MAX_PIN_SIZE", "1"),
    ("NV_OPENCL_MIN_PIN_SIZE", "1"),
    ("NV_OPENCL_PIN_THRESHOLD", "1"),
    ("NV_PROFILE_FILE_LIMIT", "1"),
    ("NV_PROFILE_SIZE_LIMIT", "1"),
    ("NV_PROFILE_TIMEOUT", "1"),
    ("__CUDA_DISABLE_FORWARD_COMPATIBILITY", "1"),
    ("__RM_ENABLE_VERBOSE_OUTPUT", "1"),
    ("__RM_NO_VERSION_CHECK", "1"),
]);

const NVML: Row = Row::new(&[
    ("__NVIDIA_NVML_3373", "1"),
    ("__NVML_CRAY_PSTATE", "1"),
    ("__NVML_DBG_APPEND", "1"),
    ("__NVML_DBG_FILE", "/nowhere/log"),
    ("__NVML_DBG_LVL", "DEBUG"),
    ("__NVML_GPM_SIMULATOR", "1"),
    ("__NVML_ONLY_DAEMON_PERSISTENCE_MODE", "1"),
    ("__NVML_THERMAL_VIOLATION", "1"),
    ("__NVML_UNIQUE_SERIAL", "1"),
    ("__NVML_USE_RUSD", "0"),
]);

const MPS_MEMORY: Row = Row::new(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64G,7=64G")]);

const MPS_COMPUTE: Row = Row::new(&[
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
    (
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "1",
    ),
    ("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"),
]);

const MPS_CLIENTS: Row = Row::new(&[
    ("CUDA_MPS_CLIENT_PRIORITY", "0"),
    ("CUDA_MPS_SM_PARTITION", "GPU-0/0"),
]);

const MPS_DAEMON: Row = Row::new(&[
    ("CUDA_MPS_LOG_DIRECTORY", "/nowhere"),
    ("CUDA_MPS_PROTOCOL_VERSION", "3"),
]);

const CONTAINERS: Row = Row::new(&[
    ("NVIDIA_DISABLE_REQUIRE", "1"),
    ("NVIDIA_DRIVER_CAPABILITIES", "all"),
    ("NVIDIA_GDRCOPY", "enabled"),
    ("NVIDIA_GDS", "enabled"),
    ("NVIDIA_IMEX_CHANNELS", "all"),
    ("NVIDIA_MIG_CONFIG_DEVICES", "all"),
    ("NVIDIA_MIG_MONITOR_DEVICES", "all"),
    ("NVIDIA_MOFED", "enabled"),
    ("NVIDIA_NVSWITCH", "enabled"),
    ("NVIDIA_REQUIRE_CUDA", "cuda>=1.0"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
]);

const INJECTED: Row = Row {
    loads_code: true,
    ..Row::new(&[
        ("CUDA_INJECTION32_PATH", ""),
        ("CUDA_INJECTION64_PATH", ""),
        ("CUDBG_INJECTION_PATH", ""),
        ("NVTX_INJECTION32_PATH", ""),
        ("NVTX_INJECTION64_PATH", ""),
    ])
};

const LOADER: Row = Row {
    loads_code: true,
    ..Row::new(&[
        ("GLIBC_TUNABLES", "glibc.rtld.dynamic_sort=1"),
        ("LD_AUDIT", "/nowhere/audit.so"),
        ("LD_BIND_NOT", "1"),
        ("LD_BIND_NOW", "1"),
        ("LD_DYNAMIC_WEAK", "1"),
        ("LD_LIBRARY_PATH", "/nowhere"),
        ("LD_ORIGIN_PATH", "/nowhere"),
        ("LD_PRELOAD", "/nowhere/preload.so"),
    ])
};

/// All of them.
pub(super) static ROWS: [Row; 20] = [
    CARDS,
    ORDER,
    MANAGED,
    POOLS,
    TRANSLATION,
    MODULES,
    CONTEXTS,
    LAUNCHES,
    FAULTS,
    RECORDS,
    DEBUGGERS,
    UNEXPLAINED,
    NVML,
    MPS_MEMORY,
    MPS_COMPUTE,
    MPS_CLIENTS,
    MPS_DAEMON,
    CONTAINERS,
    INJECTED,
    LOADER,
];
