//! Nodes of graphs: their actions, as programs pass them and read them back.

use sublet_driver_api::cuda::graph::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEM_ALLOC_NODE_PARAMS_v1,
    CUDA_MEM_FREE_NODE_PARAMS, CUgraphEdgeData, CUgraphNodeParams,
};
use sublet_driver_api::cuda::{
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
};

use crate::cuda::arguments::{Arguments, In, Out};
use crate::cuda::memory::physical::location;
use crate::cuda::module::launch;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::graph::Content;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::Action;

functions! {
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        let mut session = Session::open()?;
        let spot = Spot { node, graph, after, count };
        spot.add(&mut session, Content::Action(Action::Empty))
    }

    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        Spot { node, graph, after, count }.add_kernel(&params.get()?)
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

    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        match Session::open()?.node(node)?.content {
            Content::Child(child) => graph.put(child),
            Content::Action(_) => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphMemAllocNodeGetParams(node: Handle, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) {
        let session = Session::open()?;
        let node = session.node(node)?;
        match node.content {
            Content::Action(Action::Alloc(_)) => {
                params.put(In::at(node.given.as_ptr() as u64).get()?)
            }
            _ => Err(Code::INVALID_VALUE),
        }
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

    fn add_kernel(self, given: &CUDA_KERNEL_NODE_PARAMS_v2) -> Answer {
        let grid = [
            given.gridDimX,
            given.gridDimY,
            given.gridDimZ,
            given.blockDimX,
            given.blockDimY,
            given.blockDimZ,
        ];
        let arguments = Arguments {
            each: In::at(given.kernelParams as u64),
            extra: In::at(given.extra as u64),
        };
        let mut session = Session::open()?;
        // Any stream of the context will do: the node gets its own when it is launched.
        let stream = session.stream(0, false)?;
        let (function, shared) = (given.func.0 as Handle, given.sharedMemBytes);
        let plan = launch::plan(&session, function, grid, shared, stream, arguments)?;
        self.add(&mut session, Content::Action(Action::Kernel(plan)))
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

    /// The graph that the node has from now on, which is the one that was given.
    fn add_child(self, child: &CUDA_CHILD_GRAPH_NODE_PARAMS) -> Answer {
        self.node.check()?;
        match child.ownership {
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                let after = self.after.list(self.count)?;
                let mut session = Session::open()?;
                let moved = session.move_graph(child.graph.0 as u64, self.graph, &after)?;
                self.node.put(moved)
            }
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// A node by the struct that is one of all; which one, says its type.
    fn add_any(self, params: Out<CUgraphNodeParams>) -> Answer {
        let mut given = params.get()?;
        let union = In::of(&given.reserved1);
        match given.r#type.0 {
            0 => self.add_kernel(&union.cast::<CUDA_KERNEL_NODE_PARAMS_v2>().get()?),
            4 => self.add_child(&union.cast::<CUDA_CHILD_GRAPH_NODE_PARAMS>().get()?),
            5 => self.add(&mut Session::open()?, Content::Action(Action::Empty)),
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
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

/// Keeps the parameters of a node that allocates, so that they can be returned again.
pub(crate) fn remember(
    session: &mut Session,
    node: Handle,
    given: &CUDA_MEM_ALLOC_NODE_PARAMS_v1,
) -> Answer {
    let n_words = size_of::<CUDA_MEM_ALLOC_NODE_PARAMS_v1>() / 8;
    session.node_mut(node)?.given = In::of(given).cast::<u64>().list(n_words)?;
    Ok(())
}
