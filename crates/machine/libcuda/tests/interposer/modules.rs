//! Code takes memory that no call reports: the arbiter measures it after each load that took some,
//! and a job that is over its limit loads nothing more.
//!
//! An image of `driver.c` is the number of bytes that it takes. `finds` is the arbiter's part of the
//! test: what it finds at the next reading.

use std::time::{Duration, Instant};

use crate::memory::{START, one_card};
use crate::support::arbiter::FakeArbiter;
use crate::support::{Program, eventually, tenant};

/// One card with 64 MiB, and an arbiter that is alive.
fn alive() -> FakeArbiter {
    let mut arbiter = one_card(64 << 20);
    arbiter.keep_beating();
    arbiter
}

/// Plays a script there.
fn check(script: &str) {
    let arbiter = alive();
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), script);
}

#[test]
fn a_load_is_charged_before_it_returns_and_over_the_limit_nothing_is_loaded() {
    check(
        "
        readings 0
        finds 0 40M
        cuModuleLoadData &a 40M
        used 0 40M
        readings 1
        cuMemAlloc_v2 &b 25M -> 2
        cuMemAlloc_v2 &b 24M
        # One module goes beyond the limit, by whatever call.
        finds 0 70M
        cuModuleLoadDataEx &c 30M 0 null null
        used 0 94M
        cuModuleLoadData &d 1M -> 2
        cuModuleLoadDataEx &d 1M 0 null null -> 2
        cuLibraryLoadData &d 1M null null 0 null null 0 -> 2
        cuMemAlloc_v2 &d 1M -> 2
        used 0 94M
        fake_used 0 -> 203423744
        # Memory that the program frees makes room.
        cuMemFree_v2 b
        finds 0 70M
        cuModuleLoadData &d 1M -> 2
        cuModuleUnload c
        finds 0 40M
        cuModuleLoadData &d 10M
        cuModuleUnload a
        ",
    );
}

#[test]
fn what_is_unloaded_is_given_back_when_memory_lacks() {
    check(
        "
        finds 0 40M
        cuModuleLoadData &a 40M
        readings 1
        # To unload asks nobody: a program that ends unloads all it has.
        finds 0 0
        cuModuleUnload a
        readings 1
        used 0 40M
        cuMemAlloc_v2 &b 20M
        readings 1
        cuMemAlloc_v2 &c 44M
        readings 2
        used 0 64M
        cuMemAlloc_v2 &d 1M -> 2
        readings 2
        # A context takes its code along.
        cuMemFree_v2 c
        finds 0 30M
        cuModuleLoadData &a 30M
        used 0 50M
        finds 0 0
        cuDevicePrimaryCtxReset_v2 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &b 60M
        used 0 60M
        ",
    );
}

#[test]
fn a_load_that_takes_nothing_or_fails_asks_nobody() {
    check(
        "
        cuModuleLoadData &a 0
        fake_fail 1
        cuModuleLoadData &a 30M -> 999
        cuModuleUnload 0xdead -> 1
        cuCtxSetCurrent null
        cuModuleLoadData &a 30M -> 201
        cuLibraryLoadData &a 30M null null 0 null null 0 -> 201
        used 0 0
        ",
    );
}

#[test]
fn where_the_driver_loads_lazily_the_first_use_is_the_load() {
    check(
        "
        fake_lazy 1
        cuModuleLoadData &a 40M
        cuModuleLoadData &b 40M
        cuModuleLoadData &c 40M
        used 0 0
        readings 0
        finds 0 40M
        cuModuleGetFunction &f a \"one
        used 0 40M
        readings 1
        finds 0 80M
        cuModuleGetFunction &g b \"one
        used 0 80M
        cuModuleGetFunction &h c \"one -> 2
        # What was there before goes on to be there.
        readings 3
        cuModuleGetFunction &f a \"one
        cuModuleGetFunction &g b \"one
        readings 3
        fake_used 0 -> 188743680
        # Another module with the handle of the first would be loaded anew.
        cuModuleUnload a
        finds 0 40M
        cuModuleGetFunction &h c \"one
        ",
    );
}

