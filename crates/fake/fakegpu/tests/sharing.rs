//! Objects that two processes share: memory by handle and by descriptor, pools, events.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use own_process::{Latch, Other, context, kernel, memory, role, say, spin, stream};
use sublet_driver_api::cuda::memory::{CUmemAllocationProp_v1, CUmemPoolProps_v1};
use sublet_driver_api::cuda::{
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE,
};

const MIB: usize = 1 << 20;
const SPEC: &str = "1x1GiB,context=24MiB";

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 2 | 4;

/// The 64 bytes that C passes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes([u8; 64]);

impl Bytes {
    const ZERO: Bytes = Bytes([0; 64]);

    fn to_text(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn of_text(text: &str) -> Bytes {
        let byte = |place| u8::from_str_radix(&text[place * 2..place * 2 + 2], 16).unwrap();
        Bytes(std::array::from_fn(byte))
    }
}

/// Opens a descriptor of another process, by that process's description.
fn descriptor_of(text: &str) -> File {
    let path = format!("/proc/{text}");
    let file = File::options().read(true).write(true).open(path);
    file.unwrap()
}

fn descriptor_text(descriptor: i32) -> String {
    format!("{}/fd/{descriptor}", std::process::id())
}

fn byte_at(address: u64) -> u8 {
    let mut byte = 0_u8;
    ok!(cuMemcpyDtoH_v2, &raw mut byte => *mut u8, address => u64, 1 => usize);
    byte
}

fn set(address: u64, byte: u8, count: usize) {
    ok!(cuMemsetD8_v2, address => u64, byte => u8, count => usize);
}

/// Starts an owner, and a guest that is given the owner's first message.
fn two(test: &str, root: &Path) -> (Other, Other, String) {
    let mut owner = Other::start(test, SPEC, root, "owner");
    let given = owner.hear();
    let guest = Other::start(test, SPEC, root, &given);
    (owner, guest, given)
}

#[test]
fn memory_is_shared_by_handle() {
    const NAME: &str = "memory_is_shared_by_handle";
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let (mut owner, mut guest, _) = two(NAME, folder.path());
        assert_eq!(guest.hear(), "77 950");
        owner.tell("look");
        assert_eq!(owner.hear(), "78");
        owner.end();
        guest.end();
        return;
    };
    context();
    let mut address = 0_u64;
    let mut handle = Bytes::ZERO;
    if role == "owner" {
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 1000 => usize);
        set(address, 77, 1000);
        ok!(cuIpcGetMemHandle, &raw mut handle => *mut Bytes, address + 10 => u64);
        say(&handle.to_text());
        say(&byte_at(address).to_string());
        return;
    }
    let mut open = |handle: Bytes| cu!(cuIpcOpenMemHandle_v2, &raw mut address => *mut u64, handle => Bytes, 1 => u32);
    assert_eq!(open(Bytes([7; 64])), 1);
    assert_eq!(open(Bytes::of_text(&role)), 0);
    let byte = byte_at(address + 999);
    set(address, 78, 1);
    let (free, _) = memory();
    say(&format!("{byte} {}", free / MIB - 24));
    ok!(cuIpcCloseMemHandle, address => u64);
    assert_eq!(cu!(cuIpcCloseMemHandle, address => u64), 1);
}

fn device() -> CUmemAllocationProp_v1 {
    let mut properties = CUmemAllocationProp_v1 {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        ..CUmemAllocationProp_v1::default()
    };
    properties.location.r#type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties
}

