//! The program's view and reach: reports, devices, look-ups, launches.

use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{Program, command, tenant};
use sublet_abi::message::RefusedCode;
use sublet_abi::{Mode, SlotIndex};

fn slot(number: u32) -> SlotIndex {
    SlotIndex::new(number).expect("a slot")
}

#[test]
fn every_report_shows_the_tenants_part() {
    let arbiter = FakeArbiter::start(&grant(&[(2, 64 << 20), (1, 100 << 30)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        # The driver counts cards 1 and 2; the tenant's first is card 2.
        cuDeviceTotalMem_v2 &total 1
        print total -> 67108864
        # A limit above the card shows the card.
        cuDeviceTotalMem_v2 &total 0
        print total -> 68719476736
        cuDeviceTotalMem_v2 &total 9 -> 101
        cuMemGetInfo_v2 &free &total -> 201
        cuDevicePrimaryCtxRetain &ctx 1
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 24M
        used 0 24M
        used 1 0
        cuMemGetInfo_v2 &free &total
        print free -> 41943040
        print total -> 67108864
        # OptiX wants one of the two (HAMi-core#333).
        cuMemGetInfo_v2 null &total
        cuMemGetInfo_v2 &free null
        cuMemGetInfo_v2 null null
        print free -> 41943040
        ",
    );
}

#[test]
fn a_card_that_is_not_the_tenants_has_no_memory() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    // A driver that shows all cards, whatever it is told.
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        let told fake_told
        text told -> GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0
        # One that is not there at all the driver refuses in its own words.
        cuCtxCreate_v2 &ctx 0 1 -> 101
        cuMemCreate &h 1M location:1:3 0 -> 101
        cuMemCreate &h 1M location:1:0 0
        # NCCL asks for memory on the host, with no context at all (core#169, #187).
        cuMemCreate &h 512M location:2:0 0
        cuMemCreate &h 512M location:3:1 0
        cuMemCreate &h 512M null 0 -> 1
        cuMemAlloc_v2 &a 1M -> 201
        used 0 1M
        ",
    );
}

#[test]
fn a_programs_own_choice_selects_within_the_tenants_cards() {
    let arbiter = FakeArbiter::start(&grant(&[(3, 1 << 30), (1, 1 << 30)]));
    let uuid = |card: char| {
        let byte = format!("a{card}");
        let group = |count: usize| byte.repeat(count);
        format!(
            "GPU-{}-{}-{}-{}-{}",
            group(4),
            group(2),
            group(2),
            group(2),
            group(6)
        )
    };
    for (own, told, count) in [
        (None, format!("{},{}", uuid('3'), uuid('1')), 2),
        (Some("1"), uuid('1'), 1),
        (Some("0"), uuid('3'), 1),
        (Some("GPU-a1"), uuid('1'), 1),
        (Some("2"), String::new(), 0),
        (Some(""), String::new(), 0),
    ] {
        let mut command = tenant(&arbiter);
        if let Some(own) = own {
            command.env("CUDA_VISIBLE_DEVICES", own);
        }
        let mut program = Program::start(&mut command);
        assert_eq!(
            program.call("cuInit 0"),
            if count == 0 { "100" } else { "0" }
        );
        program.call("let told fake_told");
        assert_eq!(program.call("text told"), told);
        // Afterwards the program reads what it wrote.
        program.call("let after getenv \"CUDA_VISIBLE_DEVICES");
        assert_eq!(program.call("text after"), own.unwrap_or("null"));
        program.call("cuDeviceGetCount &n");
        assert_eq!(program.call("print n"), (count as u32).to_string());
    }
}

