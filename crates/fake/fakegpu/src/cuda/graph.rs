//! Graphs: making, ordering, instantiating and launching them. The actions of single nodes are in
//! `node`.

use std::ffi::c_char;

use sublet_driver_api::cuda::graph::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraphEdgeData, CUgraphExecUpdateResultInfo_v1,
};
use sublet_driver_api::cuda::{
    CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
    CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED,
    CUDA_GRAPH_INSTANTIATE_ERROR, CUDA_GRAPH_INSTANTIATE_SUCCESS, CUgraphNode,
};

use crate::cuda::arguments::{In, Out, Text};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;

pub(crate) mod capture;
pub(crate) mod node;
pub(crate) mod node_params;

functions! {
    fn cuGraphCreate(graph: Out<Handle>, flags: u32) {
        graph.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.put(Session::open()?.make_graph())
    }

    fn cuGraphDestroy(graph: Handle) {
        Session::open()?.drop_graph(graph)
    }

    fn cuGraphClone(copy: Out<Handle>, graph: Handle) {
        copy.check()?;
        let mut session = Session::open()?;
        let (id, originals) = session.clone_graph(graph)?;
        for (original, node) in originals {
            session.node_mut(node)?.copy_of = original;
        }
        copy.put(id)
    }

    fn cuGraphNodeFindInClone(found: Out<Handle>, original: Handle, copy: Handle) {
        let session = Session::open()?;
        for node in session.nodes_of(copy)? {
            if session.node(*node)?.copy_of == original {
                return found.put(*node);
            }
        }
        Err(Code::INVALID_VALUE)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let session = Session::open()?;
        list(session.nodes_of(graph)?, nodes, count)
    }

    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let session = Session::open()?;
        let all = session.nodes_of(graph)?.iter();
        let is_root = |node: &&Id| session.node(**node).is_ok_and(|node| node.after.is_empty());
        let roots: Vec<Id> = all.filter(is_root).copied().collect();
        list(&roots, nodes, count)
    }

    fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        let session = Session::open()?;
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for node in session.nodes_of(graph)? {
            for first in &session.node(*node)?.after {
                firsts.push(*first);
                seconds.push(*node);
            }
        }
        if from.is_null() || to.is_null() {
            return count.put(firsts.len());
        }
        let room = count.get()?;
        list(&firsts, from, count)?;
        count.put(room)?;
        list(&seconds, to, count)?;
        plain(data, count.get()?)
    }

    fn cuGraphNodeGetDependencies_v2(node: Handle, nodes: Out<Handle>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        let session = Session::open()?;
        let room = if data.is_null() { 0 } else { count.get()? };
        list(&session.node(node)?.after, nodes, count)?;
        plain(data, room.min(count.get()?))
    }

    fn cuGraphNodeGetDependentNodes_v2(node: Handle, nodes: Out<Handle>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        let room = if data.is_null() { 0 } else { count.get()? };
        let session = Session::open()?;
        let graph = session.node(node)?.graph;
        let is_after = |other: &&Id| {
            let other = session.node(**other);
            other.is_ok_and(|other| other.after.contains(&node))
        };
        let others = session.nodes_of(graph)?.iter();
        let dependents: Vec<Id> = others.filter(is_after).copied().collect();
        list(&dependents, nodes, count)?;
        plain(data, room.min(count.get()?))
    }

    fn cuGraphAddDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, _data: In<CUgraphEdgeData>, count: usize) {
        order(graph, from, to, count, true)
    }

    fn cuGraphRemoveDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, _data: In<CUgraphEdgeData>, count: usize) {
        order(graph, from, to, count, false)
    }

    fn cuGraphDestroyNode(node: Handle) {
        Session::open()?.drop_node(node)
    }

    fn cuGraphInstantiate_v2(exec: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<c_char>, room: usize) {
        node.put_if(0);
        if !log.is_null() && room > 0 {
            log.put(0)?;
        }
        instantiate(exec, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(exec, graph, flags)
    }

    stream fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>) {
        let mut given = params.get()?;
        let is_uploaded = given.flags & 2 != 0;
        if is_uploaded {
            let stream = given.hUploadStream.0 as u64;
            Session::open()?.stream(stream, PER_THREAD)?;
        }
        let made = instantiate(exec, graph, given.flags);
        let made = made.and_then(|()| if is_uploaded { upload_new(exec.get()?) } else { Ok(()) });
        given.hErrNode_out = CUgraphNode(0);
        given.result_out = match made {
            Ok(()) => CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(_) if Session::open()?.has_idle_condition(graph) => {
                CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED
            }
            Err(_) => CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        params.put(given)?;
        made
    }

    fn cuGraphConditionalHandleCreate(handle: Out<u64>, graph: Handle, context: Handle, default: u32, flags: u32) {
        handle.check()?;
        let mut session = Session::open()?;
        session.context(context)?;
        if flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let is_set = flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0;
        handle.put(session.make_condition(graph, is_set.then_some(default))?)
    }

    fn cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) {
        flags.put(Session::open()?.exec(exec)?.flags)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        Session::open()?.drop_exec(exec)
    }

    stream fn cuGraphUpload(exec: Handle, stream: Handle) {
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.forbid_if_captured(stream)?;
        session.upload(exec)
    }

    stream fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.forbid_implicit(stream)?;
        session.launch(exec, stream)
    }

    fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: Out<CUgraphExecUpdateResultInfo_v1>) {
        result.check()?;
        let is_same = Session::open()?.update_exec(exec, graph)?;
        result.put(CUgraphExecUpdateResultInfo_v1 {
            result: if is_same {
                CU_GRAPH_EXEC_UPDATE_SUCCESS
            } else {
                CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
            },
            ..CUgraphExecUpdateResultInfo_v1::default()
        })?;
        if is_same { Ok(()) } else { Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: u32) {
        Session::open()?.set_step(exec, node, None, Some(enabled != 0))
    }

    fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: Out<u32>) {
        enabled.put(Session::open()?.is_step_enabled(exec, node)?.into())
    }

    fn cuGraphDebugDotPrint(graph: Handle, path: Text, _flags: u32) {
        let session = Session::open()?;
        let mut dot = String::from("digraph dot {\n");
        for node in session.nodes_of(graph)? {
            for first in &session.node(*node)?.after {
                dot.push_str(&format!("\"{first:x}\" -> \"{node:x}\";\n"));
            }
        }
        dot.push_str("}\n");
        std::fs::write(path.string()?, dot).map_err(|_| Code::OPERATING_SYSTEM)
    }
}

