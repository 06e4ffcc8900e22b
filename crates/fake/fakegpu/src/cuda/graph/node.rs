//! Nodes of graphs: their actions, as programs pass them and read them back.

use sublet_driver_api::cuda::copy::CUDA_MEMCPY3D_v2;
use sublet_driver_api::cuda::graph::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_EVENT_RECORD_NODE_PARAMS,
    CUDA_EVENT_WAIT_NODE_PARAMS, CUDA_HOST_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS_v1, CUgraphEdgeData, CUgraphNodeParams,
};
use sublet_driver_api::cuda::{
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, CUgraph,
};

use crate::cuda::arguments::{In, Out};
use crate::cuda::graph::node_params::{
    Words, arguments_of, function_of, kernel_params, recall, remember,
};
use crate::cuda::memory::physical::location;
use crate::cuda::memory::{copy_shape, fill};
use crate::cuda::module::launch;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::graph::Content;
use crate::driver::graph::condition::Branching;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Action, Callback};

functions! {
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        let mut session = Session::open()?;
        let spot = Spot { node, graph, after, count };
        spot.add(&mut session, Content::Action(Action::Empty))
    }

    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        Spot { node, graph, after, count }.add_given(&params.get()?)
    }

    fn cuGraphAddMemcpyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_MEMCPY3D_v2>, _context: Handle) {
        Spot { node, graph, after, count }.add_given(&params.get()?)
    }

    fn cuGraphAddMemsetNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: Handle) {
        Spot { node, graph, after, count }.add_given(&params.get()?)
    }

    fn cuGraphAddHostNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        Spot { node, graph, after, count }.add_given(&params.get()?)
    }

    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        let child = CUDA_CHILD_GRAPH_NODE_PARAMS {
            graph: CUgraph(child as usize),
            ownership: CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE,
        };
        Spot { node, graph, after, count }.add_child(&child).map(drop)
    }

    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        Spot { node, graph, after, count }.add_event(event, Action::Record)
    }

    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        Spot { node, graph, after, count }.add_event(event, Action::Wait)
    }

    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) {
        Spot { node, graph, after, count }.add_alloc(params)
    }

    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) {
        let mut session = Session::open()?;
        session.memory.ranges.starting(address).ok_or(Code::INVALID_VALUE)?;
        let spot = Spot { node, graph, after, count };
        spot.add(&mut session, Content::Action(Action::Free(address)))
    }

    fn cuGraphAddNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, _edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) {
        Spot { node, graph, after, count }.add_any(params)
    }

    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) {
        kind.put(Session::open()?.node(node)?.content.kind())
    }

    fn cuGraphKernelNodeGetParams_v2(node: Handle, params: Out<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let mut session = Session::open()?;
        params.put(kernel_params(&mut session, node)?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        change(node, &params.get()?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        change_step(exec, node, &params.get()?)
    }

    fn cuGraphMemcpyNodeGetParams(node: Handle, params: Out<CUDA_MEMCPY3D_v2>) {
        tell(node, params)
    }

    fn cuGraphMemcpyNodeSetParams(node: Handle, params: In<CUDA_MEMCPY3D_v2>) {
        change(node, &params.get()?)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_MEMCPY3D_v2>, _context: Handle) {
        change_step(exec, node, &params.get()?)
    }

    fn cuGraphMemsetNodeGetParams(node: Handle, params: Out<CUDA_MEMSET_NODE_PARAMS_v1>) {
        tell(node, params)
    }

    fn cuGraphMemsetNodeSetParams(node: Handle, params: In<CUDA_MEMSET_NODE_PARAMS_v1>) {
        change(node, &params.get()?)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: Handle) {
        change_step(exec, node, &params.get()?)
    }

    fn cuGraphHostNodeGetParams(node: Handle, params: Out<CUDA_HOST_NODE_PARAMS_v1>) {
        tell(node, params)
    }

    fn cuGraphHostNodeSetParams(node: Handle, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        change(node, &params.get()?)
    }

    fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        change_step(exec, node, &params.get()?)
    }

    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        match Session::open()?.node(node)?.content {
            Content::Child(child) => graph.put(child),
            Content::Action(_) | Content::Conditional(_) => Err(Code::INVALID_VALUE),
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
        tell(node, params)
    }

    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) {
        match Session::open()?.node(node)?.content {
            Content::Action(Action::Free(start)) => address.put(start),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// The action of a node, as a program passes it in one struct.
trait Given: Words + Copy {
    /// Returns the driver's action.
    fn action(&self, session: &mut Session) -> Answer<Action>;
}

impl Given for CUDA_KERNEL_NODE_PARAMS_v2 {
    fn action(&self, session: &mut Session) -> Answer<Action> {
        let grid = [
            self.gridDimX,
            self.gridDimY,
            self.gridDimZ,
            self.blockDimX,
            self.blockDimY,
            self.blockDimZ,
        ];
        // Any stream of the context will do: the node gets its own when it is launched.
        let stream = session.stream(0, false)?;
        let (function, shared) = (function_of(self), self.sharedMemBytes);
        let arguments = arguments_of(self);
        let plan = launch::plan(session, function, grid, shared, stream, arguments)?;
        Ok(Action::Kernel(plan))
    }
}

impl Given for CUDA_MEMCPY3D_v2 {
    fn action(&self, session: &mut Session) -> Answer<Action> {
        let plan = copy_shape::plan(session, self, true)?;
        Ok(plan.map_or(Action::Empty, Action::Move))
    }
}

impl Given for CUDA_MEMSET_NODE_PARAMS_v1 {
    fn action(&self, session: &mut Session) -> Answer<Action> {
        let shape = [
            self.pitch as u64,
            self.elementSize.into(),
            self.value.into(),
            self.width as u64,
            self.height as u64,
        ];
        let plan = fill::pattern(session, self.dst, shape, true)?;
        Ok(plan.map_or(Action::Empty, Action::Move))
    }
}

impl Given for CUDA_HOST_NODE_PARAMS_v1 {
    fn action(&self, _session: &mut Session) -> Answer<Action> {
        let function = self.r#fn.ok_or(Code::INVALID_VALUE)?;
        let data = self.userData as u64;
        Ok(Action::Call(Callback { function, data }))
    }
}

/// Place for a node, and for its handle.
#[derive(Clone, Copy)]
struct Spot {
    node: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    count: usize,
}

impl Spot {
    fn add(self, session: &mut Session, content: Content) -> Answer {
        self.node.check()?;
        let after = self.after.list(self.count)?;
        self.node
            .put(session.add_node(self.graph, &after, content)?)
    }

    /// Adds a node, and keeps its parameters.
    fn add_given(self, params: &impl Given) -> Answer {
        let mut session = Session::open()?;
        let action = params.action(&mut session)?;
        self.add(&mut session, Content::Action(action))?;
        remember(&mut session, self.node.get()?, params)
    }

    fn add_event(self, event: Handle, action: fn(Handle) -> Action) -> Answer {
        let mut session = Session::open()?;
        session.event(event)?;
        self.add(&mut session, Content::Action(action(event)))
    }

    fn add_alloc(self, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) -> Answer {
        let mut given = params.get()?;
        if given.bytesize == 0 || given.poolProps.allocType.0 != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut session = Session::open()?;
        let card = location(&session, &given.poolProps.location)?;
        let card = card.ok_or(Code::NOT_SUPPORTED)?;
        let (after, size) = (self.after.list(self.count)?, given.bytesize as u64);
        given.dptr = session.place_in_graph(self.graph, &after, card, size)?;
        let content = Content::Action(Action::Alloc(given.dptr));
        self.add(&mut session, content)?;
        remember(&mut session, self.node.get()?, &given)?;
        params.put(given)
    }

    /// The graph that the node has: a copy of the one that was given, or that one itself.
    fn add_child(self, child: &CUDA_CHILD_GRAPH_NODE_PARAMS) -> Answer<Handle> {
        self.node.check()?;
        let given = child.graph.0 as u64;
        let mut session = Session::open()?;
        match child.ownership {
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => {
                let (copy, _) = session.clone_graph(given)?;
                self.add(&mut session, Content::Child(copy))?;
                Ok(copy)
            }
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                let after = self.after.list(self.count)?;
                self.node
                    .put(session.move_graph(given, self.graph, &after)?)?;
                Ok(given)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// A node by the struct that is one of all; which one, says its type.
    fn add_any(self, params: Out<CUgraphNodeParams>) -> Answer {
        let mut given = params.get()?;
        let union = In::of(&given.reserved1);
        match given.r#type.0 {
            0 => self.add_given(&union.cast::<CUDA_KERNEL_NODE_PARAMS_v2>().get()?),
            1 => self.add_given(&union.cast::<CUDA_MEMCPY_NODE_PARAMS>().get()?.copyParams),
            2 => self.add_given(&union.cast::<CUDA_MEMSET_NODE_PARAMS_v1>().get()?),
            3 => self.add_given(&union.cast::<CUDA_HOST_NODE_PARAMS_v1>().get()?),
            4 => {
                let child = union.cast::<CUDA_CHILD_GRAPH_NODE_PARAMS>().get()?;
                given.reserved1[0] = self.add_child(&child)?;
                params.put(given)
            }
            5 => self.add(&mut Session::open()?, Content::Action(Action::Empty)),
            6 => {
                let wait = union.cast::<CUDA_EVENT_WAIT_NODE_PARAMS>().get()?;
                self.add_event(wait.event.0 as u64, Action::Wait)
            }
            7 => {
                let record = union.cast::<CUDA_EVENT_RECORD_NODE_PARAMS>().get()?;
                self.add_event(record.event.0 as u64, Action::Record)
            }
            10 => {
                let place = Out::of(&mut given.reserved1);
                self.add_alloc(place.cast::<CUDA_MEM_ALLOC_NODE_PARAMS_v1>())?;
                params.put(given)
            }
            11 => {
                let address = union.cast::<CUDA_MEM_FREE_NODE_PARAMS>().get()?.dptr;
                self.add(
                    &mut Session::open()?,
                    Content::Action(Action::Free(address)),
                )
            }
            13 => {
                let place = Out::of(&mut given.reserved1);
                self.add_conditional(place.cast::<CUDA_CONDITIONAL_NODE_PARAMS>())?;
                params.put(given)
            }
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    /// The program is told the graphs that it is to fill, by a list that the node keeps.
    fn add_conditional(self, params: Out<CUDA_CONDITIONAL_NODE_PARAMS>) -> Answer {
        self.node.check()?;
        let mut given = params.get()?;
        let branching = Branching::of(given.r#type.0, given.size)?;
        let after = self.after.list(self.count)?;
        let mut session = Session::open()?;
        let node =
            session.add_conditional(self.graph, &after, given.handle, branching, given.size)?;
        given.phGraph_out = session.node_mut(node)?.given.as_mut_ptr().cast();
        self.node.put(node)?;
        params.put(given)
    }
}

/// Another action for a node, of the same kind.
fn change<T: Given>(node: Handle, params: &T) -> Answer {
    let mut session = Session::open()?;
    let action = params.action(&mut session)?;
    let changed = session.node_mut(node)?;
    if changed.content.kind() != T::KIND {
        return Err(Code::INVALID_VALUE);
    }
    changed.content = Content::Action(action);
    remember(&mut session, node, params)
}

/// The same for the step of a graph that was made ready.
fn change_step(exec: Handle, node: Handle, params: &impl Given) -> Answer {
    let mut session = Session::open()?;
    let action = params.action(&mut session)?;
    session.set_step(exec, node, Some(action), None)
}

/// Returns the parameters that a node was given.
fn tell<T: Words + Copy>(node: Handle, params: Out<T>) -> Answer {
    let session = Session::open()?;
    params.put(recall(&session, node)?)
}
