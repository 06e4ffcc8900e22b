//! Streams, events and time.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod inside;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use inside::{context, elapsed, event, kernel, spin, stream, with_machine};

fn record(event: u64, stream: u64) {
    ok!(cuEventRecord, event => u64, stream => u64);
}

fn allocate(size: usize) -> u64 {
    let mut address = 0_u64;
    ok!(cuMemAlloc_v2, &raw mut address => *mut u64, size => usize);
    address
}

#[test]
fn durations_are_exact_for_whoever_is_alone() {
    with_machine("durations_are_exact_for_whoever_is_alone", "1x1GiB", || {
        context();
        let (spinner, stream) = (kernel("spin"), stream());
        let [begin, middle, end] = [event(), event(), event()];
        let clock = Instant::now();
        record(begin, stream);
        for _ in 0..200 {
            spin(spinner, stream, 20);
        }
        record(middle, stream);
        spin(spinner, stream, 200_000);
        record(end, stream);
        assert!(
            clock.elapsed() < Duration::from_millis(30),
            "a launch does not wait"
        );
        assert_eq!(cu!(cuEventQuery, end => u64), 600);
        assert_eq!(cu!(cuStreamQuery, stream => u64), 600);
        let mut milliseconds = 0.0_f32;
        assert_eq!(
            cu!(cuEventElapsedTime, &raw mut milliseconds => *mut f32, begin => u64, end => u64),
            600
        );
        ok!(cuEventSynchronize, end => u64);
        assert!(clock.elapsed() >= Duration::from_millis(204));
        ok!(cuEventQuery, end => u64);
        ok!(cuStreamQuery, stream => u64);
        // A slice begins when its work was asked for, and launches take their time, too.
        let (first, second) = (elapsed(begin, middle), elapsed(middle, end));
        assert!(first >= 4.0, "{first}");
        assert!((second - 200.0).abs() < 0.1, "{second}");
        assert!(elapsed(end, begin) <= -204.0);
    });
}

