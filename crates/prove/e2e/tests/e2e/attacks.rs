//! Attacks of a program on the arbiter and its pages, in a job and outside, as the same user and as
//! another: none of them changes a limit, and the arbiter serves on. Attacks by root outside of a
//! container are out of scope.

mod books;
mod variables;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_abi::message::RefusedCode;
use sublet_abi::{ArbiterMessage, Hello, ProcessMessage};
use sublet_e2e::one_machine::{Ended, Machine, NOBODY, Running, mib, number, until};

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "2x16GiB,context=0MiB";

fn end(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.end()
}

/// Output of the program `attack`: each try and its outcome.
fn tries(ended: &Ended) -> Result<BTreeMap<String, String>> {
    ensure!(ended.code == Some(0), "{ended:?}");
    let pairs = ended.lines.iter().filter_map(|line| line.split_once(' '));
    Ok(pairs
        .map(|(what, how)| (what.to_owned(), how.to_owned()))
        .collect())
}

fn hello(machine: &Machine, min_version: u16, max_version: u16) -> Result<PathBuf> {
    let hello = ProcessMessage::Hello(Hello {
        min_version,
        max_version,
        held: None,
    });
    let file = machine.path().join(format!("hello-{min_version}"));
    std::fs::write(&file, &*hello.encode())?;
    Ok(file)
}

fn no_page_can_be_changed(machine: &Machine) -> Result<()> {
    let attack = machine.compile("attack.c", &[])?;
    let hello = hello(machine, 1, sublet_abi::VERSION)?;
    let mut warm_up = machine.run("--memory 256MiB");
    assert_eq!(end(warm_up.arg("true"))?.code, Some(0));
    let socket = machine.folder()?.join("tenant.sock");
    let mut run = machine.run("--memory 256MiB");
    let ended = end(run.arg(attack).arg("pages").args([&socket, &hello]))?;
    let tries = tries(&ended)?;
    println!("{tries:?}");
    assert_eq!(tries["descriptors"], "2", "{tries:?}");
    for (what, how) in &tries {
        let is_allowed = match what.as_str() {
            "connect" | "hello" | "answer" | "descriptors" => continue,
            // The job's own account: it can lie about itself, and NVML shows what it uses.
            "ledger.map" | "ledger.protect" | "ledger.reopen-map" => true,
            "ledger.write" | "ledger.punch" => continue,
            _ => false,
        };
        assert_eq!(how == "0", is_allowed, "{what}: {how}");
    }
    // The arbiter lives, and serves the next job.
    let report = machine.report("--memory 256MiB", "alloc --until-oom")?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    Ok(())
}

#[test]
fn the_control_page_cannot_be_written() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    no_page_can_be_changed(&machine)
}

#[test]
fn the_control_page_cannot_be_written_by_a_user_without_rights() -> Result<()> {
    let Some(machine) = Machine::of_nobody(EXACT)? else {
        return Ok(());
    };
    no_page_can_be_changed(&machine)
}

/// The job and the arbiter are of one user without rights.
#[test]
fn the_arbiter_s_memory_is_out_of_reach() -> Result<()> {
    let Some(machine) = Machine::of_nobody(EXACT)? else {
        return Ok(());
    };
    let attack = machine.compile("attack.c", &[])?;
    let report = machine.report("--memory 256MiB", "alloc --until-oom")?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    let arbiter = machine.arbiter()?.as_raw_nonzero().to_string();
    let status = std::fs::read_to_string(format!("/proc/{arbiter}/status"))?;
    let uid = format!("Uid:\t{NOBODY}");
    assert!(status.contains(&uid), "{status}");
    for is_in_job in [true, false] {
        let mut command = match is_in_job {
            true => machine.run("--memory 256MiB"),
            false => machine.command("env"),
        };
        let ended = end(command.arg(&attack).args(["process", &arbiter]))?;
        let tries = tries(&ended)?;
        assert!(tries.len() >= 10, "{tries:?}");
        for (what, how) in &tries {
            let is_refused = matches!(how.as_str(), "EPERM" | "EACCES");
            assert!(is_refused, "{what}: {how}");
        }
    }
    // That these tries can succeed at all: a program of the same user that is no arbiter.
    let mut sleeper = Running::start(machine.command("cat").arg("-"))?;
    let open = end(machine
        .command(&attack)
        .args(["process", &sleeper.pid().as_raw_nonzero().to_string()]))?;
    assert_eq!(tries(&open)?["write-mem"], "0", "{open:?}");
    sleeper.say("")?;
    sleeper.end()?;
    let report = machine.report("--memory 256MiB", "alloc --until-oom")?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    Ok(())
}

