//! The two libraries on one machine: libcuda and libnvidia-ml say the same of every card,
//! whatever product it is and wherever the description came from.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::{CString, c_char};

use own_process::{cast, context, memory, with_machine};
use sublet_driver_api::cuda as c;
use sublet_driver_api::nvml::{
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_CLOCK_SM, NVML_SUCCESS, nvmlClockType_t,
    nvmlDevice_t, nvmlMemory_t, nvmlPciInfo_t,
};

type Code = sublet_driver_api::nvml::nvmlReturn_t;

/// A function of the NVML twin, as a pointer of type `F`, which must be its type.
fn nvml<F: Copy>(symbol: &str) -> F {
    cast(sublet_fakegpu::nvml::entry(symbol).0.cast())
}

/// Asks NVML for a property of a card that is one value.
fn ask<T: Default>(symbol: &str, card: nvmlDevice_t) -> T {
    let mut value = T::default();
    let function: extern "C" fn(nvmlDevice_t, *mut T) -> Code = nvml(symbol);
    assert_eq!(function(card, &raw mut value), NVML_SUCCESS, "{symbol}");
    value
}

fn text(symbol: &str, card: nvmlDevice_t) -> String {
    let mut room = [0_u8; 96];
    let function: extern "C" fn(nvmlDevice_t, *mut u8, u32) -> Code = nvml(symbol);
    assert_eq!(
        function(card, room.as_mut_ptr(), 96),
        NVML_SUCCESS,
        "{symbol}"
    );
    until_zero(&room)
}

fn until_zero(room: &[u8]) -> String {
    let text = room.split(|byte| *byte == 0).next().unwrap();
    String::from_utf8(text.to_vec()).unwrap()
}

fn clock(card: nvmlDevice_t, kind: nvmlClockType_t) -> i32 {
    type Clock = extern "C" fn(nvmlDevice_t, nvmlClockType_t, *mut u32) -> Code;
    let function: Clock = nvml("nvmlDeviceGetMaxClockInfo");
    let mut mhz = 0;
    assert_eq!(function(card, kind, &raw mut mhz), NVML_SUCCESS);
    mhz.cast_signed()
}

fn attribute(device: i32, attribute: c::CUdevice_attribute) -> i32 {
    let mut value = -7;
    let code =
        cu!(cuDeviceGetAttribute, &raw mut value => *mut i32, attribute.0 => u32, device => i32);
    assert_eq!(code, 0, "{attribute:?}");
    value
}

/// NVML's card with the UUID of a device; the numbers of both may differ.
fn card_of(device: i32) -> nvmlDevice_t {
    let mut uuid = [0_u8; 16];
    ok!(cuDeviceGetUuid, uuid.as_mut_ptr() => *mut u8, device => i32);
    let uuid = CString::new(sublet_fakegpu::spec::CardUuid(uuid).to_string()).unwrap();
    let by_uuid: extern "C" fn(*const c_char, *mut nvmlDevice_t) -> Code =
        nvml("nvmlDeviceGetHandleByUUID");
    let mut card = nvmlDevice_t(0);
    assert_eq!(by_uuid(uuid.as_ptr(), &raw mut card), NVML_SUCCESS);
    card
}

/// Everything that both libraries tell of a card, compared.
fn compare(device: i32) {
    let card = card_of(device);
    names_agree(device, card);
    places_agree(device, card);
    figures_agree(device, card);
}

