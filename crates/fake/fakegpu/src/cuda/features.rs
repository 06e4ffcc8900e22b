//! CUDA functions that the fake has and lacks, feature by feature. This is the one list of both:
//! calls are found through it, the guide's page `fake-driver.md` is written from it, and a test
//! compares it with the headers in both directions.
//!
//! A function that the fake lacks is exported all the same, and answers `CUDA_ERROR_NOT_SUPPORTED`
//! to all arguments. Two kinds are not listed one by one, because the headers tell them: functions
//! that are newer than the driver that we play, and forms that no program of CUDA 13 gets, because
//! it gets a newer form of the same function.

use sublet_driver_api::{CUDA, Function};

use super::{Entry, context, device, graph, init, memory, module, sharing, stream};
use crate::product::CUDA_VERSION;

/// A feature of CUDA.
pub struct Feature {
    /// Its common name.
    pub name: &'static str,
    /// Its behaviour in the fake.
    pub behaviour: &'static str,
    entries: &'static [&'static [Entry]],
    /// Its functions that are refused.
    pub refused: &'static [RefusedFunctions],
}

/// Functions that are refused for one reason.
pub struct RefusedFunctions {
    /// The reason.
    pub why: &'static str,
    /// Their names without twins for per-thread streams; one with a `*` stands for all that
    /// have anything in its place.
    pub names: &'static [&'static str],
}

/// Reason why a function is refused that numba, nvitop, gpustat, cuda-bindings, the CUDA runtime,
/// our own libraries and tests do without.
const UNCALLED: &str = "called by no program that we know";

