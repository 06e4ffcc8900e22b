//! Tables of packs: another node may have written them.

use sublet_dataset::outside::pack_table;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "dataset_pack",
    run,
};

fn run(bytes: &[u8]) {
    if let Some(written) = pack_table(bytes) {
        // What was read is written in one way, and read again as the same.
        assert_eq!(pack_table(&written), Some(written.clone()));
    }
}
