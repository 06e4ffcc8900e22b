//! Manifests of data sets: another node may have written them.

use sublet_dataset::outside::manifest;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "dataset_manifest",
    run,
};

fn run(bytes: &[u8]) {
    if let Some(written) = manifest(bytes) {
        // What was read is written in one way, and read again as the same.
        assert_eq!(manifest(&written), Some(written.clone()));
    }
}
