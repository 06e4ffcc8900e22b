//! The address of a function as C has it: what an exported name jumps to, and what a look-up
//! gives.

/// The address of a function with C's calling convention. It is one machine word, so that an
/// export can jump through it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct FunctionPointer(pub *const ());

// SAFETY: the address of code is the same for all threads.
unsafe impl Send for FunctionPointer {}
// SAFETY: as above.
unsafe impl Sync for FunctionPointer {}