/// Writes a list, or only how long it is if the program does not want it. Places that it
/// has too many are set to null.
pub(crate) fn list(all: &[Id], places: Out<Handle>, count: Out<usize>) -> Answer {
    if places.is_null() {
        return count.put(all.len());
    }
    let room = count.get()?;
    let padded = all.iter().copied().chain(std::iter::repeat(0)).take(room);
    places.put_all(padded)?;
    count.put(room.min(all.len()))
}

/// Edges of the ordinary kind, which are all that there are.
fn plain(data: Out<CUgraphEdgeData>, count: usize) -> Answer {
    if data.is_null() {
        return Ok(());
    }
    data.put_all(std::iter::repeat_n(CUgraphEdgeData::default(), count))
}

fn order(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize, ordered: bool) -> Answer {
    let mut session = Session::open()?;
    session.nodes_of(graph)?;
    for (first, second) in from.list(count)?.into_iter().zip(to.list(count)?) {
        session.set_order(first, second, ordered)?;
    }
    Ok(())
}

fn instantiate(exec: Out<Handle>, graph: Handle, flags: u64) -> Answer {
    exec.check()?;
    // Free at launch, upload, launch from the card, node priorities.
    if flags & !15 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if flags & 4 != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut session = Session::open()?;
    if session.has_idle_condition(graph) {
        return Err(Code::INVALID_VALUE);
    }
    exec.put(session.instantiate(graph, flags)?)
}

/// Uploads a new exec. If there is no room for its memory, the exec is removed again.
fn upload_new(exec: Handle) -> Answer {
    let mut session = Session::open()?;
    session.upload(exec).or_else(|full| {
        session.drop_exec(exec)?;
        Err(full)
    })
}