#[test]
fn what_a_launch_loads_is_found_by_the_next_question_for_a_function() {
    check(
        "
        fake_lazy 1
        finds 0 0
        cuModuleLoadData &a 0
        cuModuleGetFunction &f a \"one
        # The program's own memory is no reason to ask.
        cuMemAlloc_v2 &m 10M
        cuModuleGetFunction &g a \"two
        readings 0
        # A launch.
        fake_take 0 30M
        finds 0 30M
        cuModuleGetFunction &h a \"three
        used 0 40M
        readings 1
        fake_take 0 40M
        finds 0 70M
        cuModuleGetFunction &i a \"four -> 2
        used 0 80M
        cuModuleGetFunction &h a \"three
        ",
    );
}

#[test]
fn a_library_is_charged_when_something_of_it_is_first_used() {
    check(
        "
        fake_lazy 1
        cuLibraryLoadData &a 40M null null 0 null null 0
        cuLibraryLoadFromFile &b \"30 null null 0 null null 0
        cuLibraryGetKernel &k a \"one
        readings 0
        used 0 0
        finds 0 40M
        cuKernelGetFunction &f k
        used 0 40M
        readings 1
        finds 0 70M
        cuLibraryGetModule &m b
        used 0 70M
        cuLibraryLoadFromFile &c \"1 null null 0 null null 0 -> 2
        cuLibraryGetModule &m b
        cuLibraryUnload b
        finds 0 40M
        cuLibraryLoadFromFile &c \"1 null null 0 null null 0
        ",
    );
}

#[test]
fn a_library_that_a_launch_of_its_kernel_loads_is_found_by_the_next_load() {
    check(
        "
        fake_lazy 1
        finds 0 0
        cuLibraryLoadData &a 70M null null 0 null null 0
        cuLibraryGetKernel &k a \"one
        readings 0
        cuLaunchKernel k 1 1 1 1 1 1 0 0 0 0
        finds 0 70M
        cuLibraryLoadData &b 1M null null 0 null null 0 -> 2
        used 0 70M
        fake_used 0 -> 178257920
        cuLaunchKernel k 1 1 1 1 1 1 0 0 0 0
        ",
    );
}

#[test]
fn where_nothing_is_lazy_a_function_costs_nothing() {
    check(
        "
        finds 0 100M
        cuModuleLoadData &a 100M
        readings 1
        cuModuleGetFunction &f a \"one
        cuModuleGetFunction &f a null -> 500
        readings 1
        ",
    );
}

#[test]
fn without_an_arbiter_the_card_s_own_figure_counts() {
    let mut arbiter = alive();
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    arbiter.stop();
    let begin = Instant::now();
    program.play(
        Some(&arbiter),
        "
        cuModuleLoadData &a 40M
        cuModuleLoadData &b 40M
        cuModuleLoadData &c 40M -> 2
        used 0 0
        ",
    );
    // Nobody waits for it more than once.
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn processes_of_a_job_load_one_after_another() {
    let arbiter = alive();
    let mut programs: Vec<Program> = (0..4)
        .map(|_| Program::start(&mut tenant(&arbiter)))
        .collect();
    for program in &mut programs {
        program.play(Some(&arbiter), START);
    }
    // Each is told the same: it asks, and finds the job over its limit or not.
    arbiter.finds(0, 100 << 20);
    for program in &mut programs {
        program.send("cuModuleLoadData &a 100M");
    }
    let answers: Vec<String> = programs.iter_mut().map(Program::read).collect();
    let loaded = answers.iter().filter(|answer| *answer == "0").count();
    assert_eq!(loaded, 1, "{answers:?}");
    eventually("all to be counted", || arbiter.used(0) == 100 << 20);
}
