//! The view of the machine that a tenant's programs get through our library, beside the real one.

mod support;

use std::process::Command;

use sublet_abi::Mode;
use support::arbiter::{granting, mib};
use support::{Program, file, ours, program, tenant};

/// PID of no process of the test: above the largest that the kernel gives out.
const SOMEBODY: u32 = 5_000_000;

fn uuid(card: u32) -> String {
    format!("GPU-0000000{card}-0000-0000-0000-0000000000c{card}")
}

/// A program's questions about its card in a place, and the answers: which one of the machine it
/// is, and MiB in all, free and used, of its memory and of the window to it.
fn card(place: u32, number: u32, memory: [u64; 3], window: [u64; 3]) -> String {
    let longs = |first: usize, values: [u64; 3]| -> String {
        let lines = values.into_iter().zip((first..).step_by(8));
        let lines = lines.map(|(value, at)| format!("long m {at} -> {}\n", mib(value)));
        lines.collect()
    };
    let [total, free, used] = memory;
    format!(
        "
        nvmlDeviceGetHandleByIndex_v2 {place} &card
        nvmlDeviceGetHandleByIndex {place} &old
        nvmlDeviceGetUUID old text 96
        text text -> {}
        nvmlDeviceGetName card text 96
        text text -> Card {number}
        nvmlDeviceGetIndex card &n
        print n -> {place}
        nvmlDeviceGetMinorNumber card &n
        print n -> 1{number}
        set m struct:24
        nvmlDeviceGetMemoryInfo card m
        {memory}
        nvmlDeviceGetConfComputeProtectedMemoryUsage card m
        {memory}
        nvmlDeviceGetBAR1MemoryInfo card m
        {}
        nvmlDeviceGetMemoryInfo_v2 card struct:40:5 -> 25
        set m struct:40:0x02000028
        nvmlDeviceGetMemoryInfo_v2 card m
        long m 8 -> {}
        {}
        set fields struct:80:82,0,0,0,0,0,0,0,0,0,83
        nvmlDeviceGetFieldValues card 2 fields
        long fields 32 -> {}
        long fields 72 -> {}
        set n 0
        nvmlDeviceGetTopologyNearestGpus card 20 &n null
        print n -> 2
        nvmlDeviceGetTopologyNearestGpus card 20 &n list
        print n -> 2
        ",
        uuid(number),
        longs(0, window),
        mib(total),
        longs(16, [0, free, used]),
        1000 * number + 82,
        1000 * number + 83,
        memory = longs(0, memory),
    )
}

/// Functions that list a card's processes: the kind, the version, and the words of an element.
fn running() -> impl Iterator<Item = (&'static str, String, usize)> {
    let kinds = ["Compute", "Graphics", "MPSCompute"].into_iter();
    kinds.flat_map(|kind| {
        [("", 4), ("_v2", 6), ("_v3", 6)].map(|(version, words)| {
            let call = format!("nvmlDeviceGet{kind}RunningProcesses{version} card &count LIST");
            (kind, call, words)
        })
    })
}

const UTILIZATION: &str = "nvmlDeviceGetProcessUtilization card LIST &count 5";

/// The samples of processes: number and use of each.
fn samples(program: &mut Program) -> (String, Vec<[u32; 2]>) {
    program.play("set asked struct:24:0x01000018,200,5,0,$list");
    let result = program.call("nvmlDeviceGetProcessesUtilizationInfo card asked");
    let elements = match result.as_str() {
        "0" => program.elements("word asked 4", 10),
        _ => Vec::new(),
    };
    let samples = elements.iter().map(|words| [words[2], words[3]]);
    (result, samples.collect())
}

/// Questions about one process: the result and the first figure of its accounts, and the result
/// for its name.
fn process(pid: u32, accounts: u32, figure: u32, name: u32) -> String {
    let text = match name {
        0 => format!("text text -> name of {pid}"),
        _ => String::new(),
    };
    format!(
        "
        set stats struct:160
        nvmlDeviceGetAccountingStats card {pid} stats -> {accounts}
        word stats 0 -> {figure}
        set stats struct:160:{pid}
        nvmlDeviceGetAccountingStats_v2 card stats -> {accounts}
        word stats 0 -> {pid}
        word stats 8 -> {figure}
        nvmlSystemGetProcessName {pid} text 64 -> {name}
        {text}
        "
    )
}

