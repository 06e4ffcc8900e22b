//! Rows 3 and 4: programs on several cards. NCCL asks for memory in ways in which nobody else
//! does, and ranks of one program wait for each other on their cards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use sublet_e2e::one_machine::{Calls, Machine, Running, mib, number, pid_of, until};

use crate::known_failures::gate::Gate;
use crate::known_failures::{EXACT, START, TWO};

/// NCCL asks this before anything else: can this driver make memory of the host, by number of its
/// node and by wherever the thread is? There is no context yet. The host's memory was charged to a
/// card with the number that happened to stand in an uninitialised variable, and the program
/// crashed (HAMi-core#169, HAMi-core#172, HAMi#1764).
#[test]
fn row_03_memory_of_the_host_is_not_a_cards() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let script = "
        cuMemCreate &h 2M struct:32:1,1,2,0 0 -> 3
        cuInit 0
        cuCtxGetCurrent &ctx
        print ctx -> 0
        cuMemGetAllocationGranularity &g struct:32:1,1,3,0 0
        cuMemCreate &h 2M struct:32:1,1,2,0 0
        cuMemCreate &n 512M struct:32:1,1,3,0 0
        cuMemCreate &c 512M struct:32:1,1,4,0 0
        cuMemRelease h
        cuMemCreate &h 2M null 0 -> 1
        cuMemCreate &h 2M struct:32:1,1,9,0 0 -> 1
        cuMemCreate &h 2M struct:32:1,1,1,7 0 -> 101
        cuDevicePrimaryCtxRetain &x 7 -> 101
        cuCtxCreate_v2 &x 0 -1 -> 101
    ";
    // As the driver answers, so do we.
    let mut direct = machine.direct_calls()?;
    direct.play(script).context("without us")?;
    direct.end()?;
    let mut calls = machine.calls("--memory 256MiB --name job")?;
    calls.play(script).context("in a job")?;
    assert_eq!(machine.tenant("job")?["usedMiB"], 0);
    assert_eq!(machine.card(0)?.used, 0);
    // None of it is missing on the card.
    calls.play(
        "
        cuMemCreate &d 256M struct:32:1,0,1,0 0
        cuMemCreate &e 2M struct:32:1,0,1,0 0 -> 2
        cuMemRelease d
        cuMemCreate &e 2M struct:32:1,0,1,0 0
        cuMemRelease n
        cuMemRelease c
        ",
    )?;
    assert_eq!(machine.tenant("job")?["usedMiB"], 2);
    calls.end()
}

/// Without a context the device is the one that the program names; with one too, and be it
/// another. It was charged to the thread's current card, or to none (HAMi-core#187, HAMi#1853).
#[test]
fn row_03_memory_by_handle_is_charged_to_the_card_it_names() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 256MiB --gpus 2 --name job")?;
    calls.play(
        "
        cuInit 0
        cuMemCreate &b 200M struct:32:1,1,1,1 0
        cuMemCreate &c 64M struct:32:1,1,1,1 0 -> 2
        cuMemCreate &a 100M struct:32:1,1,1,0 0
        ",
    )?;
    let used = |expected: [u64; 2]| -> Result<()> {
        let row = machine.tenant("job")?;
        let cards = [0, 1].map(|card| row["perGpu"][card]["usedMiB"].clone());
        ensure!(cards == expected.map(|mib| json!(mib)), "{row}");
        for (card, mib_used) in expected.into_iter().enumerate() {
            ensure!(machine.card(card)?.used == mib(mib_used), "card {card}");
        }
        Ok(())
    };
    used([100, 200])?;
    calls.play(START)?;
    calls.play(
        "
        # The thread's card is the first.
        cuMemCreate &c 64M struct:32:1,1,1,1 0 -> 2
        cuMemCreate &c 56M struct:32:1,1,1,1 0
        cuMemAddressReserve &at 56M 0 0 0
        cuMemMap at 56M 0 c 0
        cuMemSetAccess at 56M struct:12:1,1,3 1
        cuMemRelease c
        cuMemRelease b
        ",
    )?;
    used([100, 56])?;
    calls.play("cuMemUnmap at 56M\ncuMemRelease a")?;
    used([0, 0])?;
    calls.end()
}

/// Two ranks: children of one program, a card each.
struct Ranks {
    calls: Calls,
}

