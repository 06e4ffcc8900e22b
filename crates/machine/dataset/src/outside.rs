//! Parsers of what anybody may have written, as the fuzzer calls them. Each takes bytes without the
//! sum that ends them on the disk, reads them with a right one, and says what is written of them
//! again; `None` for bytes that are refused.

use crate::manifest::Manifest;
use crate::pack::PackTable;
use crate::record::StoreRecord;

/// Reads a manifest.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    let read = Manifest::read(&with_sum(bytes)).ok()?;
    without_sum(read.write())
}

/// Reads the table of a pack.
#[must_use]
pub fn pack_table(bytes: &[u8]) -> Option<Vec<u8>> {
    let read = PackTable::parse(&with_sum(bytes)).ok()?;
    let mut written = read.write();
    written.truncate(written.len().checked_sub(PackTable::END_BYTES)?);
    without_sum(written)
}

/// Reads the record of a store.
#[must_use]
pub fn store_record(bytes: &[u8]) -> Option<Vec<u8>> {
    let read = StoreRecord::parse(bytes).ok()?;
    serde_json::to_vec(&read).ok()
}

fn with_sum(bytes: &[u8]) -> Vec<u8> {
    let sum = blake3::hash(bytes);
    [bytes, sum.as_bytes()].concat()
}

fn without_sum(mut written: Vec<u8>) -> Option<Vec<u8>> {
    written.truncate(written.len().checked_sub(blake3::OUT_LEN)?);
    Some(written)
}