fn map(handle: u64, size: usize) -> u64 {
    use sublet_driver_api::cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    use sublet_driver_api::cuda::memory::CUmemAccessDesc_v1;
    let mut place = 0_u64;
    ok!(cuMemAddressReserve, &raw mut place => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64);
    ok!(cuMemMap, place => u64, size => usize, 0 => usize, handle => u64, 0 => u64);
    let access = CUmemAccessDesc_v1 {
        location: device().location,
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    ok!(cuMemSetAccess, place => u64, size => usize, &raw const access => *const CUmemAccessDesc_v1, 1 => usize);
    place
}

#[test]
fn physical_memory_is_shared_by_descriptor() {
    const NAME: &str = "physical_memory_is_shared_by_descriptor";
    const SIZE: usize = 4 * MIB;
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let (mut owner, mut guest, _) = two(NAME, folder.path());
        assert_eq!(guest.hear(), "5 0 6");
        owner.tell("look");
        assert_eq!(owner.hear(), "5 9");
        owner.end();
        guest.end();
        return;
    };
    context();
    let mut handle = 0_u64;
    if role == "owner" {
        let properties = device();
        ok!(cuMemCreate, &raw mut handle => *mut u64, SIZE => usize, &raw const properties => *const CUmemAllocationProp_v1, 0 => u64);
        let place = map(handle, SIZE);
        set(place, 5, 10);
        set(place + SIZE as u64 - 1, 6, 1);
        let mut descriptor = 0;
        ok!(cuMemExportToShareableHandle, &raw mut descriptor => *mut i32, handle => u64, 1 => u32, 0 => u64);
        say(&descriptor_text(descriptor));
        // The bytes that moved are under the old address, too.
        say(&format!("{} {}", byte_at(place), byte_at(place + 10)));
        return;
    }
    let file = descriptor_of(&role);
    let descriptor = file.as_raw_fd() as usize;
    ok!(cuMemImportFromShareableHandle, &raw mut handle => *mut u64, descriptor => usize, 1 => u32);
    drop(file);
    let place = map(handle, SIZE);
    assert_eq!(memory().0, (1024 - 24 - 24 - 4) * MIB, "its owner pays");
    let seen = [0, 10, SIZE as u64 - 1].map(|at| byte_at(place + at).to_string());
    set(place + 10, 9, 1);
    say(&seen.join(" "));
}

fn pool(handle_types: u32) -> (u32, u64) {
    let given = device();
    let properties = CUmemPoolProps_v1 {
        allocType: given.r#type,
        handleTypes: sublet_driver_api::cuda::CUmemAllocationHandleType(handle_types),
        location: given.location,
        ..CUmemPoolProps_v1::default()
    };
    let mut pool = 0_u64;
    let code = cu!(cuMemPoolCreate, &raw mut pool => *mut u64, &raw const properties => *const CUmemPoolProps_v1);
    (code, pool)
}

fn take(size: usize, pool: u64, stream: u64) -> (u32, u64) {
    let mut address = 0_u64;
    let code = cu!(cuMemAllocFromPoolAsync, &raw mut address => *mut u64, size => usize, pool => u64, stream => u64);
    (code, address)
}

/// Owner: allocates twice of a pool, and gives the pool and the second allocation away.
fn lend_pool() {
    let stream = stream();
    let mut descriptor = -1;
    let mut export = |pool: u64| cu!(cuMemPoolExportToShareableHandle, &raw mut descriptor => *mut i32, pool => u64, 1 => u32, 0 => u64);
    let (code, private) = pool(0);
    assert_eq!((code, export(private)), (0, 1), "nobody asked for handles");
    let (code, pool) = pool(1);
    assert_eq!((code, export(pool)), (0, 0));
    let (_, first) = take(1000, pool, stream);
    let (_, second) = take(3 * MIB + 5, pool, stream);
    ok!(cuStreamSynchronize, stream => u64);
    set(first, 1, 1000);
    set(second, 2, 3 * MIB + 5);
    let mut data = Bytes::ZERO;
    let mut share =
        |address: u64| cu!(cuMemPoolExportPointer, &raw mut data => *mut Bytes, address => u64);
    assert_eq!((share(second + 1), share(4096)), (1, 1));
    let (_, hidden) = take(4096, private, stream);
    assert_eq!(share(hidden), 1, "its pool is nobody else's");
    assert_eq!(share(second), 0);
    say(&format!(
        "{} {}",
        descriptor_text(descriptor),
        data.to_text()
    ));
    say(&format!("{} {}", byte_at(first), byte_at(second + 7)));
    // What is given back is taken away, for the next one to find zeroes.
    for address in [first, second] {
        ok!(cuMemFreeAsync, address => u64, stream => u64);
    }
    ok!(cuStreamSynchronize, stream => u64);
    ok!(cuMemPoolDestroy, pool => u64);
    say(&(memory().0 / MIB).to_string());
}

