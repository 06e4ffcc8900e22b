//! Memory of the host that the driver pins: one budget for all ways to it, and its way back.
//!
//! `pinned` is the tenant's ledger, `fake_pinned` the memory that the driver has really pinned.

use crate::memory::START;
use crate::support::arbiter::{FakeArbiter, TenantGrant, grant};
use crate::support::{Program, eventually, tenant};
use sublet_abi::{OLDEST, VERSION};
use sublet_fakearbiter::process;

/// One card with 64 MiB, and a budget of pinned memory.
fn may_pin(bytes: Option<u64>) -> TenantGrant {
    TenantGrant {
        host_limit_bytes: bytes,
        ..grant(&[(0, 64 << 20)])
    }
}

/// Plays a script with a budget of 64 MiB.
fn check(script: &str) {
    let arbiter = FakeArbiter::start(&may_pin(Some(64 << 20)));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), script);
}

#[test]
fn every_way_is_charged_to_one_budget_and_given_back() {
    check(
        "
        cuMemAllocHost_v2 &a 20M
        pinned 20M
        cuMemHostAlloc &b 20M 3
        cuMemHostRegister_v2 0x5000000000 20M 0
        pinned 60M
        # Four MiB are left, whichever way they are asked for.
        cuMemAllocHost &c 4194305 -> 2
        cuMemAllocHost_v2 &c 4194305 -> 2
        cuMemHostAlloc &c 4194305 0 -> 2
        cuMemHostRegister 0x6000000000 4194305 0 -> 2
        cuMemHostRegister_v2 0x6000000000 4194305 0 -> 2
        cuMemCreate &h 4194305 location:2:0 0 -> 2
        cuMemCreate &h 4194305 location:3:1 0 -> 2
        cuMemCreate &h 4194305 location:4:0 0 -> 2
        fake_pinned -> 62914560
        # And none of it is the card's.
        used 0 0
        cuMemAllocHost &c 4M
        pinned 64M
        cuMemHostAlloc &d 1 0 -> 2
        cuMemFreeHost a
        cuMemFreeHost b
        cuMemFreeHost c
        pinned 20M
        cuMemHostUnregister 0x5000000000
        pinned 0
        cuMemHostRegister 0x6000000000 64M 0
        pinned 64M
        cuMemHostUnregister 0x6000000000
        fake_pinned -> 0
        ",
    );
}

#[test]
fn what_the_driver_refuses_costs_nothing() {
    check(
        "
        fake_fail 1
        cuMemAllocHost_v2 &a 1M -> 999
        fake_fail 1
        cuMemHostRegister_v2 0x5000000000 1M 0 -> 999
        cuMemHostAlloc &a 0 0 -> 1
        cuMemHostAlloc null 1M 0 -> 1
        pinned 0
        cuMemHostRegister_v2 0x5000000000 1M 0
        cuMemHostRegister_v2 0x5000000000 1M 0 -> 712
        pinned 1M
        # What is let go of in the wrong way, or not at all, stays charged.
        cuMemFreeHost 0x5000000000 -> 1
        fake_fail 1
        cuMemHostUnregister 0x5000000000 -> 999
        pinned 1M
        cuMemHostUnregister 0x5000000000
        cuMemHostUnregister 0x5000000000 -> 713
        cuMemFreeHost 0xdead000 -> 1
        cuMemFreeHost 0
        pinned 0
        ",
    );
}

#[test]
fn nonsense_sizes_are_refused_without_asking_the_driver() {
    check(
        "
        fake_calls -> 1
        cuMemAllocHost_v2 &a 0xffffffffffffffff -> 2
        cuMemHostAlloc &a 0x8000000000000000 0 -> 2
        cuMemHostRegister_v2 0x5000000000 0xffffffffffffffff 0 -> 2
        cuMemCreate &h 0xffffffffffffffff location:2:0 0 -> 2
        fake_calls -> 1
        pinned 0
        ",
    );
}

#[test]
fn a_context_takes_its_pinned_memory_with_it() {
    check(
        "
        cuMemAllocHost_v2 &a 10M
        cuCtxCreate_v2 &own 0 0
        cuMemAllocHost_v2 &b 20M
        cuMemHostRegister_v2 0x5000000000 30M 0
        pinned 60M
        cuCtxDestroy_v2 own
        pinned 10M
        fake_pinned -> 10485760
        cuDevicePrimaryCtxReset_v2 0
        pinned 0
        ",
    );
}

