//! Failures that users of other GPU sharing systems have run into, as tests of this one: each name
//! begins with the row of the table of failures that this suite was made of.
//!
//! | row | what failed | tests |
//! |---|---|---|
//! | 1 | a newer driver or toolkit: initialisation hangs or crashes | `new_drivers` |
//! | 2 | a hook of `dlsym` breaks others | `look_ups` |
//! | 3 | NCCL: memory on the host, or without a context | `collectives` |
//! | 4 | graphs pass a limit by; ranks wait for each other | `collectives`, `launches` |
//! | 5 | launches are held back too much or not at all | `launches` |
//! | 6 | locks stay taken after a SIGKILL | `kills` |
//! | 7 | processes mixed up between PID namespaces | `namespaces` |
//! | 8 | pools leak; memory seems to be used up; a wrong code says so (HAMi-core#55) | `pools`, `limits` |
//! | 9 | missing arguments crash; totals disagree | `reports` |
//! | 10 | more is promised than there is | `promises`, `limits` |
//! | 11 | new ways to the driver escape; the image's libc is too old | `escapes` |
//! | 12 | shared memory that cannot be shared; NVML that fails | `neighbours` |
//!
//! They are real processes with the interposer, the arbiter and the fake driver. A citation such as
//! `HAMi-core#52` is the report in the other project.

mod collectives;
mod escapes;
mod gate;
mod kills;
mod launches;
mod look_ups;
mod namespaces;
mod neighbours;
mod new_drivers;
mod pools;
mod promises;
mod reports;

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "1x16GiB,context=0MiB";

/// The same with two cards.
const TWO: &str = "2x16GiB,context=0MiB";

/// Calls by which a program comes to a context on its first card.
pub(crate) const START: &str = "
    cuInit 0
    cuDevicePrimaryCtxRetain &ctx 0
    cuCtxSetCurrent ctx
";
