//! Parameters that a node was given, kept as words, so that they can be returned again.

use std::ffi::c_void;

use sublet_driver_api::cuda::copy::CUDA_MEMCPY3D_v2;
use sublet_driver_api::cuda::graph::{
    CUDA_HOST_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEM_ALLOC_NODE_PARAMS_v1,
    CUDA_MEMSET_NODE_PARAMS_v1,
};

use crate::cuda::Handle;
use crate::cuda::arguments::{Arguments, In};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};

/// Keeps the parameters of a node. For a kernel also the values of its arguments, because the
/// program's own may be gone when it asks.
pub(crate) fn remember<T: Copy + Words>(session: &mut Session, node: Handle, params: &T) -> Answer {
    let mut words = In::of(params).cast::<u64>().list(size_of::<T>() / 8)?;
    if let Some(kernel) = params.kernel() {
        let declared = session
            .known_function(function_of(kernel))?
            .declared
            .params
            .clone();
        let arguments = arguments_of(kernel);
        let mut values = Vec::new();
        for (number, (offset, size)) in declared.iter().enumerate() {
            let mut word = 0;
            while word < size.div_ceil(8) {
                let part = arguments.part(number, *offset, word * 8, size - word * 8);
                values.push(part.unwrap_or(0));
                word += 1;
            }
        }
        // The addresses are filled in when somebody asks.
        words.extend(std::iter::repeat_n(0, declared.len()));
        words.extend(values);
    }
    session.node_mut(node)?.given = words;
    Ok(())
}

/// Structs that are kept as words.
pub(crate) trait Words {
    /// The kind of node that is given such a struct.
    const KIND: u32;

    fn kernel(&self) -> Option<&CUDA_KERNEL_NODE_PARAMS_v2> {
        None
    }
}

impl Words for CUDA_KERNEL_NODE_PARAMS_v2 {
    const KIND: u32 = 0;

    fn kernel(&self) -> Option<&CUDA_KERNEL_NODE_PARAMS_v2> {
        Some(self)
    }
}

impl Words for CUDA_MEMCPY3D_v2 {
    const KIND: u32 = 1;
}

impl Words for CUDA_MEMSET_NODE_PARAMS_v1 {
    const KIND: u32 = 2;
}

impl Words for CUDA_HOST_NODE_PARAMS_v1 {
    const KIND: u32 = 3;
}

impl Words for CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
    const KIND: u32 = 10;
}

/// Returns the parameters of a node, if it is of their kind.
pub(crate) fn recall<T: Copy + Words>(session: &Session, node: Handle) -> Answer<T> {
    let node = session.node(node)?;
    if node.content.kind() != T::KIND || node.given.len() * 8 < size_of::<T>() {
        return Err(Code::INVALID_VALUE);
    }
    In::at(node.given.as_ptr() as u64).get()
}

/// Returns the parameters of a kernel, with addresses of arguments that we keep.
pub(crate) fn kernel_params(
    session: &mut Session,
    node: Handle,
) -> Answer<CUDA_KERNEL_NODE_PARAMS_v2> {
    const WORDS: usize = size_of::<CUDA_KERNEL_NODE_PARAMS_v2>() / 8;
    let mut params: CUDA_KERNEL_NODE_PARAMS_v2 = recall(session, node)?;
    let declared = session
        .known_function(function_of(&params))?
        .declared
        .params
        .clone();
    let given = &mut session.node_mut(node)?.given;
    let start = given.as_ptr() as u64;
    let mut value = WORDS + declared.len();
    for (number, (_, size)) in declared.iter().enumerate() {
        given[WORDS + number] = start + value as u64 * 8;
        value += size.div_ceil(8) as usize;
    }
    let list = (start + WORDS as u64 * 8) as *mut *mut c_void;
    params.kernelParams = if declared.is_empty() {
        std::ptr::null_mut()
    } else {
        list
    };
    params.extra = std::ptr::null_mut();
    Ok(params)
}

/// The function, by either kind of handle.
pub(crate) fn function_of(params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Handle {
    let function = if params.func.is_null() {
        params.kern.0
    } else {
        params.func.0
    };
    function as Handle
}

/// Its arguments.
pub(crate) fn arguments_of(params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Arguments {
    Arguments {
        each: In::at(params.kernelParams as u64),
        extra: In::at(params.extra as u64),
    }
}
