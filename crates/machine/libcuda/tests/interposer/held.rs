//! Memory stays charged as long as anything holds it: objects that it is bound to, arrays that it
//! is mapped into, descriptors, streams that have not come so far, and other processes.

use std::path::Path;

use crate::memory::{START, check, one_card};
use crate::support::arbiter::FakeArbiter;
use crate::support::{Program, bytes_of, eventually, tenant};

fn started(arbiter: &FakeArbiter) -> Program {
    let mut program = Program::start(&mut tenant(arbiter));
    program.play(Some(arbiter), START);
    program
}

/// A thread of the program's has to look first.
fn soon(arbiter: &FakeArbiter, bytes: &str) {
    eventually(&format!("{bytes} charged"), || {
        arbiter.used(0) == bytes_of(bytes)
    });
}

#[test]
fn bound_memory_is_charged_until_it_is_unbound() {
    check(
        "
        cuMulticastCreate &mc null
        used 0 0
        cuMemCreate &h 16M location:1:0 0
        cuMulticastBindMem mc 0 h 0 16M 0
        cuMemRelease h
        used 0 16M
        cuMemCreate &h 16M location:1:0 0
        cuMemMap 0x100000000 16M 0 h 0
        cuMulticastBindAddr_v2 mc 0 16M 0x100000000 16M 0
        cuMemRelease h
        cuMemUnmap 0x100000000 16M
        used 0 32M
        # What the driver does not bind is not held.
        cuMemCreate &h 16M location:1:0 0
        fake_fail 1
        cuMulticastBindMem_v2 mc 0 32M h 0 16M 0 -> 1
        cuMemRelease h
        used 0 32M
        # No more than the limit, whatever became of the handles.
        cuMemCreate &h 33M location:1:0 0 -> 2
        # A part of what was bound is not unbound.
        cuMulticastUnbind mc 0 0 8M
        used 0 32M
        cuMulticastUnbind mc 0 0 16M
        used 0 16M
        # The object takes the rest with it, with the last reference to it.
        cuMemMap 0x200000000 16M 0 mc 0
        cuMemRelease mc
        used 0 16M
        cuMemUnmap 0x200000000 16M
        used 0 0
        fake_used 0 -> 104857600
        ",
    );
}

#[test]
fn memory_behind_a_logical_endpoint_is_charged_until_it_is_unbound() {
    check(
        "
        cuMemCreate &h 16M location:1:0 0
        cuLogicalEndpointBindMem 5 0 0 h 0 16M 0
        cuMemMap 0x100000000 16M 0 h 0
        cuLogicalEndpointBindAddr 6 0 0 0x100000000 16M 0
        cuMemUnmap 0x100000000 16M
        cuMemRelease h
        cuLogicalEndpointUnbind 5 0 0 16M
        used 0 16M
        cuLogicalEndpointDestroy 6
        used 0 0
        fake_used 0 -> 104857600
        ",
    );
}

#[test]
fn a_sparse_array_holds_the_memory_of_its_tiles() {
    check(
        "
        cuArray3DCreate_v2 &array array:1024:1024:0:1:4:64
        cuMemCreate &handle 32M location:1:0 0
        set other handle
        cuMemMapArrayAsync tiles:0:0:8:0 1 0
        cuMemMapArrayAsync tiles:1:0:4:2 1 0
        cuMemRelease handle
        used 0 32M
        # Unmapped in other pieces than it was mapped.
        cuMemMapArrayAsync untiled:0:3:5:0 1 0
        cuMemMapArrayAsync untiled:1:0:4:2 1 0
        used 0 32M
        cuMemMapArrayAsync untiled:0:0:3:0 1 0
        used 0 0
        fake_used 0 -> 104857600
        # Mapped over, and what the driver refuses.
        cuMemCreate &handle 32M location:1:0 0
        cuMemMapArrayAsync tiles:0:0:8:0 1 0
        cuMemRelease handle
        cuMemCreate &handle 16M location:1:0 0
        fake_fail 1
        cuMemMapArrayAsync_ptsz tiles:0:0:8:0 1 0 -> 801
        cuMemMapArrayAsync tiles:0:0:7:0 1 0 -> 999
        used 0 48M
        cuMemMapArrayAsync tiles:0:0:8:0 1 0
        used 0 16M
        cuMemRelease handle
        used 0 16M
        # The array's end is the end of its tiles.
        cuArrayDestroy array
        used 0 0
        fake_used 0 -> 104857600
        ",
    );
}

#[test]
fn an_array_that_is_mapped_in_one_piece_has_one_piece() {
    check(
        "
        cuArray3DCreate_v2 &array array:1024:1024:0:1:4:128
        cuMemCreate &handle 32M location:1:0 0
        # Which part is said, does not count for it.
        cuMemMapArrayAsync tiles:0:0:1:0 1 0
        cuMemRelease handle
        used 0 32M
        cuMemCreate &handle 16M location:1:0 0
        cuMemMapArrayAsync tiles:0:5:1:0 1 0
        used 0 16M
        ",
    );
}

