//! The record of a store of data sets, which a crash or an older version may have left.

use sublet_dataset::outside::store_record;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "dataset_record",
    run,
};

fn run(bytes: &[u8]) {
    if let Some(written) = store_record(bytes) {
        // What was read is written in one way, and read again as the same.
        assert_eq!(store_record(&written), Some(written.clone()));
    }
}
