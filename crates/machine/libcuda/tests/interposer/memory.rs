//! Not a byte more: every way to take memory, its way back, and the calls at the limit.
//!
//! `used` is the tenant's ledger, `fake_used` the memory that the driver has really given out.

use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{Program, tenant};

/// One card with this limit; contexts cost nothing.
pub(crate) fn one_card(limit: u64) -> FakeArbiter {
    FakeArbiter::start(&grant(&[(0, limit)]))
}

/// Calls that give a program a context.
pub(crate) const START: &str = "
    cuInit 0
    cuDevicePrimaryCtxRetain &ctx 0
    cuCtxSetCurrent ctx
";

/// Plays a script on one card with 64 MiB.
pub(crate) fn check(script: &str) {
    let arbiter = one_card(64 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), script);
}

#[test]
fn linear_memory_is_charged_and_given_back() {
    check(
        "
        cuMemAlloc_v2 &a 40M
        used 0 40M
        cuMemAlloc_v2 &b 25M -> 2
        cuMemAlloc_v2 &b 24M
        used 0 64M
        cuMemAlloc_v2 &c 1 -> 2
        cuMemFree_v2 a
        used 0 24M
        cuMemAllocManaged &a 40M 1
        cuMemAllocManaged &c 1 1 -> 2
        cuMemFree_v2 a
        cuMemFree_v2 b
        used 0 0
        ",
    );
}

#[test]
fn what_the_driver_refuses_costs_nothing() {
    check(
        "
        fake_fail 1
        cuMemAlloc_v2 &a 1M -> 999
        cuMemAlloc_v2 &a 0 -> 1
        cuMemAlloc_v2 null 1M -> 1
        used 0 0
        cuMemAlloc_v2 &a 1M
        # A free that fails keeps the charge, and the next one gives it back.
        fake_fail 1
        cuMemFree_v2 a -> 1
        used 0 1M
        cuMemFree_v2 a
        used 0 0
        ",
    );
}

#[test]
fn unknown_pointers_go_to_the_driver() {
    check(
        "
        cuMemFree_v2 0xdead000 -> 1
        cuMemFree_v2 0 -> 0
        cuMemFreeAsync 0xdead000 0 -> 1
        cuMemRelease 77 -> 1
        cuArrayDestroy 77 -> 1
        cuGraphExecDestroy 77 -> 1
        used 0 0
        ",
    );
}

#[test]
fn nonsense_sizes_are_refused_without_asking_the_driver() {
    check(
        "
        fake_calls -> 1
        cuMemAlloc_v2 &a 0xffffffffffffffff -> 2
        cuMemAlloc_v2 &a 0x8000000000000000 -> 2
        cuMemAllocPitch_v2 &a &p 0xffffffffffffffff 0xffffffffffffffff 4 -> 2
        cuMemAllocAsync &a 0xffffffffffffffff 0 -> 2
        cuMemCreate &h 0xffffffffffffffff location:1:0 0 -> 2
        cuArray3DCreate_v2 &r array:99999999999:99999999999:9999:32:4:0 -> 2
        used 0 0
        ",
    );
}

#[test]
fn pitched_memory_costs_its_whole_rows() {
    check(
        "
        cuMemAllocPitch_v2 &a &pitch 1000 1024 4
        print pitch -> 1024
        used 0 1M
        cuMemFree_v2 a
        used 0 0
        ",
    );
}

#[test]
fn a_pitch_wider_than_expected_is_charged_or_undone() {
    let arbiter = one_card(3 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        fake_pitch 2048
        cuMemAllocPitch_v2 &a &pitch 1000 1024 4
        used 0 2M
        # One MiB is left: enough by our guess, not by the driver's pitch.
        cuMemAllocPitch_v2 &b &pitch 1000 1024 4 -> 2
        used 0 2M
        cuMemFree_v2 a
        used 0 0
        ",
    );
}

