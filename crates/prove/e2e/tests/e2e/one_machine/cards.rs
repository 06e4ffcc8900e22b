//! Cards that a job gets if its user has a say: `--allowed-gpus` and `CUDA_VISIBLE_DEVICES`; and the
//! cards as they are shown before there is a job.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Ended, Machine, Running, mib, until};

use crate::one_machine::EXACT;

fn end(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.end()
}

/// UUIDs of a machine's cards.
fn uuids(machine: &Machine) -> Result<Vec<String>> {
    let top = machine.top()?;
    let gpus = top["gpus"].as_array().context("no GPUs")?;
    let uuid = |gpu: &Value| Some(gpu["uuid"].as_str()?.to_owned());
    gpus.iter()
        .map(uuid)
        .collect::<Option<_>>()
        .context("no UUID")
}

#[test]
fn the_cards_are_shown_before_the_first_job() -> Result<()> {
    for words in ["ps", "top --once"] {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let shown = end(&mut machine.sublet(words))?;
        assert_eq!(
            (shown.code, shown.errors.as_str()),
            (Some(0), ""),
            "{words}"
        );
        let lines: Vec<&str> = shown.lines.iter().map(String::as_str).collect();
        let [heading, first, second, "", "no job"] = lines[..] else {
            panic!("{words}: {lines:?}");
        };
        assert!(heading.starts_with("GPU  MODEL"), "{lines:?}");
        assert!(
            first.starts_with("0 ") && first.contains("16384 MiB"),
            "{lines:?}"
        );
        assert!(
            second.starts_with("1 ") && second.ends_with("healthy"),
            "{lines:?}"
        );
        let top = machine.top()?;
        assert_eq!(
            (&top["jobs"], &top["gpus"][1]["freeMiB"]),
            (&json!([]), &json!(16_384))
        );
        // With a job there is no need for the cards.
        let mut job = Running::start(&mut machine.job("--name job", "alloc --hold stdin"))?;
        job.report()?;
        let shown = end(&mut machine.sublet("ps"))?;
        assert!(shown.lines[0].starts_with("ID  NAME"), "{shown:?}");
        job.end()?;
    }
    Ok(())
}

/// One that ends jobs that are none is not to be replaced by one that does not, because somebody
/// has looked in between.
#[test]
fn a_look_leaves_it_to_others_to_start_the_next_arbiter() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let words = "agent --standalone --evict-unmanaged";
    let agent = Running::start(&mut machine.sublet(words))?;
    until("the arbiter", || machine.arbiter())?;
    let mut job = Running::start(&mut machine.job("--name job", "alloc --hold stdin"))?;
    job.report()?;
    agent.signal(Signal::KILL)?;
    agent.end()?;
    let look = Running::start(&mut machine.sublet("top --once"))?;
    std::thread::sleep(Duration::from_millis(200));
    let agent = Running::start(&mut machine.sublet(words))?;
    let seen = look.end()?;
    assert_eq!(seen.code, Some(0), "{seen:?}");
    assert_eq!(machine.arbiter()?, agent.pid(), "{}", machine.log());
    assert_eq!(job.end()?.code, Some(0));
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}

