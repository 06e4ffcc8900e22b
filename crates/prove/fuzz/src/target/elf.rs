//! Libraries: the agent and `sublet install` read from them what they need.

use sublet_library::Needs;

use crate::Target;

pub(super) const TARGET: Target = Target { name: "elf", run };

fn run(bytes: &[u8]) {
    if let Ok(needs) = Needs::read(bytes) {
        let _ = needs.beyond_floor();
    }
}