/// The process above a job's programs may ask for other limits, so they must not become it.
#[test]
fn the_command_above_a_job_is_out_of_its_reach() -> Result<()> {
    let Some(machine) = Machine::of_nobody(EXACT)? else {
        return Ok(());
    };
    let attack = machine.compile("attack.c", &[])?.display().to_string();
    let script = format!("{attack} process $PPID");
    let ended = end(machine
        .run("--memory 256MiB")
        .args(["sh", "-c", &format!("{script}; true")]))?;
    let tries = tries(&ended)?;
    let open: Vec<&String> = tries
        .iter()
        .filter(|(_, how)| !matches!(how.as_str(), "EPERM" | "EACCES"))
        .map(|(what, _)| what)
        .collect();
    assert!(open.is_empty(), "a job can {open:?} its own `sublet run`");
    Ok(())
}

/// Another user does not even find the sockets.
#[test]
fn another_user_meets_no_arbiter() -> Result<()> {
    let (Some(owner), Some(other)) = (Machine::new(EXACT)?, Machine::of_nobody(EXACT)?) else {
        return Ok(());
    };
    owner.report("--memory 256MiB", "info")?;
    let folder = owner.folder()?;
    let hello = hello(&other, 1, sublet_abi::VERSION)?;
    let attack = other.compile("attack.c", &[])?;
    for socket in ["tenant.sock", "admin.sock"] {
        let mut say = other.command(&attack);
        let ended = end(say.arg("say").args([&folder.join(socket), &hello]))?;
        assert_eq!(ended.code, Some(1), "{socket}: {ended:?}");
        assert!(ended.errors.contains("Permission denied"), "{ended:?}");
    }
    Ok(())
}

fn answer(machine: &Machine, attack: &Path, file: &Path) -> Result<Option<ArbiterMessage>> {
    let socket = machine.folder()?.join("tenant.sock");
    let mut say = machine.run("--memory 256MiB");
    let ended = end(say.arg(attack).arg("say").args([socket.as_path(), file]))?;
    let line = ended.lines.first().with_context(|| format!("{ended:?}"))?;
    let byte = |at: usize| u8::from_str_radix(line.get(at..at + 2).unwrap_or("?"), 16);
    let bytes: Result<Vec<u8>, _> = (0..line.len()).step_by(2).map(byte).collect();
    Ok(ArbiterMessage::parse(&bytes?).ok())
}

#[test]
fn libraries_of_another_version_are_told_so() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let attack = machine.compile("attack.c", &[])?;
    machine.report("--memory 256MiB", "info")?;
    let newer = hello(&machine, 99, 100)?;
    let Some(ArbiterMessage::Refused(refused)) = answer(&machine, &attack, &newer)? else {
        anyhow::bail!("it was not refused");
    };
    assert_eq!(refused.code, RefusedCode::Version);
    let text = refused.text.as_str();
    println!("another version is told: {text}");
    assert!(
        text.contains("versions 99 to 100") && text.contains("install both"),
        "{text}"
    );
    // One that speaks ours too is let in.
    let both = hello(&machine, sublet_abi::VERSION, 100)?;
    assert!(matches!(
        answer(&machine, &attack, &both)?,
        Some(ArbiterMessage::Welcome(_))
    ));
    Ok(())
}