#[test]
fn what_a_stream_has_yet_to_unmap_stays_charged() {
    check(
        "
        cuArray3DCreate_v2 &array array:1024:1024:0:1:4:64
        cuMemCreate &handle 40M location:1:0 0
        cuMemMapArrayAsync tiles:0:0:8:0 1 0
        cuMemRelease handle
        fake_busy 1
        cuMemMapArrayAsync untiled:0:0:8:0 1 0
        used 0 40M
        cuMemAlloc_v2 &a 30M -> 2
        fake_busy 0
        # Seen when somebody needs it, and when somebody asks.
        cuMemAlloc_v2 &a 30M
        used 0 30M
        fake_events -> 0
        ",
    );
}

#[test]
fn exported_memory_is_charged_while_its_descriptor_is_open() {
    let arbiter = one_card(64 << 20);
    let mut program = started(&arbiter);
    program.play(
        Some(&arbiter),
        "
        # Closed before it is freed, as programs do.
        cuMemCreate &h 32M location:1:0 0
        cuMemExportToShareableHandle &fd h 1 0
        close fd
        cuMemRelease h
        used 0 0
        # Freed before.
        cuMemCreate &h 32M location:1:0 0
        cuMemExportToShareableHandle &fd h 1 0
        cuMemRelease h
        used 0 32M
        cuMemCreate &more 33M location:1:0 0 -> 2
        close fd
        cuMemCreate &more 64M location:1:0 0
        used 0 64M
        cuMemRelease more
        # A dma-buf holds memory by itself, whichever way that was made.
        cuMemAlloc_v2 &a 16M
        cuMemGetHandleForAddressRange &fd a 16M 1 0
        cuMemFree_v2 a
        cuMemCreate &h 16M location:1:0 0
        cuMemMap 0x100000000 16M 0 h 0
        cuMemGetHandleForAddressRange &other 0x100000000 16M 1 0
        cuMemUnmap 0x100000000 16M
        cuMemRelease h
        used 0 32M
        close fd
        ",
    );
    // Nobody calls the driver, and it is seen all the same.
    soon(&arbiter, "16M");
    program.play(Some(&arbiter), "close other");
    soon(&arbiter, "0");
}

#[test]
fn memory_that_comes_back_to_its_maker_is_charged_until_it_goes_again() {
    check(
        "
        cuMemCreate &h 32M location:1:0 0
        cuMemExportToShareableHandle &fd h 1 0
        # The driver gives another handle for the same memory.
        cuMemImportFromShareableHandle &again fd 1
        close fd
        cuMemRelease h
        used 0 32M
        cuMemMap 0x100000000 32M 0 again 0 -> 1
        cuMemRelease again
        used 0 0
        fake_used 0 -> 104857600
        ",
    );
}

/// Starts two processes of one job: the first has made memory, the second has opened it.
fn lent(arbiter: &FakeArbiter, folder: &Path, make: &str, open: &str) -> (Program, Program) {
    let (mut maker, mut user) = (started(arbiter), started(arbiter));
    let socket = folder.join("socket").display().to_string();
    assert_eq!(user.call(&format!("listen {socket}")), "0");
    maker.call("set handle struct:64");
    maker.play(Some(arbiter), &make.replace("SOCKET", &socket));
    let handle = maker.call("hex handle 64");
    user.play(Some(arbiter), &open.replace("HANDLE", &handle));
    (maker, user)
}

/// Every way to memory of another process: made, opened, freed by its maker, and closed.
const WAYS: [(&str, &str, &str, &str, &str); 4] = [
    (
        "descriptor",
        "
        cuMemCreate &h 32M location:1:0 0
        cuMemExportToShareableHandle &fd h 1 0
        send fd SOCKET
        close fd
        ",
        "
        receive fd
        cuMemImportFromShareableHandle &h fd 1
        close fd
        ",
        "cuMemRelease h",
        "cuMemRelease h",
    ),
    (
        "fabric handle",
        "
        cuMemCreate &h 32M location:1:0 0
        cuMemExportToShareableHandle handle h 8 0
        ",
        "
        set handle bytes:HANDLE
        cuMemImportFromShareableHandle &h handle 8
        ",
        "cuMemRelease h",
        "cuMemRelease h",
    ),
    (
        "address",
        "
        cuMemAlloc_v2 &a 32M
        cuIpcGetMemHandle handle a
        cuIpcGetMemHandle handle a
        ",
        "
        set handle bytes:HANDLE
        cuIpcOpenMemHandle_v2 &a value:handle 1
        cuIpcOpenMemHandle_v2 &a value:handle 1
        cuIpcCloseMemHandle a
        ",
        "cuMemFree_v2 a",
        "cuIpcCloseMemHandle a",
    ),
    (
        "address of a pool",
        "
        cuMemAllocAsync &a 32M 0
        cuMemPoolExportPointer handle a
        ",
        "
        set handle bytes:HANDLE
        cuMemPoolImportFromShareableHandle &pool 0 1 0
        cuMemPoolImportPointer &a pool handle
        # The pool that came is its maker's to pay.
        cuMemPoolTrimTo pool 0
        ",
        "
        cuMemFreeAsync a 0
        cuDeviceGetDefaultMemPool &pool 0
        cuMemPoolTrimTo pool 0
        ",
        "cuMemFreeAsync a 0",
    ),
];