#[test]
fn an_instance_of_a_split_card_is_charged_to_its_card() {
    let card = "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
    let instance = |card: char| {
        let byte = format!("b{card}");
        let groups = [4, 2, 2, 2, 6].map(|count| byte.repeat(count));
        format!("MIG-{}", groups.join("-"))
    };
    for (own, told) in [
        (instance('0'), instance('0')),
        (format!("MIG-GPU-{card}/1/0"), format!("MIG-GPU-{card}/1/0")),
    ] {
        let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
        let mut command = tenant(&arbiter);
        let mut program = Program::start(command.env("CUDA_VISIBLE_DEVICES", &own));
        program.play(None, "fake_mig 1\ncuInit 0");
        program.call("let told fake_told");
        assert_eq!(program.call("text told"), told);
        program.play(
            Some(&arbiter),
            "
            cuDevicePrimaryCtxRetain &ctx 0
            cuCtxSetCurrent ctx
            cuMemAlloc_v2 &a 40M
            cuMemAlloc_v2 &b 25M -> 2
            used 0 40M
            cuDeviceTotalMem_v2 &total 0
            print total -> 67108864
            ",
        );
    }
    // One of a card that is not the tenant's: it is not named at all, or has nothing to give.
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    for (own, init, calls) in [
        (format!("MIG-GPU-{}/1/0", card.replace('0', "1")), "100", ""),
        ("MIG-nonsense".to_owned(), "100", ""),
        (
            instance('1'),
            "0",
            "
            cuDeviceTotalMem_v2 &total 0
            print total -> 0
            cuDevicePrimaryCtxRetain &ctx 0 -> 2
            cuMemCreate &h 1M location:1:0 0 -> 2
            used 0 0
            ",
        ),
    ] {
        let mut command = tenant(&arbiter);
        let mut program = Program::start(command.env("CUDA_VISIBLE_DEVICES", &own));
        program.play(None, &format!("fake_mig 1\ncuInit 0 -> {init}"));
        program.play(Some(&arbiter), calls);
    }
}

#[test]
fn without_an_arbiter_nothing_is_hooked() {
    let mut program = Program::start(&mut command());
    program.play(
        None,
        "
        cuInit 0
        let told fake_told
        text told -> (unset)
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 32G
        cuMemGetInfo_v2 &free &total
        print total -> 68719476736
        # A function that the driver does not have says so.
        cuCoredumpGetAttribute 0 0 0 -> 801
        ",
    );
}

#[test]
fn an_arbiter_that_is_away_or_refuses_stops_strict_programs_only() {
    let nowhere = tempfile::tempdir().expect("a folder");
    let mut full = grant(&[(0, 1 << 20)]);
    full.refuse = Some((RefusedCode::Full, "all 1024 slots are taken"));
    let full = FakeArbiter::start(&full);
    for folder in [nowhere.path().to_path_buf(), full.folder().to_path_buf()] {
        for (mode, init, alloc) in [
            (None, "0", "0"),
            (Some("compat"), "0", "0"),
            (Some("strict"), "800", "2"),
        ] {
            let mut command = command();
            command.env("SUBLET_DIR", &folder);
            if let Some(mode) = mode {
                command.env("SUBLET_MODE", mode);
            }
            let mut program = Program::start(&mut command);
            assert_eq!(program.call("cuInit 0"), init, "{mode:?}");
            if alloc == "0" {
                program.play(
                    None,
                    "
                    cuDevicePrimaryCtxRetain &ctx 0
                    cuCtxSetCurrent ctx
                    cuMemAlloc_v2 &a 32G
                    cuMemFree_v2 a
                    cuMemGetInfo_v2 &free &total
                    print total -> 68719476736
                    ",
                );
            }
        }
    }
}

#[test]
fn no_driver_is_said_with_what_was_looked_for() {
    let mut program = Program::start(command().env("SUBLET_DRIVER_CUDA", "/nowhere/libcuda.so.1"));
    program.play(
        None,
        "
        cuInit 0 -> 34
        cuMemAlloc_v2 &a 1 -> 34
        cuGetErrorString 34 &why
        text why -> no libcuda.so.1 of NVIDIA's driver found; looked at /nowhere/libcuda.so.1; SUBLET_DRIVER_CUDA can name the file
        cuGetErrorName 34 &name
        text name -> CUDA_ERROR_STUB_LIBRARY
        cuGetErrorString 2 &why -> 1
        text why -> null
        ",
    );
}