fn rates(gpu: u32, memory: u32) -> String {
    format!(
        "set rates struct:8\nnvmlDeviceGetUtilizationRates card rates\n\
         word rates 0 -> {gpu}\nword rates 4 -> {memory}"
    )
}

/// The first card's memory, in MiB.
fn memory(total: u64, used: u64) -> String {
    format!(
        "
        nvmlDeviceGetHandleByIndex_v2 0 &card
        set m struct:24
        nvmlDeviceGetMemoryInfo card m
        long m 0 -> {}
        long m 16 -> {}
        ",
        mib(total),
        mib(used)
    )
}

#[test]
fn the_tenant_sees_its_cards_in_its_order_with_its_limits() {
    let arbiter = granting(Mode::Compat, &[(2, 4096), (0, 1024)], 0);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    arbiter.holds(2, SOMEBODY + 1, 0, mib(500));
    arbiter.holds(2, SOMEBODY + 1, 1, mib(2000));
    let mut program = Program::begin(&mut tenant(&arbiter));
    program.play(&card(0, 2, [4096, 2596, 1500], [2048, 548, 1500]));
    program.play(&card(1, 0, [1024, 0, 1024], [1024, 0, 1024]));
    program.play(
        "
        nvmlDeviceGetCount_v2 &n
        print n -> 2
        nvmlDeviceGetCount &n
        print n -> 2
        nvmlDeviceGetHandleByIndex_v2 2 &other -> 2
        nvmlDeviceGetHandleByIndex 2 &other -> 2
        # Near a processor, in a unit, and no card at all.
        set n 0
        nvmlSystemGetTopologyGpuSet 3 &n null
        print n -> 2
        set n 8
        nvmlUnitGetDevices 0x77 &n list
        print n -> 2
        nvmlDeviceGetMemoryInfo 0x99 list -> 2
        nvmlDeviceGetIndex 0x99 &n -> 2
        ",
    );
    for (number, result) in [(0, 0), (1, 6), (2, 0)] {
        let uuid = uuid(number);
        let hex: String = uuid.bytes().map(|byte| format!("{byte:02x}")).collect();
        program.play(&format!(
            "
            nvmlDeviceGetHandleByUUID \"{uuid} &other -> {result}
            nvmlDeviceGetHandleByUUIDV bytes:0000000000000000{hex} &other -> {result}
            nvmlDeviceGetHandleByPciBusId_v2 \"0000:0{number}:00.0 &other -> {result}
            nvmlDeviceGetHandleByPciBusId \"0000:0{number}:00.0 &other -> {result}
            nvmlDeviceGetHandleBySerial \"S{number} &other -> {result}
            "
        ));
    }
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
    let mut command = tenant(&arbiter);
    let mut program = Program::begin(command.env("LIBRARY_PIDS", format!("{stranger},{b}")));
    let (both, one) = (&[[a, 1000], [b, 500]][..], &[[b, 500]][..]);
    // The number, and MiB.
    let figures = |elements: &[Vec<u32>]| -> Vec<[u32; 2]> {
        let figures = elements.iter().map(|words| [words[0], words[2] >> 20]);
        figures.collect()
    };
    for (kind, call, words) in running() {
        let (expected, instance) = match kind {
            "Compute" => (both, [u32::MAX; 2]),
            _ => (one, [3, 4]),
        };
        let (results, elements) = program.list(&call, words);
        assert_eq!(results, format!("7 {} 0", expected.len()), "{call}");
        assert_eq!(figures(&elements), expected, "{call}");
        let is_in = |words: &Vec<u32>| words.len() == 4 || words[4..] == instance;
        assert!(elements.iter().all(is_in), "{call}: {elements:?}");
    }
    for (mode, expected) in [(0, both), (1, one), (2, one), (3, both)] {
        program.play(&format!(
            "set asked struct:24:0x01000018,{mode},200,0,$list\n\
             nvmlDeviceGetRunningProcessDetailList card asked"
        ));
        let elements = program.elements("word asked 8", 8);
        assert_eq!(figures(&elements), expected, "{mode}");
    }
    let (results, elements) = program.list(UTILIZATION, 8);
    assert_eq!(results, "7 200 0");
    // The number, the time and the use.
    let found = elements.iter().map(|words| [words[0], words[2], words[4]]);
    assert_eq!(found.collect::<Vec<_>>(), [[b, 6, 11]]);
    assert_eq!(samples(&mut program), ("0".to_owned(), vec![[b, 11]]));
    for (call, words) in [
        ("nvmlDeviceGetEncoderSessions card &count list", 8),
        ("nvmlDeviceGetFBCSessions card &count list", 12),
    ] {
        let (results, elements) = program.list(call, words);
        assert_eq!(results, "0 1 0", "{call}");
        assert_eq!(elements[0][..2], [101, b], "{call}");
    }
    program.play(
        "
        set asked struct:24:0x01000018,4,200,0,$list
        nvmlDeviceGetRunningProcessDetailList card asked -> 2
        nvmlDeviceGetRunningProcessDetailList card struct:24:0x02000018 -> 25
        nvmlDeviceGetProcessesUtilizationInfo card struct:24:7 -> 25
        nvmlDeviceGetAccountingMode card &n
        print n -> 1
        nvmlDeviceGetAccountingBufferSize card &n
        print n -> 4000
        ",
    );
    program.play(&rates(11, 20));
    let (_, accounts) = program.list("nvmlDeviceGetAccountingPids card &count LIST", 1);
    assert_eq!(accounts, [[b]]);
    program.play(&process(a, 6, 0, 0));
    program.play(&process(b, 0, 1, 0));
    program.play(&process(stranger, 6, 0, 6));
}

