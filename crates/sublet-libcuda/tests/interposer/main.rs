//! The library as programs meet it: a real process, a small driver behind, an arbiter beside.
//!
//! - [`memory`]: not a byte more. [`pinned`]: nor of the host's. [`races`]: by many at once.
//! - [`graphs`], [`contexts`]: what these cost. [`held`]: for as long as memory is held.
//! - [`reports`]: what the program is told, and what it reaches.
//! - [`gate`]: who may launch, and when nothing runs any more.
//! - [`lives`]: forks, and an arbiter that comes and goes.
//! - [`reach`]: every way to the driver's functions. [`settings`]: who says where they are.

mod contexts;
mod gate;
mod graphs;
mod held;
mod lives;
mod memory;
mod pinned;
mod races;
mod reach;
mod reports;
mod settings;
mod support;

// Named so that the library is built for these tests; they load it as a program does.
use sublet_cuda as _;