fn names_agree(device: i32, card: nvmlDevice_t) {
    let mut name = [0_u8; 96];
    ok!(cuDeviceGetName, name.as_mut_ptr() => *mut u8, 96 => i32, device => i32);
    assert_eq!(until_zero(&name), text("nvmlDeviceGetName", card));
    // An instance would have a UUID of its own in the second form.
    let [mut whole, mut part] = [[0_u8; 16]; 2];
    ok!(cuDeviceGetUuid, whole.as_mut_ptr() => *mut u8, device => i32);
    ok!(cuDeviceGetUuid_v2, part.as_mut_ptr() => *mut u8, device => i32);
    let uuid = sublet_fakegpu::spec::CardUuid(whole).to_string();
    assert_eq!((whole, uuid), (part, text("nvmlDeviceGetUUID", card)));
    let has_mig: extern "C" fn(nvmlDevice_t, *mut u32, *mut u32) -> Code =
        nvml("nvmlDeviceGetMigMode");
    let (mut now, mut next) = (7, 7);
    let code = has_mig(card, &raw mut now, &raw mut next);
    assert!(code != NVML_SUCCESS || (now, next) == (0, 0), "{code:?}");
    assert_eq!(
        (code == NVML_SUCCESS),
        ask::<u32>("nvmlDeviceGetMaxMigDeviceCount", card) > 0
    );
}

fn place_of(device: i32) -> String {
    let mut place = [0_u8; 32];
    ok!(cuDeviceGetPCIBusId, place.as_mut_ptr() => *mut u8, 32 => i32, device => i32);
    until_zero(&place)
}

fn places_agree(device: i32, card: nvmlDevice_t) {
    let place = place_of(device);
    let pci: nvmlPciInfo_t = ask("nvmlDeviceGetPciInfo_v3", card);
    let short = until_zero(&pci.busIdLegacy).to_ascii_lowercase();
    assert_eq!(place.to_ascii_lowercase(), short);
    let is = |asked| attribute(device, asked).cast_unsigned();
    let numbers = [
        c::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        c::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        c::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        c::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID,
        c::CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID,
    ];
    let known = [
        pci.domain,
        pci.bus,
        pci.device,
        pci.pciDeviceId,
        pci.pciSubSystemId,
    ];
    assert_eq!(numbers.map(is), known);
    // One finds its card by what the other one writes.
    let by_place: extern "C" fn(*const c_char, *mut nvmlDevice_t) -> Code =
        nvml("nvmlDeviceGetHandleByPciBusId_v2");
    let mut same = nvmlDevice_t(0);
    let place = CString::new(place).unwrap();
    assert_eq!(by_place(place.as_ptr(), &raw mut same), NVML_SUCCESS);
    assert_eq!(same, card);
}

