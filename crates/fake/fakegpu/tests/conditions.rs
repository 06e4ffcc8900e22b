//! Conditional nodes: graphs in which kernels decide what runs.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::c_void;

use own_process::{begin, context, end, event, instantiate, kernel, spin, stream, with_machine};

/// A conditional node with bodies of its own: the node's graphs, or the code that refused it.
fn add_conditional(graph: u64, condition: u64, kind: u32, size: u32) -> Result<Vec<u64>, u32> {
    use sublet_driver_api::cuda::graph::{CUDA_CONDITIONAL_NODE_PARAMS, CUgraphNodeParams};
    use sublet_driver_api::cuda::{CU_GRAPH_NODE_TYPE_CONDITIONAL, CUgraphConditionalNodeType};
    let mut node = 0_u64;
    let mut params = CUgraphNodeParams {
        r#type: CU_GRAPH_NODE_TYPE_CONDITIONAL,
        ..CUgraphNodeParams::default()
    };
    let conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle: condition,
        r#type: CUgraphConditionalNodeType(kind),
        size,
        ..CUDA_CONDITIONAL_NODE_PARAMS::default()
    };
    let place = (&raw mut params.reserved1).cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
    // SAFETY: the union has room for each kind of node.
    unsafe { place.write(conditional) };
    let mut last = 0_u64;
    let n_before = last_nodes(graph, &mut last);
    let code = cu!(cuGraphAddNode_v2, &raw mut node => *mut u64, graph => u64, &raw const last => *const u64,
        std::ptr::null() => *const u8, n_before => usize, &raw mut params => *mut CUgraphNodeParams);
    if code != 0 {
        return Err(code);
    }
    let mut kind = 0_u32;
    ok!(cuGraphNodeGetType, node => u64, &raw mut kind => *mut u32);
    assert_eq!(kind, 13);
    // SAFETY: the driver wrote the node's parameters there, with a list of `size` graphs.
    let bodies =
        unsafe { std::slice::from_raw_parts((*place).phGraph_out.cast::<u64>(), size as usize) };
    Ok(bodies.to_vec())
}

/// The node that was added last, if there is one: how many there are to come after.
fn last_nodes(graph: u64, last: &mut u64) -> usize {
    let mut n_nodes = 0_usize;
    ok!(cuGraphGetNodes, graph => u64, std::ptr::null_mut() => *mut u64, &raw mut n_nodes => *mut usize);
    let mut nodes = vec![0_u64; n_nodes];
    ok!(cuGraphGetNodes, graph => u64, nodes.as_mut_ptr() => *mut u64, &raw mut n_nodes => *mut usize);
    *last = nodes.last().copied().unwrap_or(0);
    n_nodes.min(1)
}

/// Adds the requests that `ask` makes to a stream to a graph.
fn fill(graph: u64, stream: u64, ask: impl FnOnce()) {
    let mut last = 0_u64;
    let n_before = last_nodes(graph, &mut last);
    ok!(cuStreamBeginCaptureToGraph, stream => u64, graph => u64, &raw const last => *const u64,
        std::ptr::null() => *const u8, n_before => usize, 0 => u32);
    ask();
    assert_eq!(end(stream), (0, graph));
}

fn condition(graph: u64, default: u32, flags: u32) -> u64 {
    let mut handle = 0_u64;
    ok!(cuGraphConditionalHandleCreate, &raw mut handle => *mut u64, graph => u64, 0 => u64, default => u32, flags => u32);
    handle
}

fn new_graph() -> u64 {
    let mut graph = 0_u64;
    ok!(cuGraphCreate, &raw mut graph => *mut u64, 0 => u32);
    graph
}

/// Adds to a word of memory; with a condition, counts it down and sets the condition to it.
struct Counter {
    word: u64,
    adder: u64,
    down: u64,
}