/// All features, in the order of the guide.
pub const FEATURES: [Feature; 13] = [
    Feature {
        name: "Start-up and look-ups",
        behaviour: "as on a card, with the library that `CUDA_INJECTION64_PATH` names; look-ups \
                    find what CUDA 13.0 has. The CUDA runtime is told that it is not supported, \
                    because it insists on NVIDIA's own driver",
        entries: &[
            init::ENTRIES,
            init::lookup::ENTRIES,
            init::export_table::ENTRIES,
        ],
        refused: &[RefusedFunctions {
            why: UNCALLED,
            names: &["cuProfilerInitialize"],
        }],
    },
    Feature {
        name: "Devices",
        behaviour: "figures of the product that SPEC names; `CUDA_VISIBLE_DEVICES` selects, \
                    `CUDA_DEVICE_ORDER` counts. Where MPS serves, `CUDA_MPS_*` give a client its \
                    part of the multiprocessors and of the memory",
        entries: &[device::ENTRIES],
        refused: &[RefusedFunctions {
            why: UNCALLED,
            names: &[
                "cuDeviceComputeCapability",
                "cuDeviceGetByPCIBusId",
                "cuDeviceGetExecAffinitySupport",
                "cuDeviceGetHostAtomicCapabilities",
                "cuDeviceGetLuid",
                "cuDeviceGetP2PAtomicCapabilities",
                "cuDeviceGetProperties",
                "cuDeviceGetTexture1DLinearMaxWidth",
                "cuFlushGPUDirectRDMAWrites",
            ],
        }],
    },
    Feature {
        name: "Contexts and green contexts",
        behaviour: "the first context of a process costs what SPEC says, and more with the \
                    queues of `CUDA_SCALE_LAUNCH_QUEUES`; a green context's kernels take as long \
                    as on the whole card",
        entries: &[context::ENTRIES, context::green::ENTRIES],
        refused: &[RefusedFunctions {
            why: UNCALLED,
            names: &[
                "cuCtx*CacheConfig",
                "cuCtx*SharedMemConfig",
                "cuCtxGetApiVersion",
                "cuCtxGetDevResource",
                "cuCtxGetExecAffinity",
                "cuCtxGetFlags",
                "cuCtxGetId",
                "cuCtxGetStreamPriorityRange",
                "cuCtxRecordEvent",
                "cuCtxResetPersistingL2Cache",
                "cuCtxSetFlags",
                "cuCtxWaitEvent",
                "cuDevicePrimaryCtxSetFlags*",
                "cuGreenCtxGetDevResource",
                "cuGreenCtxGetId",
                "cuGreenCtxRecordEvent",
                "cuGreenCtxWaitEvent",
                "cuStreamGetGreenCtx",
            ],
        }],
    },
    Feature {
        name: "Modules, kernels and launches",
        behaviour: "no code runs: a kernel takes 20 µs, fills the card and computes nothing, unless \
                    comments in its PTX say otherwise; [Time](#time) says which run together",
        entries: &[
            module::ENTRIES,
            module::function::ENTRIES,
            module::library::ENTRIES,
            module::launch::ENTRIES,
        ],
        refused: &[
            RefusedFunctions {
                why: "launches as CUDA 3 had them, or on several cards at once",
                names: &[
                    "cuParam*",
                    "cuLaunch",
                    "cuLaunchGrid*",
                    "cuLaunchCooperativeKernelMultiDevice",
                    "cuFuncSetBlockShape",
                    "cuFuncSetSharedSize",
                ],
            },
            RefusedFunctions {
                why: "no code is compiled or linked",
                names: &["cuLink*"],
            },
            RefusedFunctions {
                why: UNCALLED,
                names: &[
                    "cuFuncGetModule",
                    "cuFuncGetName",
                    "cuFuncGetParamInfo",
                    "cuFuncIsLoaded",
                    "cuFuncLoad",
                    "cuFuncSetAttribute",
                    "cuFuncSetSharedMemConfig",
                    "cuKernelSetAttribute",
                    "cuKernelGetLibrary",
                    "cuKernelGetName",
                    "cuKernelGetParam*",
                    "cuKernelSetCacheConfig",
                    "cuLibraryEnumerateKernels",
                    "cuLibraryGetKernelCount",
                    "cuLibraryGetManaged",
                    "cuLibraryGetUnifiedFunction",
                    "cuModuleEnumerateFunctions",
                    "cuModuleGetFunctionCount",
                    "cuModuleLoad",
                    "cuModuleLoadFatBinary",
                    "cuOccupancyAvailableDynamicSMemPerBlock",
                    "cuOccupancyMaxActiveClusters",
                    "cuOccupancyMaxPotentialClusterSize",
                ],
            },
        ],
    },
    Feature {
        name: "Memory: plain, pitched, pinned, managed",
        behaviour: "bytes that can be copied and checked; a card's memory is 2 MiB blocks, and \
                    SPEC says how small allocations are packed. Managed memory does not move",
        entries: &[
            memory::ENTRIES,
            memory::copy::ENTRIES,
            memory::fill::ENTRIES,
            memory::managed::ENTRIES,
            memory::pointer::ENTRIES,
        ],
        refused: &[RefusedFunctions {
            why: UNCALLED,
            names: &[
                "cuMemBatchDecompressAsync",
                "cuMemDiscard*",
                "cuMemHostGetFlags",
                "cuMemcpy2D*",
                "cuMemcpy3D*",
                "cuMemcpyAto*",
                "cuMemcpyBatchAsync*",
                "cuMemcpyDtoA*",
                "cuMemcpyHtoA*",
                "cuMemsetD16*",
                "cuMemsetD2D*",
                "cuPointerGetAttributes",
                "cuPointerSetAttribute",
            ],
        }],
    },
    Feature {
        name: "Memory pools and stream order",
        behaviour: "a pool keeps what is freed up to its release threshold",
        entries: &[memory::pool::ENTRIES],
        refused: &[],
    },
    Feature {
        name: "Virtual memory (VMM)",
        behaviour: "physical memory and addresses apart, exported as descriptors",
        entries: &[memory::physical::ENTRIES],
        refused: &[],
    },
    Feature {
        name: "Arrays",
        behaviour: "take a card's memory, sparse ones and mipmaps included; nothing reads or \
                    writes their bytes",
        entries: &[memory::array::ENTRIES],
        refused: &[
            RefusedFunctions {
                why: "kernels that read textures or tensor maps do not run",
                names: &["cuTex*", "cuSurf*", "cuModuleGet*Ref", "cuTensorMap*"],
            },
            RefusedFunctions {
                why: UNCALLED,
                names: &[
                    "cuArray3DGetDescriptor*",
                    "cuArrayGetDescriptor*",
                    "cuArrayGetPlane",
                    "cuArrayGetSparseProperties",
                    "cuMipmappedArrayGetLevel",
                    "cuMipmappedArrayGetSparseProperties",
                ],
            },
        ],
    },
    Feature {
        name: "Streams and events",
        behaviour: "in time and order as on a card, priorities, callbacks and waits for words \
                    in memory included",
        entries: &[stream::ENTRIES, stream::event::ENTRIES],
        refused: &[RefusedFunctions {
            why: UNCALLED,
            names: &[
                "cuEventRecordWithFlags",
                "cuLaunchHostFunc",
                "cuStreamBatchMemOp*",
                "cuStreamCopyAttributes",
                "cuStreamGetAttribute",
                "cuStreamGetFlags",
                "cuStreamGetPriority",
                "cuStreamSetAttribute",
                "cuStreamWaitValue64*",
                "cuStreamWriteValue*",
            ],
        }],
    },
    Feature {
        name: "Graphs and capture",
        behaviour: "capture in all modes, kernels and memory as nodes, graphs in graphs; nodes \
                    run one after the other",
        entries: &[
            graph::ENTRIES,
            graph::node::ENTRIES,
            graph::capture::ENTRIES,
        ],
        refused: &[
            RefusedFunctions {
                why: "no waits for words as nodes",
                names: &["cuGraph*BatchMemOpNode*"],
            },
            RefusedFunctions {
                why: "nothing of the program's hangs on a graph",
                names: &[
                    "cuUserObject*",
                    "cuGraphRetainUserObject",
                    "cuGraphReleaseUserObject",
                ],
            },
            RefusedFunctions {
                why: UNCALLED,
                names: &[
                    "cuGraphAddChildGraphNode",
                    "cuGraphAddDependencies*",
                    "cuGraphAddEvent*Node",
                    "cuGraphAddHostNode",
                    "cuGraphAddMemcpyNode",
                    "cuGraphAddMemsetNode",
                    "cuGraphClone",
                    "cuGraphConditionalHandleCreate",
                    "cuGraphDebugDotPrint",
                    "cuGraphDestroyNode",
                    "cuGraphEvent*",
                    "cuGraphExecChildGraphNodeSetParams",
                    "cuGraphExecEvent*NodeSetEvent",
                    "cuGraphExecGetFlags",
                    "cuGraphExecHostNodeSetParams",
                    "cuGraphExecKernelNodeSetParams*",
                    "cuGraphExecMemcpyNodeSetParams",
                    "cuGraphExecMemsetNodeSetParams",
                    "cuGraphExecNodeSetParams",
                    "cuGraphExecUpdate*",
                    "cuGraphGetEdges*",
                    "cuGraphGetRootNodes",
                    "cuGraphHostNode*",
                    "cuGraphKernelNode*",
                    "cuGraphMemFreeNodeGetParams",
                    "cuGraphMemcpyNode*",
                    "cuGraphMemsetNode*",
                    "cuGraphNodeFindInClone",
                    "cuGraphNodeGetDependen*",
                    "cuGraphNodeGetEnabled",
                    "cuGraphNodeSet*",
                    "cuGraphRemoveDependencies*",
                    "cuStreamGetCaptureInfo*",
                    "cuStreamUpdateCaptureDependencies*",
                ],
            },
        ],
    },
    Feature {
        name: "Sharing: IPC, other drivers' memory, multicast (NVLink)",
        behaviour: "between processes with the bytes; multicast objects bind and charge, but \
                    what is written through one reaches nobody",
        entries: &[
            sharing::ENTRIES,
            sharing::external::ENTRIES,
            sharing::multicast::ENTRIES,
        ],
        refused: &[RefusedFunctions {
            why: "no semaphores of other drivers",
            names: &[
                "cuImportExternalSemaphore",
                "cuDestroyExternalSemaphore",
                "cuSignalExternalSemaphoresAsync",
                "cuWaitExternalSemaphoresAsync",
                "cuGraphAddExternal*",
                "cuGraphExternal*",
                "cuGraphExecExternal*",
                "cuDeviceGetNvSciSyncAttributes",
            ],
        }],
    },
    Feature {
        name: "OpenGL, EGL, VDPAU",
        behaviour: "nothing",
        entries: &[],
        refused: &[RefusedFunctions {
            why: "nothing is drawn",
            names: &[
                "cuGL*",
                "cuEGL*",
                "cuEventCreateFromEGLSync",
                "cuVDPAU*",
                "cuGraphics*",
            ],
        }],
    },
    Feature {
        name: "Tools: checkpoints, core dumps, logs",
        behaviour: "nothing",
        entries: &[],
        refused: &[RefusedFunctions {
            why: "for operators of a real driver",
            names: &[
                "cuCheckpoint*",
                "cuCoredump*",
                "cuLogs*",
                "cuDeviceRegisterAsyncNotification",
                "cuDeviceUnregisterAsyncNotification",
            ],
        }],
    },
];