#[test]
fn a_job_is_on_the_cards_that_its_user_names() -> Result<()> {
    let Some(machine) = Machine::new("3x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let uuids = uuids(&machine)?;
    let flag = |cards: &str| format!("--allowed-gpus {cards}");
    let second = uuids[1].clone();
    for (variable, flags, expected) in [
        (None, String::new(), &[0][..]),
        (Some("1"), String::new(), &[1]),
        (Some("2,1"), String::new(), &[1]),
        (Some("2,1"), "--gpus 2".to_owned(), &[2, 1]),
        (Some("2,0,1"), "--gpus 3".to_owned(), &[2, 0, 1]),
        (Some(&*second), String::new(), &[1]),
        (Some(&second[..10]), String::new(), &[1]),
        (Some("2,-1,0"), String::new(), &[2]),
        (None, flag("1"), &[1]),
        (None, flag("2,0") + " --gpus 2", &[2, 0]),
        (None, flag(&second), &[1]),
        (None, flag(&second[..10].to_lowercase()), &[1]),
        // Who says it twice means the second.
        (Some("0"), flag("2"), &[2]),
        (Some(""), flag("2"), &[2]),
    ] {
        let what = format!("{variable:?} {flags}");
        // The first device of the program is the first that was named.
        let script = r#"echo "$CUDA_VISIBLE_DEVICES"; exec "$0" alloc --size 64MiB --hold stdin"#;
        let mut run = machine.run(&format!("--memory 1GiB --name job {flags}"));
        run.args(["sh", "-c", script])
            .arg(machine.built("sublet-workload"));
        if let Some(variable) = variable {
            run.env("CUDA_VISIBLE_DEVICES", variable);
        }
        let mut job = Running::start(&mut run)?;
        let named: Vec<&str> = expected.iter().map(|card| &*uuids[*card]).collect();
        assert_eq!(job.line()?, named.join(","), "{what}: {}", job.errors());
        let report = job.report()?;
        assert_eq!(report["ok"], true, "{what}: {report}");
        let row = machine.tenant("job")?;
        let mut cards = expected.to_vec();
        cards.sort_unstable();
        assert_eq!(row["gpus"], json!(cards), "{what}: {row}");
        assert_eq!(machine.card(expected[0])?.used, mib(64), "{what}");
        let ended = job.end()?;
        assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""), "{what}");
        until("its end", || {
            let top = machine.top()?;
            ensure!(top["jobs"] == json!([]), "{top}");
            Ok(())
        })?;
    }
    Ok(())
}

