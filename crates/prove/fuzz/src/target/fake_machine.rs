//! The description of a fake machine, which a user gives on the command line or in the environment.

use sublet_fakegpu::Spec;

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "fake_machine",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(spec) = Spec::parse(text) {
        assert!(!spec.cards().is_empty());
        // Machines of one kind share a folder of that name.
        assert_eq!(spec.digest().len(), 16);
        assert!(!spec.to_string().is_empty());
    }
}