impl Ranks {
    fn tell(&mut self, rank: usize, line: &str) -> Result<()> {
        let told = self.calls.call(&format!("to {rank} {line}"))?;
        ensure!(told == "0", "{line}: {told}");
        Ok(())
    }

    fn hear(&mut self, rank: usize) -> Result<String> {
        self.calls.call(&format!("from {rank}"))
    }

    fn ask(&mut self, rank: usize, line: &str) -> Result<String> {
        self.tell(rank, line)?;
        self.hear(rank)
            .with_context(|| format!("rank {rank}: {line}"))
    }

    fn play(&mut self, rank: usize, script: &str) -> Result<()> {
        self.calls.play_in(rank, script)
    }
}

/// A kernel that ends when its peer on the other card has begun, as a collective does.
const KERNELS: &str = "\
.version 7.0
.target sm_70
.address_size 64
// fake all_reduce: meet us=20 add ptr=arg0 count=arg1 value=arg2
.visible .entry all_reduce(.param .u64 words, .param .u64 count, .param .u64 value) { ret; }
";

/// Both ranks with memory `a`, a stream `s`, the kernel `f`, and a graph `x` of it.
fn ranks(machine: &Machine) -> Result<Ranks> {
    let image = machine.script("kernels.ptx", KERNELS)?;
    let calls = machine.calls("--memory 128MiB --gpus 2 --name job")?;
    let mut ranks = Ranks { calls };
    for rank in 0..2 {
        let script = format!(
            "
            cuInit 0
            cuDevicePrimaryCtxRetain &ctx {rank}
            cuCtxSetCurrent ctx
            cuMemAlloc_v2 &a 4M
            cuStreamCreate &s 1
            cuModuleLoadData &m file:{}
            cuModuleGetFunction &f m \"all_reduce
            set count 1
            set one 1
            set word struct:8
            cuGraphCreate &g 0
            cuStreamBeginCapture_v2 s 1
            cuLaunchKernel f 1 1 1 32 1 1 0 s list:a,count,one null
            cuStreamEndCapture s &g
            cuGraphInstantiateWithFlags &x g 0
            ",
            image.display()
        );
        ranks.play(rank, &script)?;
    }
    Ok(ranks)
}

/// With a limit on compute, tensor-parallel servers stood still: the limit held one rank's
/// launch while another rank's kernel waited for it on its card, with graphs and without
/// (HAMi-core#142, HAMi-core#147, HAMi-core#261).
#[test]
fn row_04_ranks_that_wait_for_each_other_end_while_the_gate_opens_and_closes() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut ranks = ranks(&machine)?;
    let Some(mut gate) = Gate::of_only_job(&machine)? else {
        return Ok(());
    };
    let mut rounds = 0;
    for launch in [
        "cuGraphLaunch x s",
        "cuLaunchKernel f 1 1 1 32 1 1 0 s list:a,count,one null",
    ] {
        for rank in 0..2 {
            ranks.tell(rank, &format!("repeat 60 {launch} ; cuStreamSynchronize s"))?;
        }
        for _ in 0..10 {
            gate.close()?;
            std::thread::sleep(Duration::from_millis(20));
            gate.open()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        for rank in 0..2 {
            assert_eq!(ranks.hear(rank)?, "60", "rank {rank}: {launch}");
        }
        rounds += 60;
        for rank in 0..2 {
            ranks.play(rank, "cuMemcpyDtoH_v2 word a 4")?;
            assert_eq!(ranks.ask(rank, "word word 0")?, rounds.to_string());
        }
    }
    ranks.calls.end()
}