#[test]
fn a_number_that_cannot_be_translated_is_not_shown() {
    // The arbiter calls everybody otherwise, as it does in a namespace above ours.
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 1_000_000);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    let mut command = tenant(&arbiter);
    let mut program = Program::begin(command.env("LIBRARY_PIDS", SOMEBODY.to_string()));
    for (_, call, words) in running() {
        let nobody = ("0 0 0".to_owned(), Vec::new());
        assert_eq!(program.list(&call, words), nobody, "{call}");
    }
    assert_eq!(samples(&mut program), ("6".to_owned(), Vec::new()));
    program.play(&process(SOMEBODY, 6, 0, 6));
    // What they use counts all the same.
    program.play(&rates(10, 20));
    program.play(&memory(4096, 1000));
}

#[test]
fn what_a_process_calls_itself_is_what_it_is_called() {
    // The machine's numbers in the ledger and in the library's answers, ours on the screen.
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 1_000_000);
    arbiter.holds(1, SOMEBODY, 0, mib(1000));
    arbiter.says(1, 7);
    let mut command = tenant(&arbiter);
    let pids = format!("{SOMEBODY},{}", SOMEBODY + 1);
    let mut program = Program::begin(command.env("LIBRARY_PIDS", pids));
    for (kind, call, words) in running() {
        let (results, elements) = program.list(&call, words);
        assert_eq!(results, "7 1 0", "{kind}");
        assert_eq!([elements[0][0], elements[0][2] >> 20], [7, 1000], "{kind}");
    }
    assert_eq!(samples(&mut program), ("0".to_owned(), vec![[7, 10]]));
    let (_, accounts) = program.list("nvmlDeviceGetAccountingPids card &count LIST", 1);
    assert_eq!(accounts, [[7]]);
    program.play(&process(7, 0, 0, 0));
}

#[test]
fn nothing_of_the_card_can_be_changed() {
    // A strict tenant gets no functions that nobody can look into either.
    for (mode, export_table) in [(Mode::Compat, 0), (Mode::Strict, 3)] {
        let arbiter = granting(mode, &[(1, 4096)], 0);
        let mut program = Program::begin(&mut tenant(&arbiter));
        program.play(&format!(
            "
            nvmlDeviceSetPersistenceMode card 1 2 3 -> 4
            nvmlDeviceSetPowerManagementLimit card 1 2 3 -> 4
            nvmlDeviceResetGpuLockedClocks card 1 2 3 -> 4
            nvmlDeviceClearAccountingPids card 1 2 3 -> 4
            nvmlDeviceSetAccountingMode card 1 2 3 -> 4
            nvmlDeviceCreateGpuInstance card 1 2 3 -> 4
            nvmlDeviceSetMemoryLimits_v1 card 1 2 3 -> 4
            nvmlDeviceGetMemoryLimits_v1 card 1 2 3 -> 4
            # Unknown to the library, the program's own processors, and the private door.
            nvmlDeviceSetFanSpeed_v2 card 0 100 -> 13
            nvmlDeviceSetCpuAffinity card
            nvmlInternalGetExportTable &table \"id -> {export_table}
            "
        ));
    }
}

