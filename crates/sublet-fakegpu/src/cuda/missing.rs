//! The functions of libcuda that the fake has not. Each is exported all the same, and
//! answers `CUDA_ERROR_NOT_SUPPORTED` whatever it is given. This is the one list of them; a
//! test holds it against the headers, in both directions.
//!
//! Two kinds are not written down one by one, because the headers tell them: what is newer
//! than the driver that we play (no program that asks for a function by name and version
//! gets those), and first versions from before CUDA 3.2, whose addresses have 32 bits.

use sublet_driver_api::{CUDA, Function};

use crate::board::CUDA_VERSION;

/// Why a function need not be there that no name of the list stands for.
const NEWER: &str = "newer than the driver that the fake plays";
const OLD: &str = "its addresses have 32 bits";

/// Names of functions, without their twins for per-thread streams; one that ends with a `*`
/// stands for all that begin so.
const MISSING: [(&str, &[&str]); 8] = [
    (
        "nothing is drawn, and no other interface for graphics or video has a part in a card",
        &[
            "cuGL*",
            "cuEGL*",
            "cuEventCreateFromEGLSync",
            "cuVDPAU*",
            "cuGraphics*",
        ],
    ),
    (
        "kernels that read textures or tensor maps are not run, only their time is kept",
        &["cuTex*", "cuSurf*", "cuModuleGet*Ref", "cuTensorMap*"],
    ),
    (
        "launches as CUDA 3 had them, one argument at a time, or on several cards at once",
        &[
            "cuParam*",
            "cuLaunch",
            "cuLaunchGrid*",
            "cuLaunchCooperativeKernelMultiDevice",
            "cuFuncSetBlockShape",
            "cuFuncSetSharedSize",
        ],
    ),
    ("no code is compiled or linked", &["cuLink*"]),
    (
        "semaphores of other drivers",
        &[
            "cuImportExternalSemaphore",
            "cuDestroyExternalSemaphore",
            "cuSignalExternalSemaphoresAsync",
            "cuWaitExternalSemaphoresAsync",
            "cuGraphAddExternal*",
            "cuGraphExternal*",
            "cuGraphExecExternal*",
            "cuDeviceGetNvSciSyncAttributes",
        ],
    ),
    (
        "what tools and operators use: a process frozen, its core, its log",
        &[
            "cuCheckpoint*",
            "cuCoredump*",
            "cuLogs*",
            "cuDeviceRegisterAsyncNotification",
            "cuDeviceUnregisterAsyncNotification",
        ],
    ),
    (
        "parts of graphs: waits for words as nodes, what a program hangs on a graph, and a few \
         ways to change a node that has another one",
        &[
            "cuGraph*BatchMemOpNode*",
            "cuUserObject*",
            "cuGraphRetainUserObject",
            "cuGraphReleaseUserObject",
            "cuGraphKernelNode*Attribute*",
            "cuGraphEvent*NodeSetEvent",
            "cuGraphExecEvent*NodeSetEvent",
            "cuGraphExecChildGraphNodeSetParams",
            "cuGraphExecNodeSetParams",
            "cuGraphNodeSetParams",
        ],
    ),
    (
        "too new or too rare to have been asked for",
        &[
            "cuArrayGetPlane",
            "cuCtxGetExecAffinity",
            "cuDeviceGetHostAtomicCapabilities",
            "cuDeviceGetP2PAtomicCapabilities",
            "cuMemBatchDecompressAsync",
            "cuMemDiscard*",
            "cuMemcpy3DBatchAsync",
        ],
    ),
];

/// Why the fake need not have a function; `None` if it has it.
#[must_use]
pub fn why(function: &Function) -> Option<&'static str> {
    if i32::try_from(function.version).is_ok_and(|version| version > CUDA_VERSION) {
        return Some(NEWER);
    }
    let is_meant = |pattern: &&str| fits(pattern, function.symbol);
    let group = MISSING.iter().find(|(_, names)| names.iter().any(is_meant));
    if let Some((why, _)) = group {
        return Some(why);
    }
    let newest = CUDA.versions(function.base).last();
    let has_newer = newest.is_some_and(|at| CUDA[usize::from(*at)].version > function.version);
    (function.version < 3020 && has_newer).then_some(OLD)
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
mod tests {
    use std::collections::BTreeSet;

    use sublet_driver_api::Thread;

    use super::super::{address, target};
    use super::*;

    #[test]
    fn the_list_is_what_the_headers_have_and_the_fake_has_not() {
        let nowhere = target(usize::MAX).0;
        for (index, function) in CUDA.iter().enumerate() {
            let symbol = function.symbol;
            let leads_nowhere = target(index).0 == nowhere;
            assert_eq!(leads_nowhere, address(symbol).is_none(), "{symbol}");
            if function.thread != Thread::Legacy {
                continue;
            }
            match why(function) {
                None => assert!(!leads_nowhere, "{symbol} is missing, and nobody says why"),
                // Some of them are there, where that costs nothing.
                Some(NEWER | OLD) => {}
                Some(why) => assert!(leads_nowhere, "{symbol} is listed ({why}), but is there"),
            }
        }
    }

    #[test]
    fn every_name_of_the_list_is_a_function() {
        let mut seen = BTreeSet::new();
        for pattern in MISSING.iter().flat_map(|(_, names)| *names) {
            assert!(seen.insert(pattern), "{pattern} is there twice");
            let mut functions = CUDA.iter();
            assert!(
                functions.any(|function| fits(pattern, function.symbol)),
                "{pattern}"
            );
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(fits("cuGL*", "cuGLInit") && !fits("cuGL*", "cuInit"));
        assert!(fits("cuModuleGet*Ref", "cuModuleGetTexRef"));
        assert!(!fits("cuModuleGet*Ref", "cuModuleGetGlobal"));
        assert!(fits(
            "cuGraph*MemOpNode*",
            "cuGraphExecBatchMemOpNodeSetParams"
        ));
        assert!(!fits("cuLaunch", "cuLaunchKernel"));
    }
}
