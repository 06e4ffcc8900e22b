//! The view of the machine that a tenant's programs get through our library, beside the real one.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use sublet_abi::Mode;
use support::arbiter::{granting, mib};
use support::{check, file, ours, output, program, tenant};

/// PID of no process of the test: above the largest that the kernel gives out.
const SOMEBODY: u32 = 5_000_000;

#[test]
fn the_tenant_sees_its_cards_in_its_order_with_its_limits() {
    let arbiter = granting(Mode::Compat, &[(2, 4096), (0, 1024)], 0);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    arbiter.holds(2, SOMEBODY + 1, 0, mib(500));
    arbiter.holds(2, SOMEBODY + 1, 1, mib(2000));
    check(
        &output(&mut tenant(&arbiter, &["cards"])),
        "
        before: 1 1
        init 0 0: error 0
        count 0 2 0 2
        card 0: index 0 minor 12 Card 2 GPU-00000002-0000-0000-0000-0000000000c2
          total 4096 free 2596 used 1500 (0)
          total 4096 reserved 0 free 2596 used 1500 (0)
          wrong version 25
          BAR1: total 2048 free 548 used 1500 (0)
          protected: total 4096 free 2596 used 1500 (0)
          fields 2082 2083 (0)
          near: 0 2, 0 2
        card 1: index 1 minor 10 Card 0 GPU-00000000-0000-0000-0000-0000000000c0
          total 1024 free 0 used 1024 (0)
          total 1024 reserved 0 free 0 used 1024 (0)
          wrong version 25
          BAR1: total 1024 free 0 used 1024 (0)
          protected: total 1024 free 0 used 1024 (0)
          fields 82 83 (0)
          near: 0 2, 0 2
        card 2: 2
        machine's card 0 by uuid 0 0 pci 0 0 serial 0
        machine's card 1 by uuid 6 6 pci 6 6 serial 6
        machine's card 2 by uuid 0 0 pci 0 0 serial 0
        near a processor: 0 2, in a unit: 0 2
        no card: memory 2 index 2
        ",
    );
    // It came once, and takes nothing away from another library in the same process.
    arbiter.expect_visits(1);
}

#[test]
fn the_tenant_sees_its_own_processes_and_nobody_elses() {
    let (a, b, stranger) = (SOMEBODY, SOMEBODY + 1, SOMEBODY + 2);
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    arbiter.holds(1, a, 0, mib(1000));
    // Two libraries of ours in one process; and one that only looks.
    arbiter.holds(2, b, 0, mib(300));
    arbiter.holds(3, b, 0, mib(200));
    arbiter.holds(4, SOMEBODY + 3, 0, mib(0));
    let names = [a, b, stranger].map(|pid| pid.to_string());
    let mut command = tenant(&arbiter, &["processes", &names[0], &names[1], &names[2]]);
    command.env("LIBRARY_PIDS", format!("{stranger},{b}"));
    check(
        &output(&mut command),
        &format!(
            "
            before: 1 1
            init 0 0: error 0
            Compute (7 2): {a}:1000 {b}:500 (0)
            Compute_v2 (7 2): {a}:1000:-1:-1 {b}:500:-1:-1 (0)
            Compute_v3 (7 2): {a}:1000:-1:-1 {b}:500:-1:-1 (0)
            Graphics (7 1): {b}:500 (0)
            Graphics_v2 (7 1): {b}:500:3:4 (0)
            Graphics_v3 (7 1): {b}:500:3:4 (0)
            MPSCompute (7 1): {b}:500 (0)
            MPSCompute_v2 (7 1): {b}:500:3:4 (0)
            MPSCompute_v3 (7 1): {b}:500:3:4 (0)
            details 0: {a}:1000 {b}:500 (0)
            details 1: {b}:500 (0)
            details 2: {b}:500 (0)
            details 3: {a}:1000 {b}:500 (0)
            details 4: (2)
            details 5: (25)
            utilization: (7 200) {b}:11@6 (0)
            utilization: {b}:11 (0)
            another version: 25
            rates: 11 20 (0)
            encoders: (0 1) {b}:101 (0)
            captures: (0 1) {b}:101 (0)
            accounting: mode 1 (0) size 4000 (0)
            accounts: {b} (0)
            of {a}: 6 0, 6 {a} 0, 0 name of {a}
            of {b}: 0 1, 0 {b} 1, 0 name of {b}
            of {stranger}: 6 0, 6 {stranger} 0, 6
            "
        ),
    );
}

#[test]
fn a_number_that_cannot_be_translated_is_not_shown() {
    // The arbiter calls everybody otherwise, as it does in a namespace above ours.
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 1_000_000);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    let pid = SOMEBODY.to_string();
    let mut command = tenant(&arbiter, &["processes", &pid]);
    command.env("LIBRARY_PIDS", &pid);
    let text = output(&mut command);
    for kind in ["Compute", "Graphics", "MPSCompute"] {
        for version in ["", "_v2", "_v3"] {
            let nobody = format!("\n{kind}{version} (0 0): (0)\n");
            assert!(text.contains(&nobody), "no {nobody} in {text}");
        }
    }
    assert!(text.contains("utilization: (6)\n"), "{text}");
    assert!(
        text.contains(&format!("of {pid}: 6 0, 6 {pid} 0, 6 \n")),
        "{text}"
    );
    // What they use counts all the same.
    assert!(text.contains("rates: 10 20 (0)\n"), "{text}");
    let text = output(&mut tenant(&arbiter, &["again"]));
    assert!(text.ends_with("first 0 total 4096 used 1000\n"), "{text}");
}