fn borrow_pool(given: &str) {
    let (file, data) = given.split_once(' ').unwrap();
    let (file, data) = (descriptor_of(file), Bytes::of_text(data));
    let stream = stream();
    let mut pool = 0_u64;
    let mut import = |descriptor: usize| cu!(cuMemPoolImportFromShareableHandle, &raw mut pool => *mut u64, descriptor => usize, 1 => u32, 0 => u64);
    let stranger = tempfile::tempfile().unwrap();
    assert_eq!(import(stranger.as_raw_fd() as usize), 1);
    assert_eq!(import(file.as_raw_fd() as usize), 0);
    drop(file);
    assert_eq!(
        take(10, pool, stream).0,
        1,
        "nothing can be allocated from it"
    );
    assert_eq!(cu!(cuDeviceSetMemPool, 0 => i32, pool => u64), 1);
    let before = memory().0;
    let open = |pool: u64, data: &Bytes| {
        let mut address = 0_u64;
        let data = std::ptr::from_ref(data);
        let code = cu!(cuMemPoolImportPointer, &raw mut address => *mut u64, pool => u64, data => *const Bytes);
        (code, address)
    };
    let (_, own) = self::pool(1);
    assert_eq!((open(pool, &Bytes([3; 64])).0, open(own, &data).0), (1, 1));
    let (code, address) = open(pool, &data);
    assert_eq!(code, 0);
    assert_eq!(memory().0, before, "its owner pays");
    let end = address + 3 * MIB as u64 + 4;
    let seen = [address, end].map(byte_at);
    assert_eq!(
        cu!(cuMemsetD8_v2, end => u64, 0 => u8, 2 => usize),
        1,
        "the end of it"
    );
    set(address + 7, 8, 1);
    say(&format!("{seen:?}"));
    ok!(cuMemFreeAsync, address => u64, stream => u64);
    ok!(cuStreamSynchronize, stream => u64);
    assert_eq!(cu!(cuMemsetD8_v2, address => u64, 0 => u8, 1 => usize), 1);
    let (code, address) = open(pool, &data);
    assert_eq!((code, byte_at(address + 7)), (0, 8));
    ok!(cuMemFree_v2, address => u64);
    ok!(cuMemPoolDestroy, pool => u64);
}

#[test]
fn pools_are_shared_by_descriptor_and_their_pointers_by_data() {
    const NAME: &str = "pools_are_shared_by_descriptor_and_their_pointers_by_data";
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let (mut owner, mut guest, _) = two(NAME, folder.path());
        assert_eq!(guest.hear(), "[2, 2]");
        owner.tell("look");
        assert_eq!(owner.hear(), "1 8");
        guest.end();
        owner.tell("free");
        let left = 1024 - 24 - 32;
        assert_eq!(owner.hear(), left.to_string(), "context and the other pool");
        owner.end();
        return;
    };
    context();
    if role == "owner" {
        lend_pool();
    } else {
        borrow_pool(&role);
    }
}

fn query(event: u64) -> u32 {
    cu!(cuEventQuery, event => u64)
}

/// Owner of an event: makes and exports it, then records it where and when it is told.
fn lend_event() {
    let make = |flags: u32| {
        let mut event = 0_u64;
        let code = cu!(cuEventCreate, &raw mut event => *mut u64, flags => u32);
        (code, event)
    };
    assert_eq!(make(4).0, 1, "only without a time");
    let (_, event) = make(2);
    let mut handle = Bytes::ZERO;
    let mut export =
        |event: u64| cu!(cuIpcGetEventHandle, &raw mut handle => *mut Bytes, event => u64);
    assert_eq!((export(event), export(77)), (1, 400));
    let (code, event) = make(INTERPROCESS);
    assert_eq!((code, export(event)), (0, 0));
    let (spinner, stream, latch) = (kernel("spin"), stream(), Latch::new());
    let mut mine = 0_u64;
    assert_eq!(
        cu!(cuIpcOpenEventHandle, &raw mut mine => *mut u64, handle => Bytes),
        201,
        "it is this process's own"
    );
    let mut order = say(&handle.to_text());
    loop {
        match order.as_str() {
            "record" => {
                latch.close();
                latch.hold(stream);
                ok!(cuEventRecord, event => u64, stream => u64);
                order = say("recorded");
            }
            "go on" => {
                latch.open();
                order = say("goes on");
            }
            "wait" => {
                ok!(cuEventSynchronize, event => u64);
                order = say("waited");
            }
            "hang" => {
                spin(spinner, stream, 3_600_000_000);
                ok!(cuEventRecord, event => u64, stream => u64);
                order = say("hangs");
            }
            _ => return,
        }
    }
}

