//! Memory for the tests of both pages: zeroed and aligned as a mapping is, without one.

use std::vec;
use std::vec::Vec;

/// A cache line's worth of bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that serves as a mapping for code that only gets its address.
pub(crate) struct Memory(Vec<Line>);

impl Memory {
    pub(crate) fn zeroed(bytes: usize) -> Memory {
        Memory(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    /// Each line in turn, to scribble on.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = &mut [u8; 64]> {
        self.0.iter_mut().map(|line| &mut line.0)
    }

    pub(crate) fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}
