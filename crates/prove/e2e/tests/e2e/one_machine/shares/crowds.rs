//! Jobs with many processes or threads: a share is the job's.

use anyhow::{Result, ensure};
use serde_json::Value;
use sublet_e2e::one_machine::{Ended, Machine, Running};

use super::{ONE, Window, by_second, has_its_share, mean, one_of_three, shown};

#[test]
fn eight_processes_of_a_job_have_the_share_of_one() -> Result<()> {
    one_of_three(|| {
        let Some(machine) = Machine::new(ONE)? else {
            return Ok(());
        };
        let window = Window::soon(11);
        let workload = machine.built("sublet-workload").display().to_string();
        let script = format!(
            "for each in 1 2 3 4 5 6 7 8; do {workload} {} & done; wait",
            window.steady("")
        );
        let mut crowd = machine.run("--memory 1GiB --name crowd --compute 25%");
        let crowd = Running::start(crowd.args(["sh", "-c", &script]))?;
        let one = window.start(&machine, "--name one --compute 75%", "")?;
        window.wait(f64::from(window.seconds) - 1.0)?;
        let top = (shown(&machine, "crowd")?, shown(&machine, "one")?);
        let why = machine.tenant("crowd")?["reason"].clone();
        let (crowd, one) = (sum(&crowd.end()?)?, by_second(&one.end()?.report()?)?);
        println!("{crowd:?} and {one:?}; top has {top:?}, {why}");
        has_its_share(&one[5..], 75.0, 3.0)?;
        has_its_share(&crowd[5..], 25.0, 3.0)?;
        // What is shown is what was used.
        let last = one.len() - 1;
        let used = (mean(&crowd, last - 2, last), mean(&one, last - 2, last));
        for (shown, used) in [(top.0, used.0), (top.1, used.1)] {
            ensure!((shown - used).abs() <= 8.0, "top has {shown}, it is {used}");
        }
        Ok(())
    })
}

/// Second by second, of all processes of a job.
fn sum(crowd: &Ended) -> Result<Vec<f64>> {
    ensure!(crowd.code == Some(0) && crowd.lines.len() == 8, "{crowd:?}");
    let mut sum = Vec::new();
    for line in &crowd.lines {
        let seconds = by_second(&serde_json::from_str::<Value>(line)?)?;
        sum.resize(seconds.len(), 0.0);
        for (sum, one) in sum.iter_mut().zip(seconds) {
            *sum += one;
        }
    }
    Ok(sum)
}

/// Work that each thread may queue of its own adds up to nothing, and a thread that launches for the first
/// time has no more than others. One story after the other: a thread for each launch takes most of a
/// core.
#[test]
fn many_threads_that_never_wait_have_the_share_of_one() -> Result<()> {
    let never = "--microseconds 2000 --kernels 1 --never-wait";
    for threads in ["--threads 32", "--fresh-threads"] {
        one_of_three(|| {
            let Some(machine) = Machine::new(ONE)? else {
                return Ok(());
            };
            let window = Window::soon(8);
            let kernels = format!("{never} {threads}");
            let crowd = window.start(&machine, "--name crowd --compute 25%", &kernels)?;
            let one = window.start(&machine, "--name one --compute 75%", "")?;
            let one = by_second(&one.end()?.report()?)?;
            println!("beside {threads}: {one:?}");
            has_its_share(&one[1..], 75.0, 3.0)?;
            crowd.end()?.report()?;
            Ok(())
        })?;
    }
    Ok(())
}
