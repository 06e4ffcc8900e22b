//! Functions and kernels: their properties, and the number of blocks that fit on a card.

use std::ffi::c_char;

use sublet_driver_api::cuda::launch::CUlaunchConfig;

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::product::{Multiprocessor, Product};

/// C's type of a function that tells how much shared memory a block of a size needs.
type SharedSize = extern "C" fn(i32) -> usize;

functions! {
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        value.put(read(attribute, function)?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) {
        write(attribute, value, function)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, device: i32) {
        Session::open()?.card_of(device)?;
        value.put(read(attribute, kernel)?)
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: Handle, device: i32) {
        Session::open()?.card_of(device)?;
        write(attribute, value, kernel)
    }

    fn cuFuncSetCacheConfig(function: Handle, config: u32) {
        Session::open()?.known_function(function)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuKernelSetCacheConfig(kernel: Handle, config: u32, device: i32) {
        let session = Session::open()?;
        session.card_of(device)?;
        session.known_function(kernel)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncSetSharedMemConfig(function: Handle, config: u32) {
        Session::open()?.known_function(function)?;
        if config > 2 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        let mut session = Session::open()?;
        let known = session.known_function(function)?;
        let (owner, is_kernel) = (known.owner, known.is_kernel);
        module.put(if is_kernel { session.module_of_library(owner)? } else { owner })
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        let session = Session::open()?;
        let known = session.known_function(kernel)?;
        if !known.is_kernel {
            return Err(Code::INVALID_HANDLE);
        }
        library.put(known.owner)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        function.check()?;
        function.put(Session::open()?.function_of_kernel(kernel)?)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle) {
        // As with the driver, the text lives as long as the function.
        name.put(Session::open()?.known_function(function)?.name.as_ptr())
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle) {
        name.put(Session::open()?.known_function(kernel)?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: Handle, number: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(function, number, offset, size)
    }

    fn cuKernelGetParamInfo(kernel: Handle, number: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(kernel, number, offset, size)
    }

    fn cuFuncIsLoaded(state: Out<u32>, function: Handle) {
        Session::open()?.known_function(function)?;
        state.put(1)
    }

    fn cuFuncLoad(function: Handle) {
        Session::open()?.known_function(function).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: Handle, size: i32, shared: usize) {
        blocks.put(occupancy(function, size, shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<i32>, function: Handle, size: i32, shared: usize, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        blocks.put(occupancy(function, size, shared)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: Handle, _shared_of: Option<SharedSize>, _shared: usize, limit: i32) {
        potential(grid, block, function, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: Handle, _shared_of: Option<SharedSize>, _shared: usize, limit: i32, _flags: u32) {
        potential(grid, block, function, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(size: Out<usize>, function: Handle, blocks: i32, _block: i32) {
        let core = product_of(function)?.multiprocessor();
        let blocks = u32::try_from(blocks).unwrap_or(0);
        let each = core.shared.checked_div(blocks).ok_or(Code::INVALID_VALUE)?;
        size.put(each.min(core.shared_of_block) as usize)
    }

    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: Handle, _config: In<CUlaunchConfig>) {
        Session::open()?.known_function(function)?;
        size.put(8)
    }

    fn cuOccupancyMaxActiveClusters(count: Out<i32>, function: Handle, _config: In<CUlaunchConfig>) {
        Session::open()?.known_function(function)?;
        count.put(16)
    }
}

fn read(attribute: u32, function: Handle) -> Answer<i32> {
    let session = Session::open()?;
    let (major, minor) = session.product_of_function(function)?.capability;
    let function = session.known_function(function)?;
    if let Some(value) = function.attributes.get(&attribute) {
        return Ok(*value);
    }
    Ok(match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => major * 10 + minor,
        8 => 49152,
        9 => -1,
        1 | 2 | 3 | 7 | 10..=17 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn write(attribute: u32, value: i32, function: Handle) -> Answer {
    let mut session = Session::open()?;
    let most = session
        .product_of_function(function)?
        .multiprocessor()
        .shared_of_block;
    let function = session.modules.functions.get_mut(&function);
    let function = function.ok_or(Code::INVALID_HANDLE)?;
    let sound = match attribute {
        8 => u32::try_from(value).is_ok_and(|value| value <= most),
        9 => (-1..=100).contains(&value),
        10..=17 => value >= 0,
        _ => false,
    };
    if !sound {
        return Err(Code::INVALID_VALUE);
    }
    function.attributes.insert(attribute, value);
    Ok(())
}

fn parameter(function: Handle, number: usize, offset: Out<usize>, size: Out<usize>) -> Answer {
    offset.check()?;
    let session = Session::open()?;
    let function = session.known_function(function)?;
    let known = function.declared.params.get(number);
    let (at, length) = known.ok_or(Code::INVALID_VALUE)?;
    size.put_if(*length as usize);
    offset.put(*at as usize)
}

fn occupancy(function: Handle, size: i32, shared: usize) -> Answer<i32> {
    let core = product_of(function)?.multiprocessor();
    if size <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    let reserved = core.shared_reserved as usize;
    let by_memory = (core.shared as usize).checked_div(shared.saturating_add(reserved));
    let by_memory = by_memory.and_then(|blocks| i32::try_from(blocks).ok());
    Ok(if size > 1024 {
        0
    } else {
        blocks_of(&core, size).min(by_memory.unwrap_or(i32::MAX))
    })
}

fn potential(grid: Out<i32>, block: Out<i32>, function: Handle, limit: i32) -> Answer {
    let product = product_of(function)?;
    let size = if (1..1024).contains(&limit) {
        limit
    } else {
        1024
    };
    let multiprocessors = product.n_multiprocessors.cast_signed();
    grid.put(multiprocessors * blocks_of(&product.multiprocessor(), size))?;
    block.put(size)
}

/// Returns the number of blocks of a size that fit on a multiprocessor. Their threads, which come
/// in warps of 32, and their number limit it.
fn blocks_of(core: &Multiprocessor, size: i32) -> i32 {
    let warps = size.cast_unsigned().div_ceil(32).max(1);
    (core.n_threads / 32 / warps)
        .min(core.n_blocks)
        .cast_signed()
}

fn product_of(function: Handle) -> Answer<Product> {
    Session::open()?.product_of_function(function)
}
