//! Row 8: memory of pools. Freed memory seemed to be in use, and memory in use was forgotten.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_e2e::one_machine::{Calls, Machine, mib, until};

use crate::known_failures::{EXACT, START, TWO};

/// Rounds of one loop. The first leaks of others showed after some hundreds.
const ROUNDS: u32 = 20_000;

/// A stream `s` and a pool `pool`.
const POOL: &str = "
    cuStreamCreate &s 1
    cuMemPoolCreate &pool struct:88:1,0,1,0
    cuDeviceGetDefaultMemPool &default 0
";

/// All of the limit is there, on the account as on the card.
fn is_empty(machine: &Machine, calls: &mut Calls) -> Result<()> {
    calls.play(
        "
        cuCtxSynchronize
        cuMemPoolTrimTo pool 0
        cuMemPoolTrimTo default 0
        cuMemGetInfo_v2 &free &total
        print free -> 67108864
        ",
    )?;
    let row = machine.tenant("job")?;
    ensure!(row["usedMiB"] == 0, "{row}");
    let used = machine.card(0)?.used;
    ensure!(used == 0, "{used} bytes on the card");
    calls.play("cuMemAlloc_v2 &all 64M\ncuMemAlloc_v2 &more 512 -> 2\ncuMemFree_v2 all")
}

/// Loops that allocate and free in a stream's order ended without memory: what came back was not
/// counted, or counted once for many (HAMi-core#96, HAMi#1003, HAMi#1522); and pointers that were
/// freed by another function than expected were not freed at all (HAMi-core#93).
#[test]
fn row_08_many_rounds_of_pool_memory_leak_nothing() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB --name job")?;
    calls.play(START)?;
    calls.play(POOL)?;
    for round in [
        "cuMemAllocAsync &a 1M s ; cuMemFreeAsync a s",
        "cuMemAllocAsync &a 3M 0 ; cuMemFreeAsync a 0",
        "cuMemAllocAsync_ptsz &a 1M 0 ; cuMemFreeAsync_ptsz a 0",
        "cuMemAllocFromPoolAsync &a 1M pool s ; cuMemFreeAsync a s",
        "cuMemAllocFromPoolAsync &a 5M pool s ; cuMemFreeAsync a s ; cuStreamSynchronize s",
        "cuMemAllocAsync &a 1M s ; cuMemAllocAsync &b 7M s ; cuMemFreeAsync a s ; cuMemFreeAsync b s",
        "cuMemAllocAsync &a 2M s ; cuMemFree_v2 a",
        "cuMemAlloc_v2 &a 2M ; cuMemFreeAsync a s",
        "cuMemAlloc_v2 &a 2M ; cuMemFree_v2 a",
    ] {
        let answer = calls.call(&format!("repeat {ROUNDS} {round}"))?;
        assert_eq!(answer, ROUNDS.to_string(), "{round}");
        is_empty(&machine, &mut calls).context(round)?;
    }
    calls.end()
}

/// A program takes nearly all and gives it back, again and again. A limiter that compares the
/// driver's figure with its own count, and reads the two at different moments, finds memory that
/// was never counted, and the program is told that the card is full (HAMi#1003).
#[test]
fn row_08_a_program_that_takes_and_gives_quickly_is_never_told_that_memory_ended() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB --name job")?;
    calls.play(START)?;
    calls.play(POOL)?;
    let begin = Instant::now();
    let mut n_rounds = 0;
    while begin.elapsed() < Duration::from_secs(5) {
        for round in [
            "cuMemAlloc_v2 &a 60M ; cuMemFree_v2 a",
            "cuMemAlloc_v2 &a 30M ; cuMemAlloc_v2 &b 30M ; cuMemFree_v2 a ; cuMemFree_v2 b",
        ] {
            assert_eq!(
                calls.call(&format!("repeat 500 {round}"))?,
                "500",
                "{round}"
            );
            n_rounds += 500;
        }
    }
    println!("{n_rounds} rounds in {:?}", begin.elapsed());
    let top = machine.top()?;
    assert_eq!(top["gpus"][0]["contextMiB"], 0, "{top}");
    is_empty(&machine, &mut calls)?;
    calls.end()
}

/// Memory that a pool keeps for later is not lost to others: a program that freed everything was
/// told that the card is full (HAMi-core#96, HAMi#1003).
#[test]
fn row_08_what_a_pool_keeps_is_no_reason_to_refuse() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 256MiB --name job")?;
    calls.play(START)?;
    calls.play(POOL)?;
    // Keep all there is, as PyTorch and RMM tell their pools, which grow by 32 MiB.
    calls.play(
        "
        set most -1
        cuMemPoolSetAttribute default 4 &most
        cuMemPoolSetAttribute pool 4 &most
        ",
    )?;
    for _ in 0..3 {
        calls.play(
            "
            cuMemAllocAsync &a 120M s
            cuMemAllocFromPoolAsync &b 60M pool s
            cuMemFreeAsync a s
            cuMemFreeAsync b s
            cuCtxSynchronize
            cuMemAlloc_v2 &c 256M
            cuMemFree_v2 c
            cuMemAllocFromPoolAsync &b 250M pool s
            cuMemFreeAsync b s
            cuCtxSynchronize
            cuMemAllocAsync &a 250M s
            cuMemFreeAsync a s
            cuCtxSynchronize
            cuMemAlloc_v2 &c 256M
            cuMemFree_v2 c
            ",
        )?;
    }
    calls.play("cuMemAlloc_v2 &c 256M\ncuMemAlloc_v2 &d 512 -> 2")?;
    calls.end()
}

