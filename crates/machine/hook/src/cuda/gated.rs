//! Functions that make the card work, and the arguments that name their streams.
//!
//! The build script includes this file: from these rules and the driver's table it makes the list
//! of gated rows, and a hook for each. So a row that NVIDIA's next header adds has its hook as
//! soon as the table has the row.

use sublet_driver_api::{Function, Thread};

/// All versions and twins of these make the card work. So does `cuGraphLaunch`, whose hook
/// (`graph::unknown`) passes the gate itself.
const GATED: [&str; 11] = [
    "cuFabricCpyBatchAsync",
    "cuLaunch",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemBatchDecompressAsync",
    "cuMemPrefetchAsync",
    "cuMemPrefetchBatchAsync",
];

/// All functions with these beginnings, too: copies and fills, of which each header has more.
const GATED_FAMILIES: [&str; 2] = ["cuMemcpy", "cuMemset"];

/// True if a row makes the card work.
#[must_use]
pub(crate) fn is_gated(row: &Function) -> bool {
    let mut families = GATED_FAMILIES.iter();
    GATED.contains(&row.base) || families.any(|family| row.base.starts_with(family))
}

/// Returns the streams on which a gated row works, in the form that the hooks' macro reads.
#[must_use]
pub(crate) fn streams(row: &Function) -> String {
    let named = |kind: &str| {
        let mut params = row.params.iter();
        let declared = params.find(|param| param.trim_start_matches("const ").starts_with(kind))?;
        declared.rsplit([' ', '*']).next()
    };
    if let Some(stream) = named("CUstream ") {
        return format!("stream r#{stream}");
    }
    if let Some(config) = named("CUlaunchConfig ") {
        return format!("config r#{config}");
    }
    match (
        named("CUDA_LAUNCH_PARAMS_v1 "),
        named("unsigned int numDevices"),
    ) {
        (Some(list), Some(count)) => format!("list r#{list} r#{count}"),
        _ if row.thread == Thread::Legacy => "legacy".to_owned(),
        _ => "thread".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_driver_api::CUDA;

    #[test]
    fn each_row_says_where_its_streams_are() {
        for (symbol, expected) in [
            ("cuLaunchKernel", "stream r#hStream"),
            ("cuMemBatchDecompressAsync_ptsz", "stream r#stream"),
            ("cuLaunchKernelEx", "config r#config"),
            (
                "cuLaunchCooperativeKernelMultiDevice",
                "list r#launchParamsList r#numDevices",
            ),
            ("cuMemcpyDtoH_v2", "legacy"),
            ("cuMemcpyDtoH_v2_ptds", "thread"),
        ] {
            let row = CUDA.by_symbol(symbol).expect("a row");
            assert_eq!(streams(row), expected, "{symbol}");
        }
        // What has a word for a stream in it is a stream of one of those kinds.
        for row in CUDA.iter().filter(|row| is_gated(row)) {
            let is_declared = row.params.iter().any(|one| one.contains("tream"));
            assert_eq!(is_declared, streams(row).starts_with("stream "), "{row:?}");
        }
    }
}