#[test]
fn a_pool_is_charged_what_it_reserves() {
    check(
        "
        # The driver grows pools by 4 MiB.
        cuMemAllocAsync &a 1M 0
        used 0 4M
        cuMemAllocAsync_ptsz &b 2M 0
        used 0 4M
        cuMemAllocAsync &c 5M 0
        used 0 8M
        cuMemFreeAsync b 0
        used 0 8M
        cuDeviceGetDefaultMemPool &pool 0
        cuMemFreeAsync c 0
        cuMemPoolTrimTo pool 0
        used 0 4M
        # Memory of a pool may be freed by the other function.
        cuMemFree_v2 a
        cuMemPoolTrimTo pool 0
        used 0 0
        ",
    );
}

#[test]
fn what_pools_only_keep_is_released_before_anything_is_refused() {
    check(
        "
        cuMemAllocAsync &a 60M 0
        cuMemFreeAsync a 0
        used 0 60M
        cuMemAlloc_v2 &b 64M
        used 0 64M
        cuMemFree_v2 b
        cuMemAllocAsync &a 60M 0
        cuMemAlloc_v2 &b 8M -> 2
        cuMemAllocAsync &b 8M 0 -> 2
        used 0 60M
        cuMemFreeAsync a 0
        cuMemAllocAsync &b 8M 0
        ",
    );
}

#[test]
fn growth_beyond_the_limit_is_undone() {
    check(
        "
        cuMemAlloc_v2 &a 62M
        # One MiB would fit, the 4 MiB that the driver takes for it do not.
        cuMemAllocAsync &b 1M 0 -> 2
        used 0 62M
        cuMemFree_v2 a
        used 0 0
        ",
    );
}

#[test]
fn pools_of_the_program_and_pools_on_the_host() {
    check(
        "
        cuMemPoolCreate &pool location:1:0
        cuMemAllocFromPoolAsync &a 8M pool 0
        used 0 8M
        cuMemAllocFromPoolAsync &b 60M pool 0 -> 2
        cuMemPoolDestroy pool
        used 0 8M
        cuMemFree_v2 a
        used 0 0
        # One on the host is on no card.
        cuMemPoolCreate &host location:2:0
        cuMemAllocFromPoolAsync &a 512M host 0
        used 0 0
        # Nobody keeps more than the limit, whatever is asked.
        cuMemPoolCreate &pool location:1:0
        set all 0xffffffffffffffff
        cuMemPoolSetAttribute pool 4 &all
        fake_threshold -> 67108864
        print all -> 18446744073709551615
        ",
    );
}

#[test]
fn physical_memory_lives_until_its_last_reference() {
    check(
        "
        cuMemCreate &h 32M location:1:0 0
        cuMemMap 0x100000000 32M 0 h 0
        cuMemRelease h
        used 0 32M
        cuMemRetainAllocationHandle &again 0x100000000
        cuMemUnmap 0x100000000 32M
        used 0 32M
        cuMemCreate &other 33M location:1:0 0 -> 2
        cuMemRelease again
        used 0 0
        fake_used 0 -> 104857600
        fake_fail 1
        cuMemCreate &h 1M location:1:0 0 -> 999
        used 0 0
        ",
    );
}

#[test]
fn arrays_cost_what_the_driver_says() {
    check(
        "
        # 1024 × 1024 × 4 channels, and the 4096 bytes that this driver adds.
        cuArrayCreate_v2 &a flat:1024:1024:1:4
        used 0 4M+4K
        cuArray3DCreate_v2 &b array:1024:1024:2:1:4:0
        used 0 12M+8K
        cuMipmappedArrayCreate &m array:1024:1024:0:1:4:0 3
        used 0 24M+20K
        # Without memory of their own: sparse, and mapped later.
        cuArray3DCreate_v2 &c array:1024:1024:64:1:4:64
        cuArray3DCreate_v2 &d array:1024:1024:64:1:4:128
        used 0 24M+20K
        cuArray3DCreate_v2 &e array:4096:4096:64:1:4:0 -> 2
        cuArrayDestroy a
        cuArrayDestroy b
        cuMipmappedArrayDestroy m
        used 0 0
        cuArrayCreate_v2 &a null -> 1
        ",
    );
}

#[test]
fn arrays_of_a_driver_that_does_not_say_are_estimated() {
    check(
        "
        fake_secret 1
        cuArray3DCreate_v2 &a array:1024:1024:0:1:4:0
        used 0 4M
        cuArrayDestroy a
        used 0 0
        ",
    );
}

