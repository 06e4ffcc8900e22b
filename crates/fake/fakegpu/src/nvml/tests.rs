//! Compares this module with the table of NVIDIA's header.

use std::collections::BTreeSet;

use sublet_driver_api::NVML;

use super::{ALL, changes};

/// Returns this module's notation of the header's parameters.
fn expected(params: &[&str]) -> Vec<String> {
    params.iter().map(|param| ours(param)).collect()
}

fn ours(param: &str) -> String {
    let start = param.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
    let kind = start.trim();
    match kind {
        "char *" => return "Text".to_owned(),
        "const char *" => return "Name".to_owned(),
        "const void **" => return "Out<In<c_void>>".to_owned(),
        _ => {}
    }
    let (constant, kind) = match kind.strip_prefix("const ") {
        Some(kind) => (true, kind),
        None => (false, kind),
    };
    match kind.strip_suffix('*') {
        Some(kind) if constant => format!("In<{}>", value(kind.trim())),
        Some(kind) => format!("Out<{}>", value(kind.trim())),
        None => value(kind),
    }
}

fn value(kind: &str) -> String {
    match kind {
        "unsigned int" | "nvmlAffinityScope_t" => "u32",
        "int" => "i32",
        "unsigned long" | "unsigned long long" => "u64",
        // Names without a version, and a struct that is never filled.
        "nvmlProcessInfo_t" => "nvmlProcessInfo_v2_t",
        "nvmlProcessDetailList_t" => "nvmlProcessDetailList_v1_t",
        "nvmlProcessesUtilizationInfo_t" => "nvmlProcessesUtilizationInfo_v1_t",
        "nvmlUUID_t" => "nvmlUUID_v1_t",
        "nvmlTemperature_t" => "nvmlTemperature_v1_t",
        "void" => "c_void",
        other => other,
    }
    .to_owned()
}

#[test]
fn functions_are_the_headers() {
    let mut seen = BTreeSet::new();
    for exported in ALL.into_iter().flat_map(|(_, functions)| functions) {
        let symbol = exported.symbol;
        assert!(seen.insert(symbol), "{symbol} is there twice");
        let row = NVML.by_symbol(symbol);
        let row = row.unwrap_or_else(|| panic!("{symbol} is not in the table"));
        // The rest of the row is a name and a type; the type alone decides.
        assert_eq!(exported.params, expected(row.params), "{symbol}");
    }
    assert!(seen.len() > 75, "{} functions", seen.len());
}

#[test]
fn what_changes_a_card_is_told_from_what_asks() {
    let denied: BTreeSet<&str> = NVML
        .iter()
        .map(|row| row.symbol)
        .filter(|symbol| changes(symbol))
        .collect();
    for symbol in [
        "nvmlDeviceSetMemoryLimits_v1",
        "nvmlDeviceSetComputeMode",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceRemoveGpu_v2",
        "nvmlSystemSetNvlinkBwMode",
        "nvmlDeviceCreateGpuInstance",
    ] {
        assert!(denied.contains(symbol), "{symbol}");
    }
    let asks = |symbol: &&&str| symbol.contains("Get") || symbol.contains("Query");
    assert_eq!(denied.iter().find(asks), None);
}
