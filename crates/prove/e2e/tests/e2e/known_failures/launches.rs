//! Rows 4 and 5: what makes a card work passes the gate, and passes it once it is open; nothing
//! gets past it, and nothing else waits for it.

use std::time::Duration;

use anyhow::{Context, Result};
use sublet_e2e::one_machine::{Calls, Machine};

use crate::known_failures::gate::Gate;
use crate::known_failures::{EXACT, START};

/// A kernel whose every run is seen: it adds one.
const KERNELS: &str = "\
.version 7.0
.target sm_70
.address_size 64
// fake add: us=1 add ptr=arg0 count=arg1 value=arg2
.visible .entry add(.param .u64 words, .param .u64 count, .param .u64 value) { ret; }
";

/// So long a launch is watched at a closed gate.
const A_WHILE: Duration = Duration::from_millis(250);

/// A program with memory `a`, a stream `s`, the kernel `f`, and a graph `x` that runs it once.
fn ready(machine: &Machine) -> Result<Calls> {
    let image = machine.script("kernels.ptx", KERNELS)?;
    let mut calls = machine.calls("--memory 256MiB --name job")?;
    calls.play(START)?;
    calls.play(&format!(
        "
        cuMemAlloc_v2 &a 1M
        cuMemAlloc_v2 &b 1M
        set count 1
        set one 1
        cuStreamCreate &s 1
        cuModuleLoadData &m file:{}
        cuModuleGetFunction &f m \"add
        cuGraphCreate &g 0
        cuStreamBeginCapture_v2 s 1
        cuLaunchKernel f 1 1 1 32 1 1 0 s list:a,count,one null
        cuStreamEndCapture s &g
        cuGraphInstantiateWithFlags &x g 0
        cuGetProcAddress_v2 \"cuLaunchKernelEx &ex 12000 0 null
        cuGetProcAddress_v2 \"cuGraphLaunch &twin 12000 2 null
        set word struct:8
        ",
        image.display()
    ))?;
    Ok(calls)
}

/// Number of runs of the kernel.
fn runs(calls: &mut Calls) -> Result<u64> {
    calls.play("cuCtxSynchronize\ncuMemcpyDtoH_v2 word a 4")?;
    calls.number("word word 0")
}

/// Every launch of the list stands at a closed gate and goes on at an open one; then the kernel
/// has run exactly so often as it was launched.
fn are_held(launches: &[&str]) -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = ready(&machine)?;
    let Some(mut gate) = Gate::of_only_job(&machine)? else {
        return Ok(());
    };
    let mut expected = 0;
    for launch in launches {
        // At an open gate first, so that the functions are found.
        assert_eq!(calls.call(launch)?, "0", "{launch}");
        gate.close_and_drain()?;
        calls.tell(launch)?;
        let early = calls.answer_within(A_WHILE)?;
        gate.open()?;
        assert_eq!(early, None, "{launch} did not wait");
        assert_eq!(calls.answer()?, "0", "{launch}");
        expected += if launch.starts_with("cuMem") { 0 } else { 2 };
    }
    assert_eq!(runs(&mut calls)?, expected, "{launches:?}");
    calls.end()
}

/// A limit on compute did not count graphs, which are most of what an inference server launches
/// (HAMi#1445).
#[test]
fn row_04_a_graph_waits_at_a_closed_gate_as_a_kernel_does() -> Result<()> {
    are_held(&[
        "cuLaunchKernel f 1 1 1 32 1 1 0 s list:a,count,one null",
        "cuGraphLaunch x s",
        "cuGraphLaunch_ptsz x s",
        "@twin x s",
    ])
}

/// Limits held only some launches, or all of them for far too long (HAMi-core#37, HAMi-core#76,
/// HAMi#737, HAMi#786, HAMi#959). A launch goes exactly when the gate is open, whichever
/// function makes it, and none is lost or made twice.
#[test]
fn row_05_every_kind_of_launch_goes_when_the_gate_is_open() -> Result<()> {
    are_held(&[
        "cuLaunchKernel_ptsz f 1 1 1 32 1 1 0 s list:a,count,one null",
        "cuLaunchKernelEx struct:56:1,1,1,32,1,1,0 f list:a,count,one null",
        "cuLaunchKernelEx_ptsz struct:56:1,1,1,32,1,1,0 f list:a,count,one null",
        "@ex struct:56:1,1,1,32,1,1,0 f list:a,count,one null",
        "cuLaunchCooperativeKernel f 1 1 1 32 1 1 0 s list:a,count,one",
        "cuMemcpyHtoD_v2 b word 4",
        "cuMemcpyHtoDAsync_v2 b word 4 s",
        "cuMemcpyAsync b b 4 s",
        "cuMemsetD32_v2 b 5 4",
        "cuMemsetD32Async b 5 4 s",
    ])
}

/// Calls that make no work do not wait: otherwise the thread that could end the wait would wait too
/// (HAMi-core#142).
#[test]
fn row_05_nothing_else_waits_for_the_gate() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = ready(&machine)?;
    let Some(mut gate) = Gate::of_only_job(&machine)? else {
        return Ok(());
    };
    gate.close_and_drain()?;
    for call in [
        "cuMemAlloc_v2 &c 1M",
        "cuMemFree_v2 c",
        "cuMemAllocAsync &c 1M s",
        "cuMemFreeAsync c s",
        "cuMemGetInfo_v2 &free &total",
        "cuStreamSynchronize s",
        "cuStreamQuery s",
        "cuCtxSynchronize",
        "cuEventCreate &e 0",
        "cuEventRecord e s",
        "cuEventSynchronize e",
        "cuGraphInstantiateWithFlags &y g 0",
        "cuGraphExecDestroy y",
        "cuModuleGetFunction &h m \"add",
    ] {
        let answer = calls.call(call).context("at a closed gate")?;
        assert_eq!(answer, "0", "{call}");
    }
    gate.open()?;
    calls.end()
}
