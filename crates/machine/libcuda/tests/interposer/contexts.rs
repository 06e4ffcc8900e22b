//! Contexts: the cost of each, the memory it sets aside, and every way in and out.

use crate::memory::check;
use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{Program, tenant};

#[test]
fn contexts_are_paid_before_they_are_made() {
    let mut grant = grant(&[(0, 250 << 20), (1, 90 << 20)]);
    grant.context_bytes = 100 << 20;
    let arbiter = FakeArbiter::start(&grant);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        cuDevicePrimaryCtxRetain &other 1 -> 2
        fake_fail 1
        cuDevicePrimaryCtxRetain &ctx 0 -> 999
        used 0 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        used 0 100M
        cuMemAlloc_v2 &a 50M
        # A second context on the card costs what the arbiter finds, not another estimate.
        cuCtxCreate_v2 &own 0 0
        cuMemAlloc_v2 &b 50M
        used 0 200M
        # A context takes its memory with it.
        cuCtxDestroy_v2 own
        used 0 150M
        cuDevicePrimaryCtxRelease_v2 0
        used 0 150M
        cuDevicePrimaryCtxRelease_v2 0
        used 0 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 50M
        cuDevicePrimaryCtxReset_v2 0
        used 0 0
        ",
    );
    let slot = sublet_abi::SlotIndex::new(1).expect("the first");
    let estimate = |place| {
        arbiter
            .ledger()
            .slot(slot)
            .context_bytes(crate::support::arbiter::device(place))
    };
    assert_eq!((estimate(0), estimate(1)), (0, 0));
    program.play(Some(&arbiter), "cuCtxCreate_v4 &own null 0 0");
    assert_eq!(estimate(0), 100 << 20);
}

#[test]
fn contexts_are_counted_by_every_way_in_and_out() {
    let mut grant = grant(&[(0, 250 << 20)]);
    grant.context_bytes = 100 << 20;
    let arbiter = FakeArbiter::start(&grant);
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        # The oldest way out: whoever attached has to detach.
        cuCtxCreate_v2 &own 0 0
        cuMemAlloc_v2 &a 10M
        cuCtxAttach &same 0
        cuCtxDetach same
        used 0 110M
        cuCtxDetach own
        used 0 0
        cuCtxDetach own -> 201
        cuGLCtxCreate_v2 &own 0 0
        used 0 100M
        cuCtxDestroy_v2 own
        cuVDPAUCtxCreate_v2 &own 0 0 7 null
        used 0 100M
        cuCtxDestroy_v2 own
        used 0 0
        # A reset releases nothing: the primary context that comes after it stays until those
        # have released it who retained it before.
        cuDevicePrimaryCtxRetain &ctx 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuDevicePrimaryCtxReset_v2 0
        used 0 0
        cuDevicePrimaryCtxRelease_v2 0
        cuDevicePrimaryCtxRetain &ctx 0
        used 0 100M
        cuDevicePrimaryCtxRelease_v2 0
        used 0 100M
        cuDevicePrimaryCtxRelease_v2 0
        used 0 0
        # A green context retains the primary one, in which its memory is.
        cuGreenCtxCreate &green 1 0 1
        used 0 100M
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 10M
        cuDevicePrimaryCtxRelease_v2 0
        used 0 110M
        cuGreenCtxDestroy green
        used 0 0
        ",
    );
}

#[test]
fn what_a_context_is_asked_to_set_aside_is_charged() {
    check(
        "
        # So much there is in a context from the beginning: heap 8 MiB, stacks of 1 KiB for
        # 10 × 1024 threads.
        cuCtxSetLimit 2 8M
        used 0 0
        cuCtxSetLimit 2 24M
        used 0 16M
        cuCtxSetLimit 2 12M
        used 0 4M
        cuCtxSetLimit 0 4K
        used 0 34M
        cuCtxSetLimit 0 16K -> 2
        fake_fail 1
        cuCtxSetLimit 0 5K -> 999
        used 0 34M
        cuCtxSetLimit 0 512
        used 0 4M
        # A limit that takes nothing that is known, and one that is none.
        cuCtxSetLimit 5 128 -> 215
        cuDevicePrimaryCtxRelease_v2 0
        used 0 0
        ",
    );
}
