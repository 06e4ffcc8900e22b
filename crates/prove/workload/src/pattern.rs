//! A pattern in card memory. It is counted in memory that was just allocated: data that another
//! process wrote must never be there.

use sublet_driver_api::cuda::CUdeviceptr;

use crate::allocator::Block;
use crate::driver::Context;
use crate::report::Failure;

/// The pattern is this word, again and again. No driver fills memory with it.
const WORD: u32 = 0x5ab1_e7d1;

/// Words copied at once.
const AT_ONCE: usize = 1 << 18;

/// Writes the pattern into all words of the blocks.
pub(crate) fn fill(context: &Context<'_>, blocks: &[Block]) -> Result<(), Failure> {
    for block in blocks {
        let (start, words) = words_of(block)?;
        // SAFETY: the block has so many words.
        unsafe { context.raw().cuMemsetD32_v2(start, WORD, words)? };
    }
    // SAFETY: no pointers.
    unsafe { context.raw().cuCtxSynchronize() }
}

/// Counts the words of the blocks that hold the pattern.
pub(crate) fn count(context: &Context<'_>, blocks: &[Block]) -> Result<usize, Failure> {
    let mut found = 0;
    let mut copy = vec![0_u32; AT_ONCE];
    for block in blocks {
        let (start, words) = words_of(block)?;
        for first in (0..words).step_by(AT_ONCE) {
            let part = &mut copy[..AT_ONCE.min(words - first)];
            let from = start + (first * size_of::<u32>()) as u64;
            // SAFETY: both sides have that many bytes.
            unsafe {
                let to = part.as_mut_ptr().cast();
                context.raw().cuMemcpyDtoH_v2(to, from, size_of_val(part))?;
            }
            found += part.iter().filter(|word| **word == WORD).count();
        }
    }
    Ok(found)
}

/// The address of a block, and the number of its whole words.
fn words_of(block: &Block) -> Result<(CUdeviceptr, usize), Failure> {
    let start = block.address();
    let start =
        start.ok_or_else(|| Failure::Wrong("copies cannot reach this memory".to_owned()))?;
    Ok((start, block.bytes() / size_of::<u32>()))
}
