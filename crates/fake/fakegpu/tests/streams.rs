//! Streams, events and time.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use own_process::{Latch, context, elapsed, event, kernel, part, spin, stream, with_machine};
use sublet_fakegpu::FakeMachine;

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
        let (spinner, stream, latch) = (kernel("spin"), stream(), Latch::new());
        let [begin, middle, end] = [event(), event(), event()];
        // All is asked for before any of it begins, so no delay of ours is between kernels.
        latch.hold(stream);
        record(begin, stream);
        for _ in 0..200 {
            spin(spinner, stream, 20);
        }
        record(middle, stream);
        spin(spinner, stream, 200_000);
        record(end, stream);
        assert_eq!(cu!(cuEventQuery, end => u64), 600);
        assert_eq!(cu!(cuStreamQuery, stream => u64), 600);
        let mut milliseconds = 0.0_f32;
        assert_eq!(
            cu!(cuEventElapsedTime, &raw mut milliseconds => *mut f32, begin => u64, end => u64),
            600
        );
        let clock = Instant::now();
        latch.open();
        ok!(cuEventSynchronize, end => u64);
        assert!(clock.elapsed() >= Duration::from_millis(204));
        ok!(cuEventQuery, end => u64);
        ok!(cuStreamQuery, stream => u64);
        let (first, second) = (elapsed(begin, middle), elapsed(middle, end));
        assert!((first - 4.0).abs() < 0.001, "{first}");
        assert!((second - 200.0).abs() < 0.001, "{second}");
        assert!(elapsed(end, begin) <= -204.0);
    });
}

#[test]
fn kernels_that_leave_room_run_at_the_same_time() {
    const NAME: &str = "kernels_that_leave_room_run_at_the_same_time";
    with_machine(NAME, "1x1GiB", || {
        context();
        let (part_of, latch) = (kernel("part"), Latch::new());
        // Two fit beside each other. The third one does not, and begins when the first ends. The
        // fourth one would fit before it, but overtakes nobody: it begins when the second ends.
        let kernels = [(20_000, 50), (30_000, 40), (30_000, 60), (1000, 10)];
        let streams = kernels.map(|(micros, percent)| {
            let (stream, begin, end) = (stream(), event(), event());
            latch.hold(stream);
            record(begin, stream);
            part(part_of, stream, micros, percent);
            record(end, stream);
            (begin, end)
        });
        latch.open();
        ok!(cuCtxSynchronize);
        let [first, second, third, fourth] = streams;
        for (begin, end, expected) in [
            (first.0, first.1, 20.0),
            (second.0, second.1, 30.0),
            (first.1, third.1, 30.0),
            (second.1, fourth.1, 1.0),
        ] {
            let time = elapsed(begin, end);
            assert!(
                (time - expected).abs() < 0.001,
                "{time} instead of {expected}"
            );
        }
        // The process had the card for that time, not for the sum.
        let machine = FakeMachine::from_text(&std::env::var("SUBLET_FAKE_GPU").unwrap()).unwrap();
        let busy = [machine.busy(0), machine.processes().unwrap()[0].busy];
        assert!(busy.iter().all(|busy| *busy < 50_100_000), "{busy:?}");
    });
}

