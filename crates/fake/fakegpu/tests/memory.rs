//! Memory: the amount on a card, its owners, and whether bytes stay where they are.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use own_process::{context, memory, with_machine};
use sublet_driver_api::cuda::memory::{
    CUmemAccessDesc_v1, CUmemAllocationProp_v1, CUmemLocation_v1,
};
use sublet_driver_api::cuda::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_HOST, CUmemAllocationHandleType,
};

const MIB: usize = 1 << 20;

fn allocate(size: usize) -> (u32, u64) {
    let mut address = 0_u64;
    let code = cu!(cuMemAlloc_v2, &raw mut address => *mut u64, size => usize);
    (code, address)
}

#[test]
fn a_card_gives_what_it_has_and_takes_it_back() {
    with_machine(
        "a_card_gives_what_it_has_and_takes_it_back",
        "1x1GiB,context=24MiB",
        || {
            assert_eq!(cu!(cuCtxSynchronize), 3, "not initialised");
            context();
            assert_eq!(memory(), (1000 * MIB, 1024 * MIB));
            let (code, small) = allocate(100);
            assert_eq!(
                (code, memory().0),
                (0, 998 * MIB),
                "a block for the first bytes"
            );
            let (_, other) = allocate(100);
            assert_eq!(
                (other - small, memory().0),
                (512, 998 * MIB),
                "the same block"
            );
            let (code, large) = allocate(998 * MIB);
            assert_eq!((code, memory().0), (0, 0));
            assert_eq!(allocate(2 * MIB).0, 2);
            assert_eq!(allocate(1).0, 0, "the first block has room");
            ok!(cuMemFree_v2, large => u64);
            assert_eq!(allocate(usize::MAX).0, 2);
            assert_eq!(allocate(0).0, 1);
            assert_eq!(cu!(cuMemFree_v2, large => u64), 1, "freed twice");
            assert_eq!(cu!(cuMemFree_v2, small + 1 => u64), 1, "not its start");
            let (mut base, mut size) = (0_u64, 0_usize);
            ok!(cuMemGetAddressRange_v2, &raw mut base => *mut u64, &raw mut size => *mut usize, small + 99 => u64);
            assert_eq!((base, size), (small, 100));
            ok!(cuMemGetInfo_v2, std::ptr::null_mut() => *mut usize, std::ptr::null_mut() => *mut usize);
            ok!(cuDevicePrimaryCtxRelease_v2, 0 => i32);
            assert_eq!(
                cu!(cuMemFree_v2, small => u64),
                709,
                "its context is destroyed"
            );
            context();
            assert_eq!(memory().0, 1000 * MIB, "all of it is back");
        },
    );
}

/// As programs do that pop their context before they clean up: numba among them.
#[test]
fn memory_is_freed_without_a_context() {
    with_machine("memory_is_freed_without_a_context", "1x1GiB", || {
        let context = context();
        let before = memory().0;
        let ((_, device), mut host) = (allocate(4 * MIB), 0_u64);
        ok!(cuMemHostAlloc, &raw mut host => *mut u64, 100 => usize, 0 => u32);
        ok!(cuCtxSetCurrent, 0 => u64);
        assert_eq!(allocate(MIB).0, 201, "nobody knows where");
        ok!(cuMemFree_v2, device => u64);
        ok!(cuMemFreeHost, host => u64);
        assert_eq!(cu!(cuMemFree_v2, device => u64), 201, "nothing is there");
        ok!(cuCtxSetCurrent, context => u64);
        assert_eq!(memory().0, before);
    });
}

#[test]
fn bytes_are_copied_and_ranges_are_checked() {
    with_machine("bytes_are_copied_and_ranges_are_checked", "1x1GiB", || {
        context();
        let (_, device) = allocate(4096);
        let out: Vec<u8> = (0..4096_u32).map(|byte| byte as u8).collect();
        let mut back = vec![0_u8; 4096];
        ok!(cuMemcpyHtoD_v2, device => u64, out.as_ptr() => *const u8, 4096 => usize);
        ok!(cuMemsetD32_v2, device + 16 => u64, 0x0102_0304 => u32, 2 => usize);
        ok!(cuMemcpyDtoH_v2, back.as_mut_ptr() => *mut u8, device => u64, 4096 => usize);
        assert_eq!(back[16..24], [4, 3, 2, 1, 4, 3, 2, 1]);
        assert_eq!((&back[..16], &back[24..]), (&out[..16], &out[24..]));
        assert_eq!(
            cu!(cuMemcpyHtoD_v2, device + 1 => u64, out.as_ptr() => *const u8, 4096 => usize),
            1
        );
        assert_eq!(
            cu!(cuMemcpyDtoH_v2, back.as_mut_ptr() => *mut u8, out.as_ptr() as u64 => u64, 1 => usize),
            1
        );
        assert_eq!(
            cu!(cuMemsetD32_v2, device + 2 => u64, 0 => u32, 1 => usize),
            1,
            "not a word"
        );
    });
}

