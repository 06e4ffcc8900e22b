//! Nodes of graphs: what they do, as programs say it and as they are told it again.

use sublet_driver_api::cuda::copy::CUDA_MEMCPY3D_v2;
use sublet_driver_api::cuda::graph::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_EVENT_WAIT_NODE_PARAMS,
    CUDA_HOST_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS_v1, CUgraphEdgeData, CUgraphNodeParams,
};
use sublet_driver_api::cuda::{CUcontext, CUkernel};

use super::arguments::{In, Out};
use super::node_params::{arguments_of, function_of, kernel_params, recall, remember};
use super::physical::location;
use super::{Handle, boxes, functions, launch, set};
use crate::driver::Session;
use crate::driver::code::{Answer, Code};
use crate::driver::graph::Content;
use crate::driver::work::{Action, Callback};

functions! {
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        let mut session = Session::open()?;
        add(&mut session, node, graph, after, count, Content::Action(Action::Empty))
    }

    fn cuGraphAddKernelNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let params = widen(&params.get()?);
        let mut session = Session::open()?;
        let action = kernel(&mut session, &params)?;
        add(&mut session, node, graph, after, count, Content::Action(action))?;
        remember(&mut session, node.get()?, &params)
    }

    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let params = params.get()?;
        let mut session = Session::open()?;
        let action = kernel(&mut session, &params)?;
        add(&mut session, node, graph, after, count, Content::Action(action))?;
        remember(&mut session, node.get()?, &params)
    }

    fn cuGraphAddMemcpyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_MEMCPY3D_v2>, _context: Handle) {
        let params = params.get()?;
        let mut session = Session::open()?;
        let action = memcpy(&session, &params)?;
        add(&mut session, node, graph, after, count, Content::Action(action))?;
        remember(&mut session, node.get()?, &params)
    }

    fn cuGraphAddMemsetNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: Handle) {
        let params = params.get()?;
        let mut session = Session::open()?;
        let action = memset(&session, &params)?;
        add(&mut session, node, graph, after, count, Content::Action(action))?;
        remember(&mut session, node.get()?, &params)
    }

    fn cuGraphAddHostNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        let params = params.get()?;
        let mut session = Session::open()?;
        let action = host(&params)?;
        add(&mut session, node, graph, after, count, Content::Action(action))?;
        remember(&mut session, node.get()?, &params)
    }

    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        let mut session = Session::open()?;
        let (copy, _) = session.clone_graph(child)?;
        add(&mut session, node, graph, after, count, Content::Child(copy))
    }

    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        let mut session = Session::open()?;
        session.event(event)?;
        add(&mut session, node, graph, after, count, Content::Action(Action::Record(event)))
    }

    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        let mut session = Session::open()?;
        session.event(event)?;
        add(&mut session, node, graph, after, count, Content::Action(Action::Wait(event)))
    }

    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        alloc(&mut session, node, graph, after, count, params)
    }

    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) {
        let mut session = Session::open()?;
        session.memory.ranges.starting(address).ok_or(Code::INVALID_VALUE)?;
        add(&mut session, node, graph, after, count, Content::Action(Action::Free(address)))
    }

    fn cuGraphAddNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<CUgraphNodeParams>) {
        any(node, graph, after, count, params)
    }

    fn cuGraphAddNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, _edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) {
        any(node, graph, after, count, params)
    }

    fn cuGraphAddNode_v3(node: Out<Handle>, graph: Handle, after: In<Handle>, _edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) {
        any(node, graph, after, count, params)
    }

    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) {
        kind.put(Session::open()?.node(node)?.content.kind())
    }

    fn cuGraphKernelNodeGetParams_v2(node: Handle, params: Out<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let mut session = Session::open()?;
        params.put(kernel_params(&mut session, node)?)
    }

    fn cuGraphKernelNodeGetParams(node: Handle, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        let wide = kernel_params(&mut session, node)?;
        // The old struct is the beginning of the new one.
        params.put(In::of(&wide).cast::<CUDA_KERNEL_NODE_PARAMS_v1>().get()?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let mut session = Session::open()?;
        set_kernel(&mut session, node, &params.get()?)
    }

    fn cuGraphKernelNodeSetParams(node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        set_kernel(&mut session, node, &widen(&params.get()?))
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let mut session = Session::open()?;
        let action = kernel(&mut session, &params.get()?)?;
        session.set_step(exec, node, Some(action), None)
    }

    fn cuGraphExecKernelNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        let action = kernel(&mut session, &widen(&params.get()?))?;
        session.set_step(exec, node, Some(action), None)
    }

    fn cuGraphMemcpyNodeGetParams(node: Handle, params: Out<CUDA_MEMCPY3D_v2>) {
        let session = Session::open()?;
        params.put(recall(&session, node, 1)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: Handle, params: In<CUDA_MEMCPY3D_v2>) {
        let mut session = Session::open()?;
        let params = params.get()?;
        let action = memcpy(&session, &params)?;
        change(&mut session, node, 1, action)?;
        remember(&mut session, node, &params)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_MEMCPY3D_v2>, _context: Handle) {
        let mut session = Session::open()?;
        let action = memcpy(&session, &params.get()?)?;
        session.set_step(exec, node, Some(action), None)
    }

    fn cuGraphMemsetNodeGetParams(node: Handle, params: Out<CUDA_MEMSET_NODE_PARAMS_v1>) {
        let session = Session::open()?;
        params.put(recall(&session, node, 2)?)
    }

    fn cuGraphMemsetNodeSetParams(node: Handle, params: In<CUDA_MEMSET_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        let params = params.get()?;
        let action = memset(&session, &params)?;
        change(&mut session, node, 2, action)?;
        remember(&mut session, node, &params)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: Handle) {
        let mut session = Session::open()?;
        let action = memset(&session, &params.get()?)?;
        session.set_step(exec, node, Some(action), None)
    }

    fn cuGraphHostNodeGetParams(node: Handle, params: Out<CUDA_HOST_NODE_PARAMS_v1>) {
        let session = Session::open()?;
        params.put(recall(&session, node, 3)?)
    }

    fn cuGraphHostNodeSetParams(node: Handle, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        let mut session = Session::open()?;
        let params = params.get()?;
        let action = host(&params)?;
        change(&mut session, node, 3, action)?;
        remember(&mut session, node, &params)
    }

    fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        let action = host(&params.get()?)?;
        Session::open()?.set_step(exec, node, Some(action), None)
    }

    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        match Session::open()?.node(node)?.content {
            Content::Child(child) => graph.put(child),
            Content::Action(_) => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>) {
        match Session::open()?.node(node)?.content {
            Content::Action(Action::Record(id)) => event.put(id),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>) {
        match Session::open()?.node(node)?.content {
            Content::Action(Action::Wait(id)) => event.put(id),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphMemAllocNodeGetParams(node: Handle, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) {
        let session = Session::open()?;
        params.put(recall(&session, node, 10)?)
    }

    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) {
        match Session::open()?.node(node)?.content {
            Content::Action(Action::Free(start)) => address.put(start),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn add(
    session: &mut Session,
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    content: Content,
) -> Answer {
    node.check()?;
    let after = after.list(count)?;
    node.put(session.add_node(graph, &after, content)?)
}

fn widen(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        kern: CUkernel(0),
        ctx: CUcontext(0),
    }
}

fn kernel(session: &mut Session, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Answer<Action> {
    let grid = [
        params.gridDimX,
        params.gridDimY,
        params.gridDimZ,
        params.blockDimX,
        params.blockDimY,
        params.blockDimZ,
    ];
    // Any stream of the context will do: the node gets its own when it is launched.
    let stream = session.stream(0, false)?;
    let (function, shared) = (function_of(params), params.sharedMemBytes);
    let plan = launch::plan(
        session,
        function,
        grid,
        shared,
        stream,
        arguments_of(params),
    )?;
    Ok(Action::Kernel(plan))
}

fn memcpy(session: &Session, params: &CUDA_MEMCPY3D_v2) -> Answer<Action> {
    let plan = boxes::plan(session, params, true)?;
    Ok(plan.map_or(Action::Empty, Action::Move))
}

fn memset(session: &Session, params: &CUDA_MEMSET_NODE_PARAMS_v1) -> Answer<Action> {
    let shape = [
        params.pitch as u64,
        params.elementSize.into(),
        params.value.into(),
        params.width as u64,
        params.height as u64,
    ];
    let plan = set::pattern(session, params.dst, shape, true)?;
    Ok(plan.map_or(Action::Empty, Action::Move))
}

fn host(params: &CUDA_HOST_NODE_PARAMS_v1) -> Answer<Action> {
    let function = params.r#fn.ok_or(Code::INVALID_VALUE)?;
    let data = params.userData as u64;
    Ok(Action::Call(Callback { function, data }))
}

fn alloc(
    session: &mut Session,
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>,
) -> Answer {
    let mut given = params.get()?;
    if given.bytesize == 0 || given.poolProps.allocType.0 != 1 {
        return Err(Code::INVALID_VALUE);
    }
    let card = location(session, &given.poolProps.location)?;
    let card = card.ok_or(Code::NOT_SUPPORTED)?;
    given.dptr = session.reserve_graph_memory(card, given.bytesize as u64)?;
    let content = Content::Action(Action::Alloc(given.dptr));
    add(session, node, graph, after, count, content)?;
    remember(session, node.get()?, &given)?;
    params.put(given)
}

/// A node by the struct that is one of all; which one, says its type.
fn any(
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
    params: Out<CUgraphNodeParams>,
) -> Answer {
    let mut given = params.get()?;
    let mut session = Session::open()?;
    let union = In::of(&given.reserved1);
    let action = match given.r#type.0 {
        0 => {
            let params = union.cast::<CUDA_KERNEL_NODE_PARAMS_v2>().get()?;
            let action = kernel(&mut session, &params)?;
            add(
                &mut session,
                node,
                graph,
                after,
                count,
                Content::Action(action),
            )?;
            return remember(&mut session, node.get()?, &params);
        }
        1 => {
            let params = union.cast::<CUDA_MEMCPY_NODE_PARAMS>().get()?.copyParams;
            let action = memcpy(&session, &params)?;
            add(
                &mut session,
                node,
                graph,
                after,
                count,
                Content::Action(action),
            )?;
            return remember(&mut session, node.get()?, &params);
        }
        2 => {
            let params = union.cast::<CUDA_MEMSET_NODE_PARAMS_v1>().get()?;
            let action = memset(&session, &params)?;
            add(
                &mut session,
                node,
                graph,
                after,
                count,
                Content::Action(action),
            )?;
            return remember(&mut session, node.get()?, &params);
        }
        3 => host(&union.cast::<CUDA_HOST_NODE_PARAMS_v1>().get()?)?,
        4 => {
            let child = union.cast::<CUDA_CHILD_GRAPH_NODE_PARAMS>().get()?;
            let (copy, _) = session.clone_graph(child.graph.0 as u64)?;
            add(
                &mut session,
                node,
                graph,
                after,
                count,
                Content::Child(copy),
            )?;
            given.reserved1[0] = copy;
            return params.put(given);
        }
        5 => Action::Empty,
        6 => {
            let event = union.cast::<CUDA_EVENT_WAIT_NODE_PARAMS>().get()?.event.0 as u64;
            session.event(event)?;
            Action::Wait(event)
        }
        7 => {
            let event = union.cast::<CUDA_EVENT_RECORD_NODE_PARAMS>().get()?.event.0 as u64;
            session.event(event)?;
            Action::Record(event)
        }
        10 => {
            let place = Out::of(&mut given.reserved1).cast::<CUDA_MEM_ALLOC_NODE_PARAMS_v1>();
            alloc(&mut session, node, graph, after, count, place)?;
            return params.put(given);
        }
        11 => Action::Free(union.cast::<CUDA_MEM_FREE_NODE_PARAMS>().get()?.dptr),
        _ => return Err(Code::NOT_SUPPORTED),
    };
    add(
        &mut session,
        node,
        graph,
        after,
        count,
        Content::Action(action),
    )
}

fn set_kernel(session: &mut Session, node: Handle, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Answer {
    let action = kernel(session, params)?;
    change(session, node, 0, action)?;
    remember(session, node, params)
}

/// Another action for a node, of the same kind.
fn change(session: &mut Session, node: Handle, kind: u32, action: Action) -> Answer {
    let node = session.node_mut(node)?;
    if node.content.kind() != kind {
        return Err(Code::INVALID_VALUE);
    }
    node.content = Content::Action(action);
    Ok(())
}
