//! libFuzzer, on one target: `SUBLET_FUZZ_TARGET` names it, arguments are libFuzzer's. Made and
//! started by `cargo xtask fuzz`, which has our crates count their branches.
#![no_main]

use std::sync::OnceLock;

use sublet_fuzz::Target;
use sublet_fuzz::target::TARGETS;

static TARGET: OnceLock<&Target> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("SUBLET_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            panic!("no target `{name}`; there are: {}", names.join(" "))
        })
    })
}

libfuzzer_sys::fuzz_target!(
    init: { target(); },
    |bytes: &[u8]| { (target().run)(bytes); }
);
