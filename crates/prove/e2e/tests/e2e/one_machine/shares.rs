//! Shares of compute time as programs get them: real processes, real turns, fake cards with kernels
//! that last. The share of a program is counted from its own kernels, whose ends the driver's
//! events say.
//!
//! Programs that always have work are here; those that pause, answer requests, never wait, have
//! many threads or processes, or lie are in the files of `shares`.

mod backlogs;
mod crowds;
mod liars;
mod pauses;
mod requests;
mod silence;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use sublet_e2e::one_machine::{Machine, Running, pid_of, until};

const ONE: &str = "1x16GiB,context=0MiB";

/// Seconds from the start of programs until a window begins: all of them are at work by then.
const HEAD_START: Duration = Duration::from_secs(2);

/// Points that a mean may differ by beside what is promised: other tests have these cores, too.
/// `cargo xtask bench shares` has the exact figures.
const OF_A_MEAN: f64 = 3.0;

/// And a single second.
const OF_A_SECOND: f64 = 25.0;

/// A job of 1 GiB whose program keeps its card busy for so many seconds, as far as it may.
fn busy(machine: &Machine, flags: &str, seconds: u32, kernels: &str) -> Result<Running> {
    let flags = format!("--memory 1GiB {flags}");
    let steady = format!("steady --seconds {seconds} {kernels}");
    Running::start(&mut machine.job(&flags, &steady))
}

/// A job's share of the last second, in percent, as `sublet top` shows it.
fn shown(machine: &Machine, name: &str) -> Result<f64> {
    let row = machine.tenant(name)?;
    let used = row["computeUsedPercent"].as_f64();
    used.with_context(|| format!("{name} has no share: {row}"))
}

/// Seconds that a job has used, waited, and waited at its limit, as `sublet top` counts them.
fn counted(machine: &Machine, name: &str) -> Result<[f64; 3]> {
    let row = machine.tenant(name)?;
    let keys = ["computeUsedSeconds", "turnWaitSeconds", "throttledSeconds"];
    let of = |key| row["perGpu"][0][key].as_f64();
    let [Some(used), Some(waited), Some(throttled)] = keys.map(of) else {
        anyhow::bail!("{name} is not counted: {row}");
    };
    Ok([used, waited, throttled])
}

/// Percent of the card that the kernels of a program filled, in each tenth of a second.
fn by_tenth(report: &Value) -> Result<Vec<f64>> {
    let tenths = report["perTenth"].as_array().context("no counts")?;
    let each = report["microseconds"].as_f64().context("no length")?;
    let percent = |kernels: f64| kernels * each / 1e5 * 100.0;
    Ok(tenths
        .iter()
        .filter_map(Value::as_f64)
        .map(percent)
        .collect())
}

/// The same, second by second.
fn by_second(report: &Value) -> Result<Vec<f64>> {
    let tenths = by_tenth(report)?;
    let second = |tenths: &[f64]| tenths.iter().sum::<f64>() / 10.0;
    Ok(tenths.chunks_exact(10).map(second).collect())
}

/// Seconds that several programs have in common.
#[derive(Clone, Copy)]
struct Window {
    /// When they begin, on CLOCK_MONOTONIC.
    from: Duration,
    seconds: u32,
}

impl Window {
    /// So many seconds, which begin when the programs are at work.
    fn soon(seconds: u32) -> Window {
        Window {
            from: monotonic() + HEAD_START,
            seconds,
        }
    }

    /// A job of 1 GiB whose program works from now until the window ends, and counts within it.
    fn start(self, machine: &Machine, flags: &str, kernels: &str) -> Result<Running> {
        let flags = format!("--memory 1GiB {flags}");
        Running::start(&mut machine.job(&flags, &self.steady(kernels)))
    }

    /// The words of that program.
    fn steady(self, kernels: &str) -> String {
        let Window { from, seconds } = self;
        let from = from.as_nanos();
        format!("steady --from {from} --seconds {seconds} {kernels}")
    }