/// CUDA counts the fastest card first; `nvidia-smi`, the bus and `--allowed-gpus` do not.
#[test]
fn numbers_mean_what_cuda_means_by_them() -> Result<()> {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    let text = "gpus:\n- {memory: 16GiB, model: NVIDIA A10}\n- {memory: 16GiB, model: B200}\n\
                - {memory: 16GiB, model: NVIDIA A10}\n";
    file.write_all(text.as_bytes())?;
    let spec = file.path().display().to_string();
    let Some(machine) = Machine::new(&spec)? else {
        return Ok(());
    };
    for (variable, order, flags, expected) in [
        ("0", None, "", json!([1])),
        ("1", None, "", json!([0])),
        ("2", Some("FASTEST_FIRST"), "", json!([2])),
        ("0", Some("PCI_BUS_ID"), "", json!([0])),
        ("1", Some("PCI_BUS_ID"), "", json!([1])),
        ("0", None, "--allowed-gpus 0", json!([0])),
    ] {
        let mut job = machine.job(
            &format!("--memory 4G --name job {flags}"),
            "alloc --hold stdin",
        );
        job.env("CUDA_VISIBLE_DEVICES", variable);
        if let Some(order) = order {
            job.env("CUDA_DEVICE_ORDER", order);
        }
        let mut job = Running::start(&mut job)?;
        job.report()?;
        let row = machine.tenant("job")?;
        assert_eq!(row["gpus"], expected, "{variable} {order:?} {flags}: {row}");
        job.end()?;
        until("its end", || {
            ensure!(machine.tenant("job").is_err(), "it is there");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_job_waits_for_its_own_card_and_a_new_arbiter_knows_of_that() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold stdin";
    let mut first = machine.job("--memory 12GiB --name first", hold);
    let mut first = Running::start(first.env("CUDA_VISIBLE_DEVICES", "1"))?;
    first.report()?;
    let mut second = machine.job("--memory 8GiB --name second --allowed-gpus 1", hold);
    let mut second = Running::start(&mut second)?;
    let why = "waiting, next in the queue: GPU 1 lacks 4096 MiB: 8192 MiB asked, and 4096 MiB are \
               free there";
    second.until_error(why)?;
    let row = machine.tenant("second")?;
    assert_eq!(
        (&row["allowedGpus"], &row["gpus"]),
        (&json!([1]), &json!([])),
        "{row}"
    );
    let table = end(&mut machine.sublet("ps"))?.lines.join("\n");
    assert!(table.contains("8192 MiB (GPU 1)"), "{table}");
    machine.kill_arbiter()?;
    second.until_error("joining the queue again")?;
    until("both jobs with the next arbiter", || {
        let (first, second) = (machine.tenant("first")?, machine.tenant("second")?);
        ensure!(
            first["gpus"] == json!([1]) && first["allowedGpus"] == json!([1]),
            "{first}"
        );
        let reason = second["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains("GPU 1 lacks 4096 MiB"), "{second}");
        Ok(())
    })?;
    let limited = end(&mut machine.sublet("limit first --memory 13G"))?;
    assert_eq!(limited.lines, ["job 1: 13312 MiB of GPU 1"], "{limited:?}");
    assert_eq!(first.end()?.code, Some(0));
    second.report()?;
    assert_eq!(machine.tenant("second")?["gpus"], json!([1]));
    assert_eq!(second.end()?.code, Some(0));
    Ok(())
}

/// Choices that leave too little: `CUDA_VISIBLE_DEVICES`, flags, the exit code, and a part of the
/// message.
const TOO_LITTLE: &[(Option<&str>, &str, i32, &str)] = &[
    (
        Some(""),
        "",
        1,
        "CUDA_VISIBLE_DEVICES= leaves no GPU for the job\n",
    ),
    (
        Some("-1"),
        "",
        1,
        "CUDA_VISIBLE_DEVICES=-1 leaves no GPU for the job\n",
    ),
    (
        Some("7"),
        "",
        1,
        "leaves no GPU for the job: CUDA ends the list at `7`",
    ),
    (Some("GPU-123"), "", 1, "CUDA ends the list at `GPU-123`"),
    (
        Some("1"),
        "--gpus 2",
        1,
        "leaves 1 GPU for the job, and 2 are asked",
    ),
    (
        None,
        "--allowed-gpus 7",
        1,
        "there is no GPU `7`; this machine has GPUs 0 to 1",
    ),
    (
        None,
        "--allowed-gpus GPU-123",
        1,
        "there is no GPU `GPU-123`",
    ),
    (None, "--allowed-gpus 1,1", 2, "`1` is named twice"),
    (
        None,
        "--allowed-gpus 1 --gpus 2",
        2,
        "2 GPUs asked with --gpus, but --allowed-gpus names 1",
    ),
    (
        None,
        "--allowed-gpus 1 --memory 17G",
        1,
        "GPU 1 has 16384 MiB in all",
    ),
    (
        None,
        "--allowed-gpus first",
        2,
        "`first` is neither a number nor a UUID",
    ),
    (None, "--allowed-gpus=", 2, "a GPU without a name"),
];

#[test]
fn a_choice_that_leaves_too_little_is_refused() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for &(variable, flags, code, part) in TOO_LITTLE {
        let mut run = machine.run(&format!("--no-wait {flags}"));
        if let Some(variable) = variable {
            run.env("CUDA_VISIBLE_DEVICES", variable);
        }
        let begun = Instant::now();
        let ended = end(run.arg("true"))?;
        let what = format!("{variable:?} {flags}: {ended:?}");
        assert_eq!(ended.code, Some(code), "{what}");
        assert!(ended.errors.contains(part), "{what}");
        assert!(ended.errors.starts_with("error: "), "{what}");
        assert!(code == 2 || ended.errors.contains("\nhint: "), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
    }
    // What is left is used, and what is not is said.
    let mut run = machine.run("--no-wait");
    let ended = end(run.env("CUDA_VISIBLE_DEVICES", "0,7").arg("true"))?;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended
            .errors
            .contains("leaves 1 GPU: CUDA ends the list at `7`"),
        "{ended:?}"
    );
    Ok(())
}