/// Guest: opens the event and looks, waits and records as it is told.
fn borrow_event(handle: &str) {
    let mut event = 0_u64;
    let mut open =
        |handle: Bytes| cu!(cuIpcOpenEventHandle, &raw mut event => *mut u64, handle => Bytes);
    assert_eq!(open(Bytes([1; 64])), 1);
    assert_eq!(open(Bytes::of_text(handle)), 0);
    let mut again = Bytes::ZERO;
    assert_eq!(
        cu!(cuIpcGetEventHandle, &raw mut again => *mut Bytes, event => u64),
        1,
        "it is not this process's to give away"
    );
    let (stream, latch) = (stream(), Latch::new());
    let mut order = say(&query(event).to_string());
    loop {
        match order.as_str() {
            "query" => order = say(&query(event).to_string()),
            "wait" => {
                ok!(cuEventSynchronize, event => u64);
                order = say(&query(event).to_string());
            }
            "wait in a stream" => {
                ok!(cuStreamWaitEvent, stream => u64, event => u64, 0 => u32);
                order = say(&cu!(cuStreamQuery, stream => u64).to_string());
            }
            "synchronize" => {
                ok!(cuStreamSynchronize, stream => u64);
                order = say(&query(event).to_string());
            }
            "record" => {
                latch.hold(stream);
                ok!(cuEventRecord, event => u64, stream => u64);
                order = say(&query(event).to_string());
            }
            "go on" => {
                latch.open();
                order = say("goes on");
            }
            _ => break,
        }
    }
    ok!(cuEventDestroy_v2, event => u64);
    assert_eq!(query(event), 400);
}

#[test]
fn events_are_waited_for_across_processes() {
    const NAME: &str = "events_are_waited_for_across_processes";
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let (mut owner, mut guest, _) = two(NAME, folder.path());
        let ask = |who: &mut Other, order: &str| {
            who.tell(order);
            who.hear()
        };
        assert_eq!(guest.hear(), "0", "it was never recorded");
        assert_eq!(ask(&mut owner, "record"), "recorded");
        assert_eq!(ask(&mut guest, "query"), "600", "something is before it");
        guest.tell("wait");
        assert_eq!(ask(&mut owner, "go on"), "goes on");
        assert_eq!(guest.hear(), "0");
        assert_eq!(ask(&mut owner, "record"), "recorded");
        assert_eq!(ask(&mut guest, "wait in a stream"), "600");
        guest.tell("synchronize");
        assert_eq!(ask(&mut owner, "go on"), "goes on");
        assert_eq!(guest.hear(), "0");
        // The other way round: who opened it records it, who made it waits.
        assert_eq!(ask(&mut guest, "record"), "600");
        owner.tell("wait");
        assert_eq!(ask(&mut guest, "go on"), "goes on");
        assert_eq!(owner.hear(), "waited");
        assert_eq!(ask(&mut guest, "query"), "0");
        // Nobody waits for the dead.
        assert_eq!(ask(&mut owner, "hang"), "hangs");
        assert_eq!(ask(&mut guest, "query"), "600");
        owner.kill();
        assert_eq!(ask(&mut guest, "wait"), "0");
        guest.end();
        return;
    };
    context();
    if role == "owner" {
        lend_event();
    } else {
        borrow_event(&role);
    }
}
