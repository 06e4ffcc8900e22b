//! Many threads and processes of one tenant at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::memory::{START, one_card};
use crate::support::{Program, tenant};

#[test]
fn threads_and_processes_that_race_never_pass_the_limit() {
    let arbiter = one_card(16 << 20);
    let mut programs: Vec<Program> = (0..4)
        .map(|_| Program::start(&mut tenant(&arbiter)))
        .collect();
    for program in &mut programs {
        program.play(None, START);
    }
    // Three of the blocks fit, whoever has them. A process that runs while others hold them
    // gets nothing; all of them cannot.
    let (ended, high) = (AtomicBool::new(false), AtomicU64::new(0));
    let answers: Vec<String> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                high.fetch_max(arbiter.used(0), Ordering::Relaxed);
            }
        });
        let mut answers = Vec::new();
        // On a busy machine nobody may have looked meanwhile: then once more.
        while answers.is_empty() || high.load(Ordering::Relaxed) == 0 && answers.len() < 400 {
            for program in &mut programs {
                program.send("races cuMemAlloc_v2 5M 2000");
            }
            answers.extend(programs.iter_mut().map(Program::read));
        }
        ended.store(true, Ordering::Relaxed);
        answers
    });
    assert!(answers.iter().any(|answer| answer == "had"), "{answers:?}");
    let high = high.into_inner();
    assert!(high > 0 && high <= 15 << 20, "{high} bytes");
    assert_eq!(arbiter.used(0), 0);
}

/// Threads that need room trim pools while others allocate from them: no thread may wait for
/// another one that waits for it.
#[test]
fn threads_that_race_for_pools_and_plain_memory_all_end() {
    let arbiter = one_card(16 << 20);
    let mut programs: Vec<Program> = (0..3)
        .map(|_| Program::start(&mut tenant(&arbiter)))
        .collect();
    for (index, program) in programs.iter_mut().enumerate() {
        program.play(None, START);
        let plain = index == 0;
        let call = if plain {
            "cuMemAlloc_v2"
        } else {
            "cuMemAllocAsync"
        };
        program.send(&format!("races {call} 3M 1000"));
    }
    for program in &mut programs {
        assert!(arbiter.used(0) <= 16 << 20);
        program.read();
    }
    for program in &mut programs {
        program.play(
            None,
            "cuDeviceGetDefaultMemPool &pool 0\ncuMemPoolTrimTo pool 0",
        );
        assert_eq!(program.call("fake_used 0"), (100_u64 << 20).to_string());
    }
    assert_eq!(arbiter.used(0), 0);
}
