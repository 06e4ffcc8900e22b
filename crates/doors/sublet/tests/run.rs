//! `sublet run` as people and scripts meet it: exit codes, streams, signals, the terminal, and an
//! arbiter that comes and goes. See `stage` for the real and the simulated parts.

mod first_release;
mod stage;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use stage::{SPEC, Stage, placed, result, text};

/// Starts it and waits for its first line on standard output.
fn started(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn the_exit_code_is_the_command_s() {
    let stage = Stage::new();
    let arbiter = stage.arbiter();
    let check = |script: &str| result(&stage.run(&[], script).output().unwrap());
    assert_eq!(
        check("echo out; echo err >&2; exit 3"),
        (Some(3), "out\n".to_owned(), "err\n".to_owned())
    );
    let submitted = arbiter.hears();
    assert_eq!(
        submitted,
        json!({
            "kind": "submit", "name": "sh", "gpus": 1, "class": "guaranteed", "wait": true,
            "mode": "strict",
        })
    );
    assert_eq!(arbiter.hears()["kind"], "closed");
    assert_eq!(check("true").0, Some(0));
    assert_eq!(check("exit 255").0, Some(255));
    assert_eq!(check("kill -KILL $$").0, Some(137));
    assert_eq!(check("kill -TERM $$").0, Some(143));
}

#[test]
fn what_cannot_be_started_is_said_before_anything_is_asked() {
    let stage = Stage::new();
    let check = |command: &str, code, part: &str| {
        let mut run = stage.sublet(&["run", "--fake-gpu", SPEC, "--", command]);
        let (found, output, errors) = result(&run.output().unwrap());
        assert_eq!((found, output.as_str()), (Some(code), ""), "{command}");
        assert!(errors.starts_with("error: "), "{errors}");
        assert!(errors.contains(part), "{errors}");
        assert!(errors.contains("\nhint: "), "{errors}");
    };
    check("no-such-program", 127, "is in no folder of PATH");
    check("/nonexistent/x", 127, "there is no file /nonexistent/x");
    check("/", 126, "/ cannot be executed");
    check("/etc/passwd", 126, "/etc/passwd cannot be executed");

    // A script whose interpreter is missing is found out by the start only.
    let arbiter = stage.arbiter();
    let script = stage.path().join("script");
    std::fs::write(&script, "#!/nonexistent/sh\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    check(script.to_str().unwrap(), 127, "the interpreter");
    assert_eq!(arbiter.hears()["kind"], "submit");
    assert_eq!(arbiter.hears()["kind"], "closed");
}

#[test]
fn wrong_arguments_exit_with_2() {
    let stage = Stage::new();
    let check = |arguments: &[&str], part: &str| {
        let mut run = stage.sublet(&["run"]);
        let output = run.args(arguments).args(["--", "true"]).output().unwrap();
        let (code, _, errors) = result(&output);
        assert_eq!(code, Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{errors}");
    };
    check(&["--memory", "0GiB"], "more than zero");
    check(&["--memory", "-4GiB"], "less than nothing");
    check(&["--memory", "4"], "no unit");
    check(&["--memory", "four"], "is not an amount");
    check(&["--gpus", "0"], "a job has 1 to 16 GPUs");
    check(&["--fake-gpu", "0x1GiB"], "between 1 and 16");
    check(&["--fake-gpu", "/nonexistent/file"], "/nonexistent/file");
}

#[test]
fn the_command_finds_its_part_in_its_environment() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    let mut run = stage.run(&["--compat"], "env");
    let output = run
        .env("LD_PRELOAD", "/nonexistent/users-own.so")
        .output()
        .unwrap();
    let (code, output, _) = result(&output);
    assert_eq!(code, Some(0));
    let value = |name: &str| {
        let start = format!("{name}=");
        let line = output.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {name} in {output}"))
            .to_owned()
    };
    let folder = stage.socket().parent().unwrap().display().to_string();
    assert_eq!(value("SUBLET_DIR"), folder);
    assert_eq!(value("SUBLET_MODE"), "compat");
    assert_eq!(value("CUDA_VISIBLE_DEVICES"), "GPU-a");
    let machine = value("SUBLET_FAKE_GPU");
    assert!(
        machine.starts_with(stage.path().to_str().unwrap()),
        "{machine}"
    );
    let preload = value("LD_PRELOAD");
    let preloads: Vec<&str> = preload.split(':').collect();
    for (ours, variable, name) in [
        (preloads[0], "SUBLET_DRIVER_CUDA", "/libcuda.so.1"),
        (preloads[1], "SUBLET_DRIVER_NVML", "/libnvidia-ml.so.1"),
    ] {
        let driver = value(variable);
        assert_ne!(driver, ours);
        for file in [&*driver, ours] {
            assert!(file.ends_with(name), "{output}");
            assert!(std::path::Path::new(file).is_file(), "{output}");
        }
    }
    assert!(preloads[2].ends_with("/libsublet_preload.so"), "{preload}");
    assert_eq!(preloads[3], "/nonexistent/users-own.so");
}

#[test]
fn signals_are_passed_on() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("QUIT", Signal::QUIT),
        ("WINCH", Signal::WINCH),
    ] {
        let script = format!(
            "trap 'echo {name}; kill -KILL $!; exit 9' {name}; sleep 60 & echo ready; wait"
        );
        let (mut child, mut output) = started(&mut stage.run(&[], &script));
        send(&child, signal);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("{name}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
    // A command that does not care is ended by it, and its caller sees by what.
    let (mut child, _output) = started(&mut stage.run(&[], "echo ready; exec sleep 60"));
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_signal_that_the_caller_ignores_is_ignored_by_the_command_too() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    let mut run = Command::new("sh");
    stage.dress(&mut run);
    let script = "trap '' HUP; exec \"$0\" run --fake-gpu \"$1\" -- grep SigIgn: /proc/self/status";
    run.args(["-c", script]).arg(stage.executable()).arg(SPEC);
    let (code, output, errors) = result(&run.output().unwrap());
    assert_eq!(code, Some(0), "{errors}");
    let mask = output.split_whitespace().nth(1).unwrap();
    let hangup = u64::from_str_radix(mask, 16).unwrap() & 1;
    assert_eq!(hangup, 1, "{output}");
}

#[test]
fn a_wait_is_told_and_can_be_left() {
    let stage = Stage::new();
    let place = placed(stage.socket());
    let waiting = json!({"kind": "waiting", "id": 7, "position": 1, "reason": "GPU 0 lacks 1 MiB"});
    let answers = [waiting.clone(), waiting.clone(), place];
    let arbiter = stage.arbiter_that(move |request| match request["name"].as_str() {
        Some("patient") => answers.to_vec(),
        _ => vec![waiting.clone()],
    });
    let patient = stage.run(&["--name", "patient"], "echo done").output();
    let (code, output, errors) = result(&patient.unwrap());
    assert_eq!((code, output.as_str()), (Some(0), "done\n"));
    assert_eq!(
        errors,
        "sublet: waiting, next in the queue: GPU 0 lacks 1 MiB\n\
         sublet: job 7 has GPU 0 after 0 s\n"
    );
    assert_eq!(arbiter.hears()["name"], "patient");
    assert_eq!(arbiter.hears()["kind"], "closed");

    let mut child = stage
        .run(&["--name", "short"], "echo done")
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("sublet: waiting"), "{line}");
    assert_eq!(arbiter.hears()["name"], "short");
    send(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(arbiter.hears()["kind"], "closed");
}

#[test]
fn a_refusal_exits_with_1_and_says_what_to_do() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter_that(|_| {
        vec![json!({"kind": "refused", "reason": "GPU 0 lacks 1 MiB", "final": false})]
    });
    let run = stage.run(&["--no-wait"], "echo done").output();
    let (code, output, errors) = result(&run.unwrap());
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert_eq!(
        errors,
        "error: job `sh` is refused: GPU 0 lacks 1 MiB\n\
         hint: without --no-wait it would wait for its place\n"
    );
}

#[test]
fn an_arbiter_that_cannot_start_is_reported_with_its_log() {
    let stage = Stage::new();
    // The libraries here do nothing, so that the arbiter finds no driver.
    let (code, output, errors) = result(&stage.run(&[], "echo done").output().unwrap());
    assert_eq!((code, output.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.starts_with("error: the arbiter of the fake machine 2x3GiB ended at once\n"));
    assert!(errors.contains("\n    error: "), "{errors}");
    assert!(errors.contains("libnvidia-ml.so.1"), "{errors}");
    let log = stage.socket().with_file_name("arbiter.log");
    let hint = format!("\nhint: its whole log is {}\n", log.display());
    assert!(errors.ends_with(&hint), "{errors}");
}

#[test]
fn a_job_outlives_its_arbiter_and_tells_the_next_one() {
    let stage = Stage::new();
    let first = stage.arbiter();
    let script = "echo ready; read line; echo got $line; exit 5";
    let mut run = stage.run(&["--memory", "1GiB"], script);
    let (mut child, mut output) = started(run.stdin(Stdio::piped()));
    assert_eq!(first.hears()["memory"], "1024 MiB");
    first.kill();
    let second = stage.arbiter();
    let resumed = second.hears();
    assert_eq!(resumed["kind"], "resume");
    // What it had is the arbiter's own to know.
    assert_eq!(resumed, json!({"kind": "resume", "id": 7}));
    child.stdin.take().unwrap().write_all(b"it\n").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got it\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(second.hears()["kind"], "closed");
}

/// The fake driver here does nothing, so this test says what that driver would.
#[test]
fn a_program_on_the_cuda_runtime_is_told_of_on_the_fake_driver() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    let script = "echo ready; echo $SUBLET_FAKE_NOTICE; read line; exit 5";
    let (mut child, mut output) = started(stage.run(&[], script).stdin(Stdio::piped()));
    let mut place = String::new();
    output.read_line(&mut place).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(b"cuda-runtime", place.trim()).unwrap();
    child.stdin.take().unwrap().write_all(b"it\n").unwrap();
    let (code, _, errors) = result(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(5));
    assert!(
        errors.starts_with("sublet: CMD uses the CUDA runtime"),
        "{errors}"
    );
    assert!(errors.contains("error 801"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(!std::path::Path::new(place.trim()).exists());

    // On a terminal it is said while the program runs.
    let (master, terminal) = pseudo_terminal();
    let mut run = stage.run(&[], script);
    let (mut child, mut output) = started(run.stdin(Stdio::piped()).stderr(terminal));
    place.clear();
    output.read_line(&mut place).unwrap();
    socket.send_to(b"cuda-runtime", place.trim()).unwrap();
    let limit = Timespec::try_from(stage::PATIENCE).unwrap();
    let mut polled = [PollFd::new(&master, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1));
    let mut line = String::new();
    BufReader::new(master).read_line(&mut line).unwrap();
    assert!(
        line.starts_with("sublet: CMD uses the CUDA runtime"),
        "{line}"
    );
    child.stdin.take().unwrap().write_all(b"it\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_container_is_told_to_leave_the_job() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    let docker = stage.path().join("docker");
    std::os::unix::fs::symlink("/bin/true", &docker).unwrap();
    let docker = docker.to_str().unwrap();
    let check = |words: &[&str]| {
        let mut run = stage.sublet(&["run", "--fake-gpu", SPEC, "--", docker]);
        let (code, _, errors) = result(&run.args(words).output().unwrap());
        assert_eq!(code, Some(0), "{errors}");
        errors
    };
    let errors = check(&["run", "--gpus", "all", "image"]);
    let start = "sublet: the container that docker starts leaves the job";
    assert!(errors.starts_with(start), "{errors}");
    assert_eq!(check(&["ps"]), "");
}

#[test]
fn processes_that_outlive_the_command_do_not_hold_it() {
    let stage = Stage::new();
    let _arbiter = stage.arbiter();
    let (code, output, _) = result(
        &stage
            .run(&[], "sleep 60 >&- 2>&- <&- & echo $!; exit 4")
            .output()
            .unwrap(),
    );
    assert_eq!(code, Some(4));
    let left = Pid::from_raw(output.trim().parse().unwrap()).unwrap();
    kill_process(left, Signal::KILL).unwrap();
}

/// A terminal that nobody has, and the other end of it.
fn pseudo_terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let mut terminal = std::fs::File::options();
    terminal.read(true).write(true);
    terminal.custom_flags(OFlags::NOCTTY.bits().cast_signed());
    let terminal = terminal.open(name.to_str().unwrap()).unwrap();
    (std::fs::File::from(master), terminal)
}

/// `setsid --ctty` gives the terminal to the command, as a login does.
#[test]
fn the_interrupt_key_ends_the_command_and_then_us() {
    let stage = Stage::new();
    let arbiter = stage.arbiter();
    let check = |script: &str| {
        let (mut master, terminal) = pseudo_terminal();
        let mut run = Stage::unburdened();
        stage.dress(&mut run);
        run.args(["setsid", "--ctty"])
            .arg(stage.executable())
            .args(["run", "--fake-gpu", SPEC, "--", "sh", "-c", script])
            .stdin(terminal);
        let (child, output) = started(&mut run);
        assert_eq!(arbiter.hears()["kind"], "submit");
        master.write_all(b"\x03").unwrap();
        let closed = arbiter.hears();
        assert_eq!(closed["kind"], "closed");
        drop(output);
        child.wait_with_output().unwrap().status
    };
    // A shell that started it sees that and ends its loop; `$?` is 130 there.
    assert_eq!(check("echo ready; exec sleep 60").signal(), Some(2));
    // Once: a command that counts them sees one.
    let counting = "n=0; trap 'n=$((n+1)); kill -KILL $!' INT; sleep 60 & echo ready; \
                    wait; wait; exit $n";
    assert_eq!(check(counting).code(), Some(1));
}

/// Words that a shell's script is told for the last of these.
fn offered(stage: &Stage, words: &[&str]) -> Vec<String> {
    let mut command = stage.sublet(&["--", "sublet"]);
    let output = command.args(words).env("SUBLET_COMPLETE", "fish").output();
    let (code, words, errors) = result(&output.unwrap());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let words = words.lines().filter_map(|line| line.split('\t').next());
    words.map(str::to_owned).collect()
}

#[test]
fn jobs_and_cards_are_completed_by_the_arbiter_that_runs() {
    let stage = Stage::new();
    let none: [&str; 0] = [];
    let limit = ["limit", "--fake-gpu", SPEC, "t"];
    assert_eq!(offered(&stage, &limit), none);
    assert!(!stage.socket().exists(), "an arbiter was started");
    let jobs = json!([{"id": 7, "name": "train", "state": "running"},
                      {"id": 8, "name": "two words", "state": "running"}]);
    let gpus = json!([{"gpu": 0, "uuid": "GPU-aa"}, {"gpu": 1, "uuid": "GPU-ab"}]);
    let snapshot = json!({"kind": "snapshot", "jobs": jobs, "gpus": gpus});
    let arbiter = stage.arbiter_that(move |_| vec![snapshot.clone()]);
    let check = |words: &[&str], wanted: &[&str]| {
        assert_eq!(offered(&stage, words), wanted, "{words:?}");
    };
    check(&limit, &["train"]);
    check(&["limit", "--fake-gpu", SPEC, "7"], &["7"]);
    check(&["limit", "--fake-gpu", SPEC, "8"], &["8"]);
    let run = ["run", "--fake-gpu", SPEC, "--allowed-gpus"];
    let with = |begun| [&run[..], &[begun]].concat();
    check(&with(""), &["0", "1"]);
    check(&with("0,"), &["0,1"]);
    check(&with("GPU-"), &["GPU-aa", "GPU-ab"]);
    arbiter.kill();
}

#[test]
fn an_arbiter_that_is_stopped_holds_no_completion_up() {
    let stage = Stage::new();
    let _silent = stage.arbiter_that(|_| Vec::new());
    let begun = Instant::now();
    let none: [&str; 0] = [];
    assert_eq!(offered(&stage, &["limit", "--fake-gpu", SPEC, "t"]), none);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}