    /// Waits until so much of it is over.
    fn wait(self, seconds: f64) -> Result<()> {
        let at = self.from + Duration::from_secs_f64(seconds);
        until("a second of the window", || {
            ensure!(monotonic() >= at, "it is not over");
            Ok(())
        })
    }

    fn end(self) -> Duration {
        self.from + Duration::from_secs(self.seconds.into())
    }

    /// The tenth of a second in which this moment lies.
    fn tenth(self, at: Duration) -> usize {
        (at.saturating_sub(self.from).as_millis() / 100) as usize
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Demands a share of the card in percent: in the mean within so many points, and in no second far
/// from it.
fn has_its_share(seconds: &[f64], percent: f64, points: f64) -> Result<()> {
    let whole = mean(seconds, 0, seconds.len());
    let is_near = |one: &f64| (one - percent).abs() <= points + OF_A_SECOND;
    ensure!(
        (whole - percent).abs() <= points + OF_A_MEAN && seconds.iter().all(is_near),
        "{whole} % and not {percent} %: {seconds:?}"
    );
    Ok(())
}

/// Other tests have these cores, too, and may take them for seconds or minutes: one of three runs will
/// do, each but the first when half of the cores' time is free.
fn one_of_three(story: impl Fn() -> Result<()>) -> Result<()> {
    let mut last = Ok(());
    for run in 0..3 {
        if run > 0 {
            until_half_is_free()?;
        }
        last = story();
        match &last {
            Ok(()) => break,
            Err(error) => println!("a run failed: {error:#}"),
        }
    }
    last
}

/// Waits for a second in which half of the cores' time is free, and a minute at most.
fn until_half_is_free() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut before = core_time()?;
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_secs(1));
        let now = core_time()?;
        let (free, all) = (now.0 - before.0, now.1 - before.1);
        if 2 * free >= all {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Time of all cores without work, and in all, in ticks (`proc_stat(5)`).
fn core_time() -> Result<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("it is empty")?;
    let fields = line.split_whitespace().skip(1);
    let fields: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    let idle = fields.get(3..5).context("it is short")?;
    Ok((idle.iter().sum(), fields.iter().take(8).sum()))
}

/// The mean of seconds from the first to before the last.
fn mean(seconds: &[f64], from: usize, to: usize) -> f64 {
    let some = &seconds[from..to];
    some.iter().sum::<f64>() / some.len() as f64
}

#[test]
fn programs_get_the_shares_they_ask_eager_and_as_graphs() -> Result<()> {
    for launch in ["eager", "graph"] {
        one_of_three(|| programs_get_their_shares(launch))?;
    }
    Ok(())
}

fn programs_get_their_shares(launch: &str) -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let kernels = format!("--launch {launch}");
    let low = busy(&machine, "--name low --compute 25%", 6, &kernels)?;
    let high = busy(&machine, "--name high --compute 75%", 6, &kernels)?;
    until("the shares in top", || {
        let (low, high) = (shown(&machine, "low")?, shown(&machine, "high")?);
        let are_near = (low - 25.0).abs() <= 3.0 && (high - 75.0).abs() <= 3.0;
        ensure!(are_near, "{launch}: {low} and {high} %");
        for (name, share) in [("low", low), ("high", high)] {
            let row = machine.tenant(name)?;
            // Eight kernels of half a millisecond: 4 ms of the card.
            let time = row["miniBatchMs"].as_f64();
            let time = time.with_context(|| format!("no mini-batches: {row}"))?;
            let of_card = time * share / 100.0;
            ensure!(
                (of_card - 4.0).abs() <= 1.0,
                "{launch}: {of_card} ms: {row}"
            );
        }
        Ok(())
    })?;
    // Since they came, and one came first.
    let counts = [counted(&machine, "low")?, counted(&machine, "high")?];
    let [[used, waited, _], [_, waited_less, _]] = counts;
    assert!(used > 0.2 && waited > waited_less, "{counts:?}");
    assert!(
        counts.iter().all(|[.., limited]| *limited == 0.0),
        "{counts:?}"
    );
    let (low, high) = (low.end()?.report()?, high.end()?.report()?);
    let (low, high) = (by_second(&low)?, by_second(&high)?);
    let (low, high) = (mean(&low, 1, 5), mean(&high, 1, 5));
    let are_near = (low - 25.0).abs() <= 6.0 && (high - 75.0).abs() <= 6.0;
    ensure!(are_near, "{launch}: {low} and {high}");
    Ok(())
}