#[test]
fn memory_behind_handles_is_the_hosts_until_its_last_reference() {
    check(
        "
        cuMemCreate &h 64M location:2:0 0
        cuMemMap 0x100000000 64M 0 h 0
        cuMemRelease h
        pinned 64M
        cuMemAllocHost_v2 &a 1 -> 2
        # The card has its own budget.
        cuMemCreate &d 64M location:1:0 0
        used 0 64M
        cuMemUnmap 0x100000000 64M
        pinned 0
        cuMemCreate &n 64M location:3:1 0
        pinned 64M
        cuMemRelease n
        cuMemCreate &n 64M location:4:0 0
        cuMemRelease n
        pinned 0
        ",
    );
}

#[test]
fn a_pool_on_the_host_is_charged_what_it_reserves() {
    check(
        "
        # The driver grows pools by 4 MiB.
        cuMemPoolCreate &pool location:2:0
        cuMemAllocFromPoolAsync &a 1M pool 0
        pinned 4M
        used 0 0
        cuMemAllocFromPoolAsync &b 64M pool 0 -> 2
        cuMemAllocFromPoolAsync &b 60M pool 0
        pinned 64M
        cuMemFreeAsync b 0
        pinned 64M
        # What it only keeps is taken from it before anything is refused.
        cuMemAllocHost_v2 &c 60M
        pinned 64M
        cuMemFreeHost c
        cuMemFreeAsync a 0
        cuMemPoolTrimTo pool 0
        pinned 0
        # It keeps what the tenant may pin, and no more, whatever is asked.
        set all 0xffffffffffffffff
        cuMemPoolSetAttribute pool 4 &all
        fake_threshold -> 67108864
        # Managed memory can all end up on the card.
        cuMemPoolCreate &managed managed:2:0
        cuMemAllocFromPoolAsync &m 8M managed 0
        pinned 0
        used 0 8M
        ",
    );
}

#[test]
fn without_a_limit_it_is_counted_all_the_same() {
    let arbiter = FakeArbiter::start(&may_pin(None));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        cuMemAllocHost_v2 &a 900G
        pinned 900G
        # More than any page can count.
        cuMemAllocHost_v2 &b 8192G -> 2
        cuMemFreeHost a
        pinned 0
        cuMemPoolCreate &pool location:2:0
        set all 0xffffffffffffffff
        cuMemPoolSetAttribute pool 4 &all
        fake_threshold -> 18446744073709551615
        ",
    );
}

#[test]
fn a_lowered_limit_takes_nothing_and_gives_nothing_new() {
    let arbiter = FakeArbiter::start(&may_pin(None));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), "cuMemAllocHost_v2 &a 40M");
    arbiter.set_host_limit(Some(32 << 20));
    program.play(
        Some(&arbiter),
        "
        cuMemHostAlloc &b 1 0 -> 2
        pinned 40M
        cuMemFreeHost a
        cuMemHostAlloc &b 32M 0
        ",
    );
    let host = arbiter.ledger().host();
    assert_eq!(host.last_refusal().map(|refused| refused.0), Some(1));
    arbiter.set_host_limit(None);
    program.play(Some(&arbiter), "cuMemHostAlloc &c 1G 0");
}

#[test]
fn a_child_and_a_successor_of_the_arbiter_know_what_is_pinned() {
    let arbiter = FakeArbiter::start(&may_pin(Some(64 << 20)));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        cuMemAllocHost_v2 &a 40M
        # The parent's memory is not the child's to give back.
        in 0 cuMemFreeHost a
        pinned 40M
        in 0 cuMemAllocHost_v2 &b 24M
        in 0 cuMemAllocHost_v2 &c 1 -> 2
        end 0
        ",
    );
    let held = |number| arbiter.ledger().host().held(process(number)).bytes();
    assert_eq!((held(1), held(2)), (40 << 20, 24 << 20));
    let arbiter = arbiter.restart(&may_pin(Some(48 << 20)));
    eventually("the process comes back", || arbiter.hellos().len() == 1);
    let hello = &arbiter.hellos()[0];
    assert_eq!((hello.min_version, hello.max_version), (OLDEST, VERSION));
    let held = hello.held.as_ref().expect("it says what it held");
    assert_eq!(held.host_bytes, 40 << 20);
    program.play(Some(&arbiter), "cuMemAllocHost_v2 &b 1 -> 2");
}