/// The same beside jobs that take turns with the ranks, one on each card: the arbiter may close the
/// gate when one rank has launched and the other has not.
#[test]
fn row_04_ranks_that_wait_for_each_other_end_beside_jobs_that_take_turns() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut neighbours = Vec::new();
    for card in ["0", "1"] {
        let flags = format!("--memory 128MiB --name beside-{card}");
        let mut job = machine.job(&flags, "steady --seconds 120");
        job.env("CUDA_VISIBLE_DEVICES", card);
        neighbours.push(Running::start(&mut job)?);
    }
    let mut ranks = ranks(&machine)?;
    until("both neighbours at work", || {
        for card in ["0", "1"] {
            let row = machine.tenant(&format!("beside-{card}"))?;
            ensure!(row["gpus"] == json!([card.parse::<u32>()?]), "{row}");
            ensure!(row["computeUsedPercent"].as_f64() > Some(50.0), "{row}");
        }
        Ok(())
    })?;
    let launch = "cuLaunchKernel f 1 1 1 32 1 1 0 s list:a,count,one null";
    for rank in 0..2 {
        ranks.tell(
            rank,
            &format!("repeat 100 {launch} ; cuStreamSynchronize s"),
        )?;
    }
    for rank in 0..2 {
        assert_eq!(ranks.hear(rank)?, "100", "rank {rank}");
    }
    for neighbour in &mut neighbours {
        ensure!(!neighbour.has_ended()?, "a neighbour has ended");
    }
    ranks.calls.end()?;
    for card in ["0", "1"] {
        let row = machine.tenant(&format!("beside-{card}"))?;
        kill_process(pid_of(&row["pids"][0])?, Signal::KILL)?;
    }
    for neighbour in neighbours {
        assert_ne!(neighbour.end()?.code, Some(0));
    }
    Ok(())
}

/// Memory that ranks give each other is paid once, by the rank that made it: memory of one card
/// that the other rank opens, by a handle of CUDA's IPC and by a descriptor (HAMi#1764, HAMi#1853).
#[test]
fn row_04_ranks_exchange_memory_and_it_is_paid_once() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut ranks = ranks(&machine)?;
    ranks.play(
        0,
        "
        cuMemsetD32_v2 a 4711 4
        set handle struct:64
        cuIpcGetMemHandle handle a
        cuMemCreate &v 4M struct:32:1,1,1,0 0
        cuMemAddressReserve &at 4M 0 0 0
        cuMemMap at 4M 0 v 0
        cuMemSetAccess at 4M struct:12:1,0,3 1
        cuMemsetD32_v2 at 815 4
        set fd 0
        cuMemExportToShareableHandle &fd v 1 0
        ",
    )?;
    let handle = ranks.ask(0, "hex handle 64")?;
    let (pid, fd) = (ranks.ask(0, "getpid")?, ranks.ask(0, "print fd")?);
    ranks.play(
        1,
        &format!(
            "
            set handle bytes:{handle}
            cuIpcOpenMemHandle_v2 &p value:handle 1
            let fd open \"/proc/{pid}/fd/{fd} 524290
            cuMemImportFromShareableHandle &w fd 1
            cuMemAddressReserve &at 4M 0 0 0
            cuMemMap at 4M 0 w 0
            cuMemSetAccess at 4M struct:12:1,1,3 1
            cuMemcpyDtoH_v2 word p 4
            "
        ),
    )?;
    assert_eq!(ranks.ask(1, "word word 0")?, "4711");
    ranks.play(1, "cuMemcpyDtoH_v2 word at 4")?;
    assert_eq!(ranks.ask(1, "word word 0")?, "815");
    // Rank 0 has 4 MiB of each kind, rank 1 its own 4 MiB; the rest is the kernels' code.
    paid(&machine, [8, 4])?;
    ranks.play(
        1,
        "cuIpcCloseMemHandle p\ncuMemUnmap at 4M\ncuMemRelease w\nclose fd",
    )?;
    ranks.play(
        0,
        "cuMemFree_v2 a\ncuMemUnmap at 4M\ncuMemRelease v\nclose fd",
    )?;
    // The fake driver sees that a descriptor is closed when it is called again.
    ranks.play(0, "cuMemGetInfo_v2 &free &total")?;
    paid(&machine, [0, 4])?;
    ranks.calls.end()
}

/// Checks the job's charge on each card beside the code of its kernels; the driver counts the same.
fn paid(machine: &Machine, expected: [u64; 2]) -> Result<()> {
    until("the cards to be read", || {
        let row = machine.tenant("job")?;
        for (card, expected) in expected.into_iter().enumerate() {
            let of_card = &row["perGpu"][card];
            let used = number(&of_card["usedMiB"])?;
            let code = number(&of_card["overheadMiB"])?;
            ensure!(used == expected + code && code <= 2, "{row}");
            ensure!(machine.card(card)?.used == mib(used), "card {card}: {row}");
        }
        Ok(())
    })
}