/// Bytes of the card's last refusal.
pub(crate) fn last_refusal(arbiter: &FakeArbiter) -> Option<u64> {
    let refused = arbiter
        .ledger()
        .last_refusal(crate::support::arbiter::device(0));
    refused.map(|refused| refused.0)
}

#[test]
fn every_refusal_is_noted_with_what_was_asked() {
    let arbiter = one_card(64 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), "fake_pitch 2048\ncuMemAlloc_v2 &most 62M");
    for (asked, bytes) in [
        ("cuMemAlloc_v2 &a 3M", 3 << 20),
        ("cuMemAllocManaged &a 4M 1", 4 << 20),
        // By our guess it would fit, by the driver's pitch it does not.
        ("cuMemAllocPitch_v2 &a &pitch 1000 1536 4", 3 << 20),
        // It would fit, the block that the driver takes for it does not.
        ("cuMemAllocAsync &a 1M 0", 1 << 20),
        ("cuMemAllocAsync_ptsz &a 2M 0", 2 << 20),
        ("cuMemAllocAsync &a 0xffffffffffffffff 0", u64::MAX),
        ("cuMemCreate &h 5M location:1:0 0", 5 << 20),
        (
            "cuArray3DCreate_v2 &r array:1024:1024:0:1:4:0",
            (4 << 20) + 4096,
        ),
        ("cuImportExternalMemory &m external:6M", 6 << 20),
        ("cuGraphAddMemAllocNode &n 1 null 0 node:0:100M", 100 << 20),
        ("cuCtxSetLimit 2 16M", 8 << 20),
    ] {
        assert_eq!(program.call(asked), "2", "{asked}");
        assert_eq!(last_refusal(&arbiter), Some(bytes), "{asked}");
    }
    program.play(
        Some(&arbiter),
        "
        cuGraphCreate &g 0
        cuGraphAddMemAllocNode &n g null 0 node:0:10M
        cuGraphInstantiateWithFlags &x g 0 -> 2
        ",
    );
    assert_eq!(last_refusal(&arbiter), Some(10 << 20));
    // What a second attempt got is no refusal.
    program.play(
        Some(&arbiter),
        "
        cuMemFree_v2 most
        cuMemAllocAsync &a 60M 0
        cuMemFreeAsync a 0
        cuGraphInstantiateWithFlags &x g 0
        used 0 10M
        ",
    );
    assert_eq!(last_refusal(&arbiter), Some(10 << 20));
    program.play(
        Some(&arbiter),
        "
        cuMemAlloc_v2 &b 55M -> 2
        cuGraphExecDestroy x
        cuMemAllocAsync &a 60M 0
        cuMemFreeAsync a 0
        cuGraphInstantiateWithFlags &x g 0
        ",
    );
    assert_eq!(last_refusal(&arbiter), Some(55 << 20));
}

#[test]
fn memory_from_other_interfaces_is_charged_by_its_size() {
    check(
        "
        cuImportExternalMemory &m external:60M
        used 0 60M
        cuImportExternalMemory &n external:5M -> 2
        cuDestroyExternalMemory m
        used 0 0
        ",
    );
}

#[test]
fn a_limit_lowered_below_the_use_refuses_and_shows_a_full_card() {
    let arbiter = one_card(64 << 20);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), "cuMemAlloc_v2 &a 40M");
    arbiter.set_limit(0, 32 << 20);
    program.play(
        Some(&arbiter),
        "
        cuMemAlloc_v2 &b 512 -> 2
        cuMemGetInfo_v2 &free &total
        print free -> 0
        print total -> 33554432
        # What costs nothing goes on.
        cuArray3DCreate_v2 &sparse array:1024:1024:64:1:4:64
        cuMemFree_v2 a
        cuMemAlloc_v2 &b 32M
        ",
    );
    arbiter.set_limit(0, 48 << 20);
    program.play(Some(&arbiter), "cuMemAlloc_v2 &c 16M\nused 0 48M");
    assert_eq!(last_refusal(&arbiter), Some(512));
}
