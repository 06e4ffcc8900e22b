//! Capture, graphs and their memory.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::c_void;

use own_process::{
    begin, context, elapsed, end, event, instantiate, kernel, memory, spin, stream, with_machine,
};

const MIB: usize = 1 << 20;

/// The shortest of many: a busy machine can delay a launch, but nothing makes a kernel
/// shorter than it is.
fn fastest(measure: impl Fn() -> f32) -> f32 {
    (0..40).map(|_| measure()).fold(f32::MAX, f32::min)
}

fn take(size: usize, stream: u64) -> u64 {
    let mut address = 0_u64;
    ok!(cuMemAllocAsync, &raw mut address => *mut u64, size => usize, stream => u64);
    address
}

#[test]
fn what_is_captured_runs_when_it_is_launched() {
    with_machine(
        "what_is_captured_runs_when_it_is_launched",
        "1x1GiB",
        || {
            context();
            let (spinner, adder, stream, other) =
                (kernel("spin"), kernel("add"), stream(), stream());
            let mut address = 0_u64;
            ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 4096 => usize);
            ok!(cuMemsetD32_v2, address => u64, 0 => u32, 1024 => usize);
            let (mut count, mut value) = (1024_u64, 3_u32);
            let [forked, joined, first, last] = [event(), event(), event(), event()];
            begin(stream, 0);
            spin(spinner, stream, 1000);
            ok!(cuEventRecord, forked => u64, stream => u64);
            ok!(cuStreamWaitEvent, other => u64, forked => u64, 0 => u32);
            let mut arguments = [
                (&raw mut address).cast::<c_void>(),
                (&raw mut count).cast(),
                (&raw mut value).cast(),
            ];
            assert_eq!(own_process::launch(adder, other, &mut arguments), 0);
            ok!(cuEventRecord, joined => u64, other => u64);
            assert_eq!(cu!(cuEventQuery, joined => u64), 907);
            ok!(cuStreamWaitEvent, stream => u64, joined => u64, 0 => u32);
            let (code, graph) = end(stream);
            assert_eq!(code, 0);
            let mut n_nodes = 0_usize;
            ok!(cuGraphGetNodes, graph => u64, std::ptr::null_mut() => *mut u64, &raw mut n_nodes => *mut usize);
            assert_eq!(n_nodes, 2);
            let exec = instantiate(graph);
            ok!(cuGraphDestroy, graph => u64);
            value = 100; // the arguments were read when the kernel was captured
            ok!(cuEventRecord, first => u64, stream => u64);
            for _ in 0..4 {
                ok!(cuGraphLaunch, exec => u64, stream => u64);
            }
            ok!(cuEventRecord, last => u64, stream => u64);
            ok!(cuStreamSynchronize, stream => u64);
            let mut back = [0_u32; 2];
            ok!(cuMemcpyDtoH_v2, back.as_mut_ptr() => *mut u32, address + 4088 => u64, 8 => usize);
            assert_eq!((back, value), ([12, 12], 100));
            let time = elapsed(first, last);
            assert!(time >= 4.0, "{time}");
            ok!(cuGraphExecDestroy, exec => u64);
        },
    );
}

#[test]
fn memory_of_a_graph_is_taken_at_its_launch() {
    with_machine(
        "memory_of_a_graph_is_taken_at_its_launch",
        "1x1GiB,context=24MiB",
        || {
            context();
            let stream = stream();
            let mut seen = 0_u64;
            ok!(cuMemHostAlloc, &raw mut seen => *mut u64, 4 => usize, 0 => u32);
            begin(stream, 0);
            let address = take(600 * MIB, stream);
            ok!(cuMemsetD32Async, address => u64, 7 => u32, 1024 => usize, stream => u64);
            ok!(cuMemcpyDtoHAsync_v2, seen => u64, address + 4092 => u64, 4 => usize, stream => u64);
            ok!(cuMemFreeAsync, address => u64, stream => u64);
            let (code, graph) = end(stream);
            assert_eq!((code, memory().0), (0, 1000 * MIB));
            let exec = instantiate(graph);
            assert_eq!(memory().0, 1000 * MIB);
            for _ in 0..3 {
                // SAFETY: allocated above, and the stream has nothing to do.
                unsafe { (seen as *mut u32).write(0) };
                ok!(cuGraphLaunch, exec => u64, stream => u64);
                ok!(cuStreamSynchronize, stream => u64);
                // SAFETY: as above.
                assert_eq!(unsafe { (seen as *const u32).read() }, 7);
                assert_eq!(memory().0, 400 * MIB, "kept for the next launch");
            }
            ok!(cuDeviceGraphMemTrim, 0 => i32);
            assert_eq!(memory().0, 1000 * MIB);
            let mut other = 0_u64;
            ok!(cuMemAlloc_v2, &raw mut other => *mut u64, 500 * MIB => usize);
            assert_eq!(cu!(cuGraphLaunch, exec => u64, stream => u64), 2);
            ok!(cuMemFree_v2, other => u64);
            ok!(cuGraphExecDestroy, exec => u64);
            ok!(cuGraphDestroy, graph => u64);
            // Memory that outlives its graph is there until somebody frees it.
            begin(stream, 0);
            let address = take(100 * MIB, stream);
            let (_, graph) = end(stream);
            let exec = instantiate(graph);
            ok!(cuGraphLaunch, exec => u64, stream => u64);
            ok!(cuMemsetD8Async, address => u64, 1 => u8, 100 * MIB => usize, stream => u64);
            ok!(cuStreamSynchronize, stream => u64);
            assert_eq!(
                cu!(cuGraphLaunch, exec => u64, stream => u64),
                1,
                "still in use"
            );
            ok!(cuMemFreeAsync, address => u64, stream => u64);
            ok!(cuGraphLaunch, exec => u64, stream => u64);
            ok!(cuMemFree_v2, address => u64);
            ok!(cuGraphExecDestroy, exec => u64);
            ok!(cuGraphDestroy, graph => u64);
            ok!(cuDeviceGraphMemTrim, 0 => i32);
            assert_eq!(memory().0, 1000 * MIB);
        },
    );
}