#[test]
fn the_maker_pays_until_the_last_process_has_let_go() {
    for (name, make, open, free, close) in WAYS {
        println!("{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let arbiter = one_card(64 << 20);
        let (mut maker, mut user) = lent(&arbiter, folder.path(), make, open);
        maker.play(Some(&arbiter), &format!("used 0 32M\n{free}\nused 0 32M"));
        // Neither of them can take what the other still holds.
        for program in [&mut maker, &mut user] {
            assert_eq!(program.call("cuMemAlloc_v2 &more 33M"), "2", "{name}");
        }
        user.play(Some(&arbiter), close);
        if name == "address of a pool" {
            // Only the driver knows what a pool has, and nobody asks it but the maker.
            maker.play(Some(&arbiter), "cuMemGetInfo_v2 &free &total");
        }
        soon(&arbiter, "0");
    }
}

#[test]
fn what_others_closed_first_costs_nothing_after_the_free() {
    for (name, make, open, free, close) in WAYS {
        println!("{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let arbiter = one_card(64 << 20);
        let (mut maker, mut user) = lent(&arbiter, folder.path(), make, open);
        user.play(Some(&arbiter), close);
        maker.play(Some(&arbiter), &format!("{free}\nused 0 0"));
    }
}

#[test]
fn a_process_that_is_killed_holds_nothing() {
    for (name, make, open, free, _) in WAYS {
        println!("{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let arbiter = one_card(64 << 20);
        let (mut maker, user) = lent(&arbiter, folder.path(), make, open);
        maker.play(Some(&arbiter), &format!("{free}\nused 0 32M"));
        drop(user);
        maker.play(Some(&arbiter), "cuMemAlloc_v2 &more 64M\nused 0 64M");
    }
}

/// The pool that lacks memory is the one that the memory goes back to.
#[test]
fn a_pool_waits_for_nobody_to_get_back_what_others_held_of_it() {
    let (name, make, open, free, close) = WAYS[3];
    assert_eq!(name, "address of a pool");
    let folder = tempfile::tempdir().expect("a folder");
    let arbiter = one_card(64 << 20);
    let (mut maker, mut user) = lent(&arbiter, folder.path(), make, open);
    maker.play(Some(&arbiter), &format!("{free}\nused 0 32M"));
    assert_eq!(maker.call("cuMemAllocAsync &more 64M 0"), "2");
    user.play(Some(&arbiter), close);
    maker.play(
        Some(&arbiter),
        "cuMemAllocAsync &more 64M 0\nused 0 64M\ncuMemFreeAsync more 0",
    );
}

#[test]
fn memory_of_another_job_costs_who_made_it() {
    for (name, make, open, free, close) in WAYS {
        println!("{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket").display().to_string();
        let (job, other) = (one_card(64 << 20), one_card(64 << 20));
        let (mut maker, mut user) = (started(&job), started(&other));
        assert_eq!(user.call(&format!("listen {socket}")), "0");
        maker.call("set handle struct:64");
        maker.play(Some(&job), &make.replace("SOCKET", &socket));
        let handle = maker.call("hex handle 64");
        user.play(Some(&other), &open.replace("HANDLE", &handle));
        user.play(Some(&other), &format!("used 0 0\n{close}\nused 0 0"));
        maker.play(Some(&job), &format!("used 0 32M\n{free}\nused 0 0"));
    }
}

#[test]
fn a_context_that_goes_closes_what_it_had_opened() {
    let (_, make, open, free, _) = WAYS[2];
    let folder = tempfile::tempdir().expect("a folder");
    let arbiter = one_card(64 << 20);
    let (mut maker, mut user) = lent(&arbiter, folder.path(), make, open);
    maker.play(Some(&arbiter), &format!("{free}\nused 0 32M"));
    user.play(Some(&arbiter), "cuDevicePrimaryCtxRelease_v2 0");
    soon(&arbiter, "0");
}

#[test]
fn memory_of_other_interfaces_is_charged_while_anything_shows_it() {
    check(
        "
        cuImportExternalMemory &m external:60M
        cuExternalMemoryGetMappedBuffer &a m null
        cuExternalMemoryGetMappedMipmappedArray &r m null
        cuDestroyExternalMemory m
        used 0 60M
        cuMemFree_v2 a
        used 0 60M
        cuMipmappedArrayDestroy r
        used 0 0
        # The other way round.
        cuImportExternalMemory &m external:60M
        cuExternalMemoryGetMappedBuffer &a m null
        cuMemFree_v2 a
        used 0 60M
        cuDestroyExternalMemory m
        used 0 0
        # A context's end is the end of what is shown in it.
        cuImportExternalMemory &m external:60M
        cuExternalMemoryGetMappedBuffer &a m null
        cuDevicePrimaryCtxReset_v2 0
        used 0 0
        ",
    );
}