/// Random messages from inside and outside of a job, while another job works.
#[test]
fn nonsense_on_the_tenant_socket_hurts_nobody() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let attack = machine.compile("attack.c", &[])?;
    let hello = hello(&machine, 1, sublet_abi::VERSION)?;
    let words = "alloc --size 128MiB --hold stdin";
    let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", words))?;
    job.report()?;
    let arbiter = machine.arbiter()?;
    let socket = machine.folder()?.join("tenant.sock");
    let seed = fastrand::u32(..);
    let begin = Instant::now();
    let mut fuzzers = Vec::new();
    for (number, is_in_job) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut command = match is_in_job {
            true => machine.run("--memory 256MiB --name fuzzer"),
            false => machine.command("env"),
        };
        command.arg(&attack).arg("fuzz").args([&socket, &hello]);
        command.args([(seed.wrapping_add(number)).to_string(), "2000".to_owned()]);
        fuzzers.push(Running::start(&mut command)?);
    }
    // Meanwhile others are served.
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let begin = Instant::now();
        let report = machine.report("--memory 256MiB", "alloc --until-oom")?;
        assert_eq!(report["bytes"], mib(256), "seed {seed}: {report}");
        slowest = slowest.max(begin.elapsed());
    }
    let mut sent = 0;
    for fuzzer in fuzzers {
        let tries = tries(&fuzzer.end()?)?;
        sent += tries["sent"].parse::<u64>()?;
    }
    println!(
        "{sent} messages in {:?}, seed {seed}; a job meanwhile took at most {slowest:?}",
        begin.elapsed()
    );
    assert!(sent > 1000, "only {sent}, seed {seed}");
    assert_eq!(
        machine.arbiter()?,
        arbiter,
        "seed {seed}: {}",
        machine.log()
    );
    let top = machine.top()?;
    assert!(number(&top["counters"]["garbage"])? > 0, "{top}");
    assert_eq!(machine.tenant("job")?["usedMiB"], 128);
    job.end()?;
    until("nothing to be left of it", || {
        let top = machine.top()?;
        ensure!(top["jobs"] == json!([]), "{top}");
        ensure!(number(&top["counters"]["connections"])? == 0, "{top}");
        Ok(())
    })
}

fn admin(socket: &Path, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // It may be closed before all is written.
    let _closed = stream.write_all(bytes);
    let _closed = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _closed = stream.read_to_end(&mut answer);
    Ok(answer)
}

#[test]
fn nonsense_on_the_admin_socket_hurts_nobody() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let words = "alloc --size 128MiB --hold stdin";
    let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", words))?;
    job.report()?;
    let arbiter = machine.arbiter()?;
    let socket = machine.folder()?.join("admin.sock");
    for line in [
        "\n",
        "{}\n",
        "[]\n",
        "null\n",
        "{\"kind\":\"submit\"}\n",
        "{\"kind\":\"limit\",\"id\":1,\"memory\":\"-1GiB\"}\n",
        "{\"kind\":\"limit\",\"id\":18446744073709551615,\"memory\":\"1GiB\"}\n",
        "{\"kind\":\"submit\",\"name\":\"\",\"gpus\":4294967295,\"wait\":true}\n",
        "{\"kind\":\"submit\",\"name\":\"\\u0000\",\"memory\":\"0%\",\"wait\":true}\n",
        "{\"kind\":\"watch\",\"intervalMs\":0}",
    ] {
        let answer = admin(&socket, line.as_bytes())?;
        let answer = String::from_utf8_lossy(&answer);
        for line in answer.lines() {
            let _json: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        }
    }
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let length = random.usize(..4096);
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(length)
            .collect();
        bytes.push(b'\n');
        admin(&socket, &bytes)?;
    }
    // A line without an end, and many that say nothing.
    admin(&socket, &vec![b'['; 3 << 20])?;
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(&socket)).collect();
    let report = machine.report("--memory 256MiB", "alloc --until-oom")?;
    assert_eq!(report["bytes"], mib(256), "seed {seed}: {report}");
    drop(silent);
    assert_eq!(
        machine.arbiter()?,
        arbiter,
        "seed {seed}: {}",
        machine.log()
    );
    let row = machine.tenant("job")?;
    assert_eq!(
        (&row["limitMiB"], &row["usedMiB"]),
        (&json!(1024), &json!(128))
    );
    job.end()?;
    Ok(())
}

#[test]
fn a_job_that_holds_connections_shuts_nobody_out() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let attack = machine.compile("attack.c", &[])?;
    let socket = r#"exec "$0" crowd "$SUBLET_DIR/admin.sock" 2500"#;
    let mut run = machine.run("--memory 256MiB --name crowd");
    let mut job = Running::start(run.args(["sh", "-c", socket]).arg(attack))?;
    assert_eq!(job.line()?, "met 2500");
    let begun = Instant::now();
    assert_eq!(machine.tenant("crowd")?["state"], "running");
    let table = end(&mut machine.sublet("ps"))?;
    assert_eq!(table.code, Some(0), "{table:?}");
    let report = machine.report("--memory 128MiB", "alloc --until-oom")?;
    assert_eq!(report["bytes"], mib(128), "{report}");
    let time = begun.elapsed();
    assert!(time < Duration::from_secs(10), "{time:?}");
    assert!(!job.has_ended()?);
    assert_eq!(job.end()?.code, Some(0));
    Ok(())
}
