//! The arbiter over real sockets, with real processes and made-up cards.
//!
//! A process of a job is this test's own executable, started again (`child`). It connects,
//! maps the pages and carries out orders line by line. So a test can kill it, let it call
//! exec, or let it write to forbidden places.
#![expect(
    unsafe_code,
    reason = "a child maps the pages that it is handed, as the interposer does"
)]

mod child;
mod compute;
mod containers;
mod crowd;
mod doors;
mod first_release;
mod host;
mod hostile;
mod jobs;
mod lingering;
mod pinned;
mod records;
mod restart;
mod storm;
mod strangers;
mod turns;
mod unseeing;
mod world;