/// Older forms that are there, and the programs that ask for them.
pub const OLDER_FORMS: [(&str, &str); 7] = [
    ("cuCtxGetDevice", "the header of CUDA 13 declares both"),
    ("cuCtxSynchronize", "the header of CUDA 13 declares both"),
    ("cuStreamGetCtx", "the header of CUDA 13 declares both"),
    ("cuCtxCreate_v2", "numba takes it by its symbol"),
    (
        "cuDeviceGetUuid",
        "tells the card of an instance; our libraries ask it",
    ),
    (
        "cuEventElapsedTime",
        "programs that also run on drivers before 12.8 take it by its symbol",
    ),
    (
        "cuGetProcAddress",
        "programs take it from the library by that name",
    ),
];

impl Feature {
    /// The functions that answer, by symbol, without twins for per-thread streams.
    pub fn answered(&self) -> impl Iterator<Item = &'static str> {
        self.entries().map(|entry| entry.symbol)
    }

    /// The same with their addresses.
    pub(super) fn entries(&self) -> impl Iterator<Item = &'static Entry> + use<> {
        self.entries.iter().copied().flatten()
    }
}

/// Reason why a function is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// A newer driver has it.
    Newer,
    /// A program of CUDA 13 gets a newer form.
    Superseded,
    /// The list says so, and why.
    Refused(&'static str),
}