#[test]
fn order_is_kept_within_and_between_streams() {
    with_machine("order_is_kept_within_and_between_streams", "1x1GiB", || {
        context();
        let (spinner, paint) = (kernel("spin"), kernel("paint"));
        let (one, two) = (stream(), stream());
        let mut memory = allocate(4096);
        let (mut count, mut value) = (1024_u64, 0xabcd_u32);
        let painted = event();
        spin(spinner, one, 3000);
        let mut arguments = [
            (&raw mut memory).cast::<c_void>(),
            (&raw mut count).cast(),
            (&raw mut value).cast(),
        ];
        assert_eq!(inside::launch(paint, one, &mut arguments), 0);
        record(painted, one);
        ok!(cuStreamWaitEvent, two => u64, painted => u64, 0 => u32);
        let mut back = 0_u64;
        ok!(cuMemHostAlloc, &raw mut back => *mut u64, 4096 => usize, 0 => u32);
        ok!(cuMemcpyDtoHAsync_v2, back => u64, memory => u64, 4096 => usize, two => u64);
        ok!(cuStreamSynchronize, two => u64);
        // SAFETY: allocated above.
        let words = unsafe { std::slice::from_raw_parts(back as *const u32, 1024) };
        assert!(words.iter().all(|word| *word == 0xabcd));
        // The default stream waits for streams that do not say otherwise, and only those.
        let mut ordered = 0_u64;
        ok!(cuStreamCreate, &raw mut ordered => *mut u64, 0 => u32);
        spin(spinner, ordered, 5000);
        spin(spinner, one, 500_000);
        ok!(cuMemsetD32Async, memory => u64, 1 => u32, 1 => usize, 0 => u64);
        ok!(cuStreamSynchronize, 0 => u64);
        ok!(cuStreamQuery, ordered => u64);
        assert_eq!(cu!(cuStreamQuery, one => u64), 600);
        ok!(cuCtxSynchronize);
        ok!(cuStreamQuery, one => u64);
        ok!(cuStreamDestroy_v2, one => u64);
        assert_eq!(cu!(cuStreamQuery, one => u64), 400);
    });
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn call(data: *mut c_void) {
    // What was before it in the stream has happened.
    CALLS.fetch_add(data as u32, Ordering::SeqCst);
}

#[test]
fn callbacks_and_words_in_memory_take_their_turn() {
    with_machine(
        "callbacks_and_words_in_memory_take_their_turn",
        "1x1GiB",
        || {
            context();
            let (spinner, one, two) = (kernel("spin"), stream(), stream());
            spin(spinner, one, 100_000);
            ok!(cuLaunchHostFunc, one => u64, call as *const c_void => *const c_void, 5 => usize);
            assert_eq!(CALLS.load(Ordering::SeqCst), 0);
            ok!(cuStreamSynchronize, one => u64);
            assert_eq!(CALLS.load(Ordering::SeqCst), 5);
            let word = allocate(4);
            ok!(cuMemsetD32_v2, word => u64, 0 => u32, 1 => usize);
            ok!(cuStreamWaitValue32_v2, one => u64, word => u64, 3 => u32, 1 => u32);
            ok!(cuLaunchHostFunc, one => u64, call as *const c_void => *const c_void, 1 => usize);
            spin(spinner, two, 2000);
            assert_eq!(cu!(cuStreamQuery, one => u64), 600);
            ok!(cuStreamWriteValue32_v2, two => u64, word => u64, 3 => u32, 0 => u32);
            ok!(cuStreamSynchronize, one => u64);
            assert_eq!(CALLS.load(Ordering::SeqCst), 6);
        },
    );
}

#[test]
fn kernels_on_two_cards_wait_for_each_other() {
    with_machine("kernels_on_two_cards_wait_for_each_other", "2x1GiB", || {
        let first = context();
        let meet = kernel("all_reduce");
        let one = stream();
        let mut second = 0_u64;
        ok!(cuCtxCreate_v2, &raw mut second => *mut u64, 0 => u32, 1 => i32);
        let (other_meet, spinner, two) = (kernel("all_reduce"), kernel("spin"), stream());
        for _ in 0..2 {
            ok!(cuCtxSetCurrent, first => u64);
            assert_eq!(inside::launch(meet, one, &mut []), 0);
            ok!(cuCtxSetCurrent, second => u64);
            spin(spinner, two, 5000);
            ok!(cuStreamSynchronize, two => u64);
            assert_eq!(
                cu!(cuStreamQuery, one => u64),
                600,
                "its peer has not started"
            );
            assert_eq!(inside::launch(other_meet, two, &mut []), 0);
            ok!(cuStreamSynchronize, two => u64);
            ok!(cuStreamSynchronize, one => u64);
        }
    });
}

#[test]
fn each_thread_can_have_its_own_default_stream() {
    with_machine(
        "each_thread_can_have_its_own_default_stream",
        "1x1GiB",
        || {
            let context = context();
            let spinner = kernel("spin");
            let number = |function: &str, stream: u64| {
                let mut number = 0_u64;
                let function = inside::function(function);
                let function = inside::cast::<extern "C" fn(u64, *mut u64) -> u32>(function);
                assert_eq!(function(stream, &raw mut number), 0);
                number
            };
            let legacy = number("cuStreamGetId", 0);
            let mine = number("cuStreamGetId_ptsz", 0);
            assert_ne!(legacy, mine);
            assert_eq!(
                (number("cuStreamGetId", 1), number("cuStreamGetId", 2)),
                (legacy, mine)
            );
            let other = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    assert_eq!(
                        cu!(cuStreamQuery, 0 => u64),
                        201,
                        "no context in this thread"
                    );
                    ok!(cuCtxSetCurrent, context => u64);
                    spin(spinner, 2, 1000);
                    ok!(cuStreamSynchronize_ptsz, 0 => u64);
                    number("cuStreamGetId_ptsz", 0)
                });
                thread.join().unwrap()
            });
            assert_ne!(other, mine);
        },
    );
}

#[test]
fn a_kernel_that_writes_where_nothing_is_ends_its_context() {
    with_machine(
        "a_kernel_that_writes_where_nothing_is_ends_its_context",
        "1x1GiB",
        || {
            context();
            let paint = kernel("paint");
            let (mut nowhere, mut count, mut value) = (4096_u64, 1_u64, 1_u32);
            let mut arguments = [
                (&raw mut nowhere).cast::<c_void>(),
                (&raw mut count).cast(),
                (&raw mut value).cast(),
            ];
            assert_eq!(inside::launch(paint, 0, &mut arguments), 0);
            assert_eq!(cu!(cuCtxSynchronize), 700);
            let mut address = 0_u64;
            assert_eq!(
                cu!(cuMemAlloc_v2, &raw mut address => *mut u64, 4 => usize),
                700
            );
            ok!(cuDevicePrimaryCtxReset_v2, 0 => i32);
            context();
            allocate(4);
        },
    );
}