impl Counter {
    fn new(value: u32) -> Counter {
        let mut word = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut word => *mut u64, 4 => usize);
        let counter = Counter {
            word,
            adder: kernel("add"),
            down: kernel("count_down"),
        };
        counter.set(value);
        counter
    }

    fn set(&self, value: u32) {
        ok!(cuMemsetD32_v2, self.word => u64, value => u32, 1 => usize);
    }

    fn add(&self, mut value: u32, stream: u64) {
        let (mut word, mut count) = (self.word, 1_u64);
        let mut arguments = [
            (&raw mut word).cast::<c_void>(),
            (&raw mut count).cast(),
            (&raw mut value).cast(),
        ];
        assert_eq!(own_process::launch(self.adder, stream, &mut arguments), 0);
    }

    fn down(&self, mut condition: u64, stream: u64) {
        let mut word = self.word;
        let mut arguments = [
            (&raw mut condition).cast::<c_void>(),
            (&raw mut word).cast(),
        ];
        assert_eq!(own_process::launch(self.down, stream, &mut arguments), 0);
    }

    fn value(&self) -> u32 {
        let mut value = 0_u32;
        ok!(cuMemcpyDtoH_v2, &raw mut value => *mut u32, self.word => u64, 4 => usize);
        value
    }
}

fn decide(function: u64, mut condition: u64, mut value: u32, stream: u64) {
    let mut arguments = [
        (&raw mut condition).cast::<c_void>(),
        (&raw mut value).cast(),
    ];
    assert_eq!(own_process::launch(function, stream, &mut arguments), 0);
}

fn run(exec: u64, stream: u64) {
    ok!(cuGraphLaunch, exec => u64, stream => u64);
    ok!(cuStreamSynchronize, stream => u64);
}

#[test]
fn a_loop_of_a_graph_runs_as_long_as_a_kernel_says() {
    const NAME: &str = "a_loop_of_a_graph_runs_as_long_as_a_kernel_says";
    with_machine(NAME, "1x1GiB", || {
        context();
        let stream = stream();
        let (rounds, sum) = (Counter::new(5), Counter::new(0));
        let graph = new_graph();
        let handle = condition(graph, 1, 1);
        let [body] = add_conditional(graph, handle, 1, 1).unwrap()[..] else {
            panic!("one body");
        };
        fill(body, stream, || {
            sum.add(10, stream);
            rounds.down(handle, stream);
        });
        fill(graph, stream, || sum.add(1000, stream));
        let exec = instantiate(graph);
        run(exec, stream);
        assert_eq!(
            (sum.value(), rounds.value()),
            (1050, 0),
            "five rounds, then what is behind"
        );
        // The condition begins anew at each launch; one that says no at once ends it.
        sum.set(0);
        rounds.set(1);
        run(exec, stream);
        assert_eq!(sum.value(), 1010);
        // What is asked of the stream meanwhile waits for the whole loop.
        sum.set(0);
        rounds.set(3);
        ok!(cuGraphLaunch, exec => u64, stream => u64);
        sum.add(1, stream);
        ok!(cuStreamSynchronize, stream => u64);
        assert_eq!(sum.value(), 1031);
        ok!(cuGraphExecDestroy, exec => u64);
        ok!(cuGraphDestroy, graph => u64);
    });
}

#[test]
fn a_loop_without_an_end_keeps_only_its_stream() {
    const NAME: &str = "a_loop_without_an_end_keeps_only_its_stream";
    with_machine(NAME, "1x1GiB", || {
        context();
        let (stuck, other) = (stream(), stream());
        let graph = new_graph();
        let handle = condition(graph, 1, 1);
        assert_eq!(add_conditional(graph, handle, 1, 1).unwrap().len(), 1);
        let exec = instantiate(graph);
        ok!(cuGraphLaunch, exec => u64, stuck => u64);
        spin(kernel("spin"), other, 1000);
        ok!(cuStreamSynchronize, other => u64);
        assert_eq!(cu!(cuStreamQuery, stuck => u64), 600);
    });
}

