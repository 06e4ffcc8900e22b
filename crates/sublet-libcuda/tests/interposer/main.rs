//! The library as programs meet it: a real process, a small driver behind, an arbiter beside.
//!
//! - [`memory`]: not a byte more. [`races`]: by many at once.
//! - [`reports`]: what the program is told, and what it reaches.
//! - [`lives`]: forks, and an arbiter that comes and goes.
//! - [`reach`]: every way to the driver's functions.
#![expect(unsafe_code, reason = "makes the pages that the arbiter makes")]

mod lives;
mod memory;
mod races;
mod reach;
mod reports;
mod support;

// Named so that the library is built for these tests; they load it as a program does.
use sublet_cuda as _;
