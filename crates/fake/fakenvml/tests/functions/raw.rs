//! The library called as C does.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use sublet_driver_api::nvml::{
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_UNINITIALIZED,
    NVML_FI_DEV_ECC_CURRENT, NVML_FI_DEV_POWER_INSTANT, NVML_SUCCESS, NVML_UUID_TYPE_BINARY,
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2,
    nvmlMemory_v2_t, nvmlPciInfo_t, nvmlReturn_t, nvmlUUID_v1, nvmlUUID_v1_t, nvmlUUIDValue_t,
};
use sublet_driver_api::{NVML, Zeroed};

use super::test_machine;

/// The loaded library.
pub(crate) struct Library(*mut c_void);

impl Library {
    pub(crate) fn load() -> Library {
        let path = CString::new(test_machine::library().as_os_str().as_bytes()).unwrap();
        // SAFETY: the library's start code does nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cannot load {path:?}");
        Library(handle)
    }

    /// A function, as a pointer of type `F`, which must be its type.
    pub(crate) fn function<F: Copy>(&self, symbol: &str) -> F {
        let name = CString::new(symbol).unwrap();
        // SAFETY: the handle is open, the name ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{symbol} is not exported");
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: a function pointer has the size and form of an address.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// A function without arguments.
    pub(crate) fn call(&self, symbol: &str) -> nvmlReturn_t {
        self.function::<extern "C" fn() -> nvmlReturn_t>(symbol)()
    }

    /// A function that writes one value about a card.
    pub(crate) fn ask<T: Zeroed>(&self, symbol: &str, device: nvmlDevice_t) -> (nvmlReturn_t, T) {
        type Ask<T> = extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;
        let mut value = T::ZERO;
        let code = self.function::<Ask<T>>(symbol)(device, &raw mut value);
        (code, value)
    }

    /// A function that writes a text about a card.
    pub(crate) fn text(
        &self,
        symbol: &str,
        device: nvmlDevice_t,
        room: u32,
    ) -> (nvmlReturn_t, String) {
        type Text = extern "C" fn(nvmlDevice_t, *mut c_char, u32) -> nvmlReturn_t;
        let mut text = [0_u8; 96];
        let code = self.function::<Text>(symbol)(device, text.as_mut_ptr().cast(), room);
        let text = text.split(|byte| *byte == 0).next().unwrap();
        (code, String::from_utf8(text.to_vec()).unwrap())
    }

    pub(crate) fn card(&self, index: u32) -> nvmlDevice_t {
        type ByIndex = extern "C" fn(u32, *mut nvmlDevice_t) -> nvmlReturn_t;
        let mut device = nvmlDevice_t(0);
        let by_index: ByIndex = self.function("nvmlDeviceGetHandleByIndex_v2");
        assert_eq!(by_index(index, &raw mut device), NVML_SUCCESS);
        device
    }
}

type Six = extern "C" fn(usize, usize, usize, usize, usize, usize) -> nvmlReturn_t;

/// These change what the test looks at, or return no code.
const APART: [&str; 5] = [
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlErrorString",
];

/// These need no start.
const ALWAYS: [&str; 4] = [
    "nvmlInternalGetExportTable",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetNVMLVersion",
];

#[test]
fn every_function_is_exported_and_takes_nothing_for_an_answer() {
    if !test_machine::inside(
        "raw::every_function_is_exported_and_takes_nothing_for_an_answer",
        "2x16GiB",
    ) {
        return;
    }
    let library = Library::load();
    let nothing = |symbol| library.function::<Six>(symbol)(0, 0, 0, 0, 0, 0);
    let rows = NVML.iter().filter(|row| !APART.contains(&row.symbol));
    for row in rows.clone().filter(|row| !ALWAYS.contains(&row.symbol)) {
        assert_eq!(
            nothing(row.symbol),
            NVML_ERROR_UNINITIALIZED,
            "{}",
            row.symbol
        );
    }
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    let refusals = [
        NVML_ERROR_INVALID_ARGUMENT,
        NVML_ERROR_NOT_SUPPORTED,
        NVML_ERROR_NO_PERMISSION,
        NVML_ERROR_NOT_FOUND,
    ];
    for row in rows {
        let code = nothing(row.symbol);
        assert!(refusals.contains(&code), "{}: {code:?}", row.symbol);
    }
    for symbol in APART {
        library.function::<*const c_void>(symbol);
    }
}

#[test]
fn starts_are_counted() {
    if !test_machine::inside("raw::starts_are_counted", "1x80GiB,name=H100") {
        return;
    }
    let library = Library::load();
    let count = || {
        let mut count = 0;
        type Count = extern "C" fn(*mut u32) -> nvmlReturn_t;
        let code = library.function::<Count>("nvmlDeviceGetCount_v2")(&raw mut count);
        (code, count)
    };
    assert_eq!(library.call("nvmlShutdown"), NVML_ERROR_UNINITIALIZED);
    assert_eq!(count(), (NVML_ERROR_UNINITIALIZED, 0));
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    type Flags = extern "C" fn(u32) -> nvmlReturn_t;
    assert_eq!(
        library.function::<Flags>("nvmlInitWithFlags")(1),
        NVML_SUCCESS
    );
    assert_eq!(library.call("nvmlShutdown"), NVML_SUCCESS);
    assert_eq!(count(), (NVML_SUCCESS, 1));
    assert_eq!(library.call("nvmlShutdown"), NVML_SUCCESS);
    assert_eq!(count().0, NVML_ERROR_UNINITIALIZED);
    assert_eq!(library.call("nvmlInit"), NVML_SUCCESS);
    assert_eq!(count(), (NVML_SUCCESS, 1));
}

#[test]
fn no_machine_is_no_driver() {
    if !test_machine::inside("raw::no_machine_is_no_driver", "two big ones") {
        return;
    }
    assert_eq!(
        Library::load().call("nvmlInit_v2"),
        NVML_ERROR_DRIVER_NOT_LOADED
    );
}

#[test]
fn buffers_versions_and_handles_are_checked() {
    if !test_machine::inside(
        "raw::buffers_versions_and_handles_are_checked",
        "2x16GiB,name=Tesla T4",
    ) {
        return;
    }
    let library = Library::load();
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    let card = library.card(1);
    let name = |room| library.text("nvmlDeviceGetName", card, room);
    assert_eq!(name(9), (NVML_SUCCESS, "Tesla T4".to_owned()));
    assert_eq!(name(8), (NVML_ERROR_INSUFFICIENT_SIZE, String::new()));
    assert_eq!(name(0).0, NVML_ERROR_INSUFFICIENT_SIZE);
    let wrong = nvmlDevice_t(card.0 + 1);
    assert_eq!(
        library.text("nvmlDeviceGetName", wrong, 96).0,
        NVML_ERROR_INVALID_ARGUMENT
    );

    let gib = 1 << 30;
    let (code, memory) = library.ask::<nvmlMemory_t>("nvmlDeviceGetMemoryInfo", card);
    assert_eq!(
        (code, memory.total, memory.used),
        (NVML_SUCCESS, 16 * gib, 0)
    );
    type Memory = extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;
    let info: Memory = library.function("nvmlDeviceGetMemoryInfo_v2");
    let mut memory = nvmlMemory_v2_t::ZERO;
    assert_eq!(
        info(card, &raw mut memory),
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    );
    memory.version = nvmlMemory_v2;
    assert_eq!(info(card, &raw mut memory), NVML_SUCCESS);
    assert_eq!(
        (memory.total, memory.free, memory.reserved),
        (16 * gib, 16 * gib, 0)
    );
    pci_structs_grow(&library, card);
    a_binary_uuid_is_found(&library, card);
}

/// Memory behind the old structs is the caller's.
fn pci_structs_grow(library: &Library, card: nvmlDevice_t) {
    let mut pci = nvmlPciInfo_t {
        pciSubSystemId: 7,
        busId: [9; 32],
        ..Zeroed::ZERO
    };
    type Pci = extern "C" fn(nvmlDevice_t, *mut nvmlPciInfo_t) -> nvmlReturn_t;
    assert_eq!(
        library.function::<Pci>("nvmlDeviceGetPciInfo")(card, &raw mut pci),
        NVML_SUCCESS
    );
    assert_eq!(
        (&pci.busIdLegacy[..12], pci.bus),
        (&b"0000:18:00.0"[..], 0x18)
    );
    assert_eq!((pci.pciDeviceId, pci.pciSubSystemId), (0x1eb8_10de, 7));
    library.function::<Pci>("nvmlDeviceGetPciInfo_v2")(card, &raw mut pci);
    assert_eq!((pci.pciSubSystemId, pci.busId), (0x1eb8_10de, [9; 32]));
    library.function::<Pci>("nvmlDeviceGetPciInfo_v3")(card, &raw mut pci);
    assert_eq!(&pci.busId[..17], b"00000000:18:00.0\0");
}

fn a_binary_uuid_is_found(library: &Library, card: nvmlDevice_t) {
    let own = test_machine::machine().cards()[1].uuid.0;
    let mut uuid = nvmlUUID_v1_t {
        version: nvmlUUID_v1,
        r#type: NVML_UUID_TYPE_BINARY.0,
        value: nvmlUUIDValue_t::ZERO,
    };
    uuid.value.str[..16].copy_from_slice(&own);
    type ByUuid = extern "C" fn(*const nvmlUUID_v1_t, *mut nvmlDevice_t) -> nvmlReturn_t;
    let by_uuid: ByUuid = library.function("nvmlDeviceGetHandleByUUIDV");
    let mut found = nvmlDevice_t(0);
    assert_eq!(
        (by_uuid(&raw const uuid, &raw mut found), found),
        (NVML_SUCCESS, card)
    );
}

#[test]
fn waiting_for_events_ends_with_the_time() {
    if !test_machine::inside("raw::waiting_for_events_ends_with_the_time", "1x16GiB") {
        return;
    }
    let library = Library::load();
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    let card = library.card(0);
    let (code, types) = library.ask::<u64>("nvmlDeviceGetSupportedEventTypes", card);
    assert_eq!((code, types), (NVML_SUCCESS, 8));
    let mut set = nvmlEventSet_t(0);
    type Create = extern "C" fn(*mut nvmlEventSet_t) -> nvmlReturn_t;
    assert_eq!(
        library.function::<Create>("nvmlEventSetCreate")(&raw mut set),
        NVML_SUCCESS
    );
    type Register = extern "C" fn(nvmlDevice_t, u64, nvmlEventSet_t) -> nvmlReturn_t;
    let register: Register = library.function("nvmlDeviceRegisterEvents");
    assert_eq!(register(card, 8, set), NVML_SUCCESS);
    assert_eq!(register(card, 1, set), NVML_ERROR_NOT_SUPPORTED);
    assert_eq!(register(card, 1 << 60, set), NVML_ERROR_INVALID_ARGUMENT);
    type Wait = extern "C" fn(nvmlEventSet_t, *mut nvmlEventData_t, u32) -> nvmlReturn_t;
    let wait: Wait = library.function("nvmlEventSetWait_v2");
    let mut data = nvmlEventData_t::ZERO;
    let begin = Instant::now();
    assert_eq!(wait(set, &raw mut data, 30), NVML_ERROR_TIMEOUT);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    type Free = extern "C" fn(nvmlEventSet_t) -> nvmlReturn_t;
    let free: Free = library.function("nvmlEventSetFree");
    assert_eq!(free(set), NVML_SUCCESS);
    assert_eq!(free(set), NVML_ERROR_INVALID_ARGUMENT);
    assert_eq!(
        wait(set, &raw mut data, 60_000),
        NVML_ERROR_INVALID_ARGUMENT
    );
}

#[test]
fn each_field_has_its_own_code() {
    if !test_machine::inside("raw::each_field_has_its_own_code", "1x16GiB,name=H200") {
        return;
    }
    let library = Library::load();
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    let field = |id| nvmlFieldValue_t {
        fieldId: id,
        ..Zeroed::ZERO
    };
    let mut values = [
        field(NVML_FI_DEV_POWER_INSTANT),
        field(NVML_FI_DEV_ECC_CURRENT),
        field(0),
    ];
    type Fields = extern "C" fn(nvmlDevice_t, i32, *mut nvmlFieldValue_t) -> nvmlReturn_t;
    let fields: Fields = library.function("nvmlDeviceGetFieldValues");
    assert_eq!(
        fields(library.card(0), 3, values.as_mut_ptr()),
        NVML_SUCCESS
    );
    let codes = values.map(|value| value.nvmlReturn);
    assert_eq!(
        codes,
        [
            NVML_SUCCESS,
            NVML_ERROR_NOT_SUPPORTED,
            NVML_ERROR_INVALID_ARGUMENT
        ]
    );
    assert_eq!(
        values[0].value.ullVal, 70_000,
        "a tenth of 700 W, in milliwatts"
    );
    assert!(values[0].timestamp > 0);
    assert_eq!(
        fields(library.card(0), -1, values.as_mut_ptr()),
        NVML_ERROR_INVALID_ARGUMENT
    );
}

#[test]
fn a_fault_is_made_on_demand() {
    let test = "raw::a_fault_is_made_on_demand";
    match test_machine::role().as_deref() {
        None => {
            test_machine::inside(test, "1x16GiB");
        }
        Some("test") => {
            let mut command = test_machine::copy(test, "faulty");
            command.env("SUBLET_FAKE_FAULT", "nvmlDeviceGetMemoryInfo:15:2");
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Some(_) => {
            let library = Library::load();
            assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
            let code = || {
                let card = library.card(0);
                library
                    .ask::<nvmlMemory_t>("nvmlDeviceGetMemoryInfo", card)
                    .0
                    .0
            };
            assert_eq!([code(), code(), code()], [0, 15, 0]);
        }
    }
}
