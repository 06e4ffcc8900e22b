//! The library called as C does, by scripts (`sublet-script`).

use std::process::Command;
use std::time::{Duration, Instant};

use sublet_driver_api::NVML;
use sublet_script::{Calls, compile};
use tempfile::TempDir;

use super::test_machine;

/// A program with the library, and the folder in which it is.
pub(crate) struct Program {
    calls: Calls,
    _folder: TempDir,
}

impl Program {
    /// Starts it in a machine of its own.
    fn on(spec: &str) -> Program {
        Program::with(|command, folder| {
            let root = folder.path();
            command.env(test_machine::MACHINE, spec);
            command.env(test_machine::ROOT, root);
        })
    }

    /// Starts it with the environment that this sets.
    pub(crate) fn with(set: impl FnOnce(&mut Command, &TempDir)) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calls");
        compile(&file).unwrap();
        let mut command = Command::new(file);
        command.arg("/nowhere/libcuda.so.1");
        command.arg(test_machine::library());
        set(&mut command, &folder);
        Program {
            calls: Calls::start(&mut command).unwrap(),
            _folder: folder,
        }
    }

    pub(crate) fn call(&mut self, line: &str) -> String {
        self.calls.call(line).unwrap()
    }

    pub(crate) fn number(&mut self, line: &str) -> u64 {
        self.calls.number(line).unwrap()
    }

    /// Plays a script, whose answers are as it says.
    pub(crate) fn play(&mut self, script: &str) {
        self.calls.play(script).unwrap();
    }
}

/// These change what the test looks at, or return no code.
const APART: [&str; 5] = [
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlErrorString",
];

/// These need no start.
const ALWAYS: [&str; 3] = [
    "nvmlInternalGetExportTable",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
];

#[test]
fn every_function_is_exported_and_takes_nothing_for_an_answer() {
    let mut program = Program::on("2x16GiB");
    let symbols = NVML.iter().map(|row| row.symbol);
    let symbols = symbols.filter(|symbol| !APART.contains(symbol));
    for symbol in symbols.clone().filter(|symbol| !ALWAYS.contains(symbol)) {
        assert_eq!(program.call(symbol), "1", "{symbol}: not initialised");
    }
    program.play("nvmlInit_v2");
    for symbol in symbols {
        // An argument is wrong, not supported, no permission, not found.
        let code = program.call(symbol);
        assert!(
            ["2", "3", "4", "6"].contains(&code.as_str()),
            "{symbol}: {code}"
        );
    }
    for symbol in APART {
        assert_ne!(program.call(&format!("where {symbol}")), "nowhere");
    }
}

#[test]
fn starts_are_counted() {
    Program::on("1x80GiB,name=H100").play(
        "
        nvmlShutdown -> 1
        nvmlDeviceGetCount_v2 &n -> 1
        print n -> 0
        nvmlInit_v2
        nvmlInitWithFlags 1
        nvmlShutdown
        nvmlDeviceGetCount_v2 &n
        print n -> 1
        nvmlShutdown
        nvmlDeviceGetCount_v2 &n -> 1
        set n 0
        nvmlInit
        nvmlDeviceGetCount_v2 &n
        print n -> 1
        ",
    );
}

#[test]
fn no_machine_is_no_driver() {
    Program::on("two big ones").play("nvmlInit_v2 -> 9");
}

#[test]
fn buffers_versions_and_handles_are_checked() {
    let mut program = Program::on("2x16GiB,name=Tesla T4");
    program.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 1 &card
        set name struct:96
        nvmlDeviceGetName card name 9
        text name -> Tesla T4
        set name struct:96
        nvmlDeviceGetName card name 8 -> 7
        hex name 8 -> 0000000000000000
        nvmlDeviceGetName card name 0 -> 7

        set memory struct:24
        nvmlDeviceGetMemoryInfo card memory
        long memory 0 -> 17179869184
        long memory 16 -> 0
        nvmlDeviceGetMemoryInfo_v2 card struct:40 -> 25
        set memory struct:40:0x02000028
        nvmlDeviceGetMemoryInfo_v2 card memory
        long memory 8 -> 17179869184
        long memory 16 -> 0
        long memory 24 -> 17179869184
        ",
    );
    let wrong = program.number("print card") + 1;
    program.play(&format!("nvmlDeviceGetName {wrong} name 96 -> 2"));
}

#[test]
fn a_binary_uuid_is_found() {
    let mut program = Program::on("2x16GiB");
    program.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 1 &card
        set uuid struct:96
        nvmlDeviceGetUUID card uuid 96
        ",
    );
    let text = program.call("text uuid");
    let uuid: String = text.split('-').skip(1).collect();
    // The struct's version, the type of a binary UUID, and room for a text.
    let head = "3400000102000000";
    program.play(&format!(
        "nvmlDeviceGetHandleByUUIDV bytes:{head}{uuid}{:056} &found",
        0
    ));
    assert_eq!(program.call("print found"), program.call("print card"));
}

#[test]
fn waiting_for_events_ends_with_the_time() {
    let mut program = Program::on("1x16GiB");
    program.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &card
        nvmlDeviceGetSupportedEventTypes card &types
        print types -> 8
        nvmlEventSetCreate &events
        nvmlDeviceRegisterEvents card 8 events
        nvmlDeviceRegisterEvents card 1 events -> 3
        nvmlDeviceRegisterEvents card 0x1000000000000000 events -> 2
        ",
    );
    let begin = Instant::now();
    program.play("nvmlEventSetWait_v2 events struct:32 30 -> 10");
    assert!(begin.elapsed() >= Duration::from_millis(30));
    program.play(
        "
        nvmlEventSetFree events
        nvmlEventSetFree events -> 2
        nvmlEventSetWait_v2 events struct:32 60000 -> 2
        ",
    );
}

#[test]
fn each_field_has_its_own_code() {
    let mut program = Program::on("1x16GiB,name=H200");
    program.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &card
        # The power at this moment, whether ECC is on, and none.
        set fields struct:120:186,0,0,0,0,0,0,0,0,0,1
        nvmlDeviceGetFieldValues card 3 fields
        word fields 28 -> 0
        word fields 68 -> 3
        word fields 108 -> 2
        # A tenth of 700 W, in milliwatts.
        long fields 32 -> 70000
        nvmlDeviceGetFieldValues card -1 fields -> 2
        ",
    );
    assert_ne!(program.call("long fields 8"), "0", "no time");
}

#[test]
fn a_fault_is_made_on_demand() {
    let mut program = Program::with(|command, folder| {
        command.env(test_machine::MACHINE, "1x16GiB");
        command.env(test_machine::ROOT, folder.path());
        command.env("SUBLET_FAKE_FAULT", "nvmlDeviceGetMemoryInfo:15:2");
    });
    program.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &card
        set memory struct:24
        nvmlDeviceGetMemoryInfo card memory
        nvmlDeviceGetMemoryInfo card memory -> 15
        nvmlDeviceGetMemoryInfo card memory
        ",
    );
}
