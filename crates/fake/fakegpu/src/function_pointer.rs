//! The address of a function as C has it: the target of an exported name, and the result of a
//! look-up.

/// The address of a function with C's calling convention. It is one machine word, so that an
/// export can jump through it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct FunctionPointer(pub *const ());

// SAFETY: the address of code is the same for all threads.
unsafe impl Send for FunctionPointer {}
// SAFETY: as above.
unsafe impl Sync for FunctionPointer {}