/// Returns the reason why the fake lacks a function; `None` if it has it.
#[must_use]
pub fn absence(function: &Function) -> Option<Absence> {
    let is_newer = |version| i32::try_from(version).is_ok_and(|version| version > CUDA_VERSION);
    if is_newer(function.version) {
        return Some(Absence::Newer);
    }
    let refusals = FEATURES.iter().flat_map(|feature| feature.refused);
    for RefusedFunctions { why, names } in refusals {
        if names.iter().any(|pattern| fits(pattern, function.symbol)) {
            return Some(Absence::Refused(why));
        }
    }
    if OLDER_FORMS
        .iter()
        .any(|(symbol, _)| *symbol == function.symbol)
    {
        return None;
    }
    let forms = CUDA.versions(function.base).iter();
    let mut forms = forms.map(|at| &CUDA[usize::from(*at)]);
    let is_superseded = forms.any(|form| {
        form.thread == function.thread && form.version > function.version && !is_newer(form.version)
    });
    is_superseded.then_some(Absence::Superseded)
}

/// Does a name fit a pattern, in which a `*` stands for anything?
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let rest = name.strip_prefix(start);
            let ends = |rest: &str| match end.strip_suffix('*') {
                Some(within) => rest.contains(within),
                None => rest.ends_with(end),
            };
            rest.is_some_and(ends)
        }
    }
}

#[cfg(test)]
mod tests;