/// Memory that a pool has given back to the card at a synchronisation is there for the job's other
/// processes at once, though the pool's own process makes no call any more.
#[test]
fn row_08_what_a_pool_gave_back_is_there_for_other_processes() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB --name job")?;
    for synchronised in [
        "cuStreamSynchronize s",
        "cuCtxSynchronize",
        "cuEventSynchronize e",
    ] {
        calls.play_in(0, START)?;
        calls.play_in(0, POOL)?;
        let pool = "
            cuMemAllocAsync &a 40M s
            cuMemFreeAsync a s
            cuEventCreate &e 0
            cuEventRecord e s
        ";
        calls.play_in(0, pool)?;
        calls.play_in(0, synchronised)?;
        assert_eq!(machine.card(0)?.used, 0, "{synchronised}");
        calls.play_in(1, START)?;
        calls
            .play_in(1, "cuMemAlloc_v2 &a 64M\ncuMemFree_v2 a")
            .with_context(|| format!("after {synchronised}"))?;
    }
    calls.end()
}

/// The hooks ask the driver things of their own around each call. If such a question failed after
/// the memory was there, the memory was lost (HAMi-core#306).
#[test]
fn row_08_a_question_that_the_driver_does_not_answer_loses_no_memory() -> Result<()> {
    for function in [
        "cuMemPoolGetAttribute",
        "cuMemPoolTrimTo",
        "cuDeviceGetMemPool",
        "cuDeviceGetDefaultMemPool",
        "cuStreamIsCapturing",
        "cuStreamGetCtx",
        "cuStreamGetDevice",
        "cuCtxGetDevice",
        "cuCtxGetCurrent",
    ] {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let mut run = machine.run("--memory 64MiB --name job");
        run.args(["env", &format!("SUBLET_FAKE_FAULT={function}:999")]);
        let mut calls = Calls::start(run.arg(machine.caller()?))?;
        calls.play(START)?;
        calls.play("cuStreamCreate &s 1\ncuMemPoolCreate &pool struct:88:1,0,1,0")?;
        for round in [
            "cuMemAllocAsync &a 1M s ; cuMemFreeAsync a s ; cuStreamSynchronize s",
            "cuMemAllocFromPoolAsync &a 1M pool s ; cuMemFreeAsync a s ; cuStreamSynchronize s",
        ] {
            let answer = calls.call(&format!("repeat 200 {round}"))?;
            assert_eq!(answer, "200", "{function} fails: {round}");
        }
        // Two pools may keep a piece each; two hundred would be a leak.
        let (used, row) = (machine.card(0)?.used, machine.tenant("job")?);
        assert!(
            used <= mib(64),
            "{function} fails: {used} bytes in use, {row}"
        );
        calls.end()?;
        until("nothing to be left", || {
            ensure!(machine.card(0)?.used == 0, "{}", machine.top()?);
            Ok(())
        })?;
    }
    Ok(())
}

/// A free was taken off the card of the thread that freed, not of the card whose memory it was
/// (HAMi-core#311): then one card seems full for ever, and the other has no limit.
#[test]
fn row_08_memory_that_is_freed_from_another_card_is_its_own_card_s() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB --gpus 2 --name job")?;
    calls.play(START)?;
    calls.play(
        "
        cuStreamCreate &s 1
        cuMemPoolCreate &pool struct:88:1,0,1,0
        cuDevicePrimaryCtxRetain &other 1
        ",
    )?;
    for round in [
        "cuCtxSetCurrent ctx ; cuMemAllocAsync &a 4M s ; cuCtxSetCurrent other ; cuMemFreeAsync a s",
        "cuCtxSetCurrent ctx ; cuMemAlloc_v2 &a 4M ; cuCtxSetCurrent other ; cuMemFree_v2 a",
        "cuCtxSetCurrent other ; cuMemAllocFromPoolAsync &a 4M pool s ; cuMemFreeAsync a s",
    ] {
        let answer = calls.call(&format!("repeat 500 {round}"))?;
        assert_eq!(answer, "500", "{round}");
    }
    calls.play(
        "
        cuCtxSetCurrent ctx
        cuCtxSynchronize
        cuMemPoolTrimTo pool 0
        cuDeviceGetDefaultMemPool &default 0
        cuMemPoolTrimTo default 0
        ",
    )?;
    let row = machine.tenant("job")?;
    for card in 0..2 {
        assert_eq!(row["perGpu"][card]["usedMiB"], 0, "{row}");
        assert_eq!(machine.card(card)?.used, 0);
    }
    for context in ["ctx", "other"] {
        calls.play(&format!(
            "cuCtxSetCurrent {context}\ncuMemAlloc_v2 &a 64M\ncuMemAlloc_v2 &b 2M -> 2"
        ))?;
    }
    calls.end()
}
