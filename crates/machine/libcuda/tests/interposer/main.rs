//! The library as programs meet it: a real process, a driver that answers as the test says
//! (`support/driver.c` says why it is not the fake one), an arbiter beside.
//!
//! - [`memory`]: not a byte more. [`pinned`]: nor of the host's. [`races`]: by many at once.
//! - [`graphs`], [`contexts`], [`modules`]: the cost of these. [`held`]: as long as memory is held.
//! - [`reports`]: the program's view and reach.
//! - [`gate`]: the permission to launch, and the end of all work; [`queued`]: no more of it than
//!   allowed.
//! - [`lives`]: forks, and an arbiter that comes and goes.
//! - [`reach`]: every way to the driver's functions. [`settings`]: the sources of their places.
//! - [`start`]: libraries that the driver loads in `cuInit`, and what it is told of MPS.

mod contexts;
mod gate;
mod graphs;
mod held;
mod lives;
mod memory;
mod modules;
mod pinned;
mod queued;
mod races;
mod reach;
mod reports;
mod settings;
mod start;
mod support;

// Named so that the library is built for these tests; they load it as a program does.
use sublet_cuda as _;