#[test]
fn what_is_unsafe_spoils_a_capture() {
    with_machine("what_is_unsafe_spoils_a_capture", "1x1GiB", || {
        context();
        let (one, two) = (stream(), stream());
        let mut address = 0_u64;
        let mut allocate = || cu!(cuMemAlloc_v2, &raw mut address => *mut u64, 4 => usize);
        begin(one, 0);
        assert_eq!(allocate(), 900);
        assert_eq!(end(one), (901, 0));
        assert_eq!(allocate(), 0);
        begin(one, 2);
        assert_eq!(allocate(), 0, "a relaxed capture");
        assert_eq!(cu!(cuStreamSynchronize, one => u64), 900);
        assert_eq!(end(one).0, 901);
        begin(one, 1);
        let elsewhere = std::thread::spawn(|| {
            context();
            let mut address = 0_u64;
            cu!(cuMemAlloc_v2, &raw mut address => *mut u64, 4 => usize)
        });
        assert_eq!(elsewhere.join().unwrap(), 0, "only this thread may not");
        assert_eq!(end(two).0, 401, "not being captured");
        let (code, graph) = end(one);
        assert_eq!(code, 0);
        ok!(cuGraphDestroy, graph => u64);
        // A stream that took part and never came back.
        let forked = event();
        begin(one, 2);
        ok!(cuEventRecord, forked => u64, one => u64);
        ok!(cuStreamWaitEvent, two => u64, forked => u64, 0 => u32);
        spin(kernel("spin"), two, 1);
        assert_eq!(end(two).0, 903);
        assert_eq!(end(one).0, 904);
        // The default stream would have to wait for what is not running.
        let mut ordered = 0_u64;
        ok!(cuStreamCreate, &raw mut ordered => *mut u64, 0 => u32);
        begin(ordered, 2);
        assert_eq!(
            cu!(cuMemsetD8Async, address => u64, 1 => u8, 1 => usize, 0 => u64),
            906
        );
        assert_eq!(end(ordered).0, 901);
        assert_eq!(cu!(cuStreamBeginCapture_v2, 0 => u64, 0 => u32), 900);
    });
}

#[test]
fn nodes_can_be_made_by_hand() {
    use sublet_driver_api::cuda::CUfunction;
    use sublet_driver_api::cuda::graph::CUDA_KERNEL_NODE_PARAMS_v2;
    with_machine("nodes_can_be_made_by_hand", "1x1GiB", || {
        context();
        let (spinner, stream) = (kernel("spin"), stream());
        let (mut graph, mut node, mut empty) = (0_u64, 0_u64, 0_u64);
        ok!(cuGraphCreate, &raw mut graph => *mut u64, 0 => u32);
        let mut micros = 4000_u64;
        let mut arguments = [(&raw mut micros).cast::<c_void>()];
        let mut params = CUDA_KERNEL_NODE_PARAMS_v2 {
            func: CUfunction(spinner as usize),
            kernelParams: arguments.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS_v2::default()
        };
        let add = |params: &CUDA_KERNEL_NODE_PARAMS_v2, node: &mut u64| {
            cu!(cuGraphAddKernelNode_v2, std::ptr::from_mut(node) => *mut u64, graph => u64,
                std::ptr::null() => *const u64, 0 => usize, std::ptr::from_ref(params) => *const CUDA_KERNEL_NODE_PARAMS_v2)
        };
        assert_eq!(add(&params, &mut node), 1, "no blocks");
        (params.gridDimX, params.gridDimY, params.gridDimZ) = (1, 1, 1);
        (params.blockDimX, params.blockDimY, params.blockDimZ) = (1, 1, 1);
        assert_eq!(add(&params, &mut node), 0);
        ok!(cuGraphAddEmptyNode, &raw mut empty => *mut u64, graph => u64, &raw const node => *const u64, 1 => usize);
        // The node has a copy of its own.
        // SAFETY: the address of a local variable.
        unsafe { (&raw mut micros).write_volatile(1) };
        let exec = instantiate(graph);
        let measure = || {
            let (first, last) = (event(), event());
            ok!(cuEventRecord, first => u64, stream => u64);
            ok!(cuGraphLaunch, exec => u64, stream => u64);
            ok!(cuEventRecord, last => u64, stream => u64);
            ok!(cuStreamSynchronize, stream => u64);
            elapsed(first, last)
        };
        assert!((4.0..4.1).contains(&fastest(measure)));
        assert_eq!(micros, 1);
    });
}