/// A kernel of many slices: the other has its share all the same, and all of the card as soon as
/// the holder is gone.
#[test]
fn long_kernels_keep_nobody_out_and_a_killed_holder_frees_the_card() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    let long = "--microseconds 5000000 --kernels 1";
    let holder = busy(&machine, "--name holder --compute 50%", 60, long)?;
    until("the holder at work", || {
        let used = shown(&machine, "holder")?;
        ensure!(used >= 90.0, "{used} %");
        Ok(())
    })?;
    let other = busy(&machine, "--name other --compute 50%", 60, "")?;
    until("a share for the other", || {
        let used = shown(&machine, "other")?;
        ensure!(used >= 30.0, "{used} %");
        Ok(())
    })?;
    kill_process(pid_of(&machine.tenant("holder")?["pids"][0])?, Signal::KILL)?;
    assert_ne!(holder.end()?.code, Some(0));
    until("the whole card for the other", || {
        let used = shown(&machine, "other")?;
        ensure!(used >= 95.0, "{used} %");
        Ok(())
    })?;
    kill_process(pid_of(&machine.tenant("other")?["pids"][0])?, Signal::KILL)?;
    assert_ne!(other.end()?.code, Some(0));
    Ok(())
}

/// The arbiter is silent for four seconds: a guaranteed job goes on, an opportunistic one has its
/// duty. When it is back, both have what they had.
#[test]
fn a_silent_arbiter_stops_no_guaranteed_job_and_gives_others_a_duty() -> Result<()> {
    let Some(machine) = Machine::new(ONE)? else {
        return Ok(());
    };
    // With a limit its gate is closed most of the time.
    let limited = busy(&machine, "--name limited --compute 0%..20%", 16, "")?;
    let flags = "--name guest --class opportunistic";
    let guest = busy(&machine, flags, 16, "")?;
    // For a whole second.
    let at_its_limit = || {
        let row = machine.tenant("limited")?;
        let used = row["computeUsedPercent"].as_f64().unwrap_or(0.0);
        let waited = row["turnWaitPercent"].as_f64().unwrap_or(0.0);
        ensure!((used - 20.0).abs() <= 5.0 && waited >= 70.0, "{row}");
        Ok(())
    };
    until("the limit", at_its_limit)?;
    let [used, waited, throttled] = counted(&machine, "limited")?;
    assert!(used >= 0.15 && waited >= 0.7, "{used} {waited}");
    assert!((0.5..=waited).contains(&throttled), "{throttled} {waited}");
    let arbiter = machine.arbiter()?;
    kill_process(arbiter, Signal::STOP)?;
    std::thread::sleep(Duration::from_secs(6));
    kill_process(arbiter, Signal::CONT)?;
    until("the limit again", at_its_limit)?;
    let (limited, guest) = (limited.end()?.report()?, guest.end()?.report()?);
    let (limited, guest) = (by_second(&limited)?, by_second(&guest)?);
    // Which seconds those were, the reports do not say. In the first after the last heartbeat gates
    // are still as they were; then the limited job's is open, and the guest has its duty.
    let mut both = limited.iter().zip(&guest);
    let is_so = |(limited, guest): (&f64, &f64)| *limited >= 60.0 && (2.0..=35.0).contains(guest);
    assert!(both.any(is_so), "{limited:?} and {guest:?}");
    Ok(())
}