fn figures_agree(device: i32, card: nvmlDevice_t) {
    let is = |asked| attribute(device, asked);
    let mut total = 0_usize;
    ok!(cuDeviceTotalMem_v2, &raw mut total => *mut usize, device => i32);
    let known: nvmlMemory_t = ask("nvmlDeviceGetMemoryInfo", card);
    assert_eq!((total as u64, known.used), (known.total, 0));
    let capability: extern "C" fn(nvmlDevice_t, *mut i32, *mut i32) -> Code =
        nvml("nvmlDeviceGetCudaComputeCapability");
    let (mut major, mut minor) = (0, 0);
    assert_eq!(
        capability(card, &raw mut major, &raw mut minor),
        NVML_SUCCESS
    );
    let told = [
        c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ];
    assert_eq!(told.map(is), [major, minor]);
    // CUDA tells clocks in kHz.
    let clocks = [NVML_CLOCK_SM, NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM].map(|kind| clock(card, kind));
    let (chip, memory) = (
        is(c::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000,
        is(c::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1000,
    );
    assert_eq!(clocks, [chip, chip, memory]);
    let mode = ask::<u32>("nvmlDeviceGetComputeMode", card).cast_signed();
    assert_eq!(is(c::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), mode);
    // NVML's ECC mode is "not supported".
    assert_eq!(is(c::CU_DEVICE_ATTRIBUTE_ECC_ENABLED), 0);
}

fn versions_agree() {
    let (mut cuda, mut known) = (0, 0);
    ok!(cuDriverGetVersion, &raw mut cuda => *mut i32);
    let version: extern "C" fn(*mut i32) -> Code = nvml("nvmlSystemGetCudaDriverVersion_v2");
    assert_eq!(version(&raw mut known), NVML_SUCCESS);
    assert_eq!(cuda, known);
}

/// Compares all cards; how many there are.
fn compare_all() -> i32 {
    let start: extern "C" fn() -> Code = nvml("nvmlInit_v2");
    assert_eq!(start(), NVML_SUCCESS);
    ok!(cuInit, 0 => u32);
    let mut n_devices = 0;
    ok!(cuDeviceGetCount, &raw mut n_devices => *mut i32);
    let count: extern "C" fn(*mut u32) -> Code = nvml("nvmlDeviceGetCount_v2");
    let mut n_cards = 0_u32;
    assert_eq!(count(&raw mut n_cards), NVML_SUCCESS);
    assert_eq!(n_devices, n_cards.cast_signed());
    (0..n_devices).for_each(compare);
    versions_agree();
    n_devices
}

#[test]
fn both_libraries_agree_on_a_card_without_a_model() {
    const NAME: &str = "both_libraries_agree_on_a_card_without_a_model";
    with_machine(NAME, "3x16GiB", || assert_eq!(compare_all(), 3));
}

#[test]
fn both_libraries_agree_on_a_product() {
    const NAME: &str = "both_libraries_agree_on_a_product";
    with_machine(NAME, "2x48GiB,name=NVIDIA L40S", || {
        assert_eq!(compare_all(), 2);
        let is = |asked| attribute(1, asked);
        assert_eq!(is(c::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 142);
        assert_eq!(is(c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), 9);
        assert_eq!(
            is(c::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
            1536
        );
        assert_eq!(
            is(c::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            101_376
        );
        assert_eq!(is(c::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH), 0);
        // What may be launched follows from the same facts.
        context();
        let function = own_process::kernel("all_reduce");
        let launch = |blocks: u32| cu!(cuLaunchCooperativeKernel, function => u64, blocks => u32, 1 => u32, 1 => u32, 1024 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64, std::ptr::null_mut() => *mut *mut u8);
        assert_eq!(
            launch(143),
            720,
            "one block of 1024 threads a multiprocessor"
        );
        let mut blocks = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor, &raw mut blocks => *mut i32, function => u64, 32 => i32, 0 => usize);
        assert_eq!(blocks, 24);
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor, &raw mut blocks => *mut i32, function => u64, 32 => i32, 49_000 => usize);
        assert_eq!(blocks, 2);
    });
}

#[test]
fn both_libraries_agree_on_the_cards_of_a_file() {
    const NAME: &str = "both_libraries_agree_on_the_cards_of_a_file";
    const FILE: &str = "
gpus:
- {memory: 80GiB, model: NVIDIA A100-SXM4-80GB, bdf: '0002:3b:01.0', minor: 5,
   uuid: GPU-00112233-4455-6677-8899-aabbccddeeff}
- {memory: 15GiB, model: Tesla T4}
- {memory: 16276MiB}
";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), FILE).unwrap();
    with_machine(NAME, file.path().to_str().unwrap(), || {
        assert_eq!(compare_all(), 3);
        let at = |place: &str| (0..3).find(|device| place_of(*device) == place).unwrap();
        let devices = ["0002:3b:01.0", "0000:18:00.0", "0000:20:00.0"].map(at);
        let size = |device| attribute(device, c::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        assert_eq!(devices.map(size), [108, 40, 132]);
        let minor = |device| ask::<u32>("nvmlDeviceGetMinorNumber", card_of(device));
        assert_eq!(devices.map(minor), [5, 1, 2]);
        assert_eq!(
            text("nvmlDeviceGetUUID", card_of(devices[0])),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
        // Memory in use is the same on both sides, too.
        context();
        let known: nvmlMemory_t = ask("nvmlDeviceGetMemoryInfo", card_of(0));
        assert_eq!(
            (known.free, known.total),
            (memory().0 as u64, memory().1 as u64)
        );
        assert_eq!(known.used, 480 << 20);
    });
}