fn properties(kind: u32) -> CUmemAllocationProp_v1 {
    CUmemAllocationProp_v1 {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(kind),
        location: CUmemLocation_v1 {
            r#type: CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..CUmemAllocationProp_v1::default()
    }
}

fn allow(address: u64, size: usize) -> u32 {
    let access = CUmemAccessDesc_v1 {
        location: properties(0).location,
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    cu!(cuMemSetAccess, address => u64, size => usize, &raw const access => *const CUmemAccessDesc_v1, 1 => usize)
}

fn create(size: usize, properties: &CUmemAllocationProp_v1) -> (u32, u64) {
    let mut handle = 0_u64;
    let code = cu!(cuMemCreate, &raw mut handle => *mut u64, size => usize, std::ptr::from_ref(properties) => *const CUmemAllocationProp_v1, 0 => u64);
    (code, handle)
}

#[test]
fn what_is_mapped_again_has_its_bytes() {
    with_machine(
        "what_is_mapped_again_has_its_bytes",
        "1x1GiB,context=24MiB",
        || {
            context();
            let size = 4 * MIB;
            let (code, handle) = create(size, &properties(0));
            assert_eq!((code, memory().0), (0, 996 * MIB));
            assert_eq!(create(MIB, &properties(0)).0, 1, "not whole blocks");
            let mut place = 0_u64;
            ok!(cuMemAddressReserve, &raw mut place => *mut u64, 2 * size => usize, 0 => usize, 0 => u64, 0 => u64);
            let map = |at: u64, handle: u64| cu!(cuMemMap, at => u64, size => usize, 0 => usize, handle => u64, 0 => u64);
            assert_eq!(map(place, handle), 0);
            assert_eq!(map(place, handle), 1, "something is there");
            assert_eq!(map(place + 2 * size as u64, handle), 1, "not reserved");
            assert_eq!(
                cu!(cuMemsetD8_v2, place => u64, 1 => u8, 1 => usize),
                1,
                "no access yet"
            );
            assert_eq!(allow(place, size), 0);
            ok!(cuMemsetD8_v2, place + 3 => u64, 77 => u8, 5 => usize);
            // The same bytes under a second address, and under the first one again.
            assert_eq!(map(place + size as u64, handle), 0);
            ok!(cuMemUnmap, place => u64, size => usize);
            assert_eq!(allow(place + size as u64, size), 0);
            let mut back = [0_u8; 10];
            ok!(cuMemcpyDtoH_v2, back.as_mut_ptr() => *mut u8, place + size as u64 => u64, 10 => usize);
            assert_eq!(back, [0, 0, 0, 77, 77, 77, 77, 77, 0, 0]);
            assert_eq!(
                cu!(cuMemUnmap, place + size as u64 => u64, MIB => usize),
                1,
                "a part of it"
            );
            assert_eq!(
                cu!(cuMemAddressFree, place => u64, 2 * size => usize),
                1,
                "still mapped"
            );
            // The handle goes first, the memory with the last mapping.
            ok!(cuMemRelease, handle => u64);
            assert_eq!(memory().0, 996 * MIB);
            let mut again = 0_u64;
            ok!(cuMemRetainAllocationHandle, &raw mut again => *mut u64, place + size as u64 + 9 => u64);
            assert_eq!(again, handle);
            ok!(cuMemRelease, handle => u64);
            ok!(cuMemUnmap, place + size as u64 => u64, size => usize);
            assert_eq!(memory().0, 1000 * MIB);
            ok!(cuMemAddressFree, place => u64, 2 * size => usize);
        },
    );
}

#[test]
fn memory_of_the_host_is_not_of_the_card_and_can_take_its_place() {
    with_machine(
        "memory_of_the_host_is_not_of_the_card_and_can_take_its_place",
        "1x1GiB,context=24MiB",
        || {
            context();
            let size = 2 * MIB;
            let mut host = properties(0);
            host.location.r#type = CU_MEM_LOCATION_TYPE_HOST;
            let (code, away) = create(size, &host);
            assert_eq!((code, memory().0), (0, 1000 * MIB));
            let (_, here) = create(size, &properties(0));
            let mut place = 0_u64;
            ok!(cuMemAddressReserve, &raw mut place => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64);
            for (handle, byte) in [(here, 1_u8), (away, 2), (here, 3)] {
                ok!(cuMemMap, place => u64, size => usize, 0 => usize, handle => u64, 0 => u64);
                assert_eq!(allow(place, size), 0);
                let mut before = 0_u8;
                ok!(cuMemcpyDtoH_v2, &raw mut before => *mut u8, place => u64, 1 => usize);
                assert_eq!(before, if byte == 3 { 1 } else { 0 });
                ok!(cuMemsetD8_v2, place => u64, byte => u8, size => usize);
                ok!(cuMemUnmap, place => u64, size => usize);
            }
        },
    );
}

#[test]
fn pools_keep_what_they_were_told_to_keep() {
    with_machine(
        "pools_keep_what_they_were_told_to_keep",
        "1x1GiB,context=24MiB",
        || {
            context();
            let stream = own_process::stream();
            let mut pool = 0_u64;
            ok!(cuDeviceGetDefaultMemPool, &raw mut pool => *mut u64, 0 => i32);
            let take = |size: usize| {
                let mut address = 0_u64;
                let code = cu!(cuMemAllocAsync, &raw mut address => *mut u64, size => usize, stream => u64);
                (code, address)
            };
            let (code, first) = take(100 * MIB);
            assert_eq!((code, memory().0), (0, 900 * MIB));
            let (_, second) = take(1000);
            assert_eq!(memory().0, 868 * MIB, "a piece of 32 MiB");
            ok!(cuMemsetD8Async, first => u64, 1 => u8, MIB => usize, stream => u64);
            ok!(cuMemFreeAsync, first => u64, stream => u64);
            ok!(cuStreamSynchronize, stream => u64);
            assert_eq!(memory().0, 968 * MIB, "nothing is kept");
            let mut keep = u64::MAX;
            ok!(cuMemPoolSetAttribute, pool => u64, 4 => u32, &raw mut keep => *mut u64);
            ok!(cuMemFreeAsync, second => u64, stream => u64);
            ok!(cuStreamSynchronize, stream => u64);
            assert_eq!(memory().0, 968 * MIB, "all is kept");
            let mut used = 1_u64;
            ok!(cuMemPoolGetAttribute, pool => u64, 7 => u32, &raw mut used => *mut u64);
            assert_eq!(used, 0);
            ok!(cuMemPoolTrimTo, pool => u64, 0 => usize);
            assert_eq!(memory().0, 1000 * MIB);
            assert_eq!(take(2000 * MIB).0, 2);
            assert_eq!(cu!(cuMemFreeAsync, first => u64, stream => u64), 1);
        },
    );
}

#[test]
fn arrays_and_modules_take_memory() {
    use sublet_driver_api::cuda::memory::CUDA_ARRAY_DESCRIPTOR_v2;
    with_machine(
        "arrays_and_modules_take_memory",
        "1x1GiB,context=24MiB",
        || {
            context();
            let shape = CUDA_ARRAY_DESCRIPTOR_v2 {
                Width: 1000,
                Height: 1000,
                Format: sublet_driver_api::cuda::CU_AD_FORMAT_FLOAT,
                NumChannels: 4,
            };
            let mut array = 0_u64;
            ok!(cuArrayCreate_v2, &raw mut array => *mut u64, &raw const shape => *const CUDA_ARRAY_DESCRIPTOR_v2);
            assert_eq!(memory().0, 984 * MIB, "16 MB in blocks of 2 MiB");
            ok!(cuArrayDestroy, array => u64);
            assert_eq!(memory().0, 1000 * MIB);
            own_process::kernel("spin");
            assert_eq!(memory().0, 998 * MIB);
        },
    );
}

#[test]
fn what_is_known_of_an_address() {
    with_machine("what_is_known_of_an_address", "2x1GiB", || {
        let context = context();
        let (_, device) = allocate(1000);
        let mut host = 0_u64;
        ok!(cuMemHostAlloc, &raw mut host => *mut u64, 100 => usize, 2 => u32);
        let about = |attribute: u32, address: u64| {
            let mut value = 0_u64;
            let code = cu!(cuPointerGetAttribute, &raw mut value => *mut u64, attribute => u32, address => u64);
            (code, value)
        };
        assert_eq!(about(1, device), (0, context));
        assert_eq!(about(2, device + 999), (0, 2));
        assert_eq!(about(2, host), (0, 1));
        assert_eq!(about(11, device + 999), (0, device));
        assert_eq!(about(12, device), (0, 1000));
        assert_eq!(about(2, device + 1000).0, 1, "nothing is there");
        let mut mine = [0_u8; 64];
        let own = mine.as_mut_ptr() as u64;
        ok!(cuMemHostRegister_v2, own => u64, 64 => usize, 0 => u32);
        assert_eq!(
            cu!(cuMemHostRegister_v2, own => u64, 64 => usize, 0 => u32),
            712
        );
        ok!(cuMemHostUnregister, own => u64);
        assert_eq!(cu!(cuMemHostUnregister, own => u64), 713);
        ok!(cuMemFreeHost, host => u64);
    });
}
