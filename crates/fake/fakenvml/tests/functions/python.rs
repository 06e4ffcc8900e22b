//! The library through NVIDIA's own binding for Python, which most programs use. It is not
//! part of this repository: `SUBLET_TEST_PYNVML` names a folder with its `pynvml.py` (from
//! the package `nvidia-ml-py`).

use std::path::Path;
use std::process::Command;

use super::test_machine;

const SCRIPT: &str = r#"
import os
import pynvml as n

n.nvmlInit()
assert n.nvmlSystemGetDriverVersion().startswith("580.")
assert n.nvmlDeviceGetCount() == 2
for index in range(2):
    card = n.nvmlDeviceGetHandleByIndex(index)
    assert n.nvmlDeviceGetName(card) == "NVIDIA H100", n.nvmlDeviceGetName(card)
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(card))) == index
    bus = n.nvmlDeviceGetPciInfo(card).busId
    assert bus == "00000000:%02X:00.0" % (16 + 8 * index), bus
    memory = n.nvmlDeviceGetMemoryInfo(card)
    assert (memory.total, memory.free, memory.used) == (16 << 30, 16 << 30, 0), memory
    memory = n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2)
    assert (memory.total, memory.reserved) == (16 << 30, 0), memory
    assert n.nvmlDeviceGetComputeRunningProcesses(card) == []
    assert n.nvmlDeviceGetGraphicsRunningProcesses(card) == []
    assert n.nvmlDeviceGetRunningProcessDetailList(card, n.nvmlProcessDetailList_v1, 0) == []
    rates = n.nvmlDeviceGetUtilizationRates(card)
    assert (rates.gpu, rates.memory) == (0, 0)
    assert n.nvmlDeviceGetMigMode(card) == [0, 0]
    assert n.nvmlDeviceGetPerformanceState(card) == 0
    value = n.nvmlDeviceGetFieldValues(card, [n.NVML_FI_DEV_POWER_INSTANT])[0]
    assert value.nvmlReturn == 0 and value.value.uiVal == 70000, value.value.uiVal
    assert bin(n.nvmlDeviceGetCpuAffinity(card, 16)[0]).count("1") >= 1
    for refused, code in [
        (lambda: n.nvmlDeviceGetEccMode(card), n.NVML_ERROR_NOT_SUPPORTED),
        (lambda: n.nvmlDeviceSetPersistenceMode(card, 0), n.NVML_ERROR_NO_PERMISSION),
        (lambda: n.nvmlDeviceGetProcessUtilization(card, 0), n.NVML_ERROR_NOT_FOUND),
        (lambda: n.nvmlDeviceGetHandleByIndex(2), n.NVML_ERROR_INVALID_ARGUMENT),
    ]:
        try:
            refused()
        except n.NVMLError as error:
            assert error.value == code, error
        else:
            raise AssertionError("not refused")
assert "python" in n.nvmlSystemGetProcessName(os.getpid())
assert len(n.nvmlDeviceGetTopologyNearestGpus(card, n.NVML_TOPOLOGY_NODE)) == 1
n.nvmlShutdown()
try:
    n.nvmlDeviceGetCount()
except n.NVMLError_Uninitialized:
    print("all well")
"#;

#[test]
fn nvidia_ml_py_works() {
    let Some(folder) = std::env::var_os("SUBLET_TEST_PYNVML") else {
        eprintln!("skipped: SUBLET_TEST_PYNVML does not name a folder with pynvml.py");
        return;
    };
    assert!(
        Path::new(&folder).join("pynvml.py").is_file(),
        "no pynvml.py in {folder:?}"
    );
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("libnvidia-ml.so.1");
    std::os::unix::fs::symlink(test_machine::library(), link).unwrap();
    let mut command = Command::new("python3");
    test_machine::limit(&mut command);
    let output = command
        .args(["-c", SCRIPT])
        .env("PYTHONPATH", folder)
        .env("LD_LIBRARY_PATH", place.path())
        .env("SUBLET_FAKE_ROOT", place.path())
        .env(test_machine::MACHINE, "2x16GiB,name=NVIDIA H100")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.trim() == "all well",
        "{text}\n{problem}"
    );
}
