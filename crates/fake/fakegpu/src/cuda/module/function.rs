//! Functions: their properties, and the number of blocks that fit on a card.

use crate::cuda::arguments::Out;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::product::{Multiprocessor, Product};

/// C's type of a function that tells how much shared memory a block of a size needs.
type SharedSize = extern "C" fn(i32) -> usize;

functions! {
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        value.put(read(attribute, &product_of(function)?)?)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, device: i32) {
        let session = Session::open()?;
        session.known_kernel(kernel)?;
        let product = session.product(session.card_of(device)?);
        value.put(read(attribute, &product)?)
    }

    fn cuFuncSetCacheConfig(function: Handle, config: u32) {
        Session::open()?.known_function(function)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
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
}

fn read(attribute: u32, product: &Product) -> Answer<i32> {
    let (major, minor) = product.capability;
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