#[test]
fn a_kernel_for_which_there_is_room_begins_at_once() {
    const NAME: &str = "a_kernel_for_which_there_is_room_begins_at_once";
    with_machine(NAME, "1x1GiB", || {
        context();
        let (part_of, long, short) = (kernel("part"), stream(), stream());
        // Longer than this process may take.
        part(part_of, long, 3_000_000_000, 60);
        for percent in [40, 1, 0] {
            part(part_of, short, 1000, percent);
            ok!(cuStreamSynchronize, short => u64);
        }
        assert_eq!(cu!(cuStreamQuery, long => u64), 600);
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
        assert_eq!(own_process::launch(paint, one, &mut arguments), 0);
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

extern "C" fn call(_stream: u64, _code: u32, data: *mut c_void) {
    // What was before it in the stream has happened.
    CALLS.fetch_add(data as u32, Ordering::SeqCst);
}

fn call_back(stream: u64, data: usize) {
    ok!(cuStreamAddCallback, stream => u64, call as *const c_void => *const c_void, data => usize, 0 => u32);
}

#[test]
fn callbacks_and_words_in_memory_take_their_turn() {
    with_machine(
        "callbacks_and_words_in_memory_take_their_turn",
        "1x1GiB",
        || {
            context();
            let (spinner, one, two) = (kernel("spin"), stream(), stream());
            let latch = Latch::new();
            latch.hold(one);
            call_back(one, 5);
            assert_eq!(CALLS.load(Ordering::SeqCst), 0);
            latch.open();
            ok!(cuStreamSynchronize, one => u64);
            assert_eq!(CALLS.load(Ordering::SeqCst), 5);
            let word = allocate(4);
            ok!(cuMemsetD32_v2, word => u64, 0 => u32, 1 => usize);
            ok!(cuStreamWaitValue32_v2, one => u64, word => u64, 3 => u32, 1 => u32);
            call_back(one, 1);
            spin(spinner, two, 2000);
            assert_eq!(cu!(cuStreamQuery, one => u64), 600);
            ok!(cuMemsetD32Async, word => u64, 3 => u32, 1 => usize, two => u64);
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
            assert_eq!(own_process::launch(meet, one, &mut []), 0);
            ok!(cuCtxSetCurrent, second => u64);
            spin(spinner, two, 5000);
            ok!(cuStreamSynchronize, two => u64);
            assert_eq!(
                cu!(cuStreamQuery, one => u64),
                600,
                "its peer has not started"
            );
            assert_eq!(own_process::launch(other_meet, two, &mut []), 0);
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
                let function = own_process::function(function);
                let function = own_process::cast::<extern "C" fn(u64, *mut u64) -> u32>(function);
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
            assert_eq!(own_process::launch(paint, 0, &mut arguments), 0);
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

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    // SAFETY: numbers, of which zero is one; the call fills them in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.cast_unsigned())
            + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

#[test]
fn whoever_waits_sleeps() {
    with_machine("whoever_waits_sleeps", "2x1GiB", || {
        context();
        let (spinner, one, two) = (kernel("spin"), stream(), stream());
        let (done, word) = (event(), allocate(4));
        ok!(cuMemsetD32_v2, word => u64, 0 => u32, 1 => usize);
        let mut value = 0_u32;
        let (begin, used) = (Instant::now(), cpu_time());
        // The host waits in each of the ways there are, a stream for another one, for a word
        // in memory, and a kernel for the turn of its card.
        for wait in 0..4 {
            spin(spinner, one, 300_000);
            record(done, one);
            ok!(cuStreamWaitEvent, two => u64, done => u64, 0 => u32);
            ok!(cuMemsetD32Async, word => u64, wait + 1 => u32, 1 => usize, two => u64);
            ok!(cuStreamWaitValue32_v2, one => u64, word => u64, wait + 1 => u32, 0 => u32);
            match wait {
                0 => ok!(cuStreamSynchronize, one => u64),
                1 => ok!(cuEventSynchronize, done => u64),
                2 => ok!(cuCtxSynchronize),
                _ => {
                    let to = &raw mut value;
                    ok!(cuMemcpyDtoHAsync_v2, to => *mut u32, word => u64, 4 => usize, two => u64);
                }
            }
        }
        ok!(cuStreamSynchronize, two => u64);
        assert_eq!(value, 4);
        let (waited, used) = (begin.elapsed(), cpu_time() - used);
        assert!(waited >= Duration::from_millis(1200), "{waited:?}");
        assert!(used < waited / 3, "{used:?} of {waited:?}");
    });
}

#[test]
fn a_kernel_of_another_process_is_the_peer_that_one_waits_for() {
    use own_process::{Other, role, say};
    const NAME: &str = "a_kernel_of_another_process_is_the_peer_that_one_waits_for";
    let Some(device) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let start = |device| Other::start(NAME, "2x1GiB", folder.path(), device);
        let mut processes = ["0", "1"].map(start);
        for process in &mut processes {
            assert_eq!(process.hear(), "ready");
        }
        let [one, other] = &mut processes;
        let mut ask = |who: bool, order: &str| {
            let who = if who { &mut *one } else { &mut *other };
            who.tell(order);
            who.hear()
        };
        for who in [true, false] {
            assert_eq!(ask(who, "begin"), "600", "nobody is there");
            assert_eq!(ask(!who, "something else"), "0");
            assert_eq!(ask(who, "query"), "600", "that was no peer");
            ask(!who, "begin");
            assert_eq!(
                (ask(who, "finish"), ask(!who, "finish")),
                ("0".into(), "0".into())
            );
        }
        processes.into_iter().for_each(Other::end);
        return;
    };
    let mut context = 0_u64;
    ok!(cuInit, 0 => u32);
    ok!(cuCtxCreate_v2, &raw mut context => *mut u64, 0 => u32, device.parse().unwrap() => i32);
    let (meet, spinner, rendezvous, own) =
        (kernel("all_reduce"), kernel("spin"), stream(), stream());
    let mut order = say("ready");
    loop {
        let code = match order.as_str() {
            "begin" => {
                assert_eq!(own_process::launch(meet, rendezvous, &mut []), 0);
                cu!(cuStreamQuery, rendezvous => u64)
            }
            "something else" => {
                spin(spinner, own, 1000);
                cu!(cuStreamSynchronize, own => u64)
            }
            "query" => cu!(cuStreamQuery, rendezvous => u64),
            "finish" => cu!(cuStreamSynchronize, rendezvous => u64),
            _ => return,
        };
        order = say(&code.to_string());
    }
}

#[test]
fn faults_are_made_on_demand() {
    const NAME: &str = "faults_are_made_on_demand";
    with_machine(NAME, "1x1GiB,context=24MiB", || {
        let faults = "cuMemAlloc_v2:2:2-3,cuLaunchKernel:719:2,cuStreamSynchronize:700:1";
        // SAFETY: no other thread of this process runs yet.
        unsafe { std::env::set_var("SUBLET_FAKE_FAULT", faults) };
        context();
        let mut codes = Vec::new();
        for _ in 0..4 {
            let mut address = 0_u64;
            codes.push(cu!(cuMemAlloc_v2, &raw mut address => *mut u64, 4096 => usize));
        }
        assert_eq!(codes, [0, 2, 2, 0]);
        assert_eq!(
            own_process::memory().0,
            998 << 20,
            "a call that fails does nothing"
        );
        let (spinner, stream) = (kernel("spin"), stream());
        spin(spinner, stream, 1);
        assert_eq!(own_process::launch(spinner, stream, &mut []), 719);
        let wait = || cu!(cuStreamSynchronize_ptsz, stream => u64);
        assert_eq!([wait(), wait()], [700, 0], "twins count together");
    });
}