#[test]
fn what_a_process_calls_itself_is_what_it_is_called() {
    // The machine's numbers in the ledger and in the library's answers, ours on the screen.
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 1_000_000);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    arbiter.says(1, 7);
    let mut command = tenant(&arbiter, &["processes", "7"]);
    command.env("LIBRARY_PIDS", format!("{SOMEBODY},{}", SOMEBODY + 1));
    let text = output(&mut command);
    for expected in [
        "Compute_v3 (7 1): 7:1000:-1:-1 (0)\n",
        "Graphics_v3 (7 1): 7:1000:3:4 (0)\n",
        "utilization: 7:10 (0)\n",
        "accounts: 7 (0)\n",
        "of 7: 0 0, 0 7 0, 0 name of 7\n",
    ] {
        assert!(text.contains(expected), "no {expected} in\n{text}");
    }
}

#[test]
fn nothing_of_the_card_can_be_changed() {
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    let expected = |export_table: u32| {
        format!(
            "
            before: 1 1
            init 0 0: error 0
            nvmlDeviceSetPersistenceMode 4
            nvmlDeviceSetPowerManagementLimit 4
            nvmlDeviceResetGpuLockedClocks 4
            nvmlDeviceClearAccountingPids 4
            nvmlDeviceSetAccountingMode 4
            nvmlDeviceCreateGpuInstance 4
            nvmlDeviceSetMemoryLimits_v1 4
            nvmlDeviceGetMemoryLimits_v1 4
            unknown to the library: 13
            own processors 0
            export table {export_table}
            "
        )
    };
    check(&output(&mut tenant(&arbiter, &["changes"])), &expected(0));
    // A strict tenant gets no functions that nobody can look into either.
    let arbiter = granting(Mode::Strict, &[(1, 4096)], 0);
    check(&output(&mut tenant(&arbiter, &["changes"])), &expected(3));
}

#[test]
fn without_an_arbiter_named_everything_is_forwarded() {
    for what in ["cards", "processes"] {
        let ask = |command: &mut Command| output(command.env("LIBRARY_PIDS", "5,6,7"));
        let direct = ask(&mut program(&file("library.so"), &[what, "5"]));
        let through = ask(&mut program(&ours(), &[what, "5"]));
        assert_eq!(through, direct);
        assert!(direct.lines().count() > 10, "{direct}");
        // Named but absent: a compat tenant runs as if Sublet was not there.
        let absent = ask(program(&ours(), &[what, "5"]).env("SUBLET_DIR", "/nowhere"));
        assert_eq!(absent, direct);
    }
}

#[test]
fn without_its_arbiter_a_strict_tenant_sees_nothing() {
    let mut command = program(&ours(), &["cards"]);
    command
        .env("SUBLET_DIR", "/nowhere")
        .env("SUBLET_MODE", "strict");
    check(
        &output(&mut command),
        "
        before: 4 4
        init 4 4: no view from the arbiter at /nowhere/tenant.sock: \
        cannot connect: No such file or directory (os error 2)
        ",
    );
}

#[test]
fn without_a_library_it_says_what_it_looked_for() {
    let expected = "
        before: 12 12
        init 12 12: no libnvidia-ml.so.1 of NVIDIA's driver found; looked at \
        /nowhere/libnvidia-ml.so.1; SUBLET_DRIVER_NVML can name the file
        ";
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    let lost = |mut command: Command| {
        output(command.env("SUBLET_DRIVER_NVML", "/nowhere/libnvidia-ml.so.1"))
    };
    check(&lost(program(&ours(), &["cards"])), expected);
    check(&lost(tenant(&arbiter, &["cards"])), expected);
    let mut strict = program(&ours(), &["cards"]);
    strict
        .env("SUBLET_DIR", "/nowhere")
        .env("SUBLET_MODE", "strict");
    check(&lost(strict), expected);
    // Our own library under the driver's name is none.
    let text = output(program(&ours(), &["cards"]).env("SUBLET_DRIVER_NVML", ours()));
    assert!(text.contains("(is Sublet's own)"), "{text}");
}

#[test]
fn a_changed_limit_is_seen_at_once_and_a_child_looks_for_itself() {
    let mut arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    let mut child = tenant(&arbiter, &["again"]).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(
        (line(), line()),
        ("before: 1 1".into(), "init 0 0: error 0".into())
    );
    assert_eq!(line(), "first 0 total 4096 used 0");
    arbiter.set_limit(0, mib(2048));
    arbiter.holds(1, SOMEBODY, 0, mib(64));
    writeln!(input).expect("it reads");
    assert_eq!(line(), "again 0 total 2048 used 64");
    // Without a heartbeat a successor is looked for; the same one answers with the same pages.
    arbiter.stop_beating();
    writeln!(input).expect("it reads");
    assert_eq!(line(), "again 0 total 2048 used 64");
    assert!(arbiter.hellos().len() <= 2, "not at each call");
    drop(input);
    assert!(child.wait().expect("it ends").success());

    let arbiter = granting(Mode::Compat, &[(1, 512)], 0);
    check(
        &output(&mut tenant(&arbiter, &["child"])),
        "
        before: 1 1
        init 0 0: error 0
        parent 0 total 512 used 0
        child 0 total 512 used 0
        parent 0 total 512 used 0
        ",
    );
    arbiter.expect_visits(2);
}
