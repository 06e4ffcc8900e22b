//! A notice for the process that has started a program: a use of the driver that the fake one
//! never answers, so that the program's own words mislead. `sublet run` listens, and tells its
//! user. Nothing is printed here, and a program cannot tell whether anybody listens.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variable that names the listener's socket.
pub const VARIABLE: &str = "SUBLET_FAKE_NOTICE";

/// The notice that the program uses the CUDA runtime.
pub const CUDA_RUNTIME: &[u8] = b"cuda-runtime";

/// Sends [`CUDA_RUNTIME`], once in a process: the runtime asks again at each of its calls.
pub(crate) fn cuda_runtime() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(place) = std::env::var_os(VARIABLE) else {
        return;
    };
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let said = UnixDatagram::unbound().and_then(|socket| {
        // A listener that reads nothing must not hold the program.
        socket.set_nonblocking(true)?;
        socket.send_to(CUDA_RUNTIME, place)
    });
    // Nobody listens any more.
    let _ = said;
}
