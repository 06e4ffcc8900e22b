//! Memory of graphs: the charge of an executable graph, and its end.

use crate::memory::{START, check, last_refusal, one_card};
use crate::support::{Program, tenant};

#[test]
fn graphs_are_charged_while_they_can_run() {
    check(
        "
        cuGraphCreate &g 0
        cuGraphAddMemAllocNode &n1 g null 0 node:0:100M -> 2
        set p node:0:30M
        cuGraphAddMemAllocNode &n1 g null 0 p
        used 0 0
        cuGraphInstantiateWithFlags &x g 0
        used 0 30M
        cuGraphInstantiateWithFlags &y g 0
        used 0 60M
        cuGraphInstantiateWithFlags &z g 0 -> 2
        cuMemAlloc_v2 &a 8M -> 2
        used 0 60M
        # The driver keeps a graph's memory until it is trimmed.
        cuGraphExecDestroy y
        used 0 60M
        cuDeviceGraphMemTrim 0
        used 0 30M
        cuGraphExecDestroy x
        # And it is trimmed when somebody needs it.
        cuMemAlloc_v2 &a 60M
        used 0 60M
        fake_fail 1
        cuMemFree_v2 a -> 1
        cuMemFree_v2 a
        fake_fail 1
        cuGraphInstantiateWithFlags &x g 0 -> 999
        used 0 0
        ",
    );
}

#[test]
fn a_graph_is_charged_for_its_addresses_each_once() {
    check(
        "
        # One after the other, in one line: the driver gives both the same address.
        cuGraphCreate &line 0
        cuGraphAddMemAllocNode &n line null 0 node:0:40M:1G
        cuGraphAddMemAllocNode &n line null 0 node:0:38M:1G
        cuGraphInstantiateWithFlags &x line 0
        used 0 40M
        cuGraphExecDestroy x
        cuDeviceGraphMemTrim 0
        used 0 0
        # Branches that run side by side need both, and what comes after them neither in addition.
        cuGraphCreate &fork 0
        cuGraphAddMemAllocNode &n fork null 0 node:0:20M:1G
        cuGraphAddMemAllocNode &n fork null 0 node:0:30M:2G
        cuGraphAddMemAllocNode &n fork null 0 node:0:20M:1G
        cuGraphAddMemAllocNode &n fork null 0 node:0:30M:2G
        cuGraphInstantiateWithFlags &x fork 0
        used 0 50M
        fake_used 0 -> 157286400
        cuGraphExecDestroy x
        cuDeviceGraphMemTrim 0
        # One more beside them does not fit.
        cuGraphAddMemAllocNode &n fork null 0 node:0:20M:3G
        cuGraphInstantiateWithFlags &x fork 0 -> 2
        used 0 0
        ",
    );
}

#[test]
fn what_a_driver_takes_for_a_graph_beyond_that_must_fit_too() {
    let arbiter = one_card(64 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        fake_growth 8M
        cuGraphCreate &g 0
        cuGraphAddMemAllocNode &n g null 0 node:0:40M
        cuGraphInstantiateWithFlags &x g 0
        used 0 48M
        cuGraphExecDestroy x
        cuDeviceGraphMemTrim 0
        cuGraphCreate &h 0
        cuGraphAddMemAllocNode &n h null 0 node:0:60M
        cuGraphInstantiateWithFlags &x h 0 -> 2
        used 0 0
        fake_used 0 -> 104857600
        ",
    );
    assert_eq!(last_refusal(&arbiter), Some(60 << 20));
}

#[test]
fn where_a_driver_tells_nothing_of_a_node_the_device_is_asked() {
    let arbiter = one_card(64 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        fake_untold 1
        cuGraphCreate &g 0
        cuGraphAddMemAllocNode &n g null 0 node:0:40M
        cuGraphInstantiateWithFlags &x g 0
        used 0 40M
        # One more does not fit, and is undone.
        cuGraphInstantiateWithFlags &y g 0 -> 2
        used 0 40M
        fake_used 0 -> 146800640
        fake_fail 1
        cuGraphInstantiateWithFlags &y g 0 -> 999
        used 0 40M
        # The driver keeps its memory until it is trimmed.
        cuGraphExecDestroy x
        used 0 40M
        cuMemAlloc_v2 &a 60M
        used 0 60M
        cuMemFree_v2 a
        # A graph without memory takes none, whatever the driver tells.
        cuGraphCreate &e 0
        cuGraphInstantiateWithFlags &x e 0
        used 0 0
        ",
    );
    assert_eq!(last_refusal(&arbiter), Some(40 << 20));
}

#[test]
fn an_allocation_that_is_recorded_for_a_graph_is_the_graphs() {
    check(
        "
        fake_capture 1
        cuMemAllocAsync &a 60M 0
        used 0 0
        fake_capture 0
        ",
    );
}