#[test]
fn conditions_choose_what_runs() {
    const NAME: &str = "conditions_choose_what_runs";
    with_machine(NAME, "1x1GiB", || {
        context();
        let stream = stream();
        let (seen, decider) = (Counter::new(0), kernel("decide"));
        let graph = new_graph();
        let [either, choice] = [condition(graph, 0, 0), condition(graph, 7, 1)];
        fill(graph, stream, || decide(decider, either, 1, stream));
        let two = add_conditional(graph, either, 0, 2).unwrap();
        fill(two[0], stream, || {
            seen.add(1, stream);
            decide(decider, choice, 2, stream);
        });
        fill(two[1], stream, || seen.add(10, stream));
        let three = add_conditional(graph, choice, 2, 3).unwrap();
        for (place, body) in three.iter().enumerate() {
            fill(*body, stream, || seen.add(100 << (4 * place), stream));
        }
        // A condition inside of a body, of the graph around it.
        let inner = condition(graph, 1, 1);
        let nested = add_conditional(three[2], inner, 0, 1).unwrap();
        fill(nested[0], stream, || seen.add(1 << 20, stream));
        let exec = instantiate(graph);
        run(exec, stream);
        assert_eq!(seen.value(), 1 + (100 << 8) + (1 << 20));
        // The exec's nodes can be changed, also those of a body.
        let mut first = 0_u64;
        let mut n_nodes = 1_usize;
        ok!(cuGraphGetNodes, graph => u64, &raw mut first => *mut u64, &raw mut n_nodes => *mut usize);
        ok!(cuGraphNodeSetEnabled, exec => u64, first => u64, 0 => u32);
        let mut node = 0_u64;
        n_nodes = 1;
        ok!(cuGraphGetNodes, two[1] => u64, &raw mut node => *mut u64, &raw mut n_nodes => *mut usize);
        seen.set(0);
        run(exec, stream);
        // Nobody set the first condition, and it keeps its value; the second one does not.
        assert_eq!(seen.value(), 1 + (100 << 8) + (1 << 20));
        ok!(cuGraphNodeSetEnabled, exec => u64, node => u64, 0 => u32);
        ok!(cuGraphExecDestroy, exec => u64);
        ok!(cuGraphDestroy, graph => u64);
    });
}

#[test]
fn what_conditional_nodes_do_not_allow() {
    const NAME: &str = "what_conditional_nodes_do_not_allow";
    with_machine(NAME, "1x1GiB", || {
        context();
        let stream = stream();
        let (graph, other) = (new_graph(), new_graph());
        let handle = condition(graph, 1, 1);
        let refused = |graph, handle, kind, size| add_conditional(graph, handle, kind, size).err();
        assert_eq!(refused(graph, 77, 0, 1), Some(1), "no such condition");
        assert_eq!(refused(other, handle, 0, 1), Some(1), "of another graph");
        assert_eq!(refused(graph, handle, 1, 2), Some(1), "a loop has one body");
        assert_eq!(refused(graph, handle, 3, 1), Some(1), "no such kind");
        let mut exec = 0_u64;
        let mut try_to = |graph: u64| cu!(cuGraphInstantiateWithFlags, &raw mut exec => *mut u64, graph => u64, 0 => u64);
        assert_eq!(try_to(graph), 1, "the condition decides nothing");
        let body = add_conditional(graph, handle, 0, 1).unwrap()[0];
        assert_eq!(refused(graph, handle, 0, 1), Some(1), "it has its node");
        assert_eq!(cu!(cuGraphDestroy, body => u64), 1, "it is the node's");
        let (mut copy, mut node) = (0_u64, 0_u64);
        assert_eq!(
            cu!(cuGraphClone, &raw mut copy => *mut u64, graph => u64),
            801
        );
        assert_eq!(
            cu!(cuGraphAddChildGraphNode, &raw mut node => *mut u64, other => u64, std::ptr::null() => *const u64, 0 => usize, graph => u64),
            801
        );
        assert_eq!(try_to(graph), 0);
        assert_eq!(try_to(graph), 801, "one at a time");
        begin(stream, 0);
        let first = exec;
        assert_eq!(cu!(cuGraphLaunch, first => u64, stream => u64), 900);
        assert_eq!(end(stream).0, 901);
        ok!(cuGraphExecDestroy, first => u64);
        // Not everything can be in a body.
        let forked = event();
        ok!(cuGraphAddEventRecordNode, &raw mut node => *mut u64, body => u64, std::ptr::null() => *const u64, 0 => usize, forked => u64);
        let mut again = 0_u64;
        assert_eq!(
            cu!(cuGraphInstantiateWithFlags, &raw mut again => *mut u64, graph => u64, 0 => u64),
            801
        );
        ok!(cuGraphDestroyNode, node => u64);
        let exec = instantiate(graph);
        run(exec, stream);
        assert_eq!(
            cu!(cuGraphConditionalHandleCreate, &raw mut copy => *mut u64, graph => u64, 0 => u64, 0 => u32, 2 => u32),
            1
        );
    });
}