#[test]
fn without_an_arbiter_named_everything_is_forwarded() {
    let ask = |command: &mut Command| {
        let mut program = Program::begin(command.env("LIBRARY_PIDS", "5,6,7"));
        let mut all = program.answers(&card(0, 0, [0; 3], [0; 3]));
        for (_, call, words) in running() {
            all.push(format!("{:?}", program.list(&call, words)));
        }
        all.push(format!("{:?}", program.list(UTILIZATION, 8)));
        all.push(format!("{:?}", samples(&mut program)));
        all.extend(program.answers(&rates(0, 0)));
        all.extend(program.answers(&process(5, 0, 0, 0)));
        all
    };
    let direct = ask(&mut program(&file("library.so")));
    assert_eq!(ask(&mut program(&ours())), direct);
    // Named but absent: a compat tenant runs as if Sublet was not there.
    let absent = ask(program(&ours()).env("SUBLET_DIR", "/nowhere"));
    assert_eq!(absent, direct);
}

/// A program that is refused everything with this code, and told why.
fn is_refused(command: &mut Command, code: u32, why: &str) {
    Program::start(command).play(&format!(
        "
        nvmlDeviceGetCount_v2 &n -> {code}
        nvmlDeviceGetHandleByIndex_v2 40 &card -> {code}
        nvmlInit_v2 -> {code}
        nvmlInitWithFlags 7 -> {code}
        let said nvmlErrorString {code}
        text said -> {why}
        "
    ));
}

/// Our library's program, which may not run without the arbiter that is not there.
fn strict() -> Command {
    let mut command = program(&ours());
    command.env("SUBLET_DIR", "/nowhere");
    command.env("SUBLET_MODE", "strict");
    command
}

#[test]
fn without_its_arbiter_a_strict_tenant_sees_nothing() {
    let why = "no view from the arbiter at /nowhere/tenant.sock: cannot connect: No such file or \
               directory (os error 2)";
    is_refused(&mut strict(), 4, why);
}

#[test]
fn without_a_library_it_says_what_it_looked_for() {
    let why = "no libnvidia-ml.so.1 of NVIDIA's driver found; looked at \
               /nowhere/libnvidia-ml.so.1; SUBLET_DRIVER_NVML can name the file";
    let arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    for mut command in [program(&ours()), tenant(&arbiter), strict()] {
        command.env("SUBLET_DRIVER_NVML", "/nowhere/libnvidia-ml.so.1");
        is_refused(&mut command, 12, why);
    }
    // Our own library under the driver's name is none.
    let mut program = Program::start(program(&ours()).env("SUBLET_DRIVER_NVML", ours()));
    program.play("nvmlInit_v2 -> 12\nlet said nvmlErrorString 12");
    let why = program.call("text said");
    assert!(why.contains("(is Sublet's own)"), "{why}");
}

#[test]
fn a_changed_limit_is_seen_at_once_and_a_child_looks_for_itself() {
    let mut arbiter = granting(Mode::Compat, &[(1, 4096)], 0);
    let mut program = Program::begin(&mut tenant(&arbiter));
    program.play(&memory(4096, 0));
    arbiter.set_limit(0, mib(2048));
    arbiter.holds(1, SOMEBODY, 0, mib(64));
    program.play(&memory(2048, 64));
    // Without a heartbeat a successor is looked for; the same one answers with the same pages.
    arbiter.stop_beating();
    program.play(&memory(2048, 64));
    assert!(arbiter.hellos().len() <= 2, "not at each call");

    let arbiter = granting(Mode::Compat, &[(1, 512)], 0);
    let mut program = Program::begin(&mut tenant(&arbiter));
    program.play(&memory(512, 0));
    program.play_in_child(&memory(512, 0));
    program.play(&memory(512, 0));
    arbiter.expect_visits(2);
}