#[test]
fn looked_up_by_version_and_thread_mode() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    // Before cuInit, as libcudart does it.
    program.play(
        None,
        "
        cuGetProcAddress_v2 \"cuMemAlloc &f 12000 0 &status
        same f cuMemAlloc_v2 -> yes
        cuGetProcAddress_v2 \"cuMemAllocAsync &f 13000 2 &status
        same f cuMemAllocAsync_ptsz -> yes
        cuGetProcAddress_v2 \"cuMemAllocAsync &f 13000 1 &status
        same f cuMemAllocAsync -> yes
        cuGetProcAddress_v2 \"cuLaunchKernel &f 13000 2 null
        same f cuLaunchKernel_ptsz -> yes
        cuGetProcAddress_v2 \"cuGetProcAddress &f 13000 0 null
        same f cuGetProcAddress_v2 -> yes
        cuGetProcAddress \"cuGetProcAddress &f 11030 0
        same f cuGetProcAddress -> yes
        # Each old version is another function (HAMi returns the newest to everybody).
        cuGetProcAddress_v2 \"cuMemPrefetchAsync &f 8000 0 null
        @f 0 0 0 0 -> 8000
        cuGetProcAddress_v2 \"cuMemPrefetchAsync &f 12020 0 null
        @f 0 0 0 0 0 -> 12020
        # What is not hooked is the driver's own: no detour.
        cuGetProcAddress_v2 \"cuCtxGetCurrent &f 13000 0 null
        same f cuCtxGetCurrent -> no
        # Not there, too old, and nothing at all.
        cuGetProcAddress_v2 \"cuNothing &f 13000 0 &status
        print status -> 1
        cuGetProcAddress_v2 \"cuMemAllocAsync &f 3000 0 &status
        print status -> 2
        cuGetProcAddress_v2 \" &f 13000 0 &status
        print f -> 0
        cuGetProcAddress \"cuNothing &f 13000 0 -> 500
        # The driver compares versions without a sign: -1 is the newest, and no way around us.
        cuGetProcAddress_v2 \"cuMemFree &f -1 0 &status
        same f cuMemFree_v2 -> yes
        ",
    );
}

/// A debugger finds its interface by a name that no header of the driver declares.
#[test]
fn functions_that_no_header_declares_are_the_drivers_own() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    let script = "
        cudbgGetAPIVersion &major &minor &revision
        print minor -> 5
        print revision -> 131
        # This driver has none.
        cuEGLApiInit null -> 801
    ";
    program.play(None, script);
}

#[test]
fn unknown_functions_are_counted_and_refused_in_strict_mode() {
    for (mode, is_given) in [(Mode::Compat, true), (Mode::Strict, false)] {
        let mut grant = grant(&[(0, 64 << 20)]);
        grant.mode = mode;
        let arbiter = FakeArbiter::start(&grant);
        let mut program = Program::start(&mut tenant(&arbiter));
        program.play(None, "fake_version 15000");
        for (look_up, is_given) in [
            ("\"cuMemFromTheFuture", is_given),
            ("\"cuHarmlessFuture", true),
            ("\"cuMemAlloc", is_given), // has a version that the table does not know
            ("\"cuMemFree", true),      // is what it was
        ] {
            let call = format!("cuGetProcAddress_v2 {look_up} &f 15000 0 &status");
            assert_eq!(program.call(&call), "0", "{look_up} {mode:?}");
            assert_eq!(
                program.call("print f") != "0",
                is_given,
                "{look_up} {mode:?}"
            );
            let status = if is_given { "0" } else { "1" };
            assert_eq!(program.call("print status"), status, "{look_up} {mode:?}");
        }
        assert_eq!(program.call("same f cuMemFree_v2"), "yes");
        assert_eq!(arbiter.ledger().slot(slot(1)).n_unknown(), 2);
    }
}

#[test]
fn launches_arrive_as_they_were_given() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    let arguments = "1 2 3 4 5 6 7 8 9 10 11";
    let sum: u64 = (1..=11)
        .zip([1, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31])
        .map(|(argument, factor)| argument * factor)
        .sum();
    // The first call resolves, the second goes straight.
    for _ in 0..2 {
        assert_eq!(program.call(&format!("cuLaunchKernel {arguments}")), "0");
        assert_eq!(program.call("fake_launched"), sum.to_string());
        assert_eq!(
            program.call(&format!("cuLaunchKernel_ptsz {arguments}")),
            "7000"
        );
    }
}
