//! Advice about memory that host and card share. It changes nothing: such memory is at one
//! place here.

use sublet_driver_api::cuda::memory::CUmemLocation_v1;

use crate::cuda::arguments::In;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};

functions! {
    fn cuMemAdvise_v2(address: u64, count: usize, advice: u32, _place: CUmemLocation_v1) {
        check_managed(address, count)?;
        if (1..=6).contains(&advice) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    stream fn cuMemPrefetchAsync_v2(address: u64, count: usize, _place: CUmemLocation_v1, flags: u32, stream: Handle) {
        check_managed(address, count)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }

    stream fn cuMemPrefetchBatchAsync(addresses: In<u64>, sizes: In<usize>, count: usize, _places: In<CUmemLocation_v1>, _indices: In<usize>, _n: usize, _flags: u64, stream: Handle) {
        for (address, size) in addresses.list(count)?.into_iter().zip(sizes.list(count)?) {
            check_managed(address, size)?;
        }
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }

    stream fn cuStreamAttachMemAsync(stream: Handle, address: u64, length: usize, _flags: u32) {
        check_managed(address, length.max(1))?;
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }
}

/// Is this memory that host and card share?
pub(crate) fn check_managed(address: u64, count: usize) -> Answer {
    let session = Session::open()?;
    let range = session
        .memory
        .ranges
        .at(address)
        .ok_or(Code::INVALID_VALUE)?;
    let inside = address - range.start + count as u64 <= range.size;
    let managed = matches!(range.kind, Kind::Managed { .. });
    if count > 0 && inside && managed {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}
