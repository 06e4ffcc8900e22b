//! Graphs: making, instantiating and launching them. The actions of single nodes are in
//! `node`.

use std::ffi::c_char;

use sublet_driver_api::cuda::graph::CUDA_GRAPH_INSTANTIATE_PARAMS;
use sublet_driver_api::cuda::{
    CUDA_GRAPH_INSTANTIATE_ERROR, CUDA_GRAPH_INSTANTIATE_SUCCESS, CUgraphNode,
};

use crate::cuda::arguments::Out;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;

pub(crate) mod capture;
pub(crate) mod node;

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

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let session = Session::open()?;
        list(session.nodes_of(graph)?, nodes, count)
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
            Err(_) => CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        params.put(given)?;
        made
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
}

/// Writes a list, or only how long it is if the program does not want it. Places that it
/// has too many are set to null.
fn list(all: &[Id], places: Out<Handle>, count: Out<usize>) -> Answer {
    if places.is_null() {
        return count.put(all.len());
    }
    let room = count.get()?;
    let padded = all.iter().copied().chain(std::iter::repeat(0)).take(room);
    places.put_all(padded)?;
    count.put(room.min(all.len()))
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
    exec.put(Session::open()?.instantiate(graph, flags)?)
}

/// Uploads a new exec. If there is no room for its memory, the exec is removed again.
fn upload_new(exec: Handle) -> Answer {
    let mut session = Session::open()?;
    session.upload(exec).or_else(|full| {
        session.drop_exec(exec)?;
        Err(full)
    })
}
